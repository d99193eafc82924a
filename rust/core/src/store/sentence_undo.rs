//! Sentences about undoing: steps, rollbacks, and the approvals that they wait for.

use super::sentence::{Teller, because, name, span, what_went_wrong, worker};
use crate::model::{EffectId, Event, FailureKind, Problem, Requested, Subject};

impl Teller<'_> {
    pub(super) fn of_steps(&self, time_ms: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::StepClaimed { effect, agent, .. } => {
                format!("{} began to undo {}", worker(agent), self.effect(*effect))
            }
            Event::StepCompleted { effect, .. } => {
                format!("a call of the undo of {} succeeded", self.effect(*effect))
            }
            Event::StepFailed { effect, kind, problem, again_ms, writer, .. } => {
                let next = match again_ms {
                    Some(again) => format!("; tried again in {}", span(time_ms, *again)),
                    None => "; not tried again by itself".to_owned(),
                };
                let writer = writer
                    .map_or_else(String::new, |id| format!("; later writer: {}", self.effect(id)));
                let told = self.failed(*effect, *kind, problem);
                format!("{told}{writer}{next}")
            }
            Event::StepRenewed { effect, until_ms } => {
                let left = span(time_ms, *until_ms);
                format!(
                    "whoever undoes {} asked for more time; the lease ends in {left}",
                    self.effect(*effect)
                )
            }
            Event::StepReleased { effect, expired } => {
                let how = if *expired { "its lease ran out" } else { "given back, or interrupted" };
                format!(
                    "an attempt at undoing {} ended without an outcome: {how}",
                    self.effect(*effect)
                )
            }
            Event::StepDiscarded { effect } => {
                format!("{} never happened, so there is nothing to undo", self.effect(*effect))
            }
            Event::StepRetried { effect, by, reason } => format!(
                "{} wants the undo of {} tried again; reason: {reason:?}",
                name(by),
                self.effect(*effect)
            ),
            Event::StepResolved { effect, by, reason, .. } => format!(
                "{} has undone {} by hand; reason: {reason:?}",
                name(by),
                self.effect(*effect)
            ),
            Event::StepDue { effect, cause } => {
                let why = if cause == effect {
                    "its call reported late".to_owned()
                } else {
                    format!("{} may have put its value back", self.effect(*cause))
                };
                format!("the undo of {} is due once more: {why}", self.effect(*effect))
            }
            _ => return None,
        })
    }

    fn failed(&self, effect: EffectId, kind: FailureKind, problem: &Problem) -> String {
        let kind_name = kind.name().replace('_', " ");
        let text = if problem.error_type == kind.name() {
            format!("{:?}", problem.message)
        } else {
            what_went_wrong(problem)
        };
        format!("the undo of {} failed ({kind_name}): {text}", self.effect(effect))
    }

    pub(super) fn of_rollbacks(&self, seq: u64, event: &Event) -> Option<String> {
        Some(match event {
            Event::RollbackRequested(request) => self.requested(seq, request),
            Event::RollbackStarted(started) => format!("rollback {} began", started.rollback),
            Event::RollbackFinished { rollback, report } => format!(
                "rollback {rollback} is finished: {} undone, {} never ran",
                report.completed.len(),
                report.discarded.len()
            ),
            Event::EffectsRecalled { effects, .. } => format!(
                "late evidence brought back {}",
                self.effects(effects.iter().map(|known| known.effect))
            ),
            Event::RollbackOverdue { rollback } => {
                format!("rollback {rollback} has been open for an hour")
            }
            Event::ConfirmBy { rollback, until_ms: Some(_) } => {
                format!("the agents of rollback {rollback} have a new limit to confirm")
            }
            Event::ConfirmBy { rollback, until_ms: None } => {
                format!("nobody has to confirm in rollback {rollback} just now")
            }
            Event::RootCauseRecorded(cause) => {
                let remedy = cause.remedy.as_ref();
                let remedy =
                    remedy.map_or_else(String::new, |remedy| format!("; remedy: {}", name(remedy)));
                format!(
                    "root cause of rollback {}, says {}: {} ({:?}){remedy}",
                    cause.rollback,
                    name(&cause.by),
                    cause.category.name(),
                    cause.note
                )
            }
            Event::RemedyWaived { rollback, by, reason } => {
                format!("{} waived the remedy of rollback {rollback}; reason: {reason:?}", name(by))
            }
            Event::ApprovalRequested { subject, reason_required, by, reason, .. } => {
                let what = match subject {
                    Subject::Rollback(rollback) => format!("rollback {rollback}"),
                    Subject::Effect(effect) => format!("the run of {}", self.effect(*effect)),
                    Subject::Early { branch, tool, .. } => {
                        format!("an early call of {} on {}", name(tool), self.branch(*branch))
                    }
                };
                let written =
                    if *reason_required { "; the answer needs a written reason" } else { "" };
                format!(
                    "approval {seq} for {what} was asked for by {}; reason: {reason:?}{written}",
                    name(by)
                )
            }
            Event::ApprovalAnswered { approval, approved, by, reason } => {
                let how = if *approved { "approved" } else { "denied" };
                format!("approval {approval} was {how} by {}{}", name(by), because(reason.as_ref()))
            }
            Event::ApprovalStale { approval, successor } => {
                let next = match successor {
                    Some(next) => format!("; approval {next} is asked for instead"),
                    None => "; nothing is left that needs it".to_owned(),
                };
                format!("approval {approval} became stale, since its plan changed{next}")
            }
            _ => return None,
        })
    }

    fn requested(&self, seq: u64, request: &Requested) -> String {
        let what = self.effects(request.targets.iter());
        let count = request.members().len();
        let more = format!("members: {count}, committed: {}", request.committed.len());
        let verb = request.of.map_or_else(
            || format!("rollback {seq} of {what} was asked for"),
            |of| format!("the plan of rollback {of} was looked up anew"),
        );
        format!("{verb} by {} ({more}); reason: {:?}", name(&request.by), request.reason)
    }
}
