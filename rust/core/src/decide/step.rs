//! Steps: claimed, ended, given back, tried again, or undone by a person (section 7).

use std::fmt::Write;

use super::{Ruling, Turn};
use crate::model::{
    ClaimSpec, EffectId, Event, FailureKind, Inverse, Name, OnFailure, Outcome, Problem, Read,
    Refusal, Reply, Retry, RollbackId, Severity, StepEnd, StepHandle, StepHold, StepInfo,
};
use crate::state::{Effect, Guard, State, Step, StepStatus};

/// A failure as it is recorded.
pub(super) struct Failed {
    pub(super) kind: FailureKind,
    pub(super) problem: Problem,
    pub(super) writer: Option<EffectId>,
    pub(super) on_failure: Option<OnFailure>,
}

impl Failed {
    /// A failure that the store itself finds.
    pub(super) fn of(kind: FailureKind, text: &str) -> Self {
        let problem = Problem::new(kind.name(), text);
        Failed { kind, problem, writer: None, on_failure: None }
    }
}

impl Turn<'_> {
    /// Begins the next attempt of the highest step that is ready and that the caller may run. The
    /// claim is on record before the inverse runs (I14).
    pub(super) fn claim(&mut self, spec: &ClaimSpec) -> Ruling<Reply> {
        lease_given(spec.lease_ms)?;
        self.waive(spec);
        let Some(effect) = self.find_step(spec)? else { return Ok(Reply::Step(None)) };
        let until_ms = self.now_ms.saturating_add(spec.lease_ms);
        self.emit(Event::StepClaimed { effect, agent: spec.agent.clone(), until_ms });
        self.step_reply(effect)
    }

    /// A worker that goes on past failures goes on past those that were there before it, too:
    /// conflicts are found by the fence that makes them, long before anybody compensates.
    fn waive(&mut self, spec: &ClaimSpec) {
        if spec.on_failure != Some(OnFailure::Continue) {
            return;
        }
        let scope = |id: &RollbackId| spec.rollback.is_none_or(|only| only == *id);
        let open = self.state.rollbacks.values().filter(|known| known.open && scope(&known.id));
        let members: Vec<EffectId> = open.flat_map(|known| known.members.iter().copied()).collect();
        for effect in members {
            let step = self.state.effects.get(effect).and_then(|known| known.step.as_ref());
            if let Some(StepStatus::Failed { kind, problem, writer, waived: false }) =
                step.filter(|step| !step.is_unconfirmed()).map(|step| step.status.clone())
            {
                let waived = true;
                self.emit(Event::StepFailed {
                    effect,
                    kind,
                    problem,
                    again_ms: None,
                    writer,
                    waived,
                });
            }
        }
    }

    fn find_step(&mut self, spec: &ClaimSpec) -> Ruling<Option<EffectId>> {
        if self.state.rollbacks.is_empty() {
            return Ok(None);
        }
        self.state.undo_order();
        let Some(order) = self.state.order.as_ref() else { return Ok(None) };
        for id in order.ready().chain(order.waived()) {
            if self.may_claim(id, spec)? {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    fn may_claim(&self, id: EffectId, spec: &ClaimSpec) -> Ruling<bool> {
        let Some(effect) = self.state.effects.get(id) else { return Ok(false) };
        let (Some(step), Some(inverse)) = (&effect.step, &effect.inverse) else { return Ok(false) };
        let rested = step.may_begin(self.now_ms);
        // A manual inverse has no call: it waits for the person that resolves it.
        let Some(call) = inverse.calls.get(step.place) else { return Ok(false) };
        let approved = effect
            .rollback
            .filter(|rollback| spec.rollback.is_none_or(|wanted| wanted == *rollback))
            .and_then(|rollback| self.state.rollbacks.get(&rollback))
            .is_some_and(|rollback| rollback.approved);
        let known = spec.tools.as_ref().is_none_or(|tools| tools.contains(&call.tool));
        if !rested || !approved || !known || spec.except.contains(&id) {
            return Ok(false);
        }
        let owner = match &inverse.agent {
            Some(agent) => agent.clone(),
            None => self.agent_of(effect)?,
        };
        let runs = spec.agent == "*" || owner == "*" || owner == spec.agent;
        Ok(runs && self.state.guard(id) == Guard::Free)
    }

    /// The agent of the effect's branch, which may have left memory.
    pub(super) fn agent_of(&self, effect: &Effect) -> Ruling<String> {
        if let Some(branch) = self.state.branches.get(&effect.branch) {
            return Ok(branch.agent.clone());
        }
        match self.history.event(effect.branch.0)? {
            Some(Event::BranchCreated { agent, .. }) => Ok(agent),
            _ => Ok(String::new()),
        }
    }

    fn step_reply(&self, id: EffectId) -> Ruling<Reply> {
        let handle = match self.state.effects.get(id) {
            Some(effect) => handle_of(self.state, effect, self.agent_of(effect)?),
            None => None,
        };
        Ok(Reply::Step(handle.map(Box::new)))
    }

    /// Ends an attempt, and begins the next step in the same transaction if asked.
    pub(super) fn end_step(
        &mut self,
        hold: StepHold,
        end: &StepEnd,
        next: Option<&ClaimSpec>,
    ) -> Ruling<Reply> {
        if let Some(spec) = next {
            lease_given(spec.lease_ms)?;
        }
        if !self.is_held(hold) {
            let ran =
                !matches!(end, StepEnd::NoHandler | StepEnd::Interrupted | StepEnd::NeverHappened);
            return Err(self.lease_lost(hold, "end_step", ran)?.into());
        }
        self.record_end(hold.effect, end, next)?;
        match next {
            None => Ok(Reply::Step(None)),
            Some(spec) => {
                self.follow_rollbacks(0);
                self.claim(spec)
            }
        }
    }

    fn record_end(&mut self, id: EffectId, end: &StepEnd, next: Option<&ClaimSpec>) -> Ruling<()> {
        let on_failure = next.and_then(|spec| spec.on_failure);
        let retry = next.and_then(|spec| spec.retry.as_ref());
        let failed = |kind, problem: &Problem| Failed {
            kind,
            problem: problem.clone(),
            writer: None,
            on_failure,
        };
        match end {
            StepEnd::Completed(result) => {
                let last = self.state.effects.get(id).is_some_and(|effect| {
                    let place = effect.step.as_ref().map_or(0, |step| step.place);
                    effect.inverse.as_ref().is_none_or(|known| place + 1 >= known.calls.len())
                });
                self.emit(Event::StepCompleted { effect: id, result: *result });
                if last {
                    // This undo may have put back the values of earlier writers.
                    self.put_back(id, id.0);
                    self.put_back_settled(id)?;
                }
            }
            StepEnd::Failed(problem) => {
                self.try_again(id, retry, None, failed(FailureKind::Error, problem));
            }
            StepEnd::TimedOut(problem) => {
                self.try_again(id, retry, None, failed(FailureKind::Timeout, problem));
            }
            StepEnd::Later(problem, after_ms) => {
                self.try_again(id, retry, Some(*after_ms), failed(FailureKind::Error, problem));
            }
            StepEnd::Permanent(problem) => {
                self.fail_step(id, failed(FailureKind::Permanent, problem));
            }
            StepEnd::Mismatched(problem) => {
                self.fail_step(id, failed(FailureKind::ContentMismatch, problem));
            }
            StepEnd::NoHandler => {
                let problem = Problem::new("no_handler", "this worker has no handler for it");
                self.fail_step(id, failed(FailureKind::NoHandler, &problem));
            }
            StepEnd::Interrupted => {
                self.emit(Event::StepReleased { effect: id, expired: false });
            }
            StepEnd::NeverHappened => {
                let ran = self.state.effects.get(id);
                let ran = ran.is_some_and(|known| known.outcome == Outcome::Done || known.evidence);
                if ran {
                    return Err(Refusal::Options {
                        option: "probe",
                        reason: format!("effect {id} is known to have run"),
                    }
                    .into());
                }
                self.emit(Event::StepDiscarded { effect: id });
            }
        }
        Ok(())
    }

    /// Records a failed attempt that may be repeated: with backoff, until the attempts are used up.
    fn try_again(
        &mut self,
        id: EffectId,
        retry: Option<&Retry>,
        after_ms: Option<u64>,
        failed: Failed,
    ) {
        let Some(effect) = self.state.effects.get(id) else { return };
        let Some(step) = effect.step.as_ref() else { return };
        let retry = retry.cloned().unwrap_or_else(|| retry_of(self.state, effect));
        let count = step.counted + 1;
        if count >= retry.max_attempts && !step.evidence {
            self.fail_step(id, failed);
            return;
        }
        let wait = after_ms
            .unwrap_or_else(|| backoff_ms(&retry, count, share(&self.state.store_id, id, step)));
        self.emit(Event::StepFailed {
            effect: id,
            kind: failed.kind,
            problem: failed.problem,
            again_ms: Some(self.now_ms.saturating_add(wait)),
            writer: None,
            waived: false,
        });
    }

    /// Fails a step for good; a person is called, unless evidence made it due again at once.
    pub(super) fn fail_step(&mut self, id: EffectId, failed: Failed) {
        let on_failure = failed.on_failure.unwrap_or(self.state.policy.on_failure);
        let kind = failed.kind;
        self.emit(Event::StepFailed {
            effect: id,
            kind,
            problem: failed.problem,
            again_ms: None,
            writer: failed.writer,
            waived: on_failure == OnFailure::Continue,
        });
        let Some(effect) = self.state.effects.get(id) else { return };
        if effect.step.as_ref().is_some_and(|step| step.is_failed()) {
            let (text, reference) = self.failure_text(effect, kind, failed.writer);
            self.alert(Severity::Critical, text, reference);
        }
    }

    pub(super) fn alert(&mut self, severity: Severity, text: String, reference: u64) {
        self.emit(Event::Alerted { severity, text, reference });
    }

    pub(super) fn is_held(&self, hold: StepHold) -> bool {
        let step = self.state.effects.get(hold.effect).and_then(|effect| effect.step.as_ref());
        matches!(step.map(|step| &step.status),
            Some(StepStatus::Claimed { token, .. }) if *token == hold.token)
    }

    /// The refusal of a caller whose claim has ended. What it says that it ran is evidence: earlier
    /// writers whose inverse finished since that claim may be overwritten again (C51).
    fn lease_lost(&mut self, hold: StepHold, verb: &str, ran: bool) -> Ruling<Refusal> {
        let (step, number) = (hold.effect, hold.token.number);
        let claimed = matches!(
            self.history.event(number)?,
            Some(Event::StepClaimed { effect, .. }) if effect == step
        );
        if ran && claimed {
            self.evidence_of_claim(step, number)?;
        }
        self.audit(verb, "lease_lost", step.0, Some(hold.token));
        let status = self.state.effects.get(step).and_then(|effect| effect.step.as_ref());
        let holder = match status.map(|step| &step.status) {
            Some(StepStatus::Claimed { agent, .. }) => Some(agent.clone()),
            _ => None,
        };
        Ok(Refusal::LeaseLost { step, holder })
    }

    pub(super) fn renew_step(&mut self, hold: StepHold, lease_ms: u64) -> Ruling<Reply> {
        lease_given(lease_ms)?;
        if !self.is_held(hold) {
            return Err(self.lease_lost(hold, "renew", false)?.into());
        }
        let until_ms = self.now_ms.saturating_add(lease_ms);
        self.emit(Event::StepRenewed { effect: hold.effect, until_ms });
        self.step_reply(hold.effect)
    }

    /// A person wants a failed step tried again.
    pub(super) fn retry_step(
        &mut self,
        rollback: RollbackId,
        effect: EffectId,
        by: &str,
        reason: &str,
    ) -> Ruling<Reply> {
        let step = self.step_of(rollback, effect)?;
        if !step.is_failed() {
            return Err(
                Refusal::AlreadySettled { reference: effect.0, state: step.state_name() }.into()
            );
        }
        self.emit(Event::StepRetried { effect, by: by.to_owned(), reason: reason.to_owned() });
        Ok(Reply::Nothing)
    }

    /// A person undid the effect: a failed step, or a manual one that is due (C53).
    pub(super) fn resolve_step(
        &mut self,
        rollback: RollbackId,
        effect: EffectId,
        by: &str,
        reason: &str,
        versions: &[Read],
    ) -> Ruling<Reply> {
        let step = self.step_of(rollback, effect)?;
        let known = self.state.effects.get(effect).and_then(|effect| effect.inverse.as_ref());
        let manual = known.is_some_and(|inverse| is_manual(inverse)) && step.is_pending();
        if !step.is_failed() && !manual {
            return Err(
                Refusal::AlreadySettled { reference: effect.0, state: step.state_name() }.into()
            );
        }
        self.emit(Event::StepResolved {
            effect,
            by: by.to_owned(),
            reason: reason.to_owned(),
            versions: versions.to_vec(),
        });
        Ok(Reply::Nothing)
    }

    fn step_of(&self, rollback: RollbackId, effect: EffectId) -> Ruling<&Step> {
        let known = self.state.effects.get(effect).filter(|known| known.rollback == Some(rollback));
        if let Some(step) = known.and_then(|known| known.step.as_deref()) {
            return Ok(step);
        }
        let settled = match self.history.event(rollback.0)? {
            Some(Event::Doomed(doom)) => doom.members.contains(effect),
            Some(Event::RollbackRequested(asked)) => asked.members().contains(&effect),
            _ => false,
        };
        if settled {
            return Err(Refusal::AlreadySettled { reference: effect.0, state: "finished" }.into());
        }
        let reference = format!("step {effect} of rollback {rollback}");
        Err(Refusal::NotFound { reference, name: Name::Id(effect.0) }.into())
    }
}

fn lease_given(lease_ms: u64) -> Result<(), Refusal> {
    if lease_ms > 0 {
        return Ok(());
    }
    Err(Refusal::Options { option: "lease", reason: "a lease is longer than nothing".into() })
}

fn is_manual(inverse: &Inverse) -> bool {
    inverse.calls.is_empty()
}

/// The inverse's own retry rule, or the policy's.
pub(super) fn retry_of(state: &State, effect: &Effect) -> Retry {
    let own = effect.inverse.as_ref().and_then(|inverse| inverse.retry.clone());
    own.unwrap_or_else(|| state.policy.retry.clone())
}

fn handle_of(state: &State, effect: &Effect, agent: String) -> Option<StepHandle> {
    let (step, inverse) = (effect.step.as_ref()?, effect.inverse.as_ref()?);
    let StepStatus::Claimed { until_ms, token, .. } = step.status else { return None };
    let call = inverse.calls.get(step.place)?;
    let info = StepInfo {
        effect: effect.id,
        rollback: effect.rollback?,
        tool: call.tool.clone(),
        args: None,
        agent,
        idempotency_key: step_key(&state.store_id, effect.id, step, inverse),
        attempt: step.attempts,
        generation: step.generation,
        expected_versions: effect
            .writes
            .iter()
            .map(|key| Read { key: key.clone(), version: Some(effect.id.0) })
            .collect(),
        deadline_ms: effect.deadline_ms,
        lease_until_ms: until_ms,
        token,
        outcome: effect.outcome,
        artifact: inverse.artifact_id(),
    };
    Some(StepHandle { info, args: call.args, record: effect.inverse_record })
}

/// The key of one call of an inverse: the same at every attempt of a generation (I14).
fn step_key(store_id: &[u8; 16], id: EffectId, step: &Step, inverse: &Inverse) -> String {
    let place = if inverse.calls.len() > 1 { format!("/{}", step.place) } else { String::new() };
    format!("{}/{id}/{}{place}", hex(store_id), step.generation)
}

/// Bytes in lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A number from 0 to 1 that is drawn from the step's key, so that deciding again gives the same
/// moment (I10).
#[allow(clippy::cast_precision_loss)] // 53 bits are kept, which a double holds exactly.
fn share(store_id: &[u8; 16], id: EffectId, step: &Step) -> f64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(store_id);
    hasher.update(&id.0.to_be_bytes());
    hasher.update(&step.generation.to_be_bytes());
    hasher.update(&step.counted.to_be_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    (u64::from_be_bytes(first) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The wait after the n-th counted failure: it grows by the factor up to the longest, and varies by
/// the share that the rule allows.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Waits are far below 2^53 ms, and the cast saturates.
fn backoff_ms(retry: &Retry, failures: u32, share: f64) -> u64 {
    let longest = retry.max_delay_ms as f64;
    let mut wait = retry.delay_ms as f64;
    for _ in 1..failures {
        if wait >= longest || wait <= 0.0 {
            break;
        }
        wait *= retry.backoff;
    }
    let varied = wait.min(longest) * (1.0 + retry.jitter * (2.0 * share - 1.0));
    varied.round().max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_by_the_factor_up_to_the_longest() {
        let retry = Retry {
            max_attempts: 9,
            delay_ms: 1_000,
            backoff: 2.0,
            max_delay_ms: 5_000,
            jitter: 0.0,
        };
        let waits: Vec<u64> = (1..=5).map(|n| backoff_ms(&retry, n, 0.9)).collect();
        assert_eq!(waits, [1_000, 2_000, 4_000, 5_000, 5_000]);
    }

    #[test]
    fn jitter_stays_within_its_share_and_repeats() {
        let retry = Retry { jitter: 0.2, ..Retry::default() };
        let mut seen = std::collections::BTreeSet::new();
        for id in 0..200 {
            let step = Step::new(false);
            let drawn = share(&[7; 16], EffectId(id), &step);
            assert_eq!(drawn.to_bits(), share(&[7; 16], EffectId(id), &step).to_bits());
            let wait = backoff_ms(&retry, 1, drawn);
            assert!((800..=1_200).contains(&wait), "{wait}");
            seen.insert(wait);
        }
        assert!(seen.len() > 50, "waits hardly vary: {seen:?}");
    }

    #[test]
    fn the_key_names_the_place_only_in_a_list_of_calls() {
        let mut step = Step::new(false);
        let one = Inverse::call("undo", None);
        assert_eq!(
            step_key(&[0xab; 16], EffectId(5), &step, &one),
            format!("{}/5/1", "ab".repeat(16))
        );
        let mut two = one.clone();
        two.calls.push(one.calls[0].clone());
        step.place = 1;
        step.generation = 3;
        assert_eq!(
            step_key(&[0; 16], EffectId(5), &step, &two),
            format!("{}/5/3/1", "00".repeat(16))
        );
    }
}
