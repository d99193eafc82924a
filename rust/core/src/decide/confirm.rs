//! Confirmation: downstream agents undo before what is upstream of them, and in time (section 7).
//!
//! A rollback that several agents have a part in is *watched*. Its limit runs from when it was decided
//! or approved, and anew from every step of it that ends well. When it is over, the steps that were
//! an agent's turn and that others wait for fail as `unconfirmed`. Nothing behind them goes on for it:
//! a time-out is no consent. They may still be claimed, so a late confirmation resumes.

use std::collections::{BTreeMap, BTreeSet};

use super::Turn;
use super::report::report_of;
use crate::model::{EffectId, Event, FailureKind, Problem, RollbackId, Severity};
use crate::state::{Guard, StepStatus};

/// Effects that an alert names, at most.
const NAMED: usize = 16;

impl Turn<'_> {
    /// Watches rollbacks that are new, that may run now or go on, from the events since a place.
    pub(super) fn watch_confirmations(&mut self, from: usize) {
        let moved = self.events[from..].iter().any(|event| self.may_need_a_watch(event));
        if !moved || !self.state.several_agents_undo() {
            return;
        }
        let unwatched = self.state.rollbacks.values().filter(|rollback| {
            rollback.open && rollback.approved && rollback.confirm_by_ms.is_none()
        });
        let unwatched: Vec<RollbackId> = unwatched.map(|rollback| rollback.id).collect();
        let until_ms = Some(self.now_ms.saturating_add(self.state.policy.confirm_within_ms));
        for rollback in unwatched {
            self.emit(Event::ConfirmBy { rollback, until_ms });
        }
    }

    fn may_need_a_watch(&self, event: &Event) -> bool {
        match event {
            Event::Doomed(doom) => doom.rollback,
            Event::ApprovalAnswered { approved, .. } => *approved,
            Event::BreakSignalled(signal) => !signal.upstream.is_empty(),
            Event::ApprovalStale { .. }
            | Event::NotRun { .. }
            | Event::StepDue { .. }
            | Event::StepRetried { .. }
            | Event::StepResolved { .. }
            | Event::StepDiscarded { .. } => !self.state.rollbacks.is_empty(),
            // Whoever waited for it may be the one that is waited for now.
            Event::StepCompleted { effect, .. } => {
                let rollback = self.state.effects.get(*effect).and_then(|effect| effect.rollback);
                let known = rollback.and_then(|id| self.state.rollbacks.get(&id));
                known.is_some_and(|known| known.confirm_record.is_some())
            }
            _ => false,
        }
    }

    /// The limit of a rollback is over, unless it moved since it was set.
    pub(super) fn confirmation_due(&mut self, id: RollbackId) {
        let within_ms = self.state.policy.confirm_within_ms;
        let Some(rollback) = self.state.rollbacks.get(&id).filter(|known| known.open) else {
            return;
        };
        if !rollback.approved {
            // Its plan grew: what keeps it waiting is a person now, and their answer sets a new limit.
            self.emit(Event::ConfirmBy { rollback: id, until_ms: None });
            return;
        }
        let limit = rollback.moved_ms.saturating_add(within_ms);
        if limit > self.now_ms {
            self.emit(Event::ConfirmBy { rollback: id, until_ms: Some(limit) });
            return;
        }
        for (agent, steps) in self.silent(id) {
            self.unconfirmed(id, &agent, &steps);
        }
        // What is only held back by others cannot move by itself; whatever frees it sets a new limit.
        let known = self.state.rollbacks.get(&id);
        let moves = known.is_some_and(|known| !report_of(self.state, known).pending.is_empty());
        let until_ms = moves.then(|| self.now_ms.saturating_add(within_ms));
        self.emit(Event::ConfirmBy { rollback: id, until_ms });
    }

    /// Steps of a rollback, by agent, that nothing holds back, that nobody is at, and that steps of
    /// other agents wait for.
    fn silent(&mut self, id: RollbackId) -> BTreeMap<String, Vec<EffectId>> {
        let ready: Vec<EffectId> = self.state.undo_order().ready().collect();
        let mut turns: BTreeMap<String, Vec<EffectId>> = BTreeMap::new();
        for step in ready {
            let Some(effect) = self.state.effects.get(step) else { continue };
            let status = effect.step.as_ref().map(|step| &step.status);
            let rested = matches!(status, Some(StepStatus::Pending { again_ms })
                if again_ms.is_none_or(|again| again <= self.now_ms));
            if rested && effect.rollback == Some(id) && self.state.guard(step) == Guard::Free {
                let agent = self.state.owner(effect).to_owned();
                turns.entry(agent).or_default().push(step);
            }
        }
        for (agent, steps) in &mut turns {
            let awaited: BTreeSet<u64> = self.state.awaited_by_others(agent);
            steps.retain(|step| awaited.contains(&step.0));
            steps.sort_unstable();
        }
        turns.retain(|_, steps| !steps.is_empty());
        turns
    }

    fn unconfirmed(&mut self, id: RollbackId, agent: &str, steps: &[EffectId]) {
        let within_ms = self.state.policy.confirm_within_ms;
        let text = format!("agent {agent:?} did not confirm within {within_ms} ms");
        for effect in steps {
            self.emit(Event::StepFailed {
                effect: *effect,
                kind: FailureKind::Unconfirmed,
                problem: Problem::new(FailureKind::Unconfirmed.name(), &text),
                again_ms: None,
                writer: None,
                // A time-out is never consent, whatever the policy says of failures.
                waived: false,
            });
        }
        let named: Vec<String> = steps.iter().take(NAMED).map(EffectId::to_string).collect();
        let more = steps.len().saturating_sub(NAMED);
        let others = if more > 0 { format!(" and {more} more") } else { String::new() };
        let text = format!(
            "agent {agent:?} has not confirmed its part of rollback {id} in time: the effects of others wait until it undoes {}{others}, or somebody else does and resolves them",
            named.join(", "),
        );
        self.alert(Severity::Critical, text, id.0);
    }
}
