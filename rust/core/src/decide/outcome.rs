//! Outcomes: what became of a call.

use std::collections::BTreeSet;

use super::{Fate, Ruling, Turn};
use crate::model::{
    BranchId, EffectId, EffectState, Event, Inverse, Outcome, PayloadRef, Problem, Refusal, Reply,
    Severity, Token,
};
use crate::state::Effect;

/// The state's name, as errors show it.
pub(super) fn state_name(state: EffectState) -> &'static str {
    match state {
        EffectState::Live => "live",
        EffectState::Committed => "committed",
        EffectState::Doomed => "doomed",
        EffectState::Void => "void",
    }
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Unknown => "unknown",
        Outcome::Done => "done",
        Outcome::NotRun => "not_run",
    }
}

/// A report as it came.
#[derive(Clone, Copy)]
pub(super) struct Report<'a> {
    pub(super) outcome: Outcome,
    pub(super) result: Option<PayloadRef>,
    pub(super) inverse: Option<&'a Inverse>,
    pub(super) problem: Option<&'a Problem>,
}

impl Turn<'_> {
    /// Refuses a caller whose token of the effect is not the current one.
    pub(super) fn holds_effect(&mut self, id: EffectId, token: Token, verb: &str) -> Ruling<()> {
        match self.state.effects.get(id) {
            Some(effect) if effect.token == token => Ok(()),
            Some(effect) => {
                let (current, branch) = (effect.token, effect.branch);
                let refusal = Refusal::StaleToken {
                    branch: self.branch_name(branch)?,
                    held: Some(token),
                    current: Some(current),
                };
                self.audit(verb, refusal.code(), id.0, Some(token));
                Err(refusal.into())
            }
            // The log tells whose it was when memory let it go; only late callers pay for that (I9).
            None => match self.token_of_gone(id)? {
                Some((_, current)) if current == token => Ok(()),
                Some((branch, current)) => {
                    let refusal = Refusal::StaleToken {
                        branch: self.branch_name(branch)?,
                        held: Some(token),
                        current: Some(current),
                    };
                    self.audit(verb, refusal.code(), id.0, Some(token));
                    Err(refusal.into())
                }
                None => Err(Refusal::no_such("effect", id.0).into()),
            },
        }
    }

    pub(super) fn done(
        &mut self,
        id: EffectId,
        token: Token,
        result: PayloadRef,
        inverse: Option<&Inverse>,
    ) -> Ruling<Reply> {
        let allowed = self.state.limits.payload_bytes;
        if result.length > allowed {
            let (limit, value, wait_for) = ("payload_bytes", result.length, Vec::new());
            return Err(Refusal::LimitExceeded { limit, value, allowed, wait_for }.into());
        }
        self.approved_code(inverse)?;
        let report =
            Report { outcome: Outcome::Done, result: Some(result), inverse, problem: None };
        self.admit(id, token, report, "done")?;
        let (rests_on, saw) = self.second_look(id)?;
        self.emit(Event::Done { effect: id, result, inverse: inverse.cloned(), rests_on });
        if let Some(cause) = saw {
            self.doom_automatically(
                &[id],
                &format!("it read a value of effect {cause}, which is doomed"),
            );
        }
        Ok(Reply::Effect { effect: id, state: None })
    }

    pub(super) fn not_run(
        &mut self,
        id: EffectId,
        token: Token,
        problem: &Problem,
    ) -> Ruling<Reply> {
        let report = Report {
            outcome: Outcome::NotRun,
            result: None,
            inverse: None,
            problem: Some(problem),
        };
        self.admit(id, token, report, "not_run")?;
        if !self.state.effects.contains(id) {
            self.emit(Event::Evidence {
                effect: id,
                outcome: Outcome::NotRun,
                result: None,
                inverse: None,
                problem: Some(problem.clone()),
            });
            return Ok(Reply::Effect { effect: id, state: None });
        }
        let live = self.state.effects.get(id).is_some_and(Effect::is_live);
        if !live {
            self.not_run_settled(id, problem, Vec::new())?;
            return Ok(Reply::Effect { effect: id, state: None });
        }
        let (rests_on, saw) = self.second_look(id)?;
        if let Some(cause) = saw {
            // It did not run, so nothing of it is to be undone (C26, C47).
            let sentence = super::doom::Sentence { never: Some(id), ..self.sentence(&[id], &[]) };
            let reason = format!("it read a value of effect {cause}, which is doomed");
            self.execute(sentence, None, &reason, crate::model::Trigger::Automatic);
            // What rested on it is undone before what it saw (I13).
            self.not_run_settled(id, problem, rests_on)?;
            return Ok(Reply::Effect { effect: id, state: None });
        }
        self.make_void(id, problem, rests_on);
        Ok(Reply::Effect { effect: id, state: None })
    }

    /// The call of a doomed or delivered effect did not run.
    fn not_run_settled(
        &mut self,
        id: EffectId,
        problem: &Problem,
        observed: Vec<EffectId>,
    ) -> Ruling<()> {
        let delivered =
            self.state.effects.get(id).is_some_and(|effect| effect.state == EffectState::Committed);
        self.emit(Event::NotRun { effect: id, problem: problem.clone(), observed });
        if delivered {
            self.emit(Event::Alerted {
                severity: Severity::Critical,
                text: format!(
                    "effect {id} is committed and its call failed for good; what follows it in the outbox waits"
                ),
                reference: id.0,
            });
            self.request_for_failure(id, "its call failed for good")?;
        }
        Ok(())
    }

    /// A live effect never happened. Whoever says that it saw its version saw what never was (C26).
    fn make_void(&mut self, id: EffectId, problem: &Problem, more: Vec<EffectId>) {
        let Some(effect) = self.state.effects.get(id) else { return };
        let mut observed: BTreeSet<EffectId> =
            self.state.graph.dependencies(id.0).into_iter().map(EffectId).collect();
        observed.extend(more);
        observed.remove(&id);
        let mut liars: Vec<EffectId> = self
            .state
            .graph
            .dependents(id.0)
            .into_iter()
            .map(EffectId)
            .filter(|reader| {
                self.state.live_effect(*reader).is_some_and(|reader| reader.named.contains(&id))
            })
            .collect();
        liars.sort_unstable();
        let stopped: Vec<BranchId> = effect
            .held_by
            .iter()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .filter(|holder| {
                self.state.branches.get(holder).is_some_and(|branch| branch.named.contains(&id))
            })
            .collect();
        self.emit(Event::NotRun {
            effect: id,
            problem: problem.clone(),
            observed: observed.into_iter().collect(),
        });
        if !liars.is_empty() {
            let reason = format!("it names a version of effect {id}, which never happened");
            self.doom_automatically(&liars, &reason);
        }
        for branch in stopped {
            let open = self
                .state
                .branches
                .get(&branch)
                .is_some_and(|branch| branch.state == crate::model::BranchState::Open);
            if open {
                self.emit(Event::BranchStopped {
                    branch,
                    cause: Some(id),
                    closed: false,
                    by: None,
                    reason: None,
                });
            }
        }
    }

    /// Lets a first, timely report of the current holder pass; anything else is refused, and taken
    /// as evidence where it is news (C27 to C30).
    fn admit(&mut self, id: EffectId, token: Token, report: Report<'_>, verb: &str) -> Ruling<()> {
        let Some(effect) = self.state.effects.get(id) else {
            return self.report_on_gone(id, token, report, verb);
        };
        let (state, outcome, evidence) = (effect.state, effect.outcome, effect.evidence);
        let undelivered = effect.is_deferred() && effect.delivery.is_none();
        if effect.token != token {
            if state == EffectState::Doomed || (outcome == Outcome::Unknown && !undelivered) {
                self.late_report(
                    id,
                    report.outcome,
                    report.result,
                    report.inverse,
                    report.problem,
                )?;
            }
            return self.holds_effect(id, token, verb);
        }
        let settled = |state| Err(Refusal::AlreadySettled { reference: id.0, state }.into());
        match (state, outcome, report.outcome) {
            (EffectState::Live | EffectState::Committed, Outcome::Unknown, _) if undelivered => {
                Err(Refusal::Options {
                    option: "mode",
                    reason: format!("effect {id} is deferred and was not handed out yet"),
                }
                .into())
            }
            // Evidence outlives the doom: its inverse must not be dropped on a later word (C29).
            (
                EffectState::Live | EffectState::Committed | EffectState::Doomed,
                Outcome::Unknown,
                Outcome::NotRun,
            ) if evidence => settled("reported as run by an earlier holder"),
            (EffectState::Live | EffectState::Committed, Outcome::Unknown, _)
            | (EffectState::Doomed, Outcome::Unknown, Outcome::NotRun) => Ok(()),
            (EffectState::Doomed, _, Outcome::Done) => {
                self.late_report(
                    id,
                    report.outcome,
                    report.result,
                    report.inverse,
                    report.problem,
                )?;
                settled("doomed")
            }
            (EffectState::Doomed, _, _) => settled("doomed"),
            (_, known, _) => settled(outcome_name(known)),
        }
    }

    fn report_on_gone(
        &mut self,
        id: EffectId,
        token: Token,
        report: Report<'_>,
        verb: &str,
    ) -> Ruling<()> {
        let current = self.token_of_gone(id)?.map(|(_, current)| current);
        let state = match self.history.fate(id)? {
            None => {
                return Err(Refusal::no_such("effect", id.0).into());
            }
            Some(Fate::Committed) => "committed",
            // Its call was closed, and now it is known that it never ran (C30).
            Some(Fate::Doomed)
                if report.outcome == Outcome::NotRun
                    && current == Some(token)
                    && self
                        .story(id)?
                        .is_some_and(|story| story.outcome == Outcome::Unknown && !story.told) =>
            {
                return Ok(());
            }
            Some(fate) => {
                if report.outcome == Outcome::Done {
                    self.late_report(
                        id,
                        report.outcome,
                        report.result,
                        report.inverse,
                        report.problem,
                    )?;
                }
                match fate {
                    Fate::Void => "void",
                    Fate::Doomed => "doomed",
                    Fate::Committed | Fate::Compensated => "committed",
                }
            }
        };
        if current != Some(token) {
            self.holds_effect(id, token, verb)?;
        }
        Err(Refusal::AlreadySettled { reference: id.0, state }.into())
    }

    /// The tool read its declared keys while it ran: it rests on every writer that was live at any
    /// moment since the registration, and falls if one was doomed meanwhile (C22).
    fn second_look(&self, id: EffectId) -> Ruling<(Vec<EffectId>, Option<EffectId>)> {
        let Some(effect) = self.state.effects.get(id) else { return Ok((Vec::new(), None)) };
        let mut more = BTreeSet::new();
        if effect.is_deferred() {
            return Ok((Vec::new(), None));
        }
        let mut cause = None;
        for read in effect.reads.iter().filter(|read| read.version.is_none()) {
            cause = cause.or(self.saw_doomed(&read.key, id.0)?);
            cause = cause.or(self.seen_voided(&read.key, id.0, id, &mut more)?);
            if let Some(entry) = self.state.keys.get(&read.key) {
                more.extend(entry.frontier.iter().copied().filter(|writer| *writer > id));
                more.extend(self.doomed_since(entry, id));
            }
        }
        Ok((more.into_iter().collect(), cause))
    }

    /// Writers of a key that were doomed while the call ran: it falls with them, and is undone before
    /// them (I13).
    pub(super) fn doomed_since(
        &self,
        entry: &crate::state::KeyEntry,
        id: EffectId,
    ) -> Vec<EffectId> {
        let fell = |writer: &EffectId| {
            self.state.effects.get(*writer).is_some_and(|effect| {
                effect.is_doomed() && effect.rollback.is_some_and(|rollback| rollback.0 > id.0)
            })
        };
        entry.writers.iter().copied().filter(fell).filter(|writer| *writer != id).collect()
    }

    /// An outside party saw the effect: its class is at least partial from now on.
    pub(super) fn exposed(&mut self, id: EffectId, token: Token, to: &str) -> Ruling<Reply> {
        self.holds_effect(id, token, "exposed")?;
        self.emit(Event::Exposed { effect: id, to: to.to_owned() });
        Ok(Reply::Effect { effect: id, state: None })
    }

    /// Somebody knows that the worker is gone: the outcome can never come (C32).
    pub(super) fn close(&mut self, id: EffectId, by: &str, reason: &str) -> Ruling<Reply> {
        match self.state.effects.get(id) {
            Some(effect) if effect.outcome == Outcome::Unknown && !effect.closed => {
                self.emit(Event::Closed {
                    effect: id,
                    by: by.to_owned(),
                    reason: reason.to_owned(),
                });
            }
            Some(_) => {}
            None if self.history.fate(id)?.is_some() => {}
            None => return Err(Refusal::no_such("effect", id.0).into()),
        }
        Ok(Reply::Effect { effect: id, state: None })
    }
}
