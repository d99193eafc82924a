//! What follows from a command in the same transaction: intents that lost their last blocker, steps
//! that can never run, approvals to ask for, rollbacks that are finished.

use std::collections::BTreeSet;

use super::report::{is_clean, report_of};
use super::step::Failed;
use super::{Ruling, Turn};
use crate::model::{EffectId, Event, FailureKind, RollbackId, Severity, Subject};
use crate::state::{Effect, Guard};

/// What the events since some place may have changed.
#[derive(Default)]
pub(super) struct Changed {
    /// Steps to judge.
    steps: BTreeSet<EffectId>,
    /// Rollbacks whose approval to look at.
    plans: BTreeSet<RollbackId>,
    /// Rollbacks that are new.
    new: BTreeSet<RollbackId>,
    /// Deferred effects that a fence committed.
    runs: BTreeSet<EffectId>,
}

impl Turn<'_> {
    /// Goes on until nothing follows any more. Every round is over events that the one before gave,
    /// and each event is about something that gets settled, so it ends (I15).
    pub(super) fn follow(&mut self) -> Ruling<()> {
        let mut from = 0;
        loop {
            self.settle_intents();
            let upto = self.events.len();
            if upto == from {
                return Ok(());
            }
            self.follow_rollbacks(from);
            self.review_requests(from)?;
            from = upto;
        }
    }

    /// The part that is about rollbacks, over the events from a place on.
    pub(super) fn follow_rollbacks(&mut self, from: usize) {
        let changed = self.judge_from(from);
        for effect in changed.runs {
            self.request_run(effect);
        }
        for rollback in changed.new {
            self.alert_bare_steps(rollback);
        }
        for rollback in changed.plans {
            self.review(rollback);
        }
        let touched = std::mem::take(&mut self.state.touched);
        for id in touched {
            self.record_run(id);
            self.finish_if_clean(id);
        }
        self.confirm_breaks();
        self.watch_confirmations(from);
    }

    /// Judges the steps that the events from a place on concern (C49, C60).
    pub(super) fn judge_from(&mut self, from: usize) -> Changed {
        let changed = self.changed_by(from);
        let settles = self.events[from..].iter().any(|event| {
            matches!(event, Event::Fenced { .. } | Event::Doomed(_) | Event::RollbackStarted(_))
        });
        if settles && !self.state.rollbacks.is_empty() {
            self.state.tidy();
        }
        for step in &changed.steps {
            self.judge(*step);
        }
        changed
    }

    fn changed_by(&self, from: usize) -> Changed {
        let mut changed = Changed::default();
        for (place, event) in self.events.iter().enumerate().skip(from) {
            match event {
                Event::Fenced { members, .. } => self.fenced_over(members.iter(), &mut changed),
                Event::Delivered { effect, .. } => self.earlier_steps(*effect, &mut changed),
                Event::RollbackStarted(started) => {
                    changed.new.insert(started.rollback);
                    changed.steps.extend(started.effects.iter().map(|known| known.effect));
                    changed.steps.extend(started.held.iter());
                }
                Event::Doomed(doom) if doom.within.is_some() => {
                    changed.steps.extend(doom.members.iter());
                }
                Event::Doomed(doom) => {
                    let first = self.state.head + 1 - self.events.len() as u64;
                    let id = RollbackId(first + place as u64);
                    if doom.rollback {
                        changed.plans.insert(id);
                        changed.new.insert(id);
                        changed.steps.extend(doom.members.iter());
                    }
                }
                Event::StepReleased { effect, .. }
                | Event::StepCompleted { effect, .. }
                | Event::StepFailed { effect, .. }
                | Event::StepRetried { effect, .. } => {
                    changed.steps.insert(*effect);
                }
                Event::StepDue { effect, .. }
                | Event::StepDiscarded { effect }
                | Event::NotRun { effect, .. }
                | Event::Exposed { effect, .. }
                | Event::Evidence { effect, .. } => {
                    if let Some(known) = self.state.effects.get(*effect) {
                        changed.plans.extend(known.rollback);
                        changed.steps.insert(*effect);
                    }
                }
                Event::ApprovalRequested { .. } | Event::ApprovalAnswered { .. } => {
                    self.answered_over(event, &mut changed);
                }
                _ => {}
            }
        }
        changed
    }

    /// A denial fails every step that is left, and a new request makes them due again (C56).
    fn answered_over(&self, event: &Event, changed: &mut Changed) {
        let subject = match event {
            Event::ApprovalRequested { subject, .. } => Some(subject),
            Event::ApprovalAnswered { approval, approved: false, .. } => {
                self.state.approvals.get(approval).map(|known| &known.info.subject)
            }
            _ => None,
        };
        if let Some(Subject::Rollback(id)) = subject
            && let Some(rollback) = self.state.rollbacks.get(id)
        {
            changed.steps.extend(rollback.members.iter().copied());
        }
    }

    fn fenced_over(&self, members: impl Iterator<Item = EffectId>, changed: &mut Changed) {
        let undoing = self.state.rollbacks.values().any(|rollback| rollback.open);
        if !undoing && self.state.effects.deferred() == 0 {
            return;
        }
        let mut gone = false;
        for id in members {
            match self.state.effects.get(id) {
                Some(effect) if effect.is_deferred() => {
                    changed.runs.insert(id);
                }
                Some(_) if undoing => self.earlier_steps(id, changed),
                Some(_) => {}
                None => gone = true,
            }
        }
        if gone && undoing {
            // What memory has let go names its keys no more, so every step is judged.
            for rollback in self.state.rollbacks.values().filter(|rollback| rollback.open) {
                changed.steps.extend(rollback.members.iter().copied());
            }
        }
    }

    /// Doomed writers of the keys of an effect.
    fn earlier_steps(&self, id: EffectId, changed: &mut Changed) {
        let Some(effect) = self.state.effects.get(id) else { return };
        for entry in effect.writes.iter().filter_map(|key| self.state.keys.get(key)) {
            changed.steps.extend(
                entry.writers.iter().copied().filter(|writer| {
                    self.state.effects.get(*writer).is_some_and(Effect::is_doomed)
                }),
            );
        }
    }

    /// Fails a due step that cannot be run, approved or not. One that failed for want of a worker is
    /// due for the next worker, so it is judged like any other.
    pub(super) fn judge(&mut self, id: EffectId) {
        let Some(effect) = self.state.effects.get(id) else { return };
        if !effect.step.as_ref().is_some_and(|step| step.is_pending() || step.wants_a_worker()) {
            return;
        }
        let rollback = effect.rollback.and_then(|rollback| self.state.rollbacks.get(&rollback));
        let denied = rollback.is_some_and(|rollback| rollback.denied);
        let expired = effect.deadline_ms.is_some_and(|deadline| self.now_ms >= deadline);
        let failed = if effect.inverse.is_none() {
            Failed::of(FailureKind::NotCompensable, "it was registered without an inverse")
        } else if denied {
            Failed::of(FailureKind::Denied, "the approval of the rollback was denied")
        } else if expired {
            Failed::of(FailureKind::Expired, "the window of its inverse has passed")
        } else if let Guard::Conflict(writer, key) = self.state.guard(id) {
            let text = format!("effect {writer} wrote key {key:?} later and is committed");
            Failed { writer: Some(writer), ..Failed::of(FailureKind::Conflict, &text) }
        } else {
            return;
        };
        self.fail_step(id, failed);
    }

    /// Steps that had failed from the start call for a person, once for all of them.
    fn alert_bare_steps(&mut self, id: RollbackId) {
        let told = self
            .events
            .iter()
            .any(|event| matches!(event, Event::Alerted { reference, .. } if *reference == id.0));
        let Some(rollback) = self.state.rollbacks.get(&id).filter(|_| !told) else { return };
        let bare = rollback.members.iter().filter(|id| {
            self.state.effects.get(**id).is_some_and(|effect| {
                effect.inverse.is_none()
                    && effect.step.as_ref().is_some_and(|step| step.is_failed())
            })
        });
        let count = bare.count();
        if count > 0 {
            let text = format!(
                "rollback {id} holds {count} effects without an inverse; undo them by hand and resolve their steps"
            );
            self.alert(Severity::Critical, text, id.0);
        }
    }

    fn finish_if_clean(&mut self, id: RollbackId) {
        let Some(rollback) = self.state.rollbacks.get(&id).filter(|known| known.open) else {
            return;
        };
        if is_clean(self.state, rollback) {
            let report = report_of(self.state, rollback);
            self.emit(Event::RollbackFinished { rollback: id, report });
        }
    }
}
