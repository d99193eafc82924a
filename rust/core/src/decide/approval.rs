//! Approvals: a person's word on an exact plan, or on a call that cannot be undone.

use super::governed::Renewed;
use super::plan::{digest_of, digest_of_call};
use super::{Ruling, Turn};
use crate::model::{
    ApprovalId, ApprovalState, Ask, Class, EffectId, Event, IrreversibleRule, Refusal, Reply,
    RollbackId, Severity, Subject,
};

/// Who asks where a rule of the store does.
const RULE: &str = "policy";

fn name_of(state: ApprovalState) -> &'static str {
    match state {
        ApprovalState::Pending => "pending",
        ApprovalState::Approved => "approved",
        ApprovalState::Denied => "denied",
        ApprovalState::Stale => "stale",
    }
}

impl Turn<'_> {
    /// Asks for an approval. What is already asked for is not asked for twice.
    pub(super) fn ask(&mut self, ask: &Ask, by: &str, reason: &str) -> Ruling<Reply> {
        let approval = match ask {
            Ask::Rollback(rollback) => self.ask_for_rollback(*rollback, by, reason)?,
            Ask::Early { branch, token, tool, args, idempotency_key } => {
                self.holds_open(*branch, *token, "request_approval")?;
                let subject = Subject::Early {
                    branch: *branch,
                    tool: tool.clone(),
                    args: *args,
                    idempotency_key: idempotency_key.clone(),
                };
                match self.asked_for(&subject) {
                    Some(known) => known,
                    None => self.request_call(subject, by, reason),
                }
            }
        };
        Ok(Reply::Approval(approval))
    }

    fn asked_for(&self, subject: &Subject) -> Option<ApprovalId> {
        let mut known = self.state.approvals.values().filter(|known| {
            known.info.subject == *subject
                && !known.used
                && matches!(known.info.state, ApprovalState::Pending | ApprovalState::Approved)
        });
        known.next().map(|known| known.info.id)
    }

    fn request_call(&mut self, subject: Subject, by: &str, reason: &str) -> ApprovalId {
        let digest = digest_of_call(self.state, &subject);
        ApprovalId(self.emit(Event::ApprovalRequested {
            subject,
            digest,
            reason_required: true,
            by: by.to_owned(),
            reason: reason.to_owned(),
        }))
    }

    fn ask_for_rollback(&mut self, id: RollbackId, by: &str, reason: &str) -> Ruling<ApprovalId> {
        let Some(rollback) = self.state.rollbacks.get(&id) else {
            if let Some(asked) = self.state.requests.get(&id) {
                let last = asked.approvals.last().copied();
                let open = match self.renew_request(id)? {
                    Renewed::Asked(successor) => Some(successor),
                    Renewed::Stands(_) | Renewed::Gone => last,
                };
                return open.ok_or_else(|| Refusal::no_such("rollback", id.0).into());
            }
            if let Some(again) = self.request_again(id, by, reason)? {
                return Ok(again);
            }
            let known = match self.history.event(id.0)? {
                Some(Event::Doomed(doom)) => doom.rollback,
                Some(Event::RollbackRequested(request)) => request.of.is_none(),
                _ => false,
            };
            return Err(if known {
                Refusal::AlreadySettled { reference: id.0, state: "finished" }.into()
            } else {
                Refusal::no_such("rollback", id.0).into()
            });
        };
        if rollback.denied {
            return Ok(self.request_plan(id, by, reason));
        }
        match rollback.approvals.last() {
            Some(last) => Ok(*last),
            None => Err(Refusal::Options {
                option: "rollback",
                reason: format!("rollback {id} needs no approval"),
            }
            .into()),
        }
    }

    fn request_plan(&mut self, id: RollbackId, by: &str, reason: &str) -> ApprovalId {
        let reason_required = self.state.approval_needed(id).unwrap_or(false);
        let rollback = self.state.rollbacks.get(&id);
        let digest = rollback.map_or([0; 32], |rollback| digest_of(self.state, rollback));
        ApprovalId(self.emit(Event::ApprovalRequested {
            subject: Subject::Rollback(id),
            digest,
            reason_required,
            by: by.to_owned(),
            reason: reason.to_owned(),
        }))
    }

    /// Answers a request, once.
    pub(super) fn answer(
        &mut self,
        id: ApprovalId,
        approve: bool,
        by: &str,
        reason: Option<&str>,
    ) -> Ruling<Reply> {
        let Some(known) = self.state.approvals.get(&id) else {
            return Err(self.no_longer_open(id)?.into());
        };
        let (state, subject) = (known.info.state, known.info.subject.clone());
        if state != ApprovalState::Pending {
            let successor = self.successor(id, &subject);
            let state = name_of(state);
            return Err(Refusal::ApprovalClosed { approval: id, state, successor }.into());
        }
        let asker = known.info.requested_by.clone();
        if approve && self.state.policy.separation_of_duties && self.caused(&subject, &asker, by)? {
            return Err(Refusal::SeparationOfDuties { approval: id, by: by.to_owned() }.into());
        }
        let reason_required = self.state.approvals.get(&id).is_some_and(|k| k.info.reason_required);
        let written = reason.is_some_and(|reason| !reason.trim().is_empty());
        if approve && reason_required && !written {
            return Err(Refusal::ReasonRequired { approval: id, by: by.to_owned() }.into());
        }
        let governed = self.state.is_requested(&subject).filter(|_| approve);
        let mut start = None;
        if let Some(rollback) = governed {
            match self.renew_request(rollback)? {
                // More rests on the targets by now than the person was asked about.
                Renewed::Asked(successor) => {
                    let (state, successor) = ("stale", Some(successor));
                    return Err(Refusal::ApprovalClosed { approval: id, state, successor }.into());
                }
                Renewed::Stands(found) => start = Some((rollback, found)),
                Renewed::Gone => {}
            }
        }
        self.emit(Event::ApprovalAnswered {
            approval: id,
            approved: approve,
            by: by.to_owned(),
            reason: reason.map(str::to_owned),
        });
        if let Some((rollback, found)) = start {
            self.start_governed(rollback, *found)?;
        }
        if let (false, Subject::Effect(effect)) = (approve, subject) {
            let text = format!(
                "the run of effect {effect} was denied; it stays committed and blocks what is deferred behind it"
            );
            self.alert(Severity::Critical, text, effect.0);
            self.request_for_failure(effect, "the approval of its run was denied")?;
        }
        Ok(Reply::Approval(id))
    }

    /// Whether somebody caused what an approval is about. A rollback that came back into memory is
    /// asked for in the log.
    fn caused(&self, subject: &Subject, asker: &str, by: &str) -> Ruling<bool> {
        let Subject::Rollback(rollback) = subject else { return Ok(asker == by) };
        let (initiator, direct) = match self.history.event(rollback.0)? {
            Some(Event::Doomed(doom)) => (doom.by, Some(doom.direct)),
            Some(Event::RollbackRequested(request)) => (Some(request.by), None),
            _ => (None, None),
        };
        if let Some(initiator) = initiator {
            return Ok(initiator == by || asker == by);
        }
        // Nobody was named: the agents whose work was given up gave it up.
        for effect in direct.iter().flat_map(crate::model::MemberSet::iter) {
            let owner = match self.state.effects.get(effect) {
                Some(effect) => self.agent_of(effect)?,
                None => String::new(),
            };
            if owner == by {
                return Ok(true);
            }
        }
        Ok(asker == by)
    }

    fn successor(&self, id: ApprovalId, subject: &Subject) -> Option<ApprovalId> {
        let mut newer = self.state.approvals.range(id..).skip(1);
        newer.find(|(_, other)| other.info.subject == *subject).map(|(id, _)| *id)
    }

    /// The refusal of an approval that memory has let go.
    fn no_longer_open(&self, id: ApprovalId) -> Ruling<Refusal> {
        let Some(Event::ApprovalRequested { .. }) = self.history.event(id.0)? else {
            return Ok(Refusal::no_such("approval", id.0));
        };
        let mut state = ApprovalState::Stale;
        let mut successor = None;
        self.history.scan(id.0 + 1, &mut |_, event| match event {
            Event::ApprovalAnswered { approval, approved, .. } if *approval == id => {
                state = if *approved { ApprovalState::Approved } else { ApprovalState::Denied };
                false
            }
            Event::ApprovalStale { approval, successor: next } if *approval == id => {
                successor = *next;
                false
            }
            _ => true,
        })?;
        Ok(Refusal::ApprovalClosed { approval: id, state: name_of(state), successor })
    }

    /// Brings the approval of a rollback in line with its plan (C55): asked for where a person must
    /// decide, stale where the plan changed before the answer. An approved plan may shrink, not grow.
    pub(super) fn review(&mut self, id: RollbackId) {
        let Some(rollback) = self.state.rollbacks.get(&id) else { return };
        if rollback.denied || !rollback.open {
            return;
        }
        let last = rollback.approvals.last().and_then(|id| self.state.approvals.get(id));
        let pending = last.filter(|last| last.info.state == ApprovalState::Pending);
        if let Some(pending) = pending {
            if pending.info.digest != digest_of(self.state, rollback) {
                self.replace(id, pending.info.id);
            }
            return;
        }
        let answered = last.is_some_and(|last| last.info.state == ApprovalState::Approved)
            || (last.is_none() && rollback.finished.is_some());
        if (!answered || rollback.grown) && self.state.approval_needed(id).is_some() {
            let reason = rollback.reason.clone();
            self.request_plan(id, RULE, &reason);
        }
    }

    fn replace(&mut self, id: RollbackId, stale: ApprovalId) {
        let needed = self.state.approval_needed(id).is_some();
        let successor = needed.then(|| ApprovalId(self.next() + 1));
        self.emit(Event::ApprovalStale { approval: stale, successor });
        if needed {
            let reason = self.state.rollbacks.get(&id).map(|known| known.reason.clone());
            self.request_plan(id, RULE, &reason.unwrap_or_default());
        }
    }

    /// The run of a committed irreversible effect needs a person, by the default policy.
    pub(super) fn needs_run_approval(&self, id: EffectId) -> bool {
        self.state.policy.irreversible == IrreversibleRule::Approval
            && self
                .state
                .effects
                .get(id)
                .is_some_and(|effect| effect.is_deferred() && effect.class == Class::Irreversible)
    }

    /// Asks for the approval of a run, when the effect's fence commits.
    pub(super) fn request_run(&mut self, id: EffectId) {
        let subject = Subject::Effect(id);
        if self.needs_run_approval(id) && self.asked_for(&subject).is_none() {
            self.request_call(subject, RULE, "it cannot be undone once it ran");
        }
    }

    /// Whether a person approved the run.
    pub(super) fn run_approved(&self, id: EffectId) -> bool {
        self.state.approvals.values().any(|known| {
            known.info.subject == Subject::Effect(id) && known.info.state == ApprovalState::Approved
        })
    }
}
