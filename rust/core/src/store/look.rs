//! Looking: answers that change nothing, from memory for what is live and from the log for the rest.

use std::ops::ControlFlow;
use std::time::Duration;

use super::EffectStore;
use super::story::Story;
use crate::codec::Record;
use crate::decide::{Ended, History as _, blockers_of, decision, of_ended};
use crate::error::Error;
use crate::log::{Past, corrupted};
use crate::model::{
    AlertId, AlertInfo, ApprovalId, ApprovalInfo, ApprovalState, BranchId, BranchInfo, BranchState,
    Decision, EffectId, EffectInfo, EffectState, Event, FenceId, FenceInfo, FenceStatus, Outcome,
    Refusal, Target,
};
use crate::storage::{ReadView, Table};

/// Which effects to list.
#[derive(Clone, Debug, Default)]
pub struct EffectFilter {
    /// Only of this branch; what a child merged counts for its parent.
    pub branch: Option<BranchId>,
    /// Only in this state.
    pub state: Option<EffectState>,
    /// Only of this outcome.
    pub outcome: Option<Outcome>,
    /// Only of this agent.
    pub agent: Option<String>,
    /// Only of this tool.
    pub tool: Option<String>,
}

impl EffectFilter {
    fn admits(&self, effect: &EffectInfo) -> bool {
        self.branch.is_none_or(|branch| effect.branch == branch)
            && self.state.is_none_or(|state| effect.state == state)
            && self.outcome.is_none_or(|outcome| effect.outcome == outcome)
            && self.agent.as_ref().is_none_or(|agent| effect.agent == *agent)
            && self.tool.as_ref().is_none_or(|tool| effect.tool == *tool)
    }
}

pub(super) fn not_found(what: &str, id: impl Into<u64>) -> Error {
    Refusal::no_such(what, id.into()).into()
}

/// Whose the effects of a branch are now: a merged one has handed them to its parent.
fn owner_now(
    state: &crate::state::State,
    past: &Past<'_>,
    branch: BranchId,
) -> Result<BranchId, Error> {
    let mut owner = branch;
    loop {
        let merged = if let Some(known) = state.branches.get(&owner) {
            known.merged
        } else {
            let ended = past.ended(owner).map_err(|error| corrupted(error.0))?;
            ended.is_some_and(|ended| ended.merged)
        };
        let made = past.event(owner.0).map_err(|error| corrupted(error.0))?;
        match made {
            Some(Event::BranchCreated { parent: Some(parent), .. }) if merged => owner = parent,
            _ => return Ok(owner),
        }
    }
}

impl EffectStore {
    /// The branch of this name.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn branch_named(&self, name: &str) -> Result<BranchInfo, Error> {
        let (core, view) = self.engine().look()?;
        if let Some(info) = core.state.names.get(name).and_then(|id| core.state.branch_info(*id)) {
            return Ok(info);
        }
        let past = Past::new(view.as_ref(), &core.index);
        let id = past.branch_named(name).map_err(|error| corrupted(error.0))?;
        drop(core);
        self.closed_branch(id.ok_or_else(|| Error::from(Refusal::no_such_branch(name)))?)
    }

    /// The branch of this id.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn branch(&self, id: BranchId) -> Result<BranchInfo, Error> {
        if let Some(info) = self.engine().lock()?.state.branch_info(id) {
            return Ok(info);
        }
        self.closed_branch(id)
    }

    fn ended(&self, id: BranchId) -> Result<Option<Ended>, Error> {
        let (core, view) = self.engine().look()?;
        let past = Past::new(view.as_ref(), &core.index);
        Ok(past.ended(id).map_err(|error| corrupted(error.0))?)
    }

    /// A branch that memory has let go: merged, or aborted by name.
    fn closed_branch(&self, id: BranchId) -> Result<BranchInfo, Error> {
        let ended = self.ended(id)?.ok_or_else(|| not_found("branch", id.0))?;
        match self.event(id.0)? {
            Some(Event::BranchCreated { name, agent, parent, reads, .. }) => {
                let parent = match parent {
                    Some(parent) => Some(self.branch(parent)?.name),
                    None => None,
                };
                Ok(BranchInfo {
                    id,
                    name,
                    agent,
                    parent,
                    token: ended.token,
                    state: BranchState::Closed,
                    tip: Vec::new(),
                    reads,
                })
            }
            _ => Err(not_found("branch", id.0)),
        }
    }

    /// Branches in order of id, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn branches(&self, since: u64, limit: usize) -> Result<Vec<BranchInfo>, Error> {
        let mut ids = Vec::new();
        let mut from = [1_u8; 9];
        from[1..].copy_from_slice(&since.saturating_add(1).to_be_bytes());
        self.engine().view()?.rows(Table::Branches, &from, &mut |key, _| {
            if let Some(id) = key.get(1..9).and_then(|id| <[u8; 8]>::try_from(id).ok()) {
                ids.push(BranchId(u64::from_be_bytes(id)));
            }
            if ids.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        ids.into_iter().map(|id| self.branch(id)).collect()
    }

    pub(super) fn event(&self, seq: u64) -> Result<Option<Event>, Error> {
        let view = self.engine().view()?;
        let Some(bytes) = view.record(seq)? else { return Ok(None) };
        let header = Record::decode_header(&bytes)
            .map_err(|error| corrupted(format!("record {seq}: {error}")))?;
        Ok(Some(header.event))
    }

    /// What the fence of a target would decide; changes nothing.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn decide(&self, target: Target) -> Result<Decision, Error> {
        let (core, view) = self.engine().look()?;
        match target {
            Target::Branch(id) if !core.state.branches.contains_key(&id) => {
                drop(core);
                let ended = self.ended(id)?.ok_or_else(|| not_found("branch", id.0))?;
                Ok(of_ended(id, &ended))
            }
            Target::Effect(id) if !core.state.effects.contains(id) => {
                let past = Past::new(view.as_ref(), &core.index);
                let fate = past.fate(id).map_err(|error| corrupted(error.0))?;
                let mut decided = decision(&core.state, target);
                match fate {
                    None => return Err(not_found("effect", id.0)),
                    Some(crate::decide::Fate::Committed | crate::decide::Fate::Compensated) => {}
                    Some(fate) => {
                        decided.kind = crate::model::DecisionKind::Abort;
                        decided.cause = (fate == crate::decide::Fate::Doomed).then_some(id);
                    }
                }
                Ok(decided)
            }
            _ => Ok(decision(&core.state, target)),
        }
    }

    /// An effect, live or settled.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn effect(&self, id: EffectId) -> Result<EffectInfo, Error> {
        let (core, view) = self.engine().look()?;
        let mut story = Story::of(view.as_ref(), id)?.ok_or_else(|| not_found("effect", id.0))?;
        let fate = match core.state.effects.get(id) {
            Some(effect) if effect.was_recalled() => {
                // Its votes are told by the log alone.
                let fate = match effect.shown_state() {
                    EffectState::Committed => crate::decide::Fate::Compensated,
                    _ => crate::decide::Fate::Doomed,
                };
                story.settle(view.as_ref(), Some(fate))?;
                let sealed = story.sealed;
                story.overlay(view.as_ref(), &core.state, effect)?;
                story.sealed = sealed;
                None
            }
            Some(effect) => {
                story.overlay(view.as_ref(), &core.state, effect)?;
                None
            }
            None => {
                let past = Past::new(view.as_ref(), &core.index);
                story.find_token(view.as_ref(), &past)?;
                story.branch = owner_now(&core.state, &past, story.branch)?;
                Some(past.fate(id).map_err(|error| corrupted(error.0))?)
            }
        };
        // Reading on may take long, and the view stays what it is without the lock.
        drop(core);
        if let Some(fate) = fate {
            story.settle(view.as_ref(), fate)?;
        }
        self.finish(view.as_ref(), story)
    }

    fn finish(&self, view: &dyn ReadView, story: Story) -> Result<EffectInfo, Error> {
        let branch = self.branch(story.branch)?;
        story.into_info(view, branch.name, branch.agent)
    }

    /// Effects in order of id, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn effects(
        &self,
        since: u64,
        limit: usize,
        filter: &EffectFilter,
    ) -> Result<Vec<EffectInfo>, Error> {
        let mut found = Vec::new();
        let mut from = since.saturating_add(1);
        while found.len() < limit {
            let ids = self.registered_from(from, 256)?;
            let Some(last) = ids.last() else { break };
            from = last.0 + 1;
            for id in ids {
                let effect = self.effect(id)?;
                if filter.admits(&effect) {
                    found.push(effect);
                    if found.len() == limit {
                        break;
                    }
                }
            }
        }
        Ok(found)
    }

    fn registered_from(&self, from: u64, limit: usize) -> Result<Vec<EffectId>, Error> {
        let mut ids = Vec::new();
        self.scan(from, &mut |seq, header| {
            if matches!(header.event, Event::Registered(_)) {
                ids.push(EffectId(seq));
            }
            ids.len() < limit
        })?;
        Ok(ids)
    }

    pub(super) fn scan(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, &crate::codec::Header) -> bool,
    ) -> Result<(), Error> {
        let view = self.engine().view()?;
        let mut failed = None;
        view.scan(from, &mut |seq, bytes| match Record::decode_header(bytes) {
            Ok(header) if visit(seq, &header) => ControlFlow::Continue(()),
            Ok(_) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(corrupted(format!("record {seq}: {error}")));
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), |error| Err(Error::Storage(error)))
    }

    /// A fence: an intent that waits, or what became of it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn fence(&self, id: FenceId) -> Result<FenceInfo, Error> {
        {
            let core = self.engine().lock()?;
            if let Some(intent) = core.state.intents.get(&id) {
                let targets: Vec<EffectId> = intent.targets.iter().copied().collect();
                let blockers = blockers_of(&core.state, &targets);
                return Ok(FenceInfo {
                    id: Some(id),
                    status: FenceStatus::Waiting,
                    committed: Vec::new(),
                    blockers,
                    by: intent.by.clone(),
                });
            }
        }
        let info = |status, committed, by| FenceInfo {
            id: Some(id),
            status,
            committed,
            blockers: Vec::new(),
            by,
        };
        match self.event(id.0)? {
            Some(Event::Fenced { members, by, intent: None, .. }) => {
                Ok(info(FenceStatus::Committed, members.iter().collect(), by))
            }
            Some(Event::Intended { targets, by, .. }) => {
                let mut ended = info(FenceStatus::Aborted, Vec::new(), by.clone());
                self.scan(id.0 + 1, &mut |_, header| match &header.event {
                    Event::Fenced { intent: Some(intent), members, .. } if *intent == id => {
                        let members = if members.is_empty() { &targets } else { members };
                        ended = info(FenceStatus::Committed, members.iter().collect(), by.clone());
                        false
                    }
                    Event::IntentEnded { intent, .. } => *intent != id,
                    _ => true,
                })?;
                Ok(ended)
            }
            _ => Err(not_found("fence", id.0)),
        }
    }

    /// Waits for a fence that waits.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn wait_fence(&self, id: FenceId, wait_ms: u64) -> Result<FenceInfo, Error> {
        let done = |answer: &Result<FenceInfo, Error>| !matches!(answer, Ok(fence) if fence.status == FenceStatus::Waiting);
        self.wait_until(wait_ms, || self.fence(id), done)
    }

    /// The fence that committed a target which was committed already when it was asked for.
    pub(super) fn settled_fence(
        &self,
        target: Target,
        fence: FenceInfo,
    ) -> Result<FenceInfo, Error> {
        let Target::Effect(id) = target else { return Ok(fence) };
        match self.effect(id)?.fence {
            Some(id) => self.fence(id),
            None => Ok(fence),
        }
    }

    /// Fences in order of id, after `since`, waiting ones included.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn fences(&self, since: u64, limit: usize) -> Result<Vec<FenceInfo>, Error> {
        let mut ids = Vec::new();
        self.scan(since.saturating_add(1), &mut |seq, header| {
            if matches!(header.event, Event::Fenced { intent: None, .. } | Event::Intended { .. }) {
                ids.push(FenceId(seq));
            }
            ids.len() < limit
        })?;
        ids.into_iter().map(|id| self.fence(id)).collect()
    }

    /// An approval, answered or not.
    ///
    /// # Errors
    /// [`Refusal::NotFound`].
    pub fn approval(&self, id: ApprovalId) -> Result<ApprovalInfo, Error> {
        if let Some(approval) = self.engine().lock()?.state.approvals.get(&id) {
            return Ok(approval.info.clone());
        }
        let Some(Event::ApprovalRequested { subject, digest, reason_required, by, reason }) =
            self.event(id.0)?
        else {
            return Err(not_found("approval", id.0));
        };
        let mut info = ApprovalInfo {
            id,
            subject,
            digest,
            reason_required,
            requested_by: by,
            reason,
            state: ApprovalState::Pending,
            answered_by: None,
            answer_reason: None,
        };
        self.scan(id.0 + 1, &mut |_, header| match &header.event {
            Event::ApprovalAnswered { approval, approved, by, reason } if *approval == id => {
                info.state =
                    if *approved { ApprovalState::Approved } else { ApprovalState::Denied };
                info.answered_by = Some(by.clone());
                info.answer_reason.clone_from(reason);
                false
            }
            Event::ApprovalStale { approval, .. } if *approval == id => {
                info.state = ApprovalState::Stale;
                false
            }
            _ => true,
        })?;
        Ok(info)
    }

    /// Approvals in order of id, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn approvals(&self, since: u64, limit: usize) -> Result<Vec<ApprovalInfo>, Error> {
        let mut ids = Vec::new();
        self.scan(since.saturating_add(1), &mut |seq, header| {
            if matches!(header.event, Event::ApprovalRequested { .. }) {
                ids.push(ApprovalId(seq));
            }
            ids.len() < limit
        })?;
        ids.into_iter().map(|id| self.approval(id)).collect()
    }

    pub(super) fn alert(&self, id: AlertId) -> Result<AlertInfo, Error> {
        let Some(Event::Alerted { severity, text, reference }) = self.event(id.0)? else {
            return Err(not_found("alert", id.0));
        };
        let mut info = AlertInfo { id, severity, text, reference, acknowledged_by: None };
        if self.engine().lock()?.state.alerts.contains_key(&id.0) {
            return Ok(info);
        }
        self.scan(id.0 + 1, &mut |_, header| match &header.event {
            Event::AlertAcknowledged { alert, by } if *alert == id => {
                info.acknowledged_by = Some(by.clone());
                false
            }
            _ => true,
        })?;
        Ok(info)
    }

    /// Alerts in order of id, after `since`.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn alerts(&self, since: u64, limit: usize) -> Result<Vec<AlertInfo>, Error> {
        let mut ids = Vec::new();
        self.scan(since.saturating_add(1), &mut |seq, header| {
            if matches!(header.event, Event::Alerted { .. }) {
                ids.push(AlertId(seq));
            }
            ids.len() < limit
        })?;
        ids.into_iter().map(|id| self.alert(id)).collect()
    }

    /// Committed deferred effects that are still to run, of one agent or of all.
    ///
    /// # Errors
    /// Where the store is unusable.
    pub fn deliveries(&self, agent: Option<&str>) -> Result<Vec<EffectId>, Error> {
        let mut core = self.engine().lock()?;
        core.state.tidy();
        let of_agent = |id: &EffectId| {
            let Some(effect) = core.state.effects.get(*id) else { return false };
            let branch = core.state.branches.get(&effect.branch);
            agent.is_none_or(|agent| branch.is_some_and(|branch| branch.agent == agent))
        };
        Ok(core.state.outbox.iter().copied().filter(of_agent).collect())
    }

    /// Sleeps until something changes, at most so long.
    pub(super) fn sleep_at_most(&self, at_most: Duration) {
        let storage = &self.engine().storage;
        storage.wait_for_change(storage.changes(), at_most);
    }
}
