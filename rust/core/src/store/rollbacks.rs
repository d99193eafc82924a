//! Looking at rollbacks: state, plan, impact, and what the log tells of those that memory has let go.

use std::collections::BTreeMap;

use super::EffectStore;
use super::look::not_found;
use crate::codec::Header;
use crate::decide::{
    impact_of, impact_of_request, impact_of_rollback, plan_of, plan_of_request, report_of,
    rollback_state,
};
use crate::error::Error;
use crate::log::{Past, corrupted};
use crate::model::{
    ApprovalId, Event, Failure, FailureKind, Impact, Plan, Problem, Report, RollbackId,
    RollbackInfo, RollbackState, Subject,
};
use crate::state::State;

/// What the log tells of a rollback.
struct Told {
    info: RollbackInfo,
    /// A governed one has begun.
    started: bool,
    /// The answer to its last approval, with who gave it.
    answer: Option<(bool, String)>,
    /// Other rollbacks took all that it was to undo before anybody answered.
    taken: bool,
}

/// Begins with the record whose number is the rollback's id; `None` if the record is none of a rollback.
fn begin(id: u64, time_ms: u64, event: &Event) -> Option<Told> {
    let info = RollbackInfo {
        id: RollbackId(id),
        state: RollbackState::InReview,
        effects: Vec::new(),
        initiated_by: None,
        trigger: crate::model::Trigger::Automatic,
        reason: String::new(),
        approvals: Vec::new(),
        report: Report::default(),
        direct: Vec::new(),
        governed: false,
        created_ms: time_ms,
        finished_ms: None,
        root_cause: None,
        waived: None,
    };
    let info = match event {
        Event::Doomed(doom) if doom.rollback => RollbackInfo {
            effects: doom.members.iter().collect(),
            initiated_by: doom.by.clone(),
            trigger: doom.trigger,
            reason: doom.reason.clone(),
            direct: doom.direct.iter().collect(),
            ..info
        },
        Event::RollbackRequested(request) if request.of.is_none() => RollbackInfo {
            effects: request.members(),
            initiated_by: Some(request.by.clone()),
            trigger: request.trigger,
            reason: request.reason.clone(),
            direct: request.targets.iter().collect(),
            governed: true,
            ..info
        },
        _ => return None,
    };
    Some(Told { info, started: false, answer: None, taken: false })
}

/// The rollback that a record is about.
fn about(event: &Event, approvals: &BTreeMap<ApprovalId, RollbackId>) -> Option<RollbackId> {
    match event {
        Event::RollbackRequested(request) => request.of,
        Event::RollbackStarted(started) => Some(started.rollback),
        Event::RollbackFinished { rollback, .. } | Event::RemedyWaived { rollback, .. } => {
            Some(*rollback)
        }
        Event::RootCauseRecorded(cause) => Some(cause.rollback),
        Event::ApprovalRequested { subject: Subject::Rollback(rollback), .. } => Some(*rollback),
        Event::ApprovalAnswered { approval, .. } | Event::ApprovalStale { approval, .. } => {
            approvals.get(approval).copied()
        }
        _ => None,
    }
}

/// A rollback of which memory knows everything, so that the log need not be read.
fn open_one(state: &State, id: RollbackId) -> Option<RollbackInfo> {
    if let Some(asked) = state.requests.get(&id) {
        let request = Event::RollbackRequested(Box::new(crate::model::Requested {
            of: None,
            ..asked.request.clone()
        }));
        let mut told = begin(id.0, asked.created_ms, &request)?;
        told.info.approvals.clone_from(&asked.approvals);
        return Some(told.into_info(state));
    }
    let rollback = state.rollbacks.get(&id).filter(|known| known.open && !known.reviewed)?;
    // One that came back from the log knows its members alone.
    (rollback.created_ms > 0).then(|| RollbackInfo {
        id,
        state: rollback_state(state, rollback),
        effects: rollback.members.clone(),
        initiated_by: rollback.by.clone(),
        trigger: rollback.trigger,
        reason: rollback.reason.clone(),
        approvals: rollback.approvals.clone(),
        report: report_of(state, rollback),
        direct: rollback.direct.clone(),
        governed: rollback.governed,
        created_ms: rollback.created_ms,
        finished_ms: None,
        root_cause: None,
        waived: None,
    })
}

impl Told {
    fn hear(&mut self, seq: u64, header: &Header) {
        match &header.event {
            Event::RollbackRequested(request) => {
                self.info.effects = request.members();
                self.answer = None;
                self.taken = false;
            }
            Event::RollbackStarted(_) => self.started = true,
            Event::RollbackFinished { report, .. } => {
                self.info.report = report.clone();
                self.info.finished_ms = Some(header.time_ms);
            }
            Event::RootCauseRecorded(cause) => self.info.root_cause = Some(cause.as_ref().clone()),
            Event::RemedyWaived { by, reason, .. } => {
                self.info.waived = Some((by.clone(), reason.clone()));
            }
            Event::ApprovalRequested { .. } => self.info.approvals.push(ApprovalId(seq)),
            Event::ApprovalAnswered { approved, by, .. } => {
                self.answer = Some((*approved, by.clone()));
            }
            Event::ApprovalStale { successor, .. } => self.taken = successor.is_none(),
            _ => {}
        }
    }

    /// What memory says goes before what the log says: it knows what is not finished.
    fn into_info(mut self, state: &State) -> RollbackInfo {
        let id = self.info.id;
        if let Some(rollback) = state.rollbacks.get(&id) {
            self.info.effects.clone_from(&rollback.members);
            self.info.report = report_of(state, rollback);
            self.info.state = rollback_state(state, rollback);
            if rollback.open {
                self.info.finished_ms = None;
            } else {
                self.info.state = self.afterwards();
            }
        } else if state.requests.contains_key(&id) {
            self.info.state = RollbackState::AwaitingApproval;
            self.info.report.pending.clone_from(&self.info.effects);
        } else if self.info.governed && !self.started && self.taken {
            self.info.state = RollbackState::Closed;
            self.info.report.discarded.clone_from(&self.info.effects);
            self.info.report.downstream_confirmed = true;
        } else if self.info.governed && !self.started {
            // Nothing was undone, so nothing is owed.
            self.info.state = RollbackState::Closed;
            let by = self.answer.map_or_else(String::new, |(_, by)| by);
            let denied = |effect: &crate::model::EffectId| Failure {
                effect: *effect,
                tool: String::new(),
                agent: String::new(),
                kind: FailureKind::Denied,
                problem: Problem::new("denied", &format!("denied by {by}")),
                attempts: 0,
                writer: None,
            };
            self.info.report.failed = self.info.effects.iter().map(denied).collect();
        } else {
            self.info.state = self.afterwards();
        }
        self.info
    }

    /// A finished rollback is in review until its cause and a remedy are known.
    fn afterwards(&self) -> RollbackState {
        let remedy = self.info.root_cause.as_ref().is_some_and(|cause| cause.remedy.is_some());
        if self.info.root_cause.is_some() && (remedy || self.info.waived.is_some()) {
            RollbackState::Closed
        } else {
            RollbackState::InReview
        }
    }
}

impl EffectStore {
    /// A rollback, asked for, unfinished or finished.
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`].
    pub fn rollback(&self, id: RollbackId) -> Result<RollbackInfo, Error> {
        if let Some(info) = open_one(&self.engine().lock()?.state, id) {
            return Ok(info);
        }
        let found = self.rollbacks_from(id.0, 1, Some(id))?;
        found.into_iter().next().ok_or_else(|| not_found("rollback", id.0))
    }

    /// Rollbacks in order of id, after `since`. It reads the log once, from there on.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn rollbacks(&self, since: u64, limit: usize) -> Result<Vec<RollbackInfo>, Error> {
        self.rollbacks_from(since.saturating_add(1), limit, None)
    }

    fn rollbacks_from(
        &self,
        from: u64,
        limit: usize,
        only: Option<RollbackId>,
    ) -> Result<Vec<RollbackInfo>, Error> {
        let mut found: BTreeMap<RollbackId, Told> = BTreeMap::new();
        let mut approvals = BTreeMap::new();
        self.scan(from, &mut |seq, header| {
            let wanted = only.is_none_or(|only| only.0 == seq) && found.len() < limit;
            if let Some(told) = begin(seq, header.time_ms, &header.event).filter(|_| wanted) {
                found.insert(told.info.id, told);
                return true;
            }
            if let Some(rollback) = about(&header.event, &approvals)
                && let Some(told) = found.get_mut(&rollback)
            {
                if matches!(header.event, Event::ApprovalRequested { .. }) {
                    approvals.insert(ApprovalId(seq), rollback);
                }
                told.hear(seq, header);
            }
            only.is_none() || !found.is_empty()
        })?;
        let core = self.engine().lock()?;
        let mut known: Vec<RollbackInfo> =
            found.into_values().map(|told| told.into_info(&core.state)).collect();
        drop(core);
        for failure in known.iter_mut().flat_map(|info| &mut info.report.failed) {
            self.name_step(failure)?;
        }
        Ok(known)
    }

    /// Says whose step it is that a denied request never made.
    fn name_step(&self, failure: &mut Failure) -> Result<(), Error> {
        if !failure.tool.is_empty() {
            return Ok(());
        }
        let effect = self.effect(failure.effect)?;
        let call = effect.inverse.as_ref().and_then(|(inverse, _)| inverse.calls.first());
        failure.tool = call.map_or(effect.tool, |call| call.tool.clone());
        failure.agent = effect.agent;
        Ok(())
    }

    /// What a rollback would do next, and the digest to which its approvals are bound. Of a governed
    /// one that nobody has approved yet: what it would do as a whole.
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`] for what is no rollback, or finished.
    pub fn plan(&self, id: RollbackId) -> Result<Plan, Error> {
        let (core, view) = self.engine().look()?;
        if let Some(rollback) = core.state.rollbacks.get(&id) {
            return Ok(plan_of(&core.state, rollback));
        }
        let Some(asked) = core.state.requests.get(&id) else {
            return Err(not_found("unfinished rollback", id.0));
        };
        let past = Past::new(view.as_ref(), &core.index);
        Ok(plan_of_request(&core.state, &past, asked).map_err(|error| corrupted(error.0))?)
    }

    /// What a rollback touches: what was done, what rests on it, keys, agents, class, what cannot be
    /// undone, and whose window is running out.
    ///
    /// # Errors
    /// [`crate::model::Refusal::NotFound`].
    pub fn impact(&self, id: RollbackId) -> Result<Impact, Error> {
        let known = self.rollback(id)?;
        let (core, view) = self.engine().look()?;
        let past = Past::new(view.as_ref(), &core.index);
        let impact = if let Some(asked) = core.state.requests.get(&id) {
            impact_of_request(&core.state, &past, asked)
        } else if let Some(rollback) = core.state.rollbacks.get(&id) {
            impact_of_rollback(&core.state, &past, rollback)
        } else {
            impact_of(&core.state, &past, &known.effects, &known.direct)
        };
        Ok(impact.map_err(|error| corrupted(error.0))?)
    }
}
