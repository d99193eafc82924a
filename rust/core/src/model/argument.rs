//! What commands are asked with.

use minicbor::{Decode, Encode};

use super::{BranchId, EffectId, Key, PayloadRef, Problem, Registration, RollbackId, Token};

/// A branch or an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
pub enum Target {
    /// All the live effects of a branch.
    #[n(0)]
    Branch(#[n(0)] BranchId),
    /// One effect.
    #[n(1)]
    Effect(#[n(0)] EffectId),
}

/// What a commit does when something is in its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Escalate {
    /// Leave an intent that commits by itself.
    #[default]
    #[n(0)]
    Wait,
    /// Refuse with the blockers and change nothing.
    #[n(1)]
    Never,
}

/// What a reconcile does when a winner rests on a loser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum OnConflict {
    /// Refuse with the path from the winner to the loser and change nothing.
    #[default]
    #[n(0)]
    Raise,
    /// Doom the winners' effects that rest on losers and leave the rest of them live.
    #[n(1)]
    Abort,
}

/// A recorded read of one key.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Observation {
    /// The key that was read.
    #[n(0)]
    pub key: Key,
    /// The version that the caller vouched for.
    #[n(1)]
    pub version: Option<u64>,
    /// The live writers that the reader may have seen, and now rests on.
    #[cbor(n(2), with = "super::ids::gaps")]
    pub writers: Vec<EffectId>,
    /// The log's head when it was answered; a later look counts from here. 0 where no key was read:
    /// the writer was met as the effect of a known idempotency key.
    #[n(3)]
    pub at: u64,
    /// Writers that it may have seen while they counted as live, and that are void by now. The reader
    /// rests on what these rested on, and evidence that one of them ran stops the branch.
    #[cbor(n(4), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub voids: Vec<EffectId>,
}

impl Observation {
    /// Whether its writers stand for the earlier writers of its key.
    pub fn stands(&self) -> bool {
        self.version.is_none() && (self.at > 0 || self.key != Key::default())
    }
}

/// A registration on its branch.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct Placed {
    /// The branch.
    #[n(0)]
    pub branch: BranchId,
    /// The branch's token.
    #[n(1)]
    pub token: Token,
    /// The call.
    #[n(2)]
    pub call: Registration,
}

/// Observations of a branch that ride along with its next registration.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct Observed {
    /// The branch.
    #[n(0)]
    pub branch: BranchId,
    /// What it observed.
    #[n(1)]
    pub observations: Vec<Observation>,
}

/// Which step a worker asks for.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct ClaimSpec {
    /// The agent that asks; `*` acts for every agent.
    #[n(0)]
    pub agent: String,
    /// Tools that it can run; absent, any.
    #[n(1)]
    pub tools: Option<Vec<String>>,
    /// How long it may hold the step, in milliseconds.
    #[n(2)]
    pub lease_ms: u64,
    /// Only steps of this rollback.
    #[n(3)]
    pub rollback: Option<RollbackId>,
    /// Overrides the retry of inverse and policy.
    #[n(4)]
    pub retry: Option<super::Retry>,
    /// Overrides the policy's failure rule.
    #[n(5)]
    pub on_failure: Option<super::OnFailure>,
    /// Steps that this worker does not take again in this pass.
    #[cbor(n(6), with = "super::ids::gaps", default, skip_if = "super::ids::gaps::is_nil")]
    pub except: Vec<EffectId>,
}

/// The hold of a claimed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct StepHold {
    /// The step goes by its effect's id.
    #[n(0)]
    pub effect: EffectId,
    /// The token that the claim handed out.
    #[n(1)]
    pub token: Token,
}

/// How a worker reports the end of an attempt.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub enum StepEnd {
    /// The inverse ran.
    #[n(0)]
    Completed(#[n(0)] Option<PayloadRef>),
    /// It failed and may be tried again.
    #[n(1)]
    Failed(#[n(0)] Problem),
    /// It failed for good.
    #[n(2)]
    Permanent(#[n(0)] Problem),
    /// It asks to be called later; counts no attempt beyond the begun one.
    #[n(3)]
    Later(#[n(0)] Problem, #[n(1)] u64),
    /// Its handler took too long.
    #[n(4)]
    TimedOut(#[n(0)] Problem),
    /// Nobody here can run it; counts no attempt.
    #[n(5)]
    NoHandler,
    /// The worker was interrupted; the attempt stays recorded, the step is due.
    #[n(6)]
    Interrupted,
    /// The probe said that the effect never happened.
    #[n(7)]
    NeverHappened,
    /// The content of its artifact is not what was reviewed: the code was not run.
    #[n(8)]
    Mismatched(#[n(0)] Problem),
}

/// What an approval is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Ask {
    /// To run a rollback's plan.
    #[n(0)]
    Rollback(#[n(0)] RollbackId),
    /// To start an irreversible call before its fence.
    #[n(1)]
    Early {
        /// The branch on which it would start.
        #[n(0)]
        branch: BranchId,
        /// The branch's token.
        #[n(1)]
        token: Token,
        /// The tool.
        #[n(2)]
        tool: String,
        /// Its arguments.
        #[n(3)]
        args: PayloadRef,
        /// The caller's name for the call.
        #[cbor(n(4), with = "minicbor::bytes")]
        idempotency_key: Option<Vec<u8>>,
    },
}
