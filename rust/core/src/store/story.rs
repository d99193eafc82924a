//! One effect's story, gathered from the log: what it was registered as and what became of it.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::resting::Resting;
use crate::codec::Record;
use crate::decide::{Fate, History as _};
use crate::error::Error;
use crate::log::{Past, corrupted, read_payload};
use crate::model::{
    After, BranchId, Call, EffectId, EffectInfo, EffectState, Event, FenceId, Follows, Inverse,
    Mode, Outcome, PayloadRef, Registered, RollbackId, Started, Token,
};
use crate::state::{Effect, State};
use crate::storage::ReadView;

/// What is known of an effect.
pub(super) struct Story {
    id: EffectId,
    registered: Registered,
    pub(super) branch: BranchId,
    token: Token,
    class: crate::model::Class,
    state: EffectState,
    outcome: Outcome,
    result: Option<(u64, PayloadRef)>,
    inverse: Option<Inverse>,
    inverse_record: u64,
    resting: Resting,
    /// Branches that voted for it, and those that merged, whose vote nobody waits for.
    voted: BTreeSet<BranchId>,
    pub(super) sealed: bool,
    compensated: bool,
    fence: Option<FenceId>,
    rollback: Option<RollbackId>,
}

impl Story {
    /// Begins with the registration; `None` if the record is none.
    pub(super) fn of(view: &dyn ReadView, id: EffectId) -> Result<Option<Story>, Error> {
        let Some(bytes) = view.record(id.0)? else { return Ok(None) };
        let header = Record::decode_header(&bytes)
            .map_err(|error| corrupted(format!("record {id}: {error}")))?;
        let Event::Registered(registered) = header.event else { return Ok(None) };
        Ok(Some(Story {
            id,
            branch: registered.branch,
            token: Token { incarnation: registered.token.incarnation, number: id.0 },
            class: registered.class,
            state: EffectState::Live,
            outcome: Outcome::Unknown,
            result: None,
            inverse: registered.call.inverse.clone(),
            inverse_record: id.0,
            resting: Resting::of(&registered),
            voted: BTreeSet::new(),
            sealed: false,
            compensated: false,
            fence: None,
            rollback: None,
            registered: *registered,
        }))
    }

    /// What memory says of an effect that it holds.
    pub(super) fn overlay(
        &mut self,
        view: &dyn ReadView,
        state: &State,
        effect: &Effect,
    ) -> Result<(), Error> {
        self.branch = effect.branch;
        self.token = effect.token;
        self.class = effect.class;
        self.state = effect.shown_state();
        self.outcome = effect.outcome;
        self.sealed = self.state == EffectState::Committed || effect.is_sealed();
        self.fence = effect.fence;
        self.rollback = effect.rollback.filter(|id| state.rollbacks.contains_key(id));
        self.compensated = effect.step.as_ref().is_some_and(|step| step.is_completed());
        self.inverse = effect.inverse.as_deref().cloned();
        self.inverse_record = effect.inverse_record;
        self.result = effect.result;
        // Memory's edges come and go with decisions; the records behind it name what it was told.
        for seq in effect.records.iter().filter(|seq| **seq > self.id.0) {
            let Some(bytes) = view.record(*seq)? else { continue };
            let header = Record::decode_header(&bytes)
                .map_err(|error| corrupted(format!("record {seq}: {error}")))?;
            self.resting.hear(self.id, &header.event);
        }
        Ok(())
    }

    /// The token of a settled effect's outcome. The log is read on only where the branch's own token
    /// says that somebody may have taken it over since.
    pub(super) fn find_token(&mut self, view: &dyn ReadView, past: &Past<'_>) -> Result<(), Error> {
        let registered = self.registered.branch;
        let ended = past.ended(registered).map_err(|error| corrupted(error.0))?;
        let untouched = ended.is_some_and(|ended| {
            !ended.merged
                && ended.token.number <= self.id.0
                && ended.token.incarnation == self.token.incarnation
        });
        if untouched && self.registered.mode == Mode::Eager {
            return Ok(());
        }
        let (mut owner, mut failed) = (registered, None);
        let mut token = self.token;
        let id = self.id;
        view.scan(id.0 + 1, &mut |seq, bytes| {
            let event = match Record::decode_header(bytes) {
                Ok(header) => header.event,
                Err(error) => {
                    failed = Some(corrupted(format!("record {seq}: {error}")));
                    return ControlFlow::Break(());
                }
            };
            match event {
                Event::BranchTaken { branch, .. } if branch == owner => token.number = seq,
                Event::Delivered { effect, .. } if effect == id => token.number = seq,
                Event::Restored { incarnation } => token = Token { incarnation, number: seq },
                Event::BranchMerged { branch } if branch == owner => {
                    if let Ok(Some(Event::BranchCreated { parent: Some(parent), .. })) =
                        past.event(branch.0)
                    {
                        owner = parent;
                    }
                }
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        self.token = token;
        failed.map_or(Ok(()), |error| Err(Error::Storage(error)))
    }

    /// Reads on from the registration until everything is told; the distance is that to its end.
    pub(super) fn settle(&mut self, view: &dyn ReadView, fate: Option<Fate>) -> Result<(), Error> {
        let expected = match fate {
            Some(Fate::Committed | Fate::Compensated) | None => EffectState::Committed,
            Some(Fate::Doomed) => EffectState::Doomed,
            Some(Fate::Void) => EffectState::Void,
        };
        let mut failed = None;
        view.scan(self.id.0 + 1, &mut |seq, bytes| match Record::decode_header(bytes) {
            Ok(header) => {
                self.tell(seq, &header.event);
                if self.told(expected) && fate != Some(Fate::Compensated) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            }
            Err(error) => {
                failed = Some(corrupted(format!("record {seq}: {error}")));
                ControlFlow::Break(())
            }
        })?;
        self.state = expected;
        self.sealed |= self.has_all_votes(view)?;
        failed.map_or(Ok(()), |error| Err(Error::Storage(error)))
    }

    /// Whether its branch and all above it have voted (C33).
    fn has_all_votes(&self, view: &dyn ReadView) -> Result<bool, Error> {
        let mut next = Some(self.registered.branch);
        while let Some(branch) = next {
            if !self.voted.contains(&branch) {
                return Ok(false);
            }
            let Some(bytes) = view.record(branch.0)? else { return Ok(false) };
            let header = Record::decode_header(&bytes)
                .map_err(|error| corrupted(format!("record {branch}: {error}")))?;
            next = match header.event {
                Event::BranchCreated { parent, .. } => parent,
                _ => None,
            };
        }
        Ok(true)
    }

    fn is_open(&self) -> bool {
        self.state == EffectState::Live && self.outcome != Outcome::NotRun
    }

    /// Nothing more can come that an answer shows. The undo of a doomed effect may have more to it.
    fn told(&self, expected: EffectState) -> bool {
        match expected {
            EffectState::Committed => {
                self.state == EffectState::Committed && self.outcome != Outcome::Unknown
            }
            EffectState::Void => self.outcome == Outcome::NotRun,
            _ => false,
        }
    }

    fn tell(&mut self, seq: u64, event: &Event) {
        self.resting.hear(self.id, event);
        match event {
            Event::Done { effect, result, inverse, .. } if *effect == self.id => {
                self.outcome = Outcome::Done;
                self.result = Some((seq, *result));
                if let Some(inverse) = inverse {
                    self.inverse = Some(inverse.clone());
                    self.inverse_record = seq;
                }
            }
            Event::NotRun { effect, .. } if *effect == self.id => self.outcome = Outcome::NotRun,
            Event::Evidence { effect, outcome: Outcome::Done, result, inverse, .. }
                if *effect == self.id
                    && (self.state == EffectState::Doomed || self.outcome == Outcome::NotRun) =>
            {
                self.outcome = Outcome::Done;
                self.result = result.map(|result| (seq, result)).or(self.result);
                self.compensated = false;
                if let Some(inverse) = inverse {
                    self.inverse = Some(inverse.clone());
                    self.inverse_record = seq;
                }
            }
            Event::Evidence { effect, outcome: Outcome::NotRun, .. } if *effect == self.id => {
                self.outcome = Outcome::NotRun;
            }
            Event::Exposed { effect, .. } if *effect == self.id => {
                self.class = self.class.max(crate::model::Class::Partial);
            }
            // What is decided keeps the votes that it had (C33).
            Event::BranchMerged { branch } if self.is_open() => {
                self.voted.insert(*branch);
            }
            Event::Voted { branch, members, .. } if members.contains(self.id) && self.is_open() => {
                match branch {
                    Some(branch) => {
                        self.voted.insert(*branch);
                    }
                    None => self.sealed = true,
                }
            }
            Event::Fenced { intent, members, .. } if members.contains(self.id) => {
                self.state = EffectState::Committed;
                self.sealed = true;
                self.fence = Some(intent.unwrap_or(FenceId(seq)));
            }
            Event::Doomed(doom) if doom.members.contains(self.id) => {
                self.state = EffectState::Doomed;
                self.rollback = doom.within.or(doom.rollback.then_some(RollbackId(seq)));
            }
            Event::RollbackStarted(started) if holds(started, self.id) => {
                self.rollback = Some(started.rollback);
            }
            Event::StepCompleted { effect, .. } | Event::StepResolved { effect, .. }
                if *effect == self.id =>
            {
                self.compensated = true;
            }
            Event::StepDue { effect, .. } if *effect == self.id => self.compensated = false,
            _ => {}
        }
    }

    /// The answer, with its payloads.
    pub(super) fn into_info(
        self,
        view: &dyn ReadView,
        branch_name: String,
        agent: String,
    ) -> Result<EffectInfo, Error> {
        let call = self.registered.call;
        let args = read_payload(view, self.id.0, &call.args)?.unwrap_or_default();
        let result = match self.result {
            Some((record, reference)) => read_payload(view, record, &reference)?,
            None => None,
        };
        let inverse = match self.inverse {
            Some(inverse) => {
                let mut all = Vec::new();
                for Call { args, .. } in &inverse.calls {
                    all.push(match args {
                        Some(args) => read_payload(view, self.inverse_record, args)?,
                        None => None,
                    });
                }
                Some((inverse, all))
            }
            None => None,
        };
        let rests_on = self.resting.finish(view, self.id)?;
        let mut after: Vec<EffectId> = match call.follows {
            Follows::Tip | Follows::Turn(_) => self.registered.program,
            Follows::These(named) => named
                .into_iter()
                .filter_map(|after| match after {
                    After::Effect(effect) => Some(effect),
                    After::Item(_) => None, // The record names effects.
                })
                .collect(),
        };
        after.sort_unstable();
        after.dedup();
        Ok(EffectInfo {
            id: self.id,
            branch: self.branch,
            branch_name,
            agent,
            token: self.token,
            tool: call.tool,
            args,
            reads: call.reads,
            writes: call.writes,
            after,
            rests_on,
            inverse,
            class: self.class,
            mode: self.registered.mode,
            idempotency_key: call.idempotency_key,
            cost: call.cost,
            state: self.state,
            outcome: self.outcome,
            result,
            sealed: self.sealed,
            compensated: self.compensated,
            fence: self.fence,
            rollback: self.rollback,
        })
    }
}

/// Whether a governed rollback undoes this committed effect.
pub(super) fn holds(started: &Started, id: EffectId) -> bool {
    started.held.contains(id) || started.effects.iter().any(|recalled| recalled.effect == id)
}

/// What a record is about.
pub(super) fn reference(seq: u64, event: &Event) -> u64 {
    match event {
        Event::BranchTaken { branch, .. }
        | Event::BranchResumed { branch }
        | Event::BranchMerged { branch }
        | Event::BranchLeased { branch, .. }
        | Event::BranchStopped { branch, .. }
        | Event::LeaseExpired { branch }
        | Event::Observed { branch, .. }
        | Event::ObservationRefused { branch, .. }
        | Event::Voted { branch: Some(branch), .. } => branch.0,
        Event::ObservedLate { effect, .. }
        | Event::Done { effect, .. }
        | Event::NotRun { effect, .. }
        | Event::Exposed { effect, .. }
        | Event::Closed { effect, .. }
        | Event::Evidence { effect, .. }
        | Event::StepClaimed { effect, .. }
        | Event::StepCompleted { effect, .. }
        | Event::StepFailed { effect, .. }
        | Event::StepRenewed { effect, .. }
        | Event::StepReleased { effect, .. }
        | Event::StepDiscarded { effect }
        | Event::StepRetried { effect, .. }
        | Event::StepResolved { effect, .. }
        | Event::StepDue { effect, .. }
        | Event::Delivered { effect, .. }
        | Event::DeliveryHeld { effect, .. }
        | Event::WindowPassed { effect } => effect.0,
        Event::Fenced { intent, .. } => intent.map_or(seq, |intent| intent.0),
        Event::IntentEnded { intent, .. } => intent.0,
        Event::RollbackFinished { rollback, .. }
        | Event::ConfirmBy { rollback, .. }
        | Event::RemedyWaived { rollback, .. }
        | Event::RollbackOverdue { rollback } => rollback.0,
        Event::RollbackRequested(request) => request.of.map_or(seq, |of| of.0),
        Event::RollbackStarted(started) => started.rollback.0,
        Event::RootCauseRecorded(cause) => cause.rollback.0,
        Event::ApprovalAnswered { approval, .. } | Event::ApprovalStale { approval, .. } => {
            approval.0
        }
        Event::Alerted { reference, .. } | Event::Refused { reference, .. } => *reference,
        Event::AlertAcknowledged { alert, .. } => alert.0,
        Event::Notified { signal, .. }
        | Event::BreakUnheard { signal }
        | Event::BreakConfirmed { signal } => signal.0,
        Event::NoticeAcknowledged { notice } => notice.0,
        Event::ArtifactMoved { artifact, .. }
        | Event::ArtifactFailed { artifact, .. }
        | Event::ArtifactRan { artifact, .. } => artifact.0,
        _ => seq,
    }
}
