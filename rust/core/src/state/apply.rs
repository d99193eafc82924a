//! The fold: one event at its place, in every process and for ever the same.

use super::{Approval, State};
use crate::model::{
    AlertId, AlertInfo, ApprovalId, ApprovalInfo, ApprovalState, Event, RollbackId, Subject, Token,
};

impl State {
    /// Folds the event of record `seq`, written at `now_ms`.
    ///
    /// Members, branches or rollbacks that the event names and memory does not hold are settled and
    /// are passed over: that is what lets a start fold only the records that are still needed.
    pub fn apply(&mut self, seq: u64, now_ms: u64, event: &Event) {
        self.head = self.head.max(seq);
        self.effects.refresh();
        match event {
            Event::Created { store_id, limits, policy } => {
                self.store_id = *store_id;
                self.limits = limits.clone();
                self.policy = policy.clone();
                self.settings.push(seq);
            }
            Event::Configured { limits, policy, .. } => {
                if let Some(limits) = limits {
                    self.limits = limits.clone();
                }
                if let Some(policy) = policy {
                    self.policy = policy.clone();
                }
                self.settings.push(seq);
            }
            Event::Frozen { by, reason } => {
                self.frozen = Some((by.clone(), reason.clone()));
                self.settings.push(seq);
            }
            Event::Unfrozen { .. } => {
                self.frozen = None;
                self.settings.push(seq);
            }
            Event::Restored { incarnation } => self.restored(seq, *incarnation),
            Event::Alerted { severity, text, reference } => {
                let info = AlertInfo {
                    id: AlertId(seq),
                    severity: *severity,
                    text: text.clone(),
                    reference: *reference,
                    acknowledged_by: None,
                };
                self.alerts.insert(seq, info);
            }
            Event::AlertAcknowledged { alert, .. } => {
                self.alerts.remove(&alert.0);
            }
            Event::ApprovalRequested { .. }
            | Event::ApprovalAnswered { .. }
            | Event::ApprovalStale { .. } => self.fold_approval(seq, event),
            Event::RollbackRequested(_)
            | Event::RollbackStarted(_)
            | Event::RollbackOverdue { .. }
            | Event::RootCauseRecorded(_)
            | Event::RemedyWaived { .. } => self.fold_governed(seq, now_ms, event),
            Event::Refused { .. } | Event::Reopened => {}
            Event::BreakSignalled(_)
            | Event::Notified { .. }
            | Event::NoticeAcknowledged { .. }
            | Event::BreakUnheard { .. }
            | Event::BreakConfirmed { .. } => self.fold_break(seq, event),
            Event::BranchCreated { .. }
            | Event::BranchTaken { .. }
            | Event::BranchResumed { .. }
            | Event::BranchMerged { .. }
            | Event::BranchLeased { .. }
            | Event::BranchStopped { .. }
            | Event::LeaseExpired { .. }
            | Event::Observed { .. }
            | Event::ObservationRefused { .. } => self.fold_branch(seq, now_ms, event),
            Event::Registered(registered) => self.fold_registered(seq, registered),
            Event::ObservedLate { .. }
            | Event::Done { .. }
            | Event::NotRun { .. }
            | Event::Exposed { .. }
            | Event::Closed { .. }
            | Event::Evidence { .. }
            | Event::WindowPassed { .. }
            | Event::Delivered { .. }
            | Event::DeliveryHeld { .. } => self.fold_effect(seq, event),
            Event::Voted { .. }
            | Event::Intended { .. }
            | Event::Fenced { .. }
            | Event::IntentEnded { .. } => self.fold_fence(seq, event),
            Event::Doomed(doom) => self.fold_doom(seq, now_ms, doom),
            Event::StepClaimed { .. }
            | Event::StepCompleted { .. }
            | Event::StepFailed { .. }
            | Event::StepRenewed { .. }
            | Event::StepReleased { .. }
            | Event::StepDiscarded { .. }
            | Event::StepRetried { .. }
            | Event::StepResolved { .. }
            | Event::StepDue { .. } => self.fold_step(seq, now_ms, event),
            Event::ConfirmBy { rollback, until_ms } => {
                self.fold_confirm_by(seq, *rollback, *until_ms);
            }
            Event::RollbackFinished { rollback, report } => {
                self.fold_finished(seq, *rollback, report);
            }
            Event::EffectsRecalled { effects, reports } => {
                self.fold_recalled(seq, effects, reports);
            }
            Event::ArtifactCreated { .. }
            | Event::ArtifactMoved { .. }
            | Event::ArtifactFailed { .. }
            | Event::ArtifactRan { .. } => self.artifacts.fold(seq, now_ms, event),
        }
    }

    /// A restored store starts a new incarnation; every token of the old one is stale (I9).
    fn restored(&mut self, seq: u64, incarnation: u64) {
        self.incarnation = incarnation;
        self.settings.push(seq);
        let token = Token { incarnation, number: seq };
        for branch in self.branches.values_mut() {
            branch.token = token;
        }
        let all: Vec<_> = self.effects.iter().map(|effect| effect.id).collect();
        for id in all {
            if let Some(effect) = self.effects.get_mut(id) {
                effect.token = token;
            }
        }
    }

    fn fold_approval(&mut self, seq: u64, event: &Event) {
        match event {
            Event::ApprovalRequested { subject, digest, reason_required, by, reason } => {
                let id = ApprovalId(seq);
                let info = ApprovalInfo {
                    id,
                    subject: subject.clone(),
                    digest: *digest,
                    reason_required: *reason_required,
                    requested_by: by.clone(),
                    reason: reason.clone(),
                    state: ApprovalState::Pending,
                    answered_by: None,
                    answer_reason: None,
                };
                self.approvals.insert(id, Approval { info, used: false, records: vec![seq] });
                match (self.is_requested(subject), subject) {
                    (Some(rollback), _) => self.request_asked(seq, rollback, id),
                    (None, Subject::Rollback(rollback)) => self.asked(seq, *rollback, id),
                    _ => {}
                }
            }
            Event::ApprovalAnswered { approval, approved, by, reason } => {
                let Some(known) = self.approvals.get_mut(approval) else { return };
                known.info.state =
                    if *approved { ApprovalState::Approved } else { ApprovalState::Denied };
                known.info.answered_by = Some(by.clone());
                known.info.answer_reason.clone_from(reason);
                known.records.push(seq);
                let subject = known.info.subject.clone();
                match (self.is_requested(&subject), subject) {
                    (Some(rollback), _) => self.request_answered(seq, rollback, *approved),
                    (None, Subject::Rollback(rollback)) => self.answered(seq, rollback, *approved),
                    _ => {}
                }
            }
            Event::ApprovalStale { approval, successor } => {
                let Some(known) = self.approvals.get_mut(approval) else { return };
                known.info.state = ApprovalState::Stale;
                known.records.push(seq);
                let subject = known.info.subject.clone();
                match (self.is_requested(&subject), subject) {
                    // Nothing is left of what it asked for, so it is over as if it were denied.
                    (Some(rollback), _) if successor.is_none() => {
                        self.request_answered(seq, rollback, false);
                    }
                    (Some(rollback), _) => self.request_asked(seq, rollback, *approval),
                    (None, Subject::Rollback(rollback)) => self.unasked(seq, rollback),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn asked(&mut self, seq: u64, rollback: RollbackId, approval: ApprovalId) {
        if let Some(rollback) = self.rollbacks.get_mut(&rollback) {
            rollback.approvals.push(approval);
            rollback.approved = false;
            rollback.denied = false;
            rollback.note(seq);
        }
        self.reopen_denied(rollback);
        self.touched.insert(rollback);
    }

    fn answered(&mut self, seq: u64, rollback: RollbackId, approved: bool) {
        if let Some(rollback) = self.rollbacks.get_mut(&rollback) {
            rollback.approved = approved;
            rollback.denied = !approved;
            rollback.note(seq);
        }
        self.touched.insert(rollback);
    }

    fn unasked(&mut self, seq: u64, rollback: RollbackId) {
        let needs = self.approval_needed(rollback).is_some();
        if let Some(rollback) = self.rollbacks.get_mut(&rollback) {
            rollback.approved = !needs;
            rollback.note(seq);
        }
        self.touched.insert(rollback);
    }
}
