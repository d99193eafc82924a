//! Commands: what a verb asks of the decisions. A command holds no clock and no randomness, so that
//! deciding a recorded command again gives the recorded events (I10).

use minicbor::{Decode, Encode};

use super::{
    ApprovalId, Ask, BranchId, ClaimSpec, EffectId, Escalate, Inverse, Limits, Observed,
    OnConflict, Overwrite, PayloadRef, Placed, Policy, Problem, Read, ReadRule, RollbackId,
    StepEnd, StepHold, Target, Token,
};

/// A command.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[allow(missing_docs)] // The fields carry the vocabulary of the verbs one to one.
pub enum Command {
    /// Makes the store.
    #[n(0)]
    Create {
        #[cbor(n(0), with = "minicbor::bytes")]
        store_id: [u8; 16],
        #[n(1)]
        limits: Limits,
        #[n(2)]
        policy: Policy,
    },
    /// Replaces limits or policy.
    #[n(1)]
    Configure {
        #[n(0)]
        by: String,
        #[n(1)]
        limits: Option<Limits>,
        #[n(2)]
        policy: Option<Policy>,
    },
    /// Stops new registrations.
    #[n(2)]
    Freeze {
        #[n(0)]
        by: String,
        #[n(1)]
        reason: String,
    },
    /// Lets them in again.
    #[n(3)]
    Unfreeze {
        #[n(0)]
        by: String,
    },
    /// Makes a branch.
    #[n(4)]
    CreateBranch {
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
        #[n(6)]
        parent_token: Option<Token>,
    },
    /// Hands out a new token and makes older ones stale.
    #[n(5)]
    TakeOver {
        #[n(0)]
        name: String,
        #[n(1)]
        worker_gone: bool,
        #[n(2)]
        by: Option<String>,
    },
    /// Starts a doomed branch again from what survives.
    #[n(6)]
    Resume {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Token,
    },
    /// Votes for a child and finishes it.
    #[n(7)]
    Merge {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Token,
    },
    /// Extends a branch's lease.
    #[n(8)]
    Heartbeat {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Token,
    },
    /// Registers calls, all or none.
    #[n(9)]
    Register {
        #[n(0)]
        calls: Vec<Placed>,
        #[n(1)]
        observed: Vec<Observed>,
    },
    /// Observes keys for a branch.
    #[n(10)]
    Observe {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Token,
        #[n(2)]
        keys: Vec<Read>,
        #[n(3)]
        since: Option<u64>,
        #[n(4)]
        durable: bool,
    },
    /// Observes keys for a running effect.
    #[n(11)]
    ObserveLate {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        token: Token,
        #[n(2)]
        keys: Vec<Read>,
    },
    /// Reports that a call ran.
    #[n(12)]
    Done {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        token: Token,
        #[n(2)]
        result: PayloadRef,
        #[n(3)]
        inverse: Option<Inverse>,
    },
    /// Reports that a call did not run.
    #[n(13)]
    NotRun {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        token: Token,
        #[n(2)]
        problem: Problem,
    },
    /// Records that an outside party saw an effect.
    #[n(14)]
    Exposed {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        token: Token,
        #[n(2)]
        to: String,
    },
    /// Says that an effect's worker is gone.
    #[n(15)]
    Close {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// Votes for all that a branch registered.
    #[n(16)]
    Seal {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Token,
    },
    /// Votes for the owner's part and asks for the commit.
    #[n(17)]
    Commit {
        #[n(0)]
        target: Target,
        #[n(1)]
        token: Token,
        #[n(2)]
        escalate: Escalate,
    },
    /// Dooms a branch or effect in its owner's name.
    #[n(18)]
    Abort {
        #[n(0)]
        target: Target,
        #[n(1)]
        token: Token,
        #[n(2)]
        reason: String,
        #[n(3)]
        by: Option<String>,
    },
    /// Settles winners and losers in one decision.
    #[n(19)]
    Reconcile {
        #[n(0)]
        commit: Vec<Target>,
        #[n(1)]
        abort: Vec<Target>,
        #[n(2)]
        closure: bool,
        #[n(3)]
        by: Option<String>,
        #[n(4)]
        reason: Option<String>,
        #[n(5)]
        on_conflict: OnConflict,
        #[n(6)]
        escalate: Escalate,
    },
    /// Takes a step that is due.
    #[n(20)]
    Claim {
        #[n(0)]
        spec: ClaimSpec,
    },
    /// Ends an attempt, and takes the next step in the same transaction if asked.
    #[n(21)]
    EndStep {
        #[n(0)]
        hold: StepHold,
        #[n(1)]
        end: StepEnd,
        #[n(2)]
        next: Option<ClaimSpec>,
    },
    /// Extends the lease of a claimed step.
    #[n(22)]
    RenewStep {
        #[n(0)]
        hold: StepHold,
        #[n(1)]
        lease_ms: u64,
    },
    /// Makes a failed step due again.
    #[n(23)]
    RetryStep {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        effect: EffectId,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: String,
    },
    /// Records that a person undid a step.
    #[n(24)]
    ResolveStep {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        effect: EffectId,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: String,
        #[n(4)]
        versions: Vec<Read>,
    },
    /// Asks for an approval.
    #[n(25)]
    Ask {
        #[n(0)]
        ask: Ask,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// Answers an approval.
    #[n(26)]
    Answer {
        #[n(0)]
        approval: ApprovalId,
        #[n(1)]
        approve: bool,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: Option<String>,
    },
    /// Takes a committed deferred effect to run it.
    #[n(27)]
    Deliver {
        #[n(0)]
        agent: String,
        #[n(1)]
        tools: Option<Vec<String>>,
        #[n(2)]
        lease_ms: u64,
    },
    /// Extends (`Some`) or gives back (`None`) a delivery.
    #[n(28)]
    HoldDelivery {
        #[n(0)]
        effect: EffectId,
        #[n(1)]
        token: Token,
        #[n(2)]
        lease_ms: Option<u64>,
    },
    /// Marks an alert as seen.
    #[n(29)]
    Acknowledge {
        #[n(0)]
        alert: super::AlertId,
        #[n(1)]
        by: String,
    },
    /// Turns what fell due into events.
    #[n(30)]
    Tick,
    /// Marks the first write after a restore.
    #[n(31)]
    Restore,
    /// Workers that held these steps and deliveries have ended with their processes.
    #[n(32)]
    WorkersGone {
        #[n(0)]
        holds: Vec<StepHold>,
    },
    /// Says that the store goes on after a commit whose outcome was unknown.
    #[n(33)]
    Reopen,
    /// Asks for committed effects to be undone.
    #[n(34)]
    RequestRollback {
        #[n(0)]
        targets: Vec<Target>,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
        #[n(3)]
        trigger: super::Trigger,
        #[n(4)]
        program_order: bool,
    },
    /// Says why a rollback was necessary.
    #[n(35)]
    RecordRootCause {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        category: super::CauseKind,
        #[n(2)]
        note: String,
        #[n(3)]
        by: String,
        #[n(4)]
        remedy: Option<String>,
    },
    /// Says that nothing is changed because of a rollback, and why.
    #[n(36)]
    WaiveRemedy {
        #[n(0)]
        rollback: RollbackId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
    },
    /// Says that the machine was started anew: who held a lease is gone.
    #[n(58)]
    NewBoot,
    /// Signals that a branch broke.
    #[n(42)]
    SignalBreak {
        #[n(0)]
        branch: BranchId,
        #[n(1)]
        token: Option<Token>,
        #[n(2)]
        severity: super::BreakSeverity,
        #[n(3)]
        reason: String,
        #[n(4)]
        recoverable: bool,
        #[n(5)]
        upstream: Vec<String>,
        #[n(6)]
        ack_within_ms: u64,
    },
    /// Acknowledges a notice.
    #[n(43)]
    AckNotice {
        #[n(0)]
        notice: super::NoticeId,
        #[n(1)]
        agent: String,
    },
    /// Makes an executable artifact and its compensation.
    #[n(48)]
    CreateArtifacts {
        #[n(0)]
        primary: Box<super::ArtifactSpec>,
        #[n(1)]
        compensation: Box<super::ArtifactSpec>,
        #[n(2)]
        by: String,
        #[cbor(n(3), with = "minicbor::bytes")]
        idempotency_key: Option<Vec<u8>>,
    },
    /// Brings a pair of artifacts into its next state.
    #[n(49)]
    MoveArtifact {
        #[n(0)]
        artifact: super::ArtifactId,
        #[n(1)]
        state: super::ArtifactState,
        #[n(2)]
        by: String,
        #[n(3)]
        reason: Option<String>,
    },
    /// Reports that a primary artifact failed.
    #[n(50)]
    FailArtifact {
        #[n(0)]
        artifact: super::ArtifactId,
        #[n(1)]
        by: String,
        #[n(2)]
        reason: String,
        #[n(3)]
        run_id: Option<String>,
        #[n(4)]
        args: PayloadRef,
    },
}

impl Command {
    /// The verb's name, for the audit trail.
    pub fn verb(&self) -> &'static str {
        match self {
            Command::Create { .. } => "create",
            Command::Configure { .. } => "configure",
            Command::Freeze { .. } => "freeze",
            Command::Unfreeze { .. } => "unfreeze",
            Command::CreateBranch { .. } => "branch",
            Command::TakeOver { .. } => "takeover",
            Command::Resume { .. } => "resume",
            Command::Merge { .. } => "merge",
            Command::Heartbeat { .. } => "heartbeat",
            Command::Register { .. } => "register",
            Command::Observe { .. } | Command::ObserveLate { .. } => "observe",
            Command::Done { .. } => "done",
            Command::NotRun { .. } => "not_run",
            Command::Exposed { .. } => "exposed",
            Command::Close { .. } => "close",
            Command::Seal { .. } => "seal",
            Command::Commit { .. } => "commit",
            Command::Abort { .. } => "abort",
            Command::Reconcile { .. } => "reconcile",
            Command::Claim { .. } => "claim",
            Command::EndStep { .. } => "end_step",
            Command::RenewStep { .. } => "renew",
            Command::RetryStep { .. } => "retry",
            Command::ResolveStep { .. } => "resolve",
            Command::Ask { .. } => "request_approval",
            Command::Answer { .. } => "answer",
            Command::Deliver { .. } => "deliver",
            Command::HoldDelivery { .. } => "hold_delivery",
            Command::Acknowledge { .. } => "acknowledge",
            Command::Tick => "tick",
            Command::Restore => "restore",
            Command::WorkersGone { .. } => "workers_gone",
            Command::Reopen => "reopen",
            Command::RequestRollback { .. } => "request_rollback",
            Command::RecordRootCause { .. } => "record_root_cause",
            Command::WaiveRemedy { .. } => "waive_remedy",
            Command::NewBoot => "new_boot",
            Command::SignalBreak { .. } => "signal_break",
            Command::AckNotice { .. } => "ack_notice",
            Command::CreateArtifacts { .. } => "create_artifacts",
            Command::MoveArtifact { .. } => "move_artifact",
            Command::FailArtifact { .. } => "fail_artifact",
        }
    }
}
