//! Folding votes, intents and fences, and letting go what a fence settled.

use std::collections::{BTreeMap, BTreeSet};

use super::fold_effect::merge_records;
use super::{Effect, Intent, LaterWriter, State, Timer};
use crate::model::{BranchId, EffectId, EffectState, Event, FenceId, Key, MemberSet};

impl State {
    pub(super) fn fold_fence(&mut self, seq: u64, event: &Event) {
        match event {
            Event::Voted { branch, members, .. } => {
                for id in members.iter() {
                    if let Some(effect) = self.effects.get_mut(id) {
                        effect.note(seq);
                    }
                    self.count_vote(id, *branch);
                }
            }
            Event::Intended { targets, target, by } => {
                let id = FenceId(seq);
                for effect in targets.iter() {
                    if let Some(effect) = self.effects.get_mut(effect) {
                        effect.intents.push(id);
                    }
                }
                let targets = targets.iter().filter(|id| self.live_effect(*id).is_some()).collect();
                let intent = Intent {
                    id,
                    targets,
                    target: target.clone(),
                    by: by.clone(),
                    blockers: Vec::new(),
                    committed: false,
                    records: Vec::new(),
                };
                self.intents.insert(id, intent);
                self.awake.insert(id);
            }
            Event::Fenced { intent, members, .. } => self.fenced(seq, *intent, members),
            Event::IntentEnded { intent, .. } => self.end_intent(*intent),
            _ => {}
        }
    }

    /// One branch's vote, or the merge authority's, which counts on every level (C44).
    pub(super) fn count_vote(&mut self, id: EffectId, by: Option<BranchId>) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        let given: Vec<BranchId> = match by {
            Some(branch) => effect
                .missing_votes
                .iter()
                .position(|missing| *missing == branch)
                .map(|place| effect.missing_votes.remove(place))
                .into_iter()
                .collect(),
            None => std::mem::take(&mut effect.missing_votes),
        };
        let sealed = effect.missing_votes.is_empty();
        for branch in given {
            if let Some(branch) = self.branches.get_mut(&branch) {
                branch.unvoted.remove(id);
            }
        }
        if sealed {
            self.wake_watchers(id);
        }
    }

    /// Intents that wait for this effect look again.
    pub(super) fn wake_watchers(&mut self, id: EffectId) {
        if let Some(effect) = self.effects.get_mut(id) {
            self.awake.extend(effect.watchers.drain(..));
        }
    }

    fn end_intent(&mut self, id: FenceId) {
        self.awake.remove(&id);
        let Some(intent) = self.intents.remove(&id) else { return };
        for target in intent.targets {
            if let Some(effect) = self.effects.get_mut(target) {
                effect.intents.retain(|intent| *intent != id);
            }
        }
    }

    /// One decision for all members. Only their state changes here; what memory keeps of them is
    /// let go by [`State::tidy`], after the answer is out.
    fn fenced(&mut self, seq: u64, intent: Option<FenceId>, members: &MemberSet) {
        let fence = intent.unwrap_or(FenceId(seq));
        let mut waited_for = Vec::new();
        let settled = self.effects.settle(members, |id| waited_for.push(id));
        self.live -= settled;
        self.settles += settled;
        for id in waited_for {
            let Some(effect) = self.effects.get_mut(id) else { continue };
            effect.state = EffectState::Committed;
            effect.fence = Some(fence);
            // The fence itself may have been the last vote that others waited for.
            self.awake.extend(effect.watchers.drain(..));
            for waiting in &effect.intents {
                if let Some(waiting) = self.intents.get_mut(waiting) {
                    waiting.targets.remove(&id);
                    waiting.committed = true;
                    merge_records(&mut waiting.records, &effect.records);
                    merge_records(&mut waiting.records, &[seq]);
                    self.awake.insert(waiting.id);
                }
            }
            self.live -= 1;
            self.settles += 1;
        }
        if !members.is_empty() {
            self.settling.push_back((seq, members.clone()));
        }
        if let Some(intent) = intent {
            self.end_intent(intent);
        }
    }

    /// Lets go what fences settled. It is a part of folding that decides nothing, so it may run
    /// after the answer: every command, and everything that compares states, calls it first.
    pub fn tidy(&mut self) {
        while let Some((seq, members)) = self.settling.pop_front() {
            self.unhold(&members);
            self.graph.remove_many(members.as_slice());
            let mut told = None;
            for id in members.iter() {
                if let Some(mut effect) = self.effects.remove_settled(id) {
                    effect.note(seq);
                    let owner = effect.branch;
                    self.let_committed_go(&effect);
                    if told.replace(owner) != Some(owner) {
                        self.note_committed(owner);
                    }
                    continue;
                }
                let Some(effect) = self.effects.get_mut(id) else { continue };
                effect.note(seq);
                let owner = effect.branch;
                effect.missing_votes.clear();
                effect.watchers.clear();
                effect.intents.clear();
                effect.held_by.clear();
                if effect.still_to_run() {
                    self.outbox.insert(id);
                } else {
                    self.settle_committed(id);
                }
                if told.replace(owner) != Some(owner) {
                    self.note_committed(owner);
                }
            }
        }
        self.keys.forget_traces(self.running.first().copied());
    }

    fn note_committed(&mut self, owner: BranchId) {
        let mut next = Some(owner);
        while let Some(branch) = next.and_then(|id| self.branches.get_mut(&id)) {
            if branch.has_committed {
                return;
            }
            branch.has_committed = true;
            next = branch.parent;
        }
    }

    /// Takes settled effects out of the votes, tips, bases, observations and refusals that hold
    /// them, branch by branch: one by one it would cost more than all else about a large fence.
    fn unhold(&mut self, members: &MemberSet) {
        let mut held: BTreeMap<BranchId, Vec<EffectId>> = BTreeMap::new();
        let mut leaving: BTreeMap<BranchId, Vec<EffectId>> = BTreeMap::new();
        let known = |id| self.effects.settled(id).or_else(|| self.effects.get(id));
        for effect in members.iter().filter_map(known) {
            for branch in effect.held_by.iter().chain(&effect.missing_votes) {
                let group = held.entry(*branch).or_default();
                if group.last() != Some(&effect.id) {
                    group.push(effect.id);
                }
            }
            let groups = if effect.still_to_run() { &mut held } else { &mut leaving };
            groups.entry(effect.branch).or_default().push(effect.id);
        }
        for (branch, settled) in &leaving {
            if let Some(branch) = self.branches.get_mut(branch) {
                branch.effects.remove_each(settled);
            }
        }
        for (branch, settled) in held.into_iter().chain(leaving) {
            let Some(branch) = self.branches.get_mut(&branch) else { continue };
            branch.unvoted.remove_each(&settled);
            take_out(&mut branch.tip, &settled);
            take_out(&mut branch.base, &settled);
            take_out(&mut branch.observed, &settled);
            take_out(&mut branch.named, &settled);
            if !branch.stands.is_empty() {
                for effect in &settled {
                    branch.stands.remove(effect);
                }
            }
            for held in &mut branch.held {
                take_out(&mut held.writers, &settled);
                take_out(&mut held.under, &settled);
            }
        }
    }

    /// A committed effect leaves memory; an earlier writer that stays is told of it.
    pub(super) fn settle_committed(&mut self, id: EffectId) {
        if let Some(effect) = self.effects.remove(id) {
            self.let_committed_go(&effect);
        }
    }

    fn let_committed_go(&mut self, effect: &Effect) {
        let id = effect.id;
        self.keep_end(effect);
        self.at_work.remove(&id);
        if let Some(deadline) = effect.deadline_ms {
            self.timers.remove(&(deadline, Timer::Window(id)));
        }
        if let Some(branch) = self.branches.get_mut(&effect.branch) {
            branch.effects.remove(id);
        }
        let mut earlier_doomed = Vec::new();
        for key in &effect.writes {
            if self.keys.forget_sole_writer(key, id) {
                continue;
            }
            let Some(entry) = self.keys.get_mut(key) else { continue };
            entry.writers.retain(|writer| *writer != id);
            entry.frontier.retain(|writer| *writer != id);
            let effects = &self.effects;
            let earlier = entry.writers.iter().copied().filter(|writer| {
                effects.get(*writer).is_some_and(|other| other.position < effect.position)
            });
            earlier_doomed.extend(earlier.clone());
            let newest = entry.later.as_ref().is_none_or(|later| later.position < effect.position);
            if newest && earlier.count() > 0 {
                entry.later = Some(LaterWriter {
                    effect: id,
                    position: effect.position,
                    records: effect.records.clone(),
                });
            }
            self.clear_later(key);
            self.keys.shrink(key);
        }
        if effect.is_deferred() {
            self.forget_run_approvals(id);
        }
        for earlier in earlier_doomed {
            self.try_release(earlier);
        }
        self.forget_branch(effect.branch);
    }

    /// Forgets the committed later writer of a key when no earlier writer is left in memory.
    pub(super) fn clear_later(&mut self, key: &Key) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        let Some(later) = entry.later.as_ref() else { return };
        let effects = &self.effects;
        let needed = entry.writers.iter().any(|writer| {
            effects.get(*writer).is_some_and(|effect| effect.position < later.position)
        });
        if !needed {
            entry.later = None;
        }
    }
}

/// Takes ascending ids out of a set: one by one if they are few, else in one pass over the set.
fn take_out(set: &mut BTreeSet<EffectId>, gone: &[EffectId]) {
    if set.len() > 8 * gone.len() {
        for id in gone {
            set.remove(id);
        }
        return;
    }
    let mut gone = gone.iter().peekable();
    set.retain(|id| {
        while gone.next_if(|taken| *taken < id).is_some() {}
        gone.peek() != Some(&id)
    });
}
