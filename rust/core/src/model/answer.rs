//! Answers: snapshots of what was true when they were handed out.

use super::{
    ApprovalId, ApprovalState, BranchId, BranchState, Class, EffectId, EffectState, FenceId,
    Inverse, Key, Mode, Observation, Outcome, Read, ReadRule, Report, RollbackId, RollbackState,
    Severity, Subject, Token,
};

/// Why an effect is in the way of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockReason {
    /// Nobody voted for it.
    NoVote,
    /// Its outcome is unknown.
    Unknown,
}

/// An effect in the way of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The effect.
    pub effect: EffectId,
    /// Its branch's name.
    pub branch: String,
    /// Its agent.
    pub agent: String,
    /// Why it is in the way.
    pub reason: BlockReason,
}

/// What a fence would decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionKind {
    /// Commit: everything it rests on is committed, or will be with it.
    Commit,
    /// Abort: it holds a doomed effect.
    Abort,
    /// Escalate: the whole closure or nothing.
    Escalate,
}

/// The answer of `decide`, which changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What was asked about: an effect's or a branch's id.
    pub target: u64,
    /// What the fence would do.
    pub kind: DecisionKind,
    /// All uncommitted effects that would be settled together.
    pub closure: Vec<EffectId>,
    /// Those in the way.
    pub blockers: Vec<Blocker>,
    /// The doomed effect, if one decides.
    pub cause: Option<EffectId>,
    /// Members past their undo window.
    pub expired: Vec<EffectId>,
}

/// How far a fence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceStatus {
    /// Decided for, durably.
    Committed,
    /// An intent waits for blockers.
    Waiting,
    /// Decided against.
    Aborted,
}

/// A fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceInfo {
    /// Its id; `None` where nothing was left to decide.
    pub id: Option<FenceId>,
    /// How far it is.
    pub status: FenceStatus,
    /// What it committed.
    pub committed: Vec<EffectId>,
    /// What is in its way.
    pub blockers: Vec<Blocker>,
    /// Who asked, where that was recorded.
    pub by: Option<String>,
}

/// A branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchInfo {
    /// Its id.
    pub id: BranchId,
    /// Its name.
    pub name: String,
    /// Its agent.
    pub agent: String,
    /// Its parent's name.
    pub parent: Option<String>,
    /// Its current token.
    pub token: Token,
    /// Its state.
    pub state: BranchState,
    /// The effects that its next one will rest on.
    pub tip: Vec<EffectId>,
    /// What it may rest on.
    pub reads: ReadRule,
}

/// An effect.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectInfo {
    /// Its id.
    pub id: EffectId,
    /// Its branch; after a merge, the parent.
    pub branch: BranchId,
    /// Its branch's name.
    pub branch_name: String,
    /// Its branch's agent.
    pub agent: String,
    /// The token of its outcome.
    pub token: Token,
    /// Its tool.
    pub tool: String,
    /// Its arguments, as stored.
    pub args: Vec<u8>,
    /// Its declared reads.
    pub reads: Vec<Read>,
    /// Its writes.
    pub writes: Vec<Key>,
    /// What it follows: its branch's tip at the registration, or what the caller named instead.
    pub after: Vec<EffectId>,
    /// All that it rests on directly, through observations too; settled ones included.
    pub rests_on: Vec<EffectId>,
    /// Its inverse as last known, with the arguments of each call.
    pub inverse: Option<(Inverse, Vec<Option<Vec<u8>>>)>,
    /// Its class.
    pub class: Class,
    /// Its mode.
    pub mode: Mode,
    /// The caller's name for the call.
    pub idempotency_key: Option<Vec<u8>>,
    /// What it cost.
    pub cost: Option<f64>,
    /// Its state.
    pub state: EffectState,
    /// What is known of its call.
    pub outcome: Outcome,
    /// Its result, once done.
    pub result: Option<Vec<u8>>,
    /// Whether it has every vote that it needs.
    pub sealed: bool,
    /// Whether its inverse ran or a person undid it.
    pub compensated: bool,
    /// The fence that committed it.
    pub fence: Option<FenceId>,
    /// The rollback that holds it.
    pub rollback: Option<RollbackId>,
}

/// The answer to one registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The effect.
    pub effect: EffectId,
    /// The token of its outcome; absent where the effect belongs to another branch.
    pub token: Option<Token>,
    /// False: known by its idempotency key.
    pub created: bool,
    /// Its state now.
    pub state: EffectState,
    /// What is known of its call.
    pub outcome: Outcome,
}

/// What a reconcile settled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciliation {
    /// The fence of the commit side, if there was one.
    pub fence: Option<FenceInfo>,
    /// What was committed.
    pub committed: Vec<EffectId>,
    /// What was doomed directly.
    pub doomed: Vec<EffectId>,
    /// What was dragged along.
    pub cascaded: Vec<EffectId>,
    /// What was named on the abort side and stays, because it is committed.
    pub kept: Vec<EffectId>,
    /// Rollbacks that hold what was named, earlier ones too.
    pub rollbacks: Vec<RollbackId>,
    /// The new rollback, if anything doomed now may have run.
    pub rollback: Option<RollbackId>,
}

/// A claimed step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepInfo {
    /// The step goes by its effect's id.
    pub effect: EffectId,
    /// Its rollback.
    pub rollback: RollbackId,
    /// The tool to call; empty for a manual step.
    pub tool: String,
    /// Its arguments, as stored.
    pub args: Option<Vec<u8>>,
    /// The agent that owns the effect.
    pub agent: String,
    /// The same at every attempt of a generation: (store, effect, generation, place).
    pub idempotency_key: String,
    /// Attempts begun in this generation, this one included.
    pub attempt: u32,
    /// The generation of the inverse.
    pub generation: u32,
    /// The versions that the effect wrote.
    pub expected_versions: Vec<Read>,
    /// Moment past which it is not attempted, in milliseconds.
    pub deadline_ms: Option<u64>,
    /// End of the lease, in milliseconds.
    pub lease_until_ms: u64,
    /// The token of the claim.
    pub token: Token,
    /// Whether the forward call is known to have run.
    pub outcome: Outcome,
    /// The artifact that holds the inverse's code.
    pub artifact: Option<super::ArtifactId>,
}

/// A committed deferred effect that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryInfo {
    /// The effect.
    pub effect: EffectId,
    /// The stable key of its call.
    pub idempotency_key: String,
    /// How often it was handed out.
    pub attempt: u32,
    /// End of the lease, in milliseconds.
    pub lease_until_ms: u64,
    /// The token of the hold.
    pub token: Token,
}

/// A rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct RollbackInfo {
    /// Its id.
    pub id: RollbackId,
    /// Its state.
    pub state: RollbackState,
    /// Its members.
    pub effects: Vec<EffectId>,
    /// Who caused it.
    pub initiated_by: Option<String>,
    /// What caused it.
    pub trigger: super::Trigger,
    /// Why.
    pub reason: String,
    /// Its approvals, oldest first.
    pub approvals: Vec<ApprovalId>,
    /// What became of its members.
    pub report: Report,
    /// The effects that were named.
    pub direct: Vec<EffectId>,
    /// It undoes committed effects, after an approval.
    pub governed: bool,
    /// When it was decided or asked for, in milliseconds of the store's clock.
    pub created_ms: u64,
    /// When nothing was left of it, in milliseconds.
    pub finished_ms: Option<u64>,
    /// Its root cause, once it is known.
    pub root_cause: Option<super::RootCause>,
    /// Who waived the remedy, and why.
    pub waived: Option<(String, String)>,
}

/// The audit record of a rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// The rollback as it is now.
    pub rollback: RollbackInfo,
    /// What was to be undone: the first effect that was named.
    pub original_action: EffectId,
    /// Each member that may have run, in the order of the undo, as far as it is known.
    pub steps: Vec<AuditStep>,
    /// Its approvals, with who answered and why.
    pub approvals: Vec<ApprovalInfo>,
}

/// One step of an audit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditStep {
    /// The effect.
    pub effect: EffectId,
    /// The tool of its inverse; the effect's own where there is none.
    pub action: String,
    /// `done`, `resolved`, `unsettled`, `failed`, `blocked`, `pending` or `discarded`.
    pub status: &'static str,
    /// Attempts begun, over all generations; none where no handler was found.
    pub attempts: u32,
    /// Who ended it: the agent of the last attempt, or the person that resolved it. A worker that acts
    /// for every agent is called that, with the agent for whom it acted.
    pub by: Option<String>,
}

/// A step of a plan, in the order in which one worker would take them.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedStep {
    /// The effect.
    pub effect: EffectId,
    /// The tool of the inverse.
    pub tool: String,
    /// The agent that owns the effect.
    pub agent: String,
    /// The class of the effect.
    pub class: Class,
    /// Moment past which it is not attempted, in milliseconds.
    pub deadline_ms: Option<u64>,
}

/// The plan of a rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Digest of the exact plan, to which approvals are bound.
    pub digest: [u8; 32],
    /// Its steps that are left.
    pub steps: Vec<PlannedStep>,
}

/// What a rollback touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impact {
    /// All members, ascending.
    pub effects: Vec<EffectId>,
    /// Those that were named: what was done.
    pub done: Vec<EffectId>,
    /// The others: what rests on it.
    pub rests_on: Vec<EffectId>,
    /// Keys that the steps write back, ascending.
    pub keys: Vec<Key>,
    /// Agents that own members, ascending.
    pub agents: Vec<String>,
    /// The worst class of a step.
    pub class: Class,
    /// Members that may have run and have no inverse.
    pub not_compensable: Vec<EffectId>,
    /// What stays behind of whom, in words.
    pub limitations: Vec<(EffectId, String)>,
    /// Members whose inverse has a deadline, the first to pass in front.
    pub expiring: Vec<EffectId>,
}

/// An approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalInfo {
    /// Its id.
    pub id: ApprovalId,
    /// What it is about.
    pub subject: Subject,
    /// Digest of the exact plan.
    pub digest: [u8; 32],
    /// Whether an answer needs a written reason.
    pub reason_required: bool,
    /// Who asked.
    pub requested_by: String,
    /// Why.
    pub reason: String,
    /// Its state.
    pub state: ApprovalState,
    /// Who answered.
    pub answered_by: Option<String>,
    /// With what reason.
    pub answer_reason: Option<String>,
}

/// An alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertInfo {
    /// Its id.
    pub id: super::AlertId,
    /// How loud it is.
    pub severity: Severity,
    /// What happened and what to do.
    pub text: String,
    /// The effect, rollback or branch that it is about.
    pub reference: u64,
    /// Who has seen it.
    pub acknowledged_by: Option<String>,
}

/// What a command answers once it is durable.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // The variants are named after what they hold.
pub enum Reply {
    Nothing,
    Branch(BranchInfo),
    Receipts(Vec<Receipt>),
    Observations(Vec<Observation>),
    Effect {
        /// Which.
        effect: EffectId,
        /// Its state once the whole decision was made; `None` where it has left memory.
        state: Option<super::EffectState>,
    },
    Fence(FenceInfo),
    Reconciliation(Reconciliation),
    Step(Option<Box<StepHandle>>),
    Approval(ApprovalId),
    Rollback(RollbackId),
    Delivery(Option<DeliveryInfo>),
    Events(u64),
    Artifact(super::ArtifactId),
}

/// A claimed step before its payload is read.
#[derive(Clone, Debug, PartialEq)]
pub struct StepHandle {
    /// The step without its arguments.
    pub info: StepInfo,
    /// Reference of the arguments.
    pub args: Option<super::PayloadRef>,
    /// The record that holds the arguments.
    pub record: u64,
}
