//! Steps of rollbacks: taking them, ending them, and what a person does about a failed one.

use super::verbs::{answer_of, misfit};
use super::{EffectStore, Payloads};
use crate::error::Error;
use crate::model::{
    ClaimSpec, Command, EffectId, Read, Reply, RollbackId, StepEnd, StepHandle, StepHold, StepInfo,
};

impl EffectStore {
    /// Takes a step that is due; its attempt is durable before this returns (I14).
    ///
    /// # Errors
    /// Where the store is unusable; `None` means that nothing is due in time.
    pub fn claim(&self, spec: &ClaimSpec, wait_ms: u64) -> Result<Option<StepInfo>, Error> {
        let enough = |answer: &Result<_, Error>| !matches!(answer, Ok(None));
        self.wait_for(wait_ms, Some(spec), || self.claim_now(spec), enough)
    }

    /// Ends an attempt and takes the next step in the same transaction, if asked.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`]: somebody else holds the step now; the report is kept as evidence.
    pub fn end_step(
        &self,
        hold: StepHold,
        end: StepEnd,
        payloads: Payloads,
        next: Option<ClaimSpec>,
    ) -> Result<Option<StepInfo>, Error> {
        let released = end == StepEnd::Interrupted;
        let step = self.finish_step(hold, end, payloads, next)?;
        super::compensate::told(self, hold, released)?;
        Ok(step)
    }

    pub(super) fn finish_step(
        &self,
        hold: StepHold,
        end: StepEnd,
        payloads: Payloads,
        next: Option<ClaimSpec>,
    ) -> Result<Option<StepInfo>, Error> {
        let command = Command::EndStep { hold, end, next: next.clone() };
        let step = answer_of!(self.submit_with(command, payloads), Reply::Step(step) => step)?;
        match (step.map(|step| self.handed_out(*step)).transpose()?, next) {
            // The step that was to come next holds code that does not match; another may be due.
            (Some(None), Some(next)) => self.claim_now(&next),
            (step, _) => Ok(step.flatten()),
        }
    }

    /// Extends the lease of a claimed step.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn renew_step(&self, hold: StepHold, lease_ms: u64) -> Result<StepInfo, Error> {
        let command = Command::RenewStep { hold, lease_ms };
        match self.submit(command)? {
            Reply::Step(Some(step)) => self.fill_step(*step),
            _ => misfit(),
        }
    }

    pub(super) fn fill_step(&self, step: StepHandle) -> Result<StepInfo, Error> {
        let StepHandle { mut info, args, record } = step;
        if let Some(reference) = args {
            let view = self.engine().view()?;
            info.args = crate::log::read_payload(view.as_ref(), record, &reference)?;
        }
        Ok(info)
    }

    /// Makes a failed step due again.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] or [`Refusal::AlreadySettled`].
    pub fn retry_step(
        &self,
        rollback: RollbackId,
        effect: EffectId,
        by: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.submit(Command::RetryStep { rollback, effect, by, reason }).map(|_| ())
    }

    /// Records that a person undid a failed step, and which versions its keys hold now.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] or [`Refusal::AlreadySettled`].
    pub fn resolve_step(
        &self,
        rollback: RollbackId,
        effect: EffectId,
        by: &str,
        reason: &str,
        versions: Vec<Read>,
    ) -> Result<(), Error> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.submit(Command::ResolveStep { rollback, effect, by, reason, versions }).map(|_| ())
    }
}
