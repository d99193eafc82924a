//! Rollbacks: steps, failures, reports and approvals.

use minicbor::{Decode, Encode};

use super::{EffectId, Problem, RollbackId};

/// Why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum FailureKind {
    /// Its attempts are used up.
    #[n(0)]
    Error,
    /// Its handler said that it will never work.
    #[n(1)]
    Permanent,
    /// A later writer that is committed holds its key.
    #[n(2)]
    Conflict,
    /// Its window has passed.
    #[n(3)]
    Expired,
    /// Its approval was denied.
    #[n(4)]
    Denied,
    /// Its handler took too long, at every attempt.
    #[n(5)]
    Timeout,
    /// Nobody here can run it.
    #[n(6)]
    NoHandler,
    /// The effect has no inverse.
    #[n(7)]
    NotCompensable,
    /// Its agent did not confirm in time.
    #[n(8)]
    Unconfirmed,
    /// The content of its artifact is not what was reviewed, so it was not handed out.
    #[n(9)]
    ContentMismatch,
}

impl FailureKind {
    /// The kind's name, the same in every language.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Error => "error",
            FailureKind::Permanent => "permanent",
            FailureKind::Conflict => "conflict",
            FailureKind::Expired => "expired",
            FailureKind::Denied => "denied",
            FailureKind::Timeout => "timeout",
            FailureKind::NoHandler => "no_handler",
            FailureKind::NotCompensable => "not_compensable",
            FailureKind::Unconfirmed => "unconfirmed",
            FailureKind::ContentMismatch => "content_mismatch",
        }
    }
}

/// A failed step, as reported.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Failure {
    /// The effect whose inverse failed; a step goes by its effect's id.
    #[n(0)]
    pub effect: EffectId,
    /// The tool of the inverse, or of the effect where there is none.
    #[n(1)]
    pub tool: String,
    /// The agent that owns the effect.
    #[n(2)]
    pub agent: String,
    /// Why.
    #[n(3)]
    pub kind: FailureKind,
    /// Type and shortened text of the last error.
    #[n(4)]
    pub problem: Problem,
    /// Attempts begun in this generation.
    #[n(5)]
    pub attempts: u32,
    /// The later writer of a conflict.
    #[n(6)]
    pub writer: Option<EffectId>,
}

/// A step that waits for something that is not a worker.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Blocked {
    /// The step.
    #[n(0)]
    pub effect: EffectId,
    /// The failed steps and live writers that hold it.
    #[cbor(n(1), with = "super::ids::gaps")]
    pub by: Vec<EffectId>,
}

/// What stays behind of an undone effect.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Limitation {
    /// The effect.
    #[n(0)]
    pub effect: EffectId,
    /// What stays behind, in the words of its inverse.
    #[n(1)]
    pub text: String,
}

/// What became of a rollback's members. Each is in exactly one list (I18).
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Report {
    /// Undone, by a handler or by hand.
    #[cbor(n(0), with = "super::ids::gaps")]
    pub completed: Vec<EffectId>,
    /// Undone, but the effect's call may yet land.
    #[cbor(n(1), with = "super::ids::gaps")]
    pub unsettled: Vec<EffectId>,
    /// Failed.
    #[n(2)]
    pub failed: Vec<Failure>,
    /// Held by a failed step or a live writer.
    #[n(3)]
    pub blocked: Vec<Blocked>,
    /// Not yet done.
    #[cbor(n(4), with = "super::ids::gaps")]
    pub pending: Vec<EffectId>,
    /// Members that never ran.
    #[cbor(n(5), with = "super::ids::gaps")]
    pub discarded: Vec<EffectId>,
    /// Whether every agent downstream has confirmed.
    #[n(6)]
    pub downstream_confirmed: bool,
    /// What stays behind of effects that are undone as far as they can be, in words.
    #[cbor(n(7), default, skip_if = "Vec::is_empty")]
    pub limitations: Vec<Limitation>,
}

impl Report {
    /// Nothing is unsettled, failed, blocked or pending.
    pub fn clean(&self) -> bool {
        self.unsettled.is_empty()
            && self.failed.is_empty()
            && self.blocked.is_empty()
            && self.pending.is_empty()
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.completed.len()
            + self.unsettled.len()
            + self.failed.len()
            + self.blocked.len()
            + self.pending.len()
            + self.discarded.len()
    }
}

/// The state of a rollback.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum RollbackState {
    /// A person must approve its plan.
    #[n(0)]
    AwaitingApproval,
    /// Its steps may be claimed.
    #[n(1)]
    Due,
    /// A step is claimed.
    #[n(2)]
    Running,
    /// Every step that is left waits for a person, a failed step or a live writer.
    #[n(3)]
    Blocked,
    /// Finished; a root cause is owed.
    #[n(4)]
    InReview,
    /// Finished and reviewed.
    #[n(5)]
    Closed,
}

/// Who caused a rollback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Trigger {
    /// A rule of the store: a lease, a late outcome, a read of what was doomed.
    #[default]
    #[n(0)]
    Automatic,
    /// An agent aborted or reconciled.
    #[n(1)]
    Agent,
    /// A judge found a fault.
    #[n(2)]
    Judge,
    /// A person.
    #[n(3)]
    Human,
}

/// The state of an approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum ApprovalState {
    /// Unanswered.
    #[default]
    #[n(0)]
    Pending,
    /// Given.
    #[n(1)]
    Approved,
    /// Refused.
    #[n(2)]
    Denied,
    /// Its plan changed before it was answered.
    #[n(3)]
    Stale,
}

/// What an approval is about.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Subject {
    /// A rollback's plan.
    #[n(0)]
    Rollback(#[n(0)] RollbackId),
    /// A committed deferred effect that is about to run.
    #[n(1)]
    Effect(#[n(0)] EffectId),
    /// A call that is to start before its fence.
    #[n(2)]
    Early {
        /// The branch.
        #[n(0)]
        branch: super::BranchId,
        /// The tool.
        #[n(1)]
        tool: String,
        /// Its arguments.
        #[n(2)]
        args: super::PayloadRef,
        /// The caller's name for the call.
        #[cbor(n(3), with = "minicbor::bytes")]
        idempotency_key: Option<Vec<u8>>,
    },
}

/// How loud an alert is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(index_only)]
pub enum Severity {
    /// Worth knowing.
    #[default]
    #[n(0)]
    Warning,
    /// A person must act.
    #[n(1)]
    Critical,
}
