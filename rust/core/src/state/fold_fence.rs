//! Folding votes, intents and fences, and letting go what a fence settled.

use super::{Intent, LaterWriter, State, Timer};
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
                branch.unvoted.remove(&id);
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
        for id in members.iter() {
            let Some(effect) = self.effects.get_mut(id) else { continue };
            effect.state = EffectState::Committed;
            effect.fence = Some(fence);
            effect.records.push(seq);
            // What waited for its vote goes on, in this very transaction (I21).
            self.awake.extend(effect.watchers.drain(..));
            let intents = effect.intents.clone();
            for waiting in intents {
                if let Some(waiting) = self.intents.get_mut(&waiting) {
                    waiting.targets.remove(&id);
                    waiting.committed = true;
                    self.awake.insert(waiting.id);
                }
            }
            self.settling.push_back(id);
            self.live -= 1;
            self.settles += 1;
        }
        if let Some(intent) = intent {
            self.end_intent(intent);
        }
    }

    /// Lets go what fences settled. It is a part of folding that decides nothing, so it may run
    /// after the answer: every command, and everything that compares states, calls it first.
    pub fn tidy(&mut self) {
        while let Some(id) = self.settling.pop_front() {
            let Some(effect) = self.effects.get(id) else { continue };
            let branch = effect.branch;
            for level in effect.missing_votes.clone() {
                if let Some(level) = self.branches.get_mut(&level) {
                    level.unvoted.remove(&id);
                }
            }
            self.unhold(id, branch);
            self.note_committed(branch);
            self.graph.remove(id.0);
            let Some(effect) = self.effects.get_mut(id) else { continue };
            effect.missing_votes.clear();
            effect.watchers.clear();
            effect.intents.clear();
            effect.held_by.clear();
            if effect.is_deferred() && effect.outcome == crate::model::Outcome::Unknown {
                self.outbox.insert(id);
            } else {
                self.settle_committed(id);
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

    /// Takes a settled effect out of the tips, bases, observations and refusals that hold it.
    fn unhold(&mut self, id: EffectId, owner: BranchId) {
        let mut holders =
            self.effects.get(id).map(|effect| effect.held_by.clone()).unwrap_or_default();
        holders.push(owner);
        for holder in holders {
            if let Some(branch) = self.branches.get_mut(&holder) {
                branch.tip.remove(&id);
                branch.base.remove(&id);
                branch.observed.remove(&id);
                branch.named.remove(&id);
                for held in &mut branch.held {
                    held.writers.remove(&id);
                }
            }
        }
    }

    /// A committed effect leaves memory; an earlier writer that stays is told of it.
    pub(super) fn settle_committed(&mut self, id: EffectId) {
        let Some(effect) = self.effects.remove(id) else { return };
        self.at_work.remove(&id);
        if let Some(deadline) = effect.deadline_ms {
            self.timers.remove(&(deadline, Timer::Window(id)));
        }
        if let Some(branch) = self.branches.get_mut(&effect.branch) {
            branch.effects.remove(&id);
        }
        let mut earlier_doomed = Vec::new();
        for key in &effect.writes {
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
