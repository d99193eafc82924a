//! What memory holds: all that is live, and nothing that is settled.
//!
//! Invariants:
//! - The state is a fold of the log: [`State::apply`] is the only way to change it, and it reads no
//!   clock, draws no chance and does no I/O.
//! - Folding the whole log, and folding only the records that [`State::needed`] names and all newer
//!   ones, give the same state (I19: memory and opening are bounded by what is live).
//! - The graph holds exactly the effects in memory; a live effect never rests on a doomed one (I5).

mod apply;
mod artifact;
mod branch;
mod breaks;
mod confirm;
mod effect;
mod effects;
mod fold_branch;
mod fold_effect;
mod fold_fence;
mod fold_governed;
mod fold_rollback;
mod fold_step;
mod fold_void;
mod id_set;
mod keys;
mod release;
mod rollback;
mod tip;
mod undo;
mod view;
mod weight;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use artifact::{Artifacts, Paired, pair_named, pair_of};
pub use branch::{Branch, Held};
pub use breaks::{Break, Breaks};
pub use confirm::Owners;
pub use effect::{Delivery, Effect};
pub use effects::{Brief, Effects};
pub use id_set::IdSet;
pub use keys::{KeyEntry, Keys, LaterWriter, Trace};
pub use rollback::{Asked, Rollback, Step, StepStatus};
pub use undo::{Guard, Undo};
pub use weight::{ApprovalNeed, Weight};

use crate::graph::{LiveGraph, Scratch};
use crate::model::{
    AlertInfo, ApprovalId, ApprovalInfo, BranchId, BreakId, EffectId, EffectState, FenceId, Key,
    Limits, MemberSet, Policy, RollbackId, RootCause, StepHold, Target,
};

/// A commit that waits.
#[derive(Clone, Debug)]
pub struct Intent {
    /// Its id, which the fence keeps.
    pub id: FenceId,
    /// The effects that it asks for; void ones drop out.
    pub targets: BTreeSet<EffectId>,
    /// What was named.
    pub target: Vec<Target>,
    /// Who asked.
    pub by: Option<String>,
    /// Blockers found at the last look. The last one is watched; the closure is looked at again
    /// only when all of them are gone, so waiting costs nothing.
    pub blockers: Vec<EffectId>,
    /// A fence committed targets of it.
    pub committed: bool,
    /// Records of the targets that another fence has committed: without them a start would not know that
    /// one was.
    pub records: Vec<u64>,
}

/// An approval and the records that memory needs for it.
#[derive(Clone, Debug)]
pub struct Approval {
    /// What is known of it.
    pub info: ApprovalInfo,
    /// An early start used it up.
    pub used: bool,
    /// Records that memory needs for it.
    pub records: Vec<u64>,
}

/// Something that falls due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A branch's lease.
    Lease(BranchId),
    /// A claimed step's lease.
    Step(EffectId),
    /// A delivery's lease.
    Delivery(EffectId),
    /// An inverse's deadline.
    Window(EffectId),
    /// The time of the agents of a rollback to confirm.
    Confirm(RollbackId),
    /// The time to acknowledge a BREAK.
    Acks(BreakId),
    /// A rollback should be done by now.
    Overdue(RollbackId),
}

/// The live state.
pub struct State {
    /// The last record folded.
    pub head: u64,
    /// The store's id.
    pub store_id: [u8; 16],
    /// How often the store was restored, plus one.
    pub incarnation: u64,
    /// Limits in force.
    pub limits: Limits,
    /// Policy in force.
    pub policy: Policy,
    /// Who froze the store, and why.
    pub frozen: Option<(String, String)>,
    /// Records that hold the settings.
    pub settings: Vec<u64>,
    /// Branches in memory.
    pub branches: BTreeMap<BranchId, Branch>,
    /// The same by name.
    pub names: BTreeMap<String, BranchId>,
    /// Effects in memory.
    pub effects: Effects,
    /// How many of them are live.
    pub live: u64,
    /// Live effects whose call runs.
    pub running: BTreeSet<EffectId>,
    /// Who rests on whom.
    pub graph: LiveGraph,
    /// Scratch space of walks over the graph.
    pub scratch: Scratch,
    /// Whether an edge to a newer effect was ever added since this memory began; if not, walks can
    /// stop at the oldest id that matters.
    pub late_edges: bool,
    /// Keys in memory.
    pub keys: Keys,
    /// Commits that wait.
    pub intents: BTreeMap<FenceId, Intent>,
    /// Intents whose watched blocker is gone.
    pub awake: BTreeSet<FenceId>,
    /// Rollbacks in memory.
    pub rollbacks: BTreeMap<RollbackId, Rollback>,
    /// Whose effects each of them undoes, as far as somebody asked.
    pub owners: BTreeMap<RollbackId, Owners>,
    /// Governed rollbacks that nobody has approved yet.
    pub requests: BTreeMap<RollbackId, Asked>,
    /// The newest root causes of each kind, so that a repeated one is seen.
    pub causes: BTreeMap<u64, RootCause>,
    /// Which inverses may start; rebuilt when the plan changes.
    pub order: Option<Undo>,
    /// Committed deferred effects that are still to run.
    pub outbox: BTreeSet<EffectId>,
    /// Approvals in memory.
    pub approvals: BTreeMap<ApprovalId, Approval>,
    /// Alerts that nobody has acknowledged.
    pub alerts: BTreeMap<u64, AlertInfo>,
    /// BREAKs that are not over.
    pub breaks: Breaks,
    /// Pairs of artifacts that may still change.
    pub artifacts: Artifacts,
    /// Effects whose step is claimed, or that are handed out to run.
    pub at_work: BTreeSet<EffectId>,
    /// What falls due, by moment.
    pub timers: BTreeSet<(u64, Timer)>,
    /// Fences, by record, whose members memory has still to let go. See [`State::tidy`].
    pub settling: VecDeque<(u64, MemberSet)>,
    /// Settles since then.
    pub settles: u64,
    /// Rollbacks whose report or approval may have changed since the follow-up last looked.
    pub touched: BTreeSet<RollbackId>,
}

impl Default for State {
    fn default() -> Self {
        State {
            head: 0,
            store_id: [0; 16],
            incarnation: 1,
            limits: Limits::default(),
            policy: Policy::default(),
            frozen: None,
            settings: Vec::new(),
            branches: BTreeMap::new(),
            names: BTreeMap::new(),
            effects: Effects::default(),
            live: 0,
            running: BTreeSet::new(),
            graph: LiveGraph::new(),
            scratch: Scratch::new(),
            late_edges: false,
            keys: Keys::default(),
            intents: BTreeMap::new(),
            awake: BTreeSet::new(),
            rollbacks: BTreeMap::new(),
            owners: BTreeMap::new(),
            requests: BTreeMap::new(),
            causes: BTreeMap::new(),
            order: None,
            outbox: BTreeSet::new(),
            approvals: BTreeMap::new(),
            alerts: BTreeMap::new(),
            breaks: Breaks::default(),
            artifacts: Artifacts::default(),
            at_work: BTreeSet::new(),
            timers: BTreeSet::new(),
            settling: VecDeque::new(),
            settles: 0,
            touched: BTreeSet::new(),
        }
    }
}

/// Ids as the graph takes them.
pub(crate) fn raw<'a>(ids: impl IntoIterator<Item = &'a EffectId>) -> Vec<u64> {
    ids.into_iter().map(|id| id.0).collect()
}

/// Ids as the graph gives them.
pub(crate) fn ids(raw: Vec<u64>) -> Vec<EffectId> {
    raw.into_iter().map(EffectId).collect()
}

impl State {
    /// The effect, if it is in memory and live.
    pub fn live_effect(&self, id: EffectId) -> Option<&Effect> {
        self.effects.get(id).filter(|effect| effect.is_live())
    }

    /// Whether the effect is in memory and live.
    pub fn is_live(&self, id: EffectId) -> bool {
        self.effects.brief(id).is_some_and(|(brief, _)| brief.is_live())
    }

    /// The branch itself and those above it, from it up.
    pub fn lineage(&self, branch: BranchId) -> Vec<BranchId> {
        let mut line = Vec::new();
        let mut next = Some(branch);
        while let Some(id) = next {
            line.push(id);
            next = self.branches.get(&id).and_then(|branch| branch.parent);
        }
        line
    }

    /// The branch itself and all open ones below it.
    pub fn family(&self, branch: BranchId) -> Vec<BranchId> {
        let mut family = vec![branch];
        let mut place = 0;
        while place < family.len() {
            if let Some(branch) = self.branches.get(&family[place]) {
                family.extend(branch.children.iter().copied());
            }
            place += 1;
        }
        family
    }

    /// A branch's own live effects, ascending.
    pub fn live_of(&self, branch: BranchId) -> Vec<EffectId> {
        self.branches.get(&branch).map_or_else(Vec::new, |branch| self.living(&branch.effects))
    }

    /// Those of a set that are live, ascending.
    pub fn living(&self, set: &IdSet) -> Vec<EffectId> {
        let mut living = set.to_vec();
        let mut briefs = self.effects.briefs();
        living.retain(|id| briefs.get(*id).is_some_and(|(brief, _)| brief.is_live()));
        living
    }

    /// All that these effects rest on and that is not committed, themselves included, ascending.
    pub fn closure(&mut self, targets: &[EffectId]) -> Vec<EffectId> {
        if self.settling.is_empty() {
            return ids(self.graph.closure(&mut self.scratch, &raw(targets)));
        }
        // What an earlier fence of this transaction committed is still in the graph.
        let (graph, effects) = (&self.graph, &self.effects);
        let mut open = |id: u64| {
            effects.get(EffectId(id)).is_some_and(|effect| effect.state != EffectState::Committed)
        };
        ids(graph.closure_where(&mut self.scratch, &raw(targets), &mut open))
    }

    /// All live effects that rest on these, themselves included, ascending.
    pub fn cascade(&mut self, targets: &[EffectId]) -> Vec<EffectId> {
        let mut briefs = self.effects.briefs();
        let live = |id: u64| briefs.get(EffectId(id)).is_some_and(|(brief, _)| brief.is_live());
        ids(self.graph.cascade_where(&mut self.scratch, &raw(targets), live))
    }

    /// Live writers of a key, in the order of their writes.
    pub fn live_writers(&self, key: &Key) -> Vec<EffectId> {
        self.keys.get(key).map_or_else(Vec::new, |entry| {
            entry
                .writers
                .iter()
                .copied()
                .filter(|writer| self.live_effect(*writer).is_some())
                .collect()
        })
    }

    /// Doomed writers of a key that are not yet undone and settled (C58).
    pub fn dirty_writers(&self, key: &Key) -> Vec<EffectId> {
        self.keys.get(key).map_or_else(Vec::new, |entry| {
            entry
                .writers
                .iter()
                .copied()
                .filter(|writer| self.effects.get(*writer).is_some_and(Effect::is_dirty))
                .collect()
        })
    }

    /// Writers of a key whose call is in flight, and delivered readers of it.
    pub fn busy_writers(&self, key: &Key) -> Vec<EffectId> {
        self.keys.get(key).map_or_else(Vec::new, |entry| {
            let mut busy: Vec<EffectId> = entry
                .writers
                .iter()
                .chain(&entry.delivered_readers)
                .copied()
                .filter(|id| {
                    self.effects.get(*id).is_some_and(|effect| {
                        effect.is_running() && !(effect.is_doomed() && effect.closed)
                    })
                })
                .collect();
            busy.sort_unstable();
            busy.dedup();
            busy
        })
    }

    /// What workers are at: claimed steps, and effects that are handed out. The number of each token
    /// is that of the record which handed it out.
    pub fn holds(&self) -> Vec<StepHold> {
        let token = |id: &EffectId| {
            let effect = self.effects.get(*id)?;
            match effect.step.as_ref().map(|step| &step.status) {
                Some(StepStatus::Claimed { token, .. }) => Some(*token),
                _ => Some(effect.token),
            }
        };
        let held = |id: &EffectId| Some(StepHold { effect: *id, token: token(id)? });
        self.at_work.iter().filter_map(held).collect()
    }

    /// The next moment at which something falls due, in milliseconds.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.timers.first().map(|(moment, _)| *moment)
    }

    /// Records that memory needs: with these and all newer ones, folding gives this state again.
    pub fn needed(&self) -> BTreeSet<u64> {
        let mut needed: BTreeSet<u64> = self.settings.iter().copied().collect();
        for branch in self.branches.values() {
            needed.extend(branch.records.iter().copied().chain(branch.lease_record));
        }
        for effect in self.effects.iter() {
            needed.extend(effect.records.iter().copied());
            for key in &effect.writes {
                if let Some(later) = self.keys.get(key).and_then(|entry| entry.later.as_ref()) {
                    needed.extend(later.records.iter().copied());
                }
            }
        }
        self.keys.needed(&mut needed);
        for intent in self.intents.values() {
            needed.insert(intent.id.0);
            needed.extend(intent.records.iter().copied());
        }
        for rollback in self.rollbacks.values() {
            needed.extend(rollback.records.iter().copied().chain(rollback.confirm_record));
        }
        for asked in self.requests.values() {
            needed.extend(asked.records.iter().copied());
        }
        needed.extend(self.causes.keys().copied());
        for approval in self.approvals.values() {
            needed.extend(approval.records.iter().copied());
        }
        needed.extend(self.alerts.keys().copied());
        self.breaks.needed(&mut needed);
        needed.extend(self.artifacts.records());
        needed
    }
}
