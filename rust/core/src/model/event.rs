//! Events: what the log says happened. One function folds them, in every process and for ever, so an
//! event says all that folding needs and nothing that only one process knows.

use minicbor::{Decode, Encode};

use super::{
    AlertId, ApprovalId, BranchId, Doom, EffectId, FailureKind, FenceId, Inherited, Inverse,
    Limits, MemberSet, Observation, Outcome, Overwrite, PayloadRef, Policy, Problem, Read,
    ReadRule, Recalled, Registered, Report, Requested, RollbackId, RootCause, Severity, Started,
    Subject, Target, Token,
};

/// What happened.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[allow(missing_docs)] // The fields carry the vocabulary of the model one to one.
pub enum Event {
    /// The store was made.
    #[n(0)]
    Created {
        #[cbor(n(0), with = "minicbor::bytes")]
        store_id: [u8; 16],
        #[n(1)]
        limits: Limits,
        #[n(2)]
        policy: Policy,
    },
    /// Limits or policy were replaced.
    #[n(1)]
    Configured {
        #[n(0)]
        by: String,
        #[n(1)]
        limits: Option<Limits>,
        #[n(2)]
        policy: Option<Policy>,
    },
    /// New registrations were stopped.
    #[n(2)]
    Frozen {
        #[n(0)]
        by: String,
        #[n(1)]
        reason: String,
    },
    /// New registrations are let in again.
    #[n(3)]
    Unfrozen {
        #[n(0)]
        by: String,
    },
    /// A branch was made. Its id is this record's number, and so is its token.
    #[n(4)]
    BranchCreated {
        #[n(0)]
        name: String,
        #[n(1)]
        agent: String,
        #[n(2)]
        parent: Option<BranchId>,
        #[n(3)]
        reads: ReadRule,
        #[n(4)]
        overwrite: Overwrite,
        #[n(5)]
        lease_ms: Option<u64>,
        /// What its parent handed on.
        #[n(6)]
        inherited: Option<Box<Inherited>>,
    },
    /// A branch has a new holder; this record's number is its token.
    #[n(5)]
    BranchTaken {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        by: Option<String>,
        #[n(2)]
        worker_gone: bool,
    },
    /// A doomed branch started again; this record's number is its token.
    #[n(6)]
    BranchResumed {
        #[n(0)]
        branch: BranchId,
    },
    /// A child voted, finished, and handed its effects, observations and refusals to its parent.
    #[n(7)]
    BranchMerged {
        #[n(0)]
        branch: BranchId,
    },
    /// A branch's lease was extended.
    #[n(8)]
    BranchLeased {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        until_ms: u64,
    },
    /// An effect was registered. Its id is this record's number, and so is its token.
    #[n(9)]
    Registered(#[n(0)] Box<Registered>),
    /// A branch observed keys.
    #[n(10)]
    Observed {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        observations: Vec<Observation>,
    },
    /// A branch saw a key that its rule or a dirty key kept from it. It stays held until the writers
    /// are admitted.
    #[n(11)]
    ObservationRefused {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        key: super::Key,
        #[cbor(n(2), with = "super::ids::gaps")]
        writers: Vec<EffectId>,
        #[n(3)]
        rule: ReadRule,
    },
    /// A running effect observed keys and rests on more.
    #[n(12)]
    ObservedLate {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        observations: Vec<Observation>,
        #[cbor(n(2), with = "super::ids::gaps")]
        rests_on: Vec<EffectId>,
    },
    /// A call ran.
    #[n(13)]
    Done {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        result: PayloadRef,
        #[n(2)]
        inverse: Option<Inverse>,
        /// What its second look at its reads added.
        #[cbor(n(3), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
        rests_on: Vec<EffectId>,
    },
    /// A call did not run. A live effect becomes void; a doomed one is settled.
    #[n(14)]
    NotRun {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        problem: Problem,
        /// What its branch has observed through it.
        #[cbor(n(2), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
        observed: Vec<EffectId>,
    },
    /// An outside party saw an effect.
    #[n(15)]
    Exposed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        to: String,
    },
    /// The worker of an effect is known to be gone.
    #[n(16)]
    Closed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// A report that came too late, or from a stale holder, taken as evidence.
    #[n(17)]
    Evidence {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        outcome: Outcome,
        #[n(2)]
        result: Option<PayloadRef>,
        #[n(3)]
        inverse: Option<Inverse>,
        #[n(4)]
        problem: Option<Problem>,
    },
    /// Votes.
    #[n(18)]
    Voted {
        /// The branch that votes; absent for the merge authority, whose vote counts on every level.
        #[n(0)]
        branch: Option<BranchId>,
        #[n(1)]
        members: MemberSet,
        #[n(2)]
        by: Option<String>,
    },
    /// A commit waits; this record's number is the fence's id.
    #[n(19)]
    Intended {
        #[n(0)]
        targets: MemberSet,
        #[n(1)]
        target: Vec<Target>,
        #[n(2)]
        by: Option<String>,
    },
    /// One decision for effects.
    #[n(20)]
    Fenced {
        /// The intent that it fulfils, whose id the fence keeps.
        #[n(0)]
        intent: Option<FenceId>,
        #[n(1)]
        members: MemberSet,
        #[n(2)]
        target: Vec<Target>,
        #[n(3)]
        by: Option<String>,
    },
    /// An intent ended without a commit.
    #[n(21)]
    IntentEnded {
        #[n(0)]
        intent: FenceId,
        #[n(1)]
        cause: Option<EffectId>,
    },
    /// One decision against effects; this record's number is the rollback's id.
    #[n(22)]
    Doomed(#[n(0)] Box<Doom>),
    /// A worker began an attempt; this record's number is its token.
    #[n(23)]
    StepClaimed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        agent: String,
        #[n(2)]
        until_ms: u64,
    },
    /// One call of an inverse ran.
    #[n(24)]
    StepCompleted {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        result: Option<PayloadRef>,
    },
    /// An attempt failed.
    #[n(25)]
    StepFailed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        kind: FailureKind,
        #[n(2)]
        problem: Problem,
        /// When it is tried again; absent, it is final.
        #[n(3)]
        again_ms: Option<u64>,
        /// The later writer of a conflict.
        #[n(4)]
        writer: Option<EffectId>,
        /// Whether dependents of the failure are waived (policy `continue`).
        #[n(5)]
        waived: bool,
    },
    /// A lease was extended.
    #[n(26)]
    StepRenewed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        until_ms: u64,
    },
    /// An attempt ended without an outcome: interrupted, given back, or its lease ran out.
    #[n(27)]
    StepReleased {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        expired: bool,
    },
    /// The probe said that the effect never happened.
    #[n(28)]
    StepDiscarded {
        #[n(0)]
        effect: EffectId,
    },
    /// A person made a failed step due again.
    #[n(29)]
    StepRetried {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// A person undid a step.
    #[n(30)]
    StepResolved {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
        #[n(3)]
        versions: Vec<Read>,
    },
    /// An inverse is due again under a new generation.
    #[n(31)]
    StepDue {
        #[n(0)]
        effect: EffectId,
        /// The effect whose undo or late report is the cause.
        #[n(1)]
        cause: EffectId,
    },
    /// Nothing is left of a rollback.
    #[n(32)]
    RollbackFinished {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        report: Report,
    },
    /// Evidence brought settled members back.
    #[n(33)]
    EffectsRecalled {
        #[n(0)]
        effects: Vec<Recalled>,
        /// The last reports of their rollbacks.
        #[n(1)]
        reports: Vec<(RollbackId, Report)>,
    },
    /// An approval was requested; this record's number is its id.
    #[n(34)]
    ApprovalRequested {
        #[n(0)]
        subject: Subject,
        #[cbor(n(1), with = "minicbor::bytes")]
        digest: [u8; 32],
        #[n(2)]
        reason_required: bool,
        #[n(3)]
        by: String,
        #[n(4)]
        reason: String,
    },
    /// An approval was answered.
    #[n(35)]
    ApprovalAnswered {
        #[n(0)]
        approval: ApprovalId,
        #[n(1)]
        approved: bool,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: Option<String>,
    },
    /// The plan of an unanswered approval changed.
    #[n(36)]
    ApprovalStale {
        #[n(0)]
        approval: ApprovalId,
        #[n(1)]
        successor: Option<ApprovalId>,
    },
    /// A committed deferred effect was handed out; this record's number is its token.
    #[n(37)]
    Delivered {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        agent: String,
        #[n(2)]
        until_ms: u64,
        /// The writers that its reads were resolved to.
        #[cbor(n(3), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
        rests_on: Vec<EffectId>,
    },
    /// A delivery's lease was extended, or it was given back or ran out (`None`).
    #[n(38)]
    DeliveryHeld {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        until_ms: Option<u64>,
    },
    /// An alert was raised; this record's number is its id.
    #[n(39)]
    Alerted {
        #[n(0)]
        severity: Severity,
        #[n(1)]
        text: String,
        #[n(2)]
        reference: u64,
    },
    /// An alert was seen.
    #[n(40)]
    AlertAcknowledged {
        #[n(0)]
        alert: AlertId,
        #[n(1)]
        by: String,
    },
    /// A stale or late caller was turned away.
    #[n(41)]
    Refused {
        #[n(0)]
        verb: String,
        #[n(1)]
        code: String,
        #[n(2)]
        reference: u64,
        #[n(3)]
        held: Option<Token>,
    },
    /// A branch outlived its lease.
    #[n(42)]
    LeaseExpired {
        #[n(0)]
        branch: BranchId,
    },
    /// The undo window of a live effect passed.
    #[n(43)]
    WindowPassed {
        #[n(0)]
        effect: EffectId,
    },
    /// The store goes on from a restored backup, under a new incarnation.
    #[n(44)]
    Restored {
        #[n(0)]
        incarnation: u64,
    },
    /// The store was opened again after a commit whose outcome was unknown.
    #[n(45)]
    Reopened,
    /// A branch was stopped because what it observed is doomed, with nothing live to doom.
    #[n(46)]
    BranchStopped {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        cause: Option<EffectId>,
        #[n(2)]
        closed: bool,
        #[n(3)]
        by: Option<String>,
        #[n(4)]
        reason: Option<String>,
    },
    /// Committed effects are to be undone, if a person agrees. This record's number is the rollback's
    /// id, unless it says that it replaces the plan of one.
    #[n(47)]
    RollbackRequested(#[n(0)] Box<Requested>),
    /// A governed rollback was approved, and begins.
    #[n(48)]
    RollbackStarted(#[n(0)] Box<Started>),
    /// The root cause of a rollback is known.
    #[n(49)]
    RootCauseRecorded(#[n(0)] Box<RootCause>),
    /// No remedy is owed for a rollback, in the name of somebody.
    #[n(50)]
    RemedyWaived {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// A rollback is open for longer than an hour.
    #[n(51)]
    RollbackOverdue {
        #[n(0)]
        rollback: RollbackId,
    },
    /// A branch broke; this record's number is the BREAK's id.
    #[n(57)]
    BreakSignalled(#[n(0)] Box<super::Signal>),
    /// An agent is told of a BREAK; this record's number is the notice's id.
    #[n(58)]
    Notified {
        #[n(0)]
        signal: super::BreakId,
        #[n(1)]
        agent: String,
    },
    /// An agent has taken note.
    #[n(59)]
    NoticeAcknowledged {
        #[n(0)]
        notice: super::NoticeId,
    },
    /// The time to acknowledge a BREAK is over, and somebody has not.
    #[n(60)]
    BreakUnheard {
        #[n(0)]
        signal: super::BreakId,
    },
    /// The agent that broke has undone all of its own, so that those upstream of it may go on.
    #[n(61)]
    BreakConfirmed {
        #[n(0)]
        signal: super::BreakId,
    },
    /// Until when the agents of a rollback are to confirm; nobody watches it (`None`) while nothing
    /// of it can move.
    #[n(62)]
    ConfirmBy {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        until_ms: Option<u64>,
    },
    /// An artifact was created; this record's number is its id. The record after a primary's is that
    /// of its compensation.
    #[n(64)]
    ArtifactCreated {
        #[n(0)]
        spec: Box<super::ArtifactSpec>,
        /// The primary, of a compensation.
        #[n(1)]
        compensates_for: Option<super::ArtifactId>,
        #[n(2)]
        by: String,
        /// The caller's name for the call that made the pair, of a primary.
        #[cbor(n(3), with = "minicbor::bytes")]
        idempotency_key: Option<Vec<u8>>,
    },
    /// A pair of artifacts was submitted, approved, promoted, started, completed or withdrawn.
    #[n(65)]
    ArtifactMoved {
        #[n(0)]
        artifact: super::ArtifactId,
        #[n(1)]
        state: super::ArtifactState,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: Option<String>,
    },
    /// A primary artifact failed.
    #[n(66)]
    ArtifactFailed {
        #[n(0)]
        artifact: super::ArtifactId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
        /// The failed run.
        #[n(3)]
        run_id: Option<String>,
        /// The effect whose step is the compensation's run; absent: there is none.
        #[n(4)]
        run: Option<EffectId>,
        /// The rollback that holds the run.
        #[n(5)]
        rollback: Option<RollbackId>,
    },
    /// The run of a compensation ended, or is due once more: its execution record and provenance.
    #[n(67)]
    ArtifactRan {
        #[n(0)]
        artifact: super::ArtifactId,
        #[n(1)]
        compensation: super::ArtifactId,
        #[n(2)]
        run: EffectId,
        #[n(3)]
        rollback: RollbackId,
        #[n(4)]
        state: super::ArtifactState,
        #[n(5)]
        kind: Option<FailureKind>,
        #[n(6)]
        attempts: u32,
        #[n(7)]
        by: Option<String>,
        #[cbor(n(8), with = "minicbor::bytes")]
        sha256: [u8; 32],
        #[n(9)]
        approved_by: Option<String>,
    },
}

impl Event {
    /// The kind's name, as `store.log()` shows it.
    pub fn kind(&self) -> &'static str {
        match self {
            Event::Created { .. } => "created",
            Event::Configured { .. } => "configured",
            Event::Frozen { .. } => "frozen",
            Event::Unfrozen { .. } => "unfrozen",
            Event::BranchCreated { .. } => "branch_created",
            Event::BranchTaken { .. } => "branch_taken",
            Event::BranchResumed { .. } => "branch_resumed",
            Event::BranchMerged { .. } => "branch_merged",
            Event::BranchLeased { .. } => "branch_leased",
            Event::Registered(_) => "registered",
            Event::Observed { .. } => "observed",
            Event::ObservationRefused { .. } => "observation_refused",
            Event::ObservedLate { .. } => "observed_late",
            Event::Done { .. } => "done",
            Event::NotRun { .. } => "not_run",
            Event::Exposed { .. } => "exposed",
            Event::Closed { .. } => "closed",
            Event::Evidence { .. } => "evidence",
            Event::Voted { .. } => "voted",
            Event::Intended { .. } => "intended",
            Event::Fenced { .. } => "fenced",
            Event::IntentEnded { .. } => "intent_ended",
            Event::Doomed(_) => "doomed",
            Event::StepClaimed { .. } => "step_claimed",
            Event::StepCompleted { .. } => "step_completed",
            Event::StepFailed { .. } => "step_failed",
            Event::StepRenewed { .. } => "step_renewed",
            Event::StepReleased { .. } => "step_released",
            Event::StepDiscarded { .. } => "step_discarded",
            Event::StepRetried { .. } => "step_retried",
            Event::StepResolved { .. } => "step_resolved",
            Event::StepDue { .. } => "step_due",
            Event::RollbackFinished { .. } => "rollback_finished",
            Event::EffectsRecalled { .. } => "effects_recalled",
            Event::ApprovalRequested { .. } => "approval_requested",
            Event::ApprovalAnswered { .. } => "approval_answered",
            Event::ApprovalStale { .. } => "approval_stale",
            Event::Delivered { .. } => "delivered",
            Event::DeliveryHeld { .. } => "delivery_held",
            Event::Alerted { .. } => "alerted",
            Event::AlertAcknowledged { .. } => "alert_acknowledged",
            Event::Refused { .. } => "refused",
            Event::LeaseExpired { .. } => "lease_expired",
            Event::WindowPassed { .. } => "window_passed",
            Event::Restored { .. } => "restored",
            Event::Reopened => "reopened",
            Event::BranchStopped { .. } => "branch_stopped",
            Event::RollbackRequested(_) => "rollback_requested",
            Event::RollbackStarted(_) => "rollback_started",
            Event::RootCauseRecorded(_) => "root_cause_recorded",
            Event::RemedyWaived { .. } => "remedy_waived",
            Event::RollbackOverdue { .. } => "rollback_overdue",
            Event::BreakSignalled(_) => "break_signalled",
            Event::Notified { .. } => "notified",
            Event::NoticeAcknowledged { .. } => "notice_acknowledged",
            Event::BreakUnheard { .. } => "break_unheard",
            Event::BreakConfirmed { .. } => "break_confirmed",
            Event::ConfirmBy { .. } => "confirm_by",
            Event::ArtifactCreated { .. } => "artifact_created",
            Event::ArtifactMoved { .. } => "artifact_moved",
            Event::ArtifactFailed { .. } => "artifact_failed",
            Event::ArtifactRan { .. } => "artifact_ran",
        }
    }
}
