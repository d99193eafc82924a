//! Rollbacks in memory: plans that are not finished, and their steps.

use crate::model::{
    ApprovalId, EffectId, FailureKind, Problem, Report, Requested, RollbackId, Token, Trigger,
};

/// How far a step is.
#[derive(Clone, Debug, PartialEq)]
pub enum StepStatus {
    /// The effect never ran; there is nothing to undo.
    Discarded,
    /// To be done; not before the moment, where there is one (backoff).
    Pending {
        /// Milliseconds.
        again_ms: Option<u64>,
    },
    /// A worker is at it.
    Claimed {
        /// Who.
        agent: String,
        /// End of the lease, in milliseconds.
        until_ms: u64,
        /// The token of the claim.
        token: Token,
    },
    /// Undone.
    Completed {
        /// By a person.
        by_hand: bool,
    },
    /// It failed for good, until a person or a new generation makes it due again.
    Failed {
        /// Why.
        kind: FailureKind,
        /// Type and text of the last error.
        problem: Problem,
        /// The later writer of a conflict.
        writer: Option<EffectId>,
        /// The order of dependencies is waived (policy `continue`).
        waived: bool,
    },
}

/// The undo of one effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How far it is.
    pub status: StepStatus,
    /// Rises when the inverse is due again; part of its key.
    pub generation: u32,
    /// Attempts begun in this generation.
    pub attempts: u32,
    /// Attempts that count against the limit.
    pub counted: u32,
    /// Whether it was ever claimed, in any generation.
    pub begun: bool,
    /// The next call of an inverse of several.
    pub place: usize,
    /// The record that completed it; 0 before.
    pub completed_at: u64,
    /// Evidence came while it was claimed: when the claim ends it is due under the next generation.
    pub evidence: bool,
    /// The record since which the effect's keys are clean of it; 0 while they are dirty.
    pub clean_at: u64,
}

impl Step {
    /// A step that is to be done, or discarded where the effect never ran.
    pub fn new(discarded: bool) -> Self {
        Step {
            status: if discarded {
                StepStatus::Discarded
            } else {
                StepStatus::Pending { again_ms: None }
            },
            generation: 1,
            attempts: 0,
            counted: 0,
            begun: false,
            place: 0,
            completed_at: 0,
            evidence: false,
            clean_at: 0,
        }
    }

    /// How far it is, in a word.
    pub fn state_name(&self) -> &'static str {
        match self.status {
            StepStatus::Discarded => "discarded",
            StepStatus::Pending { .. } => "due",
            StepStatus::Claimed { .. } => "claimed",
            StepStatus::Completed { by_hand: false } => "completed",
            StepStatus::Completed { by_hand: true } => "resolved",
            StepStatus::Failed { .. } => "failed",
        }
    }

    /// It failed for good, and the order of dependencies goes on without it.
    pub fn is_waived(&self) -> bool {
        matches!(self.status, StepStatus::Failed { waived: true, .. })
    }

    /// Undone, by whomever.
    pub fn is_completed(&self) -> bool {
        matches!(self.status, StepStatus::Completed { .. })
    }

    /// Nothing to undo.
    pub fn is_discarded(&self) -> bool {
        self.status == StepStatus::Discarded
    }

    /// Undone or nothing to undo.
    pub fn is_finished(&self) -> bool {
        self.is_completed() || self.is_discarded()
    }

    /// A worker is at it.
    pub fn is_claimed(&self) -> bool {
        matches!(self.status, StepStatus::Claimed { .. })
    }

    /// It failed for good.
    pub fn is_failed(&self) -> bool {
        matches!(self.status, StepStatus::Failed { .. })
    }

    /// Its agent did not confirm in time.
    pub fn is_unconfirmed(&self) -> bool {
        matches!(self.status, StepStatus::Failed { kind: FailureKind::Unconfirmed, .. })
    }

    /// A worker may begin it, as far as only its own state counts: it is due, or it failed for want
    /// of a handler or a confirmation, which another worker, or a later one, may have.
    pub fn may_begin(&self, now_ms: u64) -> bool {
        match &self.status {
            StepStatus::Pending { again_ms } => again_ms.is_none_or(|again| again <= now_ms),
            _ => self.wants_a_worker(),
        }
    }

    /// It failed for want of a worker alone: another one, or a later one, may still begin it.
    pub fn wants_a_worker(&self) -> bool {
        matches!(
            self.status,
            StepStatus::Failed { kind: FailureKind::NoHandler | FailureKind::Unconfirmed, .. }
        )
    }

    /// It waits for a worker.
    pub fn is_pending(&self) -> bool {
        matches!(self.status, StepStatus::Pending { .. })
    }

    /// Makes it due again under a new key.
    pub fn next_generation(&mut self) {
        self.generation += 1;
        self.attempts = 0;
        self.counted = 0;
        self.place = 0;
        self.completed_at = 0;
        self.clean_at = 0;
        self.evidence = false;
        self.status = StepStatus::Pending { again_ms: None };
    }
}

/// A rollback in memory.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Four independent facts, no state machine in disguise.
pub struct Rollback {
    /// Its id.
    pub id: RollbackId,
    /// All that its decision doomed, ascending.
    pub members: Vec<EffectId>,
    /// Those that were named.
    pub direct: Vec<EffectId>,
    /// Who decided.
    pub by: Option<String>,
    /// What caused it.
    pub trigger: Trigger,
    /// Why.
    pub reason: String,
    /// When it was decided, in milliseconds.
    pub created_ms: u64,
    /// Since when its steps may be run, or an approval is asked for, in milliseconds.
    pub started_ms: u64,
    /// Its approvals, oldest first.
    pub approvals: Vec<ApprovalId>,
    /// An approval was given for a plan that still holds, or none is needed.
    pub approved: bool,
    /// Its last request was denied and no other was made.
    pub denied: bool,
    /// Something is left to do or to know.
    pub open: bool,
    /// A person asked for it and approved it: it undoes committed effects, too.
    pub governed: bool,
    /// Evidence gave a step to a member that had none, after the last approval was asked for.
    pub grown: bool,
    /// When a step of it last ended well or became due anew, in milliseconds.
    pub moved_ms: u64,
    /// Until when its agents are to confirm, in milliseconds; nobody watches it where there is none.
    pub confirm_by_ms: Option<u64>,
    /// The record that says so; older ones are not needed.
    pub confirm_record: Option<u64>,
    /// Something was said of its cause or remedy.
    pub reviewed: bool,
    /// How many of its members are in memory.
    pub held: usize,
    /// Its report at the last time that nothing was left.
    pub finished: Option<Report>,
    /// Records that memory needs for it, ascending.
    pub records: Vec<u64>,
}

/// A governed rollback that nobody has approved yet. Nothing has happened to its members.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What is asked for, and the plan as it was looked up last.
    pub request: Requested,
    /// Its approvals, oldest first.
    pub approvals: Vec<ApprovalId>,
    /// When it was asked for, in milliseconds.
    pub created_ms: u64,
    /// Records that memory needs for it, ascending.
    pub records: Vec<u64>,
}

impl Rollback {
    /// Notes a record that memory needs for it.
    pub fn note(&mut self, record: u64) {
        if self.records.last() != Some(&record) {
            self.records.push(record);
        }
    }
}
