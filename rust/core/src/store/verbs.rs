//! The verbs that change something.

use super::wait::passing;
use super::{EffectStore, Payloads};
use crate::error::Error;
use crate::model::{
    AlertId, AlertInfo, ApprovalId, ApprovalInfo, Ask, BranchId, BranchInfo, Command, DeliveryInfo,
    EffectId, EffectState, Escalate, FenceInfo, FenceStatus, Inverse, Limits, Observation,
    OnConflict, Overwrite, Placed, Policy, Problem, Read, ReadRule, Receipt, Reconciliation,
    Refusal, Reply, Target, Token,
};
use crate::storage::StorageError;

/// A branch that is to be made.
#[derive(Clone, Debug, Default)]
pub struct NewBranch {
    /// Its name, unique in the store.
    pub name: String,
    /// Its agent; the name where there is none.
    pub agent: Option<String>,
    /// Its parent.
    pub parent: Option<BranchId>,
    /// The token of the parent that the caller holds; without one the parent is only named, and its
    /// token is not looked at.
    pub parent_token: Option<Token>,
    /// What it may rest on.
    pub reads: ReadRule,
    /// What writing over a live writer means.
    pub overwrite: Overwrite,
    /// Its lease, in milliseconds.
    pub lease_ms: Option<u64>,
}

impl NewBranch {
    /// A branch of this name, with the defaults.
    pub fn named(name: impl Into<String>) -> Self {
        NewBranch { name: name.into(), ..NewBranch::default() }
    }
}

/// An answer of another shape than the command's is a fault of ours, not of the caller.
pub(super) fn misfit<T>() -> Result<T, Error> {
    Err(Error::Storage(StorageError::Poisoned { cause: "an answer of the wrong shape".into() }))
}

/// The answer of a verb, in the shape that its command gives.
macro_rules! answer_of {
    ($reply:expr, $shape:pat => $value:expr) => {
        match $reply? {
            $shape => Ok($value),
            _ => misfit(),
        }
    };
}
pub(super) use answer_of;

#[allow(missing_docs, clippy::missing_docs_in_private_items)]
impl EffectStore {
    /// Makes a branch.
    ///
    /// # Errors
    /// [`Refusal::BranchExists`], [`Refusal::LimitExceeded`], [`Refusal::StaleToken`] of the parent, or
    /// the parent's state.
    pub fn create_branch(&self, new: NewBranch) -> Result<BranchInfo, Error> {
        let agent = new.agent.unwrap_or_else(|| new.name.clone());
        let NewBranch { name, parent, parent_token, reads, overwrite, lease_ms, .. } = new;
        let command =
            Command::CreateBranch { name, agent, parent, reads, overwrite, lease_ms, parent_token };
        answer_of!(self.submit(command), Reply::Branch(branch) => branch)
    }

    /// Makes work that is yours again yours: a new token, and older holders become stale.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] or [`Refusal::BranchClosed`].
    pub fn takeover(
        &self,
        name: &str,
        worker_gone: bool,
        by: Option<&str>,
    ) -> Result<BranchInfo, Error> {
        let command =
            Command::TakeOver { name: name.to_owned(), worker_gone, by: by.map(str::to_owned) };
        answer_of!(self.submit(command), Reply::Branch(branch) => branch)
    }

    /// Holds a branch under a token that was handed over.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] or [`Refusal::StaleToken`].
    pub fn join(&self, name: &str, token: Token) -> Result<BranchInfo, Error> {
        let branch = self.branch_named(name)?;
        if branch.token != token {
            let (held, current) = (Some(token), Some(branch.token));
            return Err(Refusal::StaleToken { branch: branch.name, held, current }.into());
        }
        self.engine().lock()?.joined.insert(branch.id);
        Ok(branch)
    }

    /// Starts a doomed branch again from what survives, under a new token.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`] or [`Refusal::BranchClosed`].
    pub fn resume(&self, branch: BranchId, token: Token) -> Result<BranchInfo, Error> {
        answer_of!(self.submit(Command::Resume { branch, token }), Reply::Branch(branch) => branch)
    }

    /// Votes for a child and hands its effects to its parent.
    ///
    /// # Errors
    /// The token's, the branch's and the parent's state.
    pub fn merge(&self, branch: BranchId, token: Token) -> Result<BranchInfo, Error> {
        answer_of!(self.submit(Command::Merge { branch, token }), Reply::Branch(branch) => branch)
    }

    /// Extends a branch's lease.
    ///
    /// # Errors
    /// The token's and the branch's state.
    pub fn heartbeat(&self, branch: BranchId, token: Token) -> Result<BranchInfo, Error> {
        answer_of!(self.submit(Command::Heartbeat { branch, token }), Reply::Branch(branch) => branch)
    }

    /// Votes for all that a branch has registered so far.
    ///
    /// # Errors
    /// The token's and the branch's state.
    pub fn seal(&self, branch: BranchId, token: Token) -> Result<BranchInfo, Error> {
        answer_of!(self.submit(Command::Seal { branch, token }), Reply::Branch(branch) => branch)
    }

    /// Registers calls, all or none, durably and with their inverses (I2). Only then may they run.
    ///
    /// # Errors
    /// The first rule that an item breaks, with its place; nothing is stored then.
    pub fn register(
        &self,
        calls: Vec<Placed>,
        payloads: Payloads,
        wait_ms: u64,
    ) -> Result<Vec<Receipt>, Error> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        super::compensate::outside_of_handlers(self)?;
        if wait_ms == 0 {
            // Nobody will ask again, so nothing need be kept for it.
            let command = Command::Register { calls, observed: Vec::new() };
            return answer_of!(self.submit_with(command, payloads), Reply::Receipts(list) => list);
        }
        let attempt = || {
            let command = Command::Register { calls: calls.clone(), observed: Vec::new() };
            answer_of!(self.submit_with(command, payloads.clone()), Reply::Receipts(list) => list)
        };
        self.wait_until(wait_ms, attempt, |answer| !passing(answer))
    }

    /// Observes keys for a branch: every later effect of it rests on what it may have seen (I12).
    /// `since` is the `at` of an earlier observation from which this one counts.
    ///
    /// # Errors
    /// A refused observation holds the branch, or stops it; see the semantics, section 4.
    pub fn observe(
        &self,
        branch: BranchId,
        token: Token,
        keys: Vec<Read>,
        since: Option<u64>,
        wait_ms: u64,
    ) -> Result<Vec<Observation>, Error> {
        super::compensate::outside_of_handlers(self)?;
        self.wait_to_read(branch, &keys, wait_ms)?;
        let durable = self.engine().lock()?.joined.contains(&branch);
        let command = Command::Observe { branch, token, keys, since, durable };
        answer_of!(self.submit(command), Reply::Observations(seen) => seen)
    }

    /// Waits until the keys can be read, without reading them: a refused read counts as read. Answers
    /// whether they can be.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn wait_to_read(
        &self,
        branch: BranchId,
        keys: &[Read],
        wait_ms: u64,
    ) -> Result<bool, Error> {
        if wait_ms == 0 {
            return Ok(true);
        }
        let attempt = || {
            let core = self.engine().lock()?;
            let rule = core.state.branches.get(&branch).map_or(ReadRule::default(), |b| b.reads);
            Ok(keys.iter().all(|read| core.state.readable(branch, read, rule)))
        };
        let enough = |answer: &Result<bool, Error>| !matches!(answer, Ok(false));
        self.wait_until(wait_ms, attempt, enough)
    }

    /// Observes keys for a running call.
    ///
    /// # Errors
    /// [`Refusal::AlreadySettled`]; [`Refusal::DirtyKey`] where the effect was doomed by what it saw.
    pub fn observe_late(
        &self,
        effect: EffectId,
        token: Token,
        keys: Vec<Read>,
    ) -> Result<Vec<Observation>, Error> {
        super::compensate::outside_of_handlers(self)?;
        let command = Command::ObserveLate { effect, token, keys };
        answer_of!(self.submit(command), Reply::Observations(seen) => seen)
    }

    /// Reports that a call ran, with its result, and the inverse where it is known only now. Answers
    /// the effect's state by then; `None` where it has left memory, so that it changes no more.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`] or [`Refusal::AlreadySettled`]; a late report is kept as evidence.
    pub fn done(
        &self,
        effect: EffectId,
        token: Token,
        result: Vec<u8>,
        inverse: Option<Inverse>,
        mut payloads: Payloads,
        durable: bool,
    ) -> Result<Option<EffectState>, Error> {
        // Every outcome is flushed at once for now, so there is nothing less durable to ask for.
        let _ = durable;
        let result = payloads.put(result);
        let command = Command::Done { effect, token, result, inverse };
        answer_of!(self.submit_with(command, payloads), Reply::Effect { state, .. } => state)
    }

    /// Reports that a call did not run; answers as [`EffectStore::done`] does.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`] or [`Refusal::AlreadySettled`].
    pub fn not_run(
        &self,
        effect: EffectId,
        token: Token,
        problem: Problem,
    ) -> Result<Option<EffectState>, Error> {
        let command = Command::NotRun { effect, token, problem };
        answer_of!(self.submit(command), Reply::Effect { state, .. } => state)
    }

    /// Records that an outside party saw an effect.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`] or [`Refusal::NotFound`].
    pub fn exposed(&self, effect: EffectId, token: Token, to: &str) -> Result<(), Error> {
        self.submit(Command::Exposed { effect, token, to: to.to_owned() }).map(|_| ())
    }

    /// Says that an effect's worker is gone, so that its outcome can never come.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn close_effect(&self, effect: EffectId, by: &str, reason: &str) -> Result<(), Error> {
        let command = Command::Close { effect, by: by.to_owned(), reason: reason.to_owned() };
        self.submit(command).map(|_| ())
    }

    /// Votes for the owner's part of a closure and commits the whole of it, or leaves an intent.
    ///
    /// # Errors
    /// [`Refusal::FenceClosure`] where it is decided otherwise, or blocked under
    /// [`Escalate::Never`].
    pub fn commit(
        &self,
        target: Target,
        token: Token,
        escalate: Escalate,
        wait_ms: u64,
    ) -> Result<FenceInfo, Error> {
        let command = Command::Commit { target, token, escalate };
        let fence = answer_of!(self.submit(command), Reply::Fence(fence) => fence)?;
        match (fence.status, fence.id) {
            (FenceStatus::Waiting, Some(id)) if wait_ms > 0 => {
                let fence = self.wait_fence(id, wait_ms)?;
                if fence.status == FenceStatus::Aborted {
                    let decision = Box::new(self.decide(target)?);
                    let rollback = None;
                    return Err(Refusal::FenceClosure { decision, rollback }.into());
                }
                Ok(fence)
            }
            (FenceStatus::Committed, None) => self.settled_fence(target, fence),
            _ => Ok(fence),
        }
    }

    /// Dooms a branch or an effect in its owner's name.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`] or [`Refusal::NotFound`].
    pub fn abort(
        &self,
        target: Target,
        token: Token,
        reason: &str,
        by: Option<&str>,
    ) -> Result<Reconciliation, Error> {
        let (reason, by) = (reason.to_owned(), by.map(str::to_owned));
        let command = Command::Abort { target, token, reason, by };
        let done = answer_of!(self.submit(command), Reply::Reconciliation(done) => done)?;
        self.with_kept(&[target], done)
    }

    /// Settles winners and losers in one decision.
    ///
    /// # Errors
    /// [`Refusal::ReconcileConflict`] with the path from a winner to a loser;
    /// [`Refusal::FenceClosure`] where the commit side is lost, or blocked under
    /// [`Escalate::Never`].
    #[allow(clippy::too_many_arguments)] // The verb's own words.
    pub fn reconcile(
        &self,
        commit: Vec<Target>,
        abort: Vec<Target>,
        closure: bool,
        by: Option<&str>,
        reason: Option<&str>,
        on_conflict: OnConflict,
        escalate: Escalate,
    ) -> Result<Reconciliation, Error> {
        let (by, reason) = (by.map(str::to_owned), reason.map(str::to_owned));
        let named = abort.clone();
        let command =
            Command::Reconcile { commit, abort, closure, by, reason, on_conflict, escalate };
        let done = answer_of!(self.submit(command), Reply::Reconciliation(done) => done)?;
        self.with_kept(&named, done)
    }

    /// Asks for an approval. Asking twice for the same makes one request.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] or [`Refusal::StaleToken`].
    pub fn ask(
        &self,
        ask: Ask,
        by: &str,
        reason: &str,
        payloads: Payloads,
    ) -> Result<ApprovalInfo, Error> {
        let command = Command::Ask { ask, by: by.to_owned(), reason: reason.to_owned() };
        let id = answer_of!(self.submit_with(command, payloads), Reply::Approval(id) => id)?;
        self.approval(id)
    }

    /// Answers an approval, once.
    ///
    /// # Errors
    /// [`Refusal::ApprovalClosed`], [`Refusal::ReasonRequired`], [`Refusal::SeparationOfDuties`].
    pub fn answer(
        &self,
        approval: ApprovalId,
        approve: bool,
        by: &str,
        reason: Option<&str>,
    ) -> Result<ApprovalInfo, Error> {
        let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
        self.submit(Command::Answer { approval, approve, by, reason })?;
        self.approval(approval)
    }

    /// Takes a committed deferred effect to run it.
    ///
    /// # Errors
    /// Where the store is unusable; `None` means that nothing can be handed out in time.
    pub fn deliver(
        &self,
        agent: &str,
        tools: Option<&[String]>,
        lease_ms: u64,
        wait_ms: u64,
    ) -> Result<Option<DeliveryInfo>, Error> {
        let attempt = || {
            let (agent, tools) = (agent.to_owned(), tools.map(<[String]>::to_vec));
            let command = Command::Deliver { agent, tools, lease_ms };
            answer_of!(self.submit(command), Reply::Delivery(delivery) => delivery)
        };
        self.wait_until(wait_ms, attempt, |answer| !matches!(answer, Ok(None)))
    }

    /// Extends a delivery by so many milliseconds, or gives it back.
    ///
    /// # Errors
    /// [`Refusal::StaleToken`].
    pub fn hold_delivery(
        &self,
        effect: EffectId,
        token: Token,
        lease_ms: Option<u64>,
    ) -> Result<Option<DeliveryInfo>, Error> {
        let command = Command::HoldDelivery { effect, token, lease_ms };
        answer_of!(self.submit(command), Reply::Delivery(delivery) => delivery)
    }

    /// Marks an alert as seen.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn acknowledge(&self, alert: AlertId, by: &str) -> Result<AlertInfo, Error> {
        self.submit(Command::Acknowledge { alert, by: by.to_owned() })?;
        self.alert(alert)
    }

    /// Replaces limits or policy.
    ///
    /// # Errors
    /// [`Refusal::Options`] names what makes no sense.
    pub fn configure(
        &self,
        by: &str,
        limits: Option<Limits>,
        policy: Option<Policy>,
    ) -> Result<(), Error> {
        self.submit(Command::Configure { by: by.to_owned(), limits, policy }).map(|_| ())
    }

    /// Stops new registrations.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn freeze(&self, by: &str, reason: &str) -> Result<(), Error> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.submit(Command::Freeze { by, reason }).map(|_| ())
    }

    /// Lets new registrations in again.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn unfreeze(&self, by: &str) -> Result<(), Error> {
        self.submit(Command::Unfreeze { by: by.to_owned() }).map(|_| ())
    }

    /// Lets what fell due happen; how many events that made.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn tick(&self) -> Result<u64, Error> {
        answer_of!(self.submit(Command::Tick), Reply::Events(events) => events)
    }
}
