//! Folding what happens to branches, and the sets that a branch keeps: tip, observations, refusals.

use std::collections::{BTreeMap, BTreeSet};

use super::{Branch, Held, IdSet, State, Timer};
use crate::model::{
    BranchId, BranchState, EffectId, Event, Inherited, Observation, Overwrite, ReadRule, Token,
};

impl State {
    pub(super) fn fold_branch(&mut self, seq: u64, now_ms: u64, event: &Event) {
        match event {
            Event::BranchCreated { name, agent, parent, reads, overwrite, lease_ms, inherited } => {
                let made = Made {
                    name,
                    agent,
                    parent: *parent,
                    reads: *reads,
                    overwrite: *overwrite,
                    lease_ms: *lease_ms,
                    inherited: inherited.as_deref(),
                };
                self.create_branch(seq, now_ms, &made);
            }
            Event::BranchTaken { branch, worker_gone, .. } => {
                self.take_branch(seq, now_ms, *branch, *worker_gone);
            }
            Event::BranchResumed { branch } => self.resume_branch(seq, now_ms, *branch),
            Event::BranchMerged { branch } => {
                self.owners.clear();
                self.merge_branch(seq, *branch);
            }
            Event::BranchLeased { branch, until_ms } => {
                if let Some(known) = self.branches.get_mut(branch) {
                    known.lease_record = Some(seq);
                }
                self.lease_branch(*branch, Some(*until_ms));
            }
            Event::LeaseExpired { branch } => {
                if let Some(known) = self.branches.get_mut(branch) {
                    known.note(seq);
                }
                self.lease_branch(*branch, None);
            }
            Event::BranchStopped { branch, cause, closed, .. } => {
                self.stop_branch(seq, *branch, *closed, *cause);
            }
            Event::Observed { branch, observations } => {
                self.observe_branch(seq, *branch, observations);
            }
            Event::ObservationRefused { branch, key, writers, rule } => {
                for writer in writers {
                    if let Some(effect) = self.effects.get_mut(*writer) {
                        effect.held_by.push(*branch);
                    }
                }
                let writers = self.live_only(writers);
                if let Some(known) = self.branches.get_mut(branch) {
                    known.held.push(Held {
                        key: key.clone(),
                        writers,
                        under: BTreeSet::new(),
                        rule: *rule,
                    });
                    known.note(seq);
                }
            }
            _ => {}
        }
    }

    fn live_only(&self, writers: &[EffectId]) -> BTreeSet<EffectId> {
        writers.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect()
    }

    fn create_branch(&mut self, seq: u64, now_ms: u64, made: &Made<'_>) {
        let id = BranchId(seq);
        let mut branch = Branch {
            id,
            name: made.name.to_owned(),
            agent: made.agent.to_owned(),
            parent: made.parent,
            reads: made.reads,
            overwrite: made.overwrite,
            lease_ms: made.lease_ms,
            lease_until_ms: None,
            lease_record: None,
            state: BranchState::Open,
            merged: false,
            cause: None,
            token: Token { incarnation: self.incarnation, number: seq },
            children: BTreeSet::new(),
            effects: IdSet::default(),
            unvoted: IdSet::default(),
            tip: BTreeSet::new(),
            handed: Vec::new(),
            base: BTreeSet::new(),
            observed: BTreeSet::new(),
            stands: BTreeMap::new(),
            named: BTreeSet::new(),
            voids: BTreeSet::new(),
            has_committed: false,
            held: Vec::new(),
            records: vec![seq],
        };
        if let Some(parent) = made.parent.and_then(|parent| self.branches.get_mut(&parent)) {
            parent.children.insert(id);
        }
        let mut handed = BTreeSet::new();
        if let Some(inherited) = made.inherited {
            branch.handed = made.parent.map_or_else(Vec::new, |parent| self.to_hand_on(parent));
            branch.base = self.live_only(&inherited.base);
            let eager =
                |id: &&EffectId| self.live_effect(**id).is_some_and(|effect| !effect.is_deferred());
            branch.tip = branch.base.iter().filter(eager).copied().collect();
            branch.observed = self.live_only(&inherited.observed);
            branch.named = self.live_only(&inherited.named);
            for stand in &inherited.stands {
                if branch.observed.contains(&stand.effect) {
                    branch.stand(stand.effect, [&stand.key]);
                }
            }
            branch.voids = inherited.voids.iter().copied().collect();
            for held in &inherited.held {
                let writers = self.live_only(&held.writers);
                let under = self.live_only(&held.under);
                branch.held.push(Held { key: held.key.clone(), writers, under, rule: held.rule });
            }
            handed.extend(branch.base.iter().chain(&branch.observed).copied());
            handed.extend(branch.held.iter().flat_map(Held::rests_on));
        }
        for effect in handed {
            if let Some(effect) = self.effects.get_mut(effect) {
                effect.held_by.push(id);
            }
        }
        self.names.insert(branch.name.clone(), id);
        self.branches.insert(id, branch);
        self.lease_branch(id, made.lease_ms.map(|lease| now_ms.saturating_add(lease)));
    }

    /// Sets the end of a branch's lease and its timer.
    fn lease_branch(&mut self, id: BranchId, until_ms: Option<u64>) {
        let Some(branch) = self.branches.get_mut(&id) else { return };
        if let Some(old) = branch.lease_until_ms {
            self.timers.remove(&(old, Timer::Lease(id)));
        }
        branch.lease_until_ms = until_ms;
        if let Some(until) = until_ms {
            self.timers.insert((until, Timer::Lease(id)));
        }
    }

    fn renew_lease(&mut self, id: BranchId, now_ms: u64) {
        let lease = self.branches.get(&id).and_then(|branch| branch.lease_ms);
        self.lease_branch(id, lease.map(|lease| now_ms.saturating_add(lease)));
    }

    fn take_branch(&mut self, seq: u64, now_ms: u64, id: BranchId, worker_gone: bool) {
        let token = Token { incarnation: self.incarnation, number: seq };
        let Some(branch) = self.branches.get_mut(&id) else { return };
        branch.token = token;
        branch.note(seq);
        let effects = branch.effects.to_vec();
        for effect in effects {
            let Some(known) = self.effects.get_mut(effect) else { continue };
            known.token = token;
            known.note(seq);
            if worker_gone && !known.is_settled() && known.is_running() {
                known.closed = true;
                self.settled(seq, effect);
            }
        }
        self.renew_lease(id, now_ms);
    }

    fn resume_branch(&mut self, seq: u64, now_ms: u64, id: BranchId) {
        let token = Token { incarnation: self.incarnation, number: seq };
        let Some(branch) = self.branches.get(&id) else { return };
        let live = |ids: &BTreeSet<EffectId>| -> BTreeSet<EffectId> {
            ids.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect()
        };
        let (observed, named) = (live(&branch.observed), live(&branch.named));
        let base = live(&branch.base);
        let handed: Vec<EffectId> =
            branch.handed.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect();
        let Some(branch) = self.branches.get_mut(&id) else { return };
        branch.stands.retain(|effect, _| observed.contains(effect));
        branch.observed = observed;
        branch.named = named;
        branch.base = base;
        branch.handed = handed;
        branch.voids.clear();
        branch.token = token;
        branch.state = BranchState::Open;
        branch.cause = None;
        branch.held.clear();
        branch.note(seq);
        self.renew_lease(id, now_ms);
        self.refresh_tip(id);
    }

    /// The child votes and finishes; its effects, observations and refusals become the parent's.
    fn merge_branch(&mut self, seq: u64, id: BranchId) {
        let Some(child) = self.branches.get_mut(&id) else { return };
        child.state = BranchState::Closed;
        child.merged = true;
        child.note(seq);
        let Some(parent_id) = child.parent else { return };
        let effects = std::mem::take(&mut child.effects);
        let observed = std::mem::take(&mut child.observed);
        let stands = std::mem::take(&mut child.stands);
        let named = std::mem::take(&mut child.named);
        let voids = std::mem::take(&mut child.voids);
        let held = std::mem::take(&mut child.held);
        let children = std::mem::take(&mut child.children);
        let records = child.records.clone();
        child.unvoted.clear();
        child.base.clear();
        child.handed = Vec::new();
        child.tip.clear();
        self.lease_branch(id, None);
        for grandchild in &children {
            if let Some(grandchild) = self.branches.get_mut(grandchild) {
                grandchild.parent = Some(parent_id);
                grandchild.note(seq);
            }
        }
        for effect in effects.iter() {
            if let Some(effect) = self.effects.get_mut(effect) {
                effect.branch = parent_id;
                effect.note(seq);
            }
        }
        self.drop_level(id);
        for effect in observed.iter().copied().chain(held.iter().flat_map(Held::rests_on)) {
            if let Some(effect) = self.effects.get_mut(effect) {
                effect.held_by.push(parent_id);
            }
        }
        if let Some(parent) = self.branches.get_mut(&parent_id) {
            parent.children.remove(&id);
            parent.children.extend(children);
            parent.effects.unite(&effects);
            parent.observed.extend(observed);
            for (effect, keys) in &stands {
                parent.stand(*effect, keys);
            }
            parent.named.extend(named);
            parent.voids.extend(voids);
            parent.held.extend(held);
            for record in records {
                if let Err(place) = parent.records.binary_search(&record) {
                    parent.records.insert(place, record);
                }
            }
            parent.note(seq);
        }
        self.refresh_tip(parent_id);
        self.forget_branch(id);
    }

    /// A merged child's vote counts as given: nobody waits for it any more.
    fn drop_level(&mut self, child: BranchId) {
        let waiting: Vec<EffectId> = self
            .effects
            .iter()
            .filter(|effect| effect.is_live() && effect.missing_votes.contains(&child))
            .map(|effect| effect.id)
            .collect();
        for id in waiting {
            self.count_vote(id, Some(child));
        }
    }

    /// Adds observations to what a branch rests on.
    pub(super) fn observe_branch(&mut self, seq: u64, id: BranchId, observations: &[Observation]) {
        for observation in observations {
            let live = self.live_only(&observation.writers);
            for writer in &live {
                if let Some(effect) = self.effects.get_mut(*writer) {
                    effect.held_by.push(id);
                }
            }
            let Some(branch) = self.branches.get_mut(&id) else { return };
            if observation.version.is_some() {
                branch.held.retain(|held| held.key != observation.key);
                branch.named.extend(live.iter().copied());
            }
            if observation.stands() {
                for writer in &live {
                    branch.stand(*writer, [&observation.key]);
                }
            }
            branch.observed.extend(live);
            branch.voids.extend(observation.voids.iter().copied());
            branch.note(seq);
        }
    }

    /// Reads that were held and are admitted by now are observations like any other (C20).
    pub(super) fn admit_held(&mut self, id: BranchId) {
        if let Some(branch) = self.branches.get_mut(&id) {
            for held in std::mem::take(&mut branch.held) {
                for writer in held.rests_on() {
                    branch.stand(writer, [&held.key]);
                    branch.observed.insert(writer);
                }
            }
        }
    }

    /// Stops a branch: until it resumes, or for good.
    pub(super) fn stop_branch(
        &mut self,
        seq: u64,
        id: BranchId,
        closed: bool,
        cause: Option<EffectId>,
    ) {
        let Some(branch) = self.branches.get_mut(&id) else { return };
        branch.note(seq);
        if branch.state == BranchState::Closed {
            return;
        }
        branch.state = if closed { BranchState::Closed } else { BranchState::Doomed };
        branch.cause = branch.cause.or(cause);
        if closed {
            let parent = branch.parent;
            branch.held.clear();
            branch.observed.clear();
            branch.stands.clear();
            branch.base.clear();
            branch.handed = Vec::new();
            self.lease_branch(id, None);
            if let Some(parent) = parent.and_then(|parent| self.branches.get_mut(&parent)) {
                parent.children.remove(&id);
            }
            self.forget_branch(id);
        }
    }

    /// Lets a closed branch go once none of its effects is in memory.
    pub(super) fn forget_branch(&mut self, id: BranchId) {
        let gone = self.branches.get(&id).is_some_and(|branch| {
            branch.state == BranchState::Closed
                && branch.effects.is_empty()
                && branch.unvoted.is_empty()
                && branch.children.is_empty()
        });
        if gone && let Some(branch) = self.branches.remove(&id) {
            self.names.remove(&branch.name);
        }
    }
}

/// A branch as it was made.
struct Made<'a> {
    name: &'a str,
    agent: &'a str,
    parent: Option<BranchId>,
    reads: ReadRule,
    overwrite: Overwrite,
    lease_ms: Option<u64>,
    inherited: Option<&'a Inherited>,
}
