//! Folding governed rollbacks: asked for, approved, denied; and what is owed afterwards.

use super::fold_rollback::planned;
use super::{Asked, Rollback, State, Step, Timer};
use crate::model::{
    ApprovalId, CauseKind, EffectId, EffectState, Event, OnFailure, Requested, RollbackId,
    RootCause, Started, Subject,
};

/// Root causes of one kind that memory keeps for comparison.
const CAUSES_OF_A_KIND: usize = 64;

/// How long a rollback that can be undone in full may be open before somebody is told, in
/// milliseconds.
pub const FULL_WITHIN_MS: u64 = 3_600_000;

impl State {
    pub(super) fn fold_governed(&mut self, seq: u64, now_ms: u64, event: &Event) {
        match event {
            Event::RollbackRequested(request) => self.fold_requested(seq, now_ms, request),
            Event::RollbackStarted(started) => self.fold_started(seq, now_ms, started),
            Event::RollbackOverdue { rollback } => self.fold_overdue(seq, *rollback),
            Event::RootCauseRecorded(cause) => {
                self.fold_cause(seq, cause);
                self.fold_reviewed(seq, cause.rollback);
            }
            Event::RemedyWaived { rollback, .. } => self.fold_reviewed(seq, *rollback),
            _ => {}
        }
    }

    /// Nothing happens to the members: they are what they were until a person agrees.
    fn fold_requested(&mut self, seq: u64, now_ms: u64, request: &Requested) {
        let id = request.of.unwrap_or(RollbackId(seq));
        if self.rollbacks.contains_key(&id) {
            return; // It has begun; a start that folds what is needed may come to an older request.
        }
        let asked = self.requests.entry(id).or_insert_with(|| Asked {
            request: request.clone(),
            approvals: Vec::new(),
            created_ms: now_ms,
            records: Vec::new(),
        });
        asked.request.clone_from(request);
        asked.records.push(seq);
    }

    /// The approval of a request was asked for, or has become stale.
    pub(super) fn request_asked(&mut self, seq: u64, id: RollbackId, approval: ApprovalId) {
        if let Some(asked) = self.requests.get_mut(&id) {
            if asked.approvals.last() != Some(&approval) {
                asked.approvals.push(approval);
            }
            asked.records.push(seq);
        }
    }

    /// An answer: with a no the request is over, and everything is as it was.
    pub(super) fn request_answered(&mut self, seq: u64, id: RollbackId, approved: bool) {
        if approved {
            if let Some(asked) = self.requests.get_mut(&id) {
                asked.records.push(seq);
            }
            return;
        }
        if let Some(asked) = self.requests.remove(&id) {
            for approval in asked.approvals {
                self.approvals.remove(&approval);
            }
        }
    }

    /// A governed rollback begins: its committed members are in memory again, each with its step.
    fn fold_started(&mut self, seq: u64, now_ms: u64, started: &Started) {
        let id = started.rollback;
        let Some(asked) = self.requests.remove(&id) else { return };
        let Asked { request, approvals, created_ms, mut records } = asked;
        records.push(seq);
        let held: Vec<EffectId> =
            started.held.iter().filter(|id| self.effects.contains(*id)).collect();
        let rollback = Rollback {
            id,
            members: request.members(),
            direct: request.targets.iter().collect(),
            by: Some(request.by),
            trigger: request.trigger,
            reason: request.reason,
            created_ms,
            moved_ms: now_ms,
            confirm_by_ms: None,
            confirm_record: None,
            started_ms: now_ms,
            approvals,
            approved: true,
            denied: false,
            open: true,
            governed: true,
            grown: false,
            reviewed: false,
            held: held.len(),
            finished: None,
            records,
        };
        self.rollbacks.insert(id, rollback);
        for recalled in &started.effects {
            if !self.effects.contains(recalled.effect) {
                self.recall(seq, recalled);
            }
        }
        let waived = self.policy.on_failure == OnFailure::Continue;
        for effect in &held {
            self.withdraw(seq, *effect, id, waived);
        }
        for recalled in &started.effects {
            self.plan_undo(seq, recalled.effect, waived);
        }
        for edge in &started.edges {
            if self.graph.add_dependency(edge.effect.0, edge.on.0) {
                self.late_edges |= edge.on > edge.effect;
            }
        }
        let mut members: Vec<EffectId> = started.effects.iter().map(|known| known.effect).collect();
        members.extend(held);
        members.sort_unstable();
        self.dirty_keys(seq, &members);
        self.order = None;
        self.touched.insert(id);
        self.timers.insert((now_ms.saturating_add(FULL_WITHIN_MS), Timer::Overdue(id)));
    }

    /// A committed effect that memory had let go is to be undone.
    fn plan_undo(&mut self, seq: u64, id: EffectId, waived: bool) {
        let Some(effect) = self.effects.get_mut(id) else { return };
        effect.step = Some(Box::new(planned(effect, seq, waived)));
    }

    /// A committed effect that is still to run, or whose call is under way, is handed out no more.
    fn withdraw(&mut self, seq: u64, id: EffectId, rollback: RollbackId, waived: bool) {
        self.outbox.remove(&id);
        self.forget_run_approvals(id);
        // What follows is for members that rest on one another; a fence has taken it out of the graph.
        self.graph.insert(id.0, &[]);
        let Some(effect) = self.effects.get_mut(id) else { return };
        let step: Step = planned(effect, seq, waived);
        effect.step = Some(Box::new(step));
        effect.state = EffectState::Doomed;
        effect.governed = true;
        effect.rollback = Some(rollback);
        effect.note(seq);
    }

    /// The live members of a governed rollback fell with its approval.
    pub(super) fn join_governed(&mut self, seq: u64, id: RollbackId, members: usize) {
        if let Some(rollback) = self.rollbacks.get_mut(&id) {
            rollback.held += members;
            rollback.note(seq);
        }
        self.touched.insert(id);
    }

    /// A rollback that can be undone in full was not, for too long; it is told once.
    fn fold_overdue(&mut self, seq: u64, id: RollbackId) {
        self.in_time(id);
        if let Some(rollback) = self.rollbacks.get_mut(&id) {
            rollback.note(seq);
        }
    }

    /// Nobody need be told any more that a rollback is late.
    pub(super) fn in_time(&mut self, id: RollbackId) {
        if let Some(rollback) = self.rollbacks.get(&id) {
            let moment = rollback.started_ms.saturating_add(FULL_WITHIN_MS);
            self.timers.remove(&(moment, Timer::Overdue(id)));
        }
    }

    fn fold_reviewed(&mut self, seq: u64, id: RollbackId) {
        if let Some(rollback) = self.rollbacks.get_mut(&id) {
            rollback.reviewed = true;
            rollback.note(seq);
        }
    }

    /// Keeps the newest causes of each kind.
    fn fold_cause(&mut self, seq: u64, cause: &RootCause) {
        self.causes.insert(seq, cause.clone());
        for kind in CauseKind::ALL {
            let of_kind = |known: &RootCause| known.category == kind;
            let count = self.causes.values().filter(|known| of_kind(known)).count();
            let oldest = self.causes.iter().find(|(_, known)| of_kind(known)).map(|(seq, _)| *seq);
            if let Some(oldest) = oldest.filter(|_| count > CAUSES_OF_A_KIND) {
                self.causes.remove(&oldest);
            }
        }
    }

    /// The rollback of a subject, if it is still only asked for.
    pub fn is_requested(&self, subject: &Subject) -> Option<RollbackId> {
        match subject {
            Subject::Rollback(id) if self.requests.contains_key(id) => Some(*id),
            _ => None,
        }
    }
}
