//! Governed rollbacks as a process: asked for, told in an audit record, and reviewed afterwards.

use std::collections::BTreeMap;

use super::EffectStore;
use super::verbs::misfit;
use crate::error::Error;
use crate::model::{
    Audit, AuditStep, CauseKind, Command, EffectId, Event, FailureKind, Reply, Report, RollbackId,
    RollbackInfo, RollbackState, Target, Trigger,
};

/// What the log tells of one step.
#[derive(Default)]
struct Told {
    action: Option<String>,
    attempts: u32,
    by: Option<String>,
    by_hand: bool,
    /// The record of its last end: the order of the undo.
    ended: u64,
}

impl EffectStore {
    /// Asks for committed effects to be undone, with all that rests on them: as observations and
    /// `after` say, and in program order too where `program_order` is set. Nothing happens until a
    /// person approves the plan. The cost is that of reading the log from the oldest target on.
    ///
    /// ```
    /// # fn main() -> Result<(), effectstore::Error> {
    /// # use effectstore::model::{ApprovalState, Escalate, Inverse, Placed, Registration, Target, Trigger};
    /// # use effectstore::store::{NewBranch, Payloads};
    /// # use effectstore::{EffectStore, Options};
    /// let store = EffectStore::in_memory(Options::default())?;
    /// let branch = store.create_branch(NewBranch::named("plan-A"))?;
    /// let mut payloads = Payloads::default();
    /// let args = payloads.put(b"\x01".to_vec());
    /// let call = Registration::new("set", args).writes("v").inverse(Inverse::call("unset", None));
    /// let placed = Placed { branch: branch.id, token: branch.token, call };
    /// let done = store.register(vec![placed], payloads, 0)?[0];
    /// let token = done.token.expect("a new effect has a token");
    /// store.done(done.effect, token, b"\xf6".to_vec(), None, Payloads::default(), true)?;
    /// store.commit(Target::Branch(branch.id), branch.token, Escalate::Wait, 0)?;
    ///
    /// let target = Target::Effect(done.effect);
    /// let asked = store.request_rollback(vec![target], "ops", "bad advice", Trigger::Human, false)?;
    /// assert_eq!(store.impact(asked.id)?.effects, [done.effect]);
    /// store.answer(asked.approvals[0], true, "boss", None)?;
    /// assert_eq!(store.plan(asked.id)?.steps.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`]; [`crate::model::Refusal::AlreadySettled`] for what is
    /// doomed, void or compensated already.
    pub fn request_rollback(
        &self,
        targets: Vec<Target>,
        by: &str,
        reason: &str,
        trigger: Trigger,
        program_order: bool,
    ) -> Result<RollbackInfo, Error> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        let command = Command::RequestRollback { targets, by, reason, trigger, program_order };
        match self.submit(command)? {
            Reply::Rollback(id) => self.rollback(id),
            _ => misfit(),
        }
    }

    /// Says why a rollback was necessary, and what was changed because of it. A cause that was
    /// recorded before raises an alert. The newest record counts.
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`]; [`crate::model::Refusal::AlreadySettled`] once the review
    /// is closed.
    pub fn record_root_cause(
        &self,
        rollback: RollbackId,
        category: CauseKind,
        note: &str,
        by: &str,
        remedy: Option<&str>,
    ) -> Result<RollbackInfo, Error> {
        let (note, by, remedy) = (note.to_owned(), by.to_owned(), remedy.map(str::to_owned));
        self.submit(Command::RecordRootCause { rollback, category, note, by, remedy })?;
        self.rollback(rollback)
    }

    /// Says that nothing is changed because of a rollback, and why.
    ///
    /// # Errors
    /// As [`EffectStore::record_root_cause`].
    pub fn waive_remedy(
        &self,
        rollback: RollbackId,
        by: &str,
        reason: &str,
    ) -> Result<RollbackInfo, Error> {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.submit(Command::WaiveRemedy { rollback, by, reason })?;
        self.rollback(rollback)
    }

    /// Finished rollbacks whose root cause or remedy is still owed, oldest first, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn review(&self, since: u64, limit: usize) -> Result<Vec<RollbackInfo>, Error> {
        let mut found = self.rollbacks(since, usize::MAX)?;
        found.retain(|rollback| rollback.state == RollbackState::InReview);
        found.truncate(limit);
        Ok(found)
    }

    /// The audit record of a rollback, as far as it has come.
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`].
    pub fn audit(&self, id: RollbackId) -> Result<Audit, Error> {
        let rollback = self.rollback(id)?;
        let mut told: BTreeMap<EffectId, Told> =
            rollback.effects.iter().map(|effect| (*effect, Told::default())).collect();
        let from = rollback.effects.iter().map(|effect| effect.0).min().unwrap_or(id.0).min(id.0);
        self.scan(from, &mut |seq, header| {
            hear(&mut told, seq, &header.event);
            true
        })?;
        let mut steps: Vec<(u64, AuditStep)> = Vec::new();
        for (effect, told) in told {
            let status = status(&rollback.report, effect, told.by_hand);
            let ended = if told.ended == 0 { u64::MAX } else { told.ended };
            let action = told.action.unwrap_or_default();
            let attempts = told.attempts;
            let by = match told.by {
                // Such a worker gave no name of its own; whose step it did is known.
                Some(any) if any == "*" => {
                    Some(format!("any agent's worker, for {}", self.effect(effect)?.agent))
                }
                by => by,
            };
            steps.push((ended, AuditStep { effect, action, status, attempts, by }));
        }
        steps.sort_by_key(|(ended, step)| (*ended, std::cmp::Reverse(step.effect)));
        let approvals = rollback.approvals.iter().map(|approval| self.approval(*approval));
        let approvals = approvals.collect::<Result<_, _>>()?;
        let original_action =
            rollback.direct.first().or(rollback.effects.first()).copied().unwrap_or_default();
        let steps = steps.into_iter().map(|(_, step)| step).collect();
        Ok(Audit { rollback, original_action, steps, approvals })
    }
}

fn hear(told: &mut BTreeMap<EffectId, Told>, seq: u64, event: &Event) {
    match event {
        Event::Registered(registered) => {
            if let Some(step) = told.get_mut(&EffectId(seq)) {
                let inverse = registered.call.inverse.as_ref();
                let call = inverse.and_then(|inverse| inverse.calls.first());
                let manual = inverse.and_then(|inverse| inverse.manual.clone());
                step.action = call
                    .map(|call| call.tool.clone())
                    .or(manual)
                    .or_else(|| Some(registered.call.tool.clone()));
            }
        }
        Event::Done { effect, inverse: Some(inverse), .. }
        | Event::Evidence { effect, inverse: Some(inverse), .. } => {
            if let (Some(step), Some(call)) = (told.get_mut(effect), inverse.calls.first()) {
                step.action = Some(call.tool.clone());
            }
        }
        Event::StepClaimed { effect, agent, .. } => {
            if let Some(step) = told.get_mut(effect) {
                step.attempts += 1;
                step.by = Some(agent.clone());
                step.by_hand = false;
            }
        }
        Event::StepFailed { effect, kind, .. } => {
            if let Some(step) = told.get_mut(effect) {
                step.ended = seq;
                // Nobody was found to attempt it, as its failure says, too.
                step.attempts -= u32::from(*kind == FailureKind::NoHandler && step.attempts > 0);
            }
        }
        Event::StepCompleted { effect, .. } | Event::StepDiscarded { effect } => {
            if let Some(step) = told.get_mut(effect) {
                step.ended = seq;
            }
        }
        Event::StepResolved { effect, by, .. } => {
            if let Some(step) = told.get_mut(effect) {
                (step.ended, step.by, step.by_hand) = (seq, Some(by.clone()), true);
            }
        }
        _ => {}
    }
}

fn status(report: &Report, effect: EffectId, by_hand: bool) -> &'static str {
    if report.completed.binary_search(&effect).is_ok() {
        return if by_hand { "resolved" } else { "done" };
    }
    if report.unsettled.contains(&effect) {
        "unsettled"
    } else if report.failed.iter().any(|failure| failure.effect == effect) {
        "failed"
    } else if report.blocked.iter().any(|blocked| blocked.effect == effect) {
        "blocked"
    } else if report.discarded.contains(&effect) {
        "discarded"
    } else {
        "pending"
    }
}
