//! Letting go what is settled: memory holds what is live, and what may still become due again.

use super::fold_effect::merge_records;
use super::{Effect, State, StepStatus, Timer};
use crate::model::{EffectId, RollbackId, Subject};

impl State {
    /// Takes an effect out of memory everywhere, and with it whatever stayed only because of it.
    pub(super) fn release(&mut self, id: EffectId) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            self.drop_effect(id, &mut todo);
        }
    }

    /// Lets a doomed effect of a finished rollback go, unless the undo of a later writer of one of
    /// its keys may put its value back (section 7).
    pub(super) fn try_release(&mut self, id: EffectId) {
        if self.is_releasable(id) {
            self.release(id);
        }
    }

    fn is_releasable(&self, id: EffectId) -> bool {
        let Some(effect) = self.effects.get(id).filter(|effect| effect.is_doomed()) else {
            return false;
        };
        let open = effect
            .rollback
            .and_then(|rollback| self.rollbacks.get(&rollback))
            .is_some_and(|rollback| rollback.open);
        if open {
            return false;
        }
        let completed_at = effect.step.as_ref().map_or(0, |step| step.completed_at);
        let entries = effect.writes.iter().filter_map(|key| self.keys.get(key));
        let mut writers =
            entries.flat_map(|entry| &entry.writers).filter_map(|writer| self.effects.get(*writer));
        !writers.any(|writer| writer.position > effect.position && writer.id.0 < completed_at)
    }

    fn drop_effect(&mut self, id: EffectId, todo: &mut Vec<EffectId>) {
        let Some(effect) = self.effects.get(id) else { return };
        if effect.is_doomed() {
            self.keep_trace(id);
        }
        let Some(effect) = self.effects.remove(id) else { return };
        self.keep_end(&effect);
        self.live -= u64::from(effect.is_live());
        self.running.remove(&id);
        self.outbox.remove(&id);
        self.at_work.remove(&id);
        self.graph.remove(id.0);
        if let Some(deadline) = effect.deadline_ms {
            self.timers.remove(&(deadline, Timer::Window(id)));
        }
        if let Some(until) = effect.delivery.as_ref().and_then(|delivery| delivery.until_ms) {
            self.timers.remove(&(until, Timer::Delivery(id)));
        }
        if let Some(StepStatus::Claimed { until_ms, .. }) =
            effect.step.as_ref().map(|step| &step.status)
        {
            self.timers.remove(&(*until_ms, Timer::Step(id)));
        }
        for key in &effect.writes {
            if let Some(entry) = self.keys.get_mut(key) {
                entry.writers.retain(|writer| *writer != id);
                entry.frontier.retain(|writer| *writer != id);
                todo.extend(entry.writers.iter().copied());
            }
            self.clear_later(key);
            self.keys.shrink(key);
        }
        todo.retain(|other| self.is_releasable(*other));
        for read in &effect.reads {
            if let Some(entry) = self.keys.get_mut(&read.key) {
                entry.delivered_readers.retain(|reader| *reader != id);
            }
            self.keys.shrink(&read.key);
        }
        for level in &effect.missing_votes {
            if let Some(level) = self.branches.get_mut(level) {
                level.unvoted.remove(id);
            }
        }
        for holder in effect.held_by.iter().chain([&effect.branch]) {
            if let Some(branch) = self.branches.get_mut(holder) {
                branch.effects.remove(id);
                branch.tip.remove(&id);
                branch.base.remove(&id);
                branch.unobserve(id);
                for held in &mut branch.held {
                    held.forget(id);
                }
            }
        }
        self.forget_branch(effect.branch);
        if let Some(rollback) = effect.rollback {
            self.let_member_go(rollback);
        }
    }

    /// A branch may need a registration for what it observed with it. Then it needs the end of that
    /// effect, too: without it, a start that folds what is needed would find the effect live (I10).
    pub(super) fn keep_end(&mut self, effect: &Effect) {
        let Some(branch) = self.branches.get_mut(&effect.branch) else { return };
        if branch.records.binary_search(&effect.id.0).is_err() {
            return;
        }
        merge_records(&mut branch.records, &effect.records);
        if effect.is_doomed()
            && let Some(rollback) = effect.rollback.and_then(|id| self.rollbacks.get(&id))
        {
            merge_records(&mut branch.records, &rollback.records);
        }
    }

    fn let_member_go(&mut self, id: RollbackId) {
        if let Some(rollback) = self.rollbacks.get_mut(&id) {
            rollback.held = rollback.held.saturating_sub(1);
        }
        self.let_rollback_go(id);
    }

    /// A finished rollback with no member in memory leaves with its approvals.
    pub(super) fn let_rollback_go(&mut self, id: RollbackId) {
        let gone =
            self.rollbacks.get(&id).is_some_and(|rollback| !rollback.open && rollback.held == 0);
        if gone && let Some(rollback) = self.rollbacks.remove(&id) {
            self.artifacts.run_ended(&rollback.members);
            for approval in rollback.approvals {
                self.approvals.remove(&approval);
            }
        }
    }

    /// Lets the approvals of a deferred effect's run go.
    pub(super) fn forget_run_approvals(&mut self, id: EffectId) {
        self.approvals.retain(|_, known| known.info.subject != Subject::Effect(id));
    }

    /// A key stays known as having been dirty until the last reader that may ask is gone. That needs
    /// the records of the effect and of its rollback: without their ends, a start that folds what is
    /// needed would find the effect doomed and never undone.
    fn keep_trace(&mut self, id: EffectId) {
        let Some(effect) = self.effects.get(id) else { return };
        let mut records = effect.records.clone();
        if let Some(rollback) = effect.rollback.and_then(|id| self.rollbacks.get(&id)) {
            records.extend(rollback.records.iter().copied());
        }
        for key in effect.writes.clone() {
            let trace = self.keys.get(&key).and_then(|entry| entry.trace.as_ref());
            if let Some(moment) = trace.map(|trace| trace.dirty_at) {
                self.keys.trace(&key, moment, &records, |_| {});
            }
        }
    }
}
