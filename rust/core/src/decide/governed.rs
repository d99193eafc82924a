//! Governed rollbacks: committed effects are undone after all, once a person has agreed (section 6).
//!
//! The set is closed under descendants, which are found by reading the log forward from the oldest
//! target. Until the approval nothing changes; whoever answers has the set looked up again, since work
//! may have come to rest on it meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use super::doom::split;
use super::story::{Story, stories_of};
use super::trail::Trail;
use super::{Fate, Ruling, Turn};
use crate::model::{
    ApprovalId, BranchState, Edge, EffectId, EffectState, Event, MemberSet, Refusal, Reply,
    Requested, RollbackId, Started, Subject, Target, Trigger,
};
use crate::state::ApprovalNeed;

/// Why one effect cannot be asked for, if it cannot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Committed,
    Live,
    Doomed,
    Compensated,
    Void,
}

impl Standing {
    fn name(self) -> &'static str {
        match self {
            Standing::Committed => "committed",
            Standing::Live => "live",
            Standing::Doomed => "doomed",
            Standing::Compensated => "compensated",
            Standing::Void => "void",
        }
    }
}

/// A plan as the log tells it now.
pub(super) struct Found {
    pub(super) request: Requested,
    trail: Trail,
}

/// What became of an unanswered request when it was looked up again.
pub(super) enum Renewed {
    /// Its plan is what the person was asked about.
    Stands(Box<Found>),
    /// Its plan has changed, and this approval is asked for instead.
    Asked(ApprovalId),
    /// There is no such request any more.
    Gone,
}

impl Turn<'_> {
    pub(super) fn request_rollback(
        &mut self,
        targets: &[Target],
        by: &str,
        reason: &str,
        trigger: Trigger,
        program_order: bool,
    ) -> Ruling<Reply> {
        let targets = self.governed_targets(targets)?;
        let request = Requested {
            of: None,
            targets: MemberSet::from(targets),
            committed: MemberSet::default(),
            live: MemberSet::default(),
            by: by.to_owned(),
            reason: reason.to_owned(),
            trigger,
            program_order,
        };
        let found = self.found(request)?;
        let id = self.ask_governed(found.request)?;
        Ok(Reply::Rollback(id))
    }

    /// Writes a request down with the approval that it needs.
    fn ask_governed(&mut self, request: Requested) -> Ruling<RollbackId> {
        let (of, by, reason) = (request.of, request.by.clone(), request.reason.clone());
        let need = self.need_of(&request)?;
        let seq = self.emit(Event::RollbackRequested(Box::new(request)));
        let id = of.unwrap_or(RollbackId(seq));
        self.emit(Event::ApprovalRequested {
            subject: Subject::Rollback(id),
            digest: need.digest,
            reason_required: need.reason_required,
            by,
            reason,
        });
        Ok(id)
    }

    /// The named effects: of a branch, all that may be undone.
    fn governed_targets(&self, targets: &[Target]) -> Ruling<Vec<EffectId>> {
        if targets.is_empty() {
            let reason = "nothing was named; name the effects or branches to be undone".into();
            return Err(Refusal::Options { option: "targets", reason }.into());
        }
        let (effects, branches) = split(targets);
        let mut found = BTreeSet::new();
        for id in effects {
            match self.standing(id)? {
                None => return Err(Refusal::no_such("effect", id.0).into()),
                Some(Standing::Committed | Standing::Live) => {
                    found.insert(id);
                }
                Some(other) => return Err(self.undone_already(id, other.name()).into()),
            }
        }
        for branch in branches {
            self.branch_name(branch)?;
            let mut of_branch = Vec::new();
            self.history.scan(branch.0 + 1, &mut |seq, event| {
                if matches!(event, Event::Registered(known) if known.branch == branch) {
                    of_branch.push(EffectId(seq));
                }
                true
            })?;
            for id in of_branch {
                if matches!(self.standing(id)?, Some(Standing::Committed | Standing::Live)) {
                    found.insert(id);
                }
            }
        }
        if found.is_empty() {
            let reason = "nothing that is named can still be undone".into();
            return Err(Refusal::Options { option: "targets", reason }.into());
        }
        Ok(found.into_iter().collect())
    }

    /// The refusal of what falls already. While a rollback holds it, that one is to be asked about.
    fn undone_already(&self, id: EffectId, state: &'static str) -> Refusal {
        let known = self.state.effects.get(id);
        let open = |id: &RollbackId| self.state.rollbacks.get(id).is_some_and(|held| held.open);
        match known.and_then(|effect| effect.rollback.filter(open)) {
            Some(rollback) => {
                let undone = known.and_then(|effect| effect.step.as_ref());
                let undone = undone.is_some_and(|step| step.is_completed());
                let governed = known.is_some_and(|effect| effect.governed);
                // It stays committed, and is compensated only once its inverse ran.
                let state = if governed && !undone { "committed" } else { state };
                Refusal::HeldByRollback { effect: id, state, rollback }
            }
            None => Refusal::AlreadySettled { reference: id.0, state },
        }
    }

    fn standing(&self, id: EffectId) -> Ruling<Option<Standing>> {
        if let Some(effect) = self.state.effects.get(id) {
            return Ok(Some(match effect.state {
                _ if effect.governed => Standing::Compensated,
                EffectState::Live => Standing::Live,
                EffectState::Committed => Standing::Committed,
                EffectState::Doomed => Standing::Doomed,
                EffectState::Void => Standing::Void,
            }));
        }
        Ok(self.history.fate(id)?.map(|fate| match fate {
            Fate::Committed => Standing::Committed,
            Fate::Doomed => Standing::Doomed,
            Fate::Compensated => Standing::Compensated,
            Fate::Void => Standing::Void,
        }))
    }

    /// The set of a request as the log tells it now: what rests on the targets, and of what is live
    /// the whole cascade.
    pub(super) fn found(&mut self, request: Requested) -> Ruling<Found> {
        let targets: Vec<EffectId> = request.targets.iter().collect();
        let Some(oldest) = targets.first().copied() else {
            return Ok(Found { request, trail: Trail::default() });
        };
        let trail = self.trail(oldest, request.program_order)?;
        let (mut committed, mut live) = (Vec::new(), Vec::new());
        for id in trail.descendants(&targets) {
            match self.standing(id)? {
                Some(Standing::Committed) => committed.push(id),
                Some(Standing::Live) => live.push(id),
                _ => {}
            }
        }
        let live = self.state.cascade(&live);
        let (committed, live) = (MemberSet::from(committed), MemberSet::from(live));
        Ok(Found { request: Requested { committed, live, ..request }, trail })
    }

    /// The approval that a plan needs: always one, and with a written reason where the matrix says so.
    fn need_of(&self, request: &Requested) -> Ruling<ApprovalNeed> {
        let stories = self.stories(request)?;
        Ok(super::proposal::need_of_request(self.state, request, &stories)?)
    }

    fn stories(&self, request: &Requested) -> Ruling<BTreeMap<EffectId, Story>> {
        let gone = request.committed.iter().filter(|id| !self.state.effects.contains(*id));
        Ok(stories_of(self.history, gone.collect())?)
    }

    /// Looks an unanswered request up again, and asks anew where its plan has changed.
    pub(super) fn renew_request(&mut self, id: RollbackId) -> Ruling<Renewed> {
        let Some(asked) = self.state.requests.get(&id) else { return Ok(Renewed::Gone) };
        let (before, stale) = (asked.request.clone(), asked.approvals.last().copied());
        let digest = stale
            .and_then(|stale| self.state.approvals.get(&stale))
            .map(|approval| approval.info.digest);
        let found = self.found(Requested { of: Some(id), ..before.clone() })?;
        let now = &found.request;
        let same = now.committed == before.committed
            && now.live == before.live
            && digest == Some(self.need_of(now)?.digest);
        // Where everything was undone otherwise, an approval will do nothing.
        if same || (now.committed.is_empty() && now.live.is_empty()) {
            return Ok(Renewed::Stands(Box::new(found)));
        }
        if let Some(stale) = stale {
            let successor = Some(ApprovalId(self.next() + 2));
            self.emit(Event::ApprovalStale { approval: stale, successor });
        }
        self.ask_governed(found.request)?;
        let newest = self.state.requests.get(&id).and_then(|asked| asked.approvals.last().copied());
        Ok(newest.map_or(Renewed::Gone, Renewed::Asked))
    }

    /// Other rollbacks may have taken what a person is asked about. Where they took everything, the
    /// request is over; where a governed one took a part, another approval is asked for. What a doom
    /// took is found out by whoever answers: an abort reads no log.
    pub(super) fn review_requests(&mut self, from: usize) -> Ruling<()> {
        if self.state.requests.is_empty() {
            return Ok(());
        }
        let (mut taken, mut governed) = (BTreeSet::new(), false);
        // What this command made void has left memory, and no table says so yet.
        let mut void = BTreeSet::new();
        for event in &self.events[from..] {
            match event {
                Event::RollbackStarted(started) => {
                    governed = true;
                    taken.extend(started.effects.iter().map(|known| known.effect));
                    taken.extend(started.held.iter());
                }
                Event::Doomed(doom) => taken.extend(doom.members.iter()),
                Event::NotRun { effect, .. } => {
                    taken.insert(*effect);
                    if !self.state.effects.contains(*effect) {
                        void.insert(*effect);
                    }
                }
                _ => {}
            }
        }
        let hit =
            |request: &Requested| request.members().iter().any(|member| taken.contains(member));
        let requests = self.state.requests.iter();
        let touched: Vec<RollbackId> = requests
            .filter(|(_, asked)| !taken.is_empty() && hit(&asked.request))
            .map(|(id, _)| *id)
            .collect();
        for id in touched {
            let Some(asked) = self.state.requests.get(&id) else { continue };
            let last = asked.approvals.last().copied();
            let mut left = false;
            for member in asked.request.members().into_iter().filter(|id| !void.contains(id)) {
                left |=
                    matches!(self.standing(member)?, Some(Standing::Committed | Standing::Live));
                if left {
                    break;
                }
            }
            if left && governed {
                self.renew_request(id)?;
            } else if let Some(approval) = last.filter(|_| !left) {
                self.emit(Event::ApprovalStale { approval, successor: None });
            }
        }
        Ok(())
    }

    /// A denied request is made again: its plan is looked up anew.
    pub(super) fn request_again(
        &mut self,
        id: RollbackId,
        by: &str,
        reason: &str,
    ) -> Ruling<Option<ApprovalId>> {
        let Some(last) = self.last_request(id)? else { return Ok(None) };
        let mut targets = Vec::new();
        for target in last.targets.iter() {
            if matches!(self.standing(target)?, Some(Standing::Committed | Standing::Live)) {
                targets.push(target);
            }
        }
        if targets.is_empty() {
            let state = "compensated";
            return Err(Refusal::AlreadySettled { reference: id.0, state }.into());
        }
        let again = Requested {
            of: Some(id),
            targets: MemberSet::from(targets),
            by: by.to_owned(),
            reason: reason.to_owned(),
            ..last
        };
        let found = self.found(again)?;
        self.ask_governed(found.request)?;
        Ok(self.state.requests.get(&id).and_then(|asked| asked.approvals.last().copied()))
    }

    /// The newest request of a governed rollback that has not begun.
    fn last_request(&self, id: RollbackId) -> Ruling<Option<Requested>> {
        let Some(Event::RollbackRequested(first)) = self.history.event(id.0)? else {
            return Ok(None);
        };
        let mut last = Some(*first);
        self.history.scan(id.0 + 1, &mut |_, event| {
            match event {
                Event::RollbackRequested(next) if next.of == Some(id) => {
                    last = Some(next.as_ref().clone());
                }
                Event::RollbackStarted(started) if started.rollback == id => last = None,
                _ => {}
            }
            last.is_some()
        })?;
        Ok(last)
    }

    /// An approval was given: the committed members come back to be undone, and the live ones fall.
    pub(super) fn start_governed(&mut self, id: RollbackId, found: Found) -> Ruling<()> {
        let Found { request, trail } = found;
        let members: BTreeSet<EffectId> = request.members().into_iter().collect();
        let stories = self.stories(&request)?;
        let effects = self.recalled_for(id, stories, &members)?;
        let mut edges = Vec::new();
        for effect in &members {
            let below = trail.members_under(effect.0, &members);
            edges.extend(below.into_iter().map(|on| Edge { effect: *effect, on }));
        }
        let held: Vec<EffectId> =
            request.committed.iter().filter(|id| self.state.effects.contains(*id)).collect();
        self.drop_run_approvals(&held);
        let live: Vec<EffectId> = request.live.iter().collect();
        let held = MemberSet::from(held);
        let started = Started { rollback: id, effects, held, edges };
        self.emit(Event::RollbackStarted(Box::new(started)));
        let sentence = self.sentence(&live, &[]);
        if !sentence.members.is_empty() {
            self.execute_within(
                sentence,
                Some(&request.by),
                &request.reason,
                request.trigger,
                Some(id),
            );
        }
        self.stop_readers(&trail, &members);
        Ok(())
    }

    /// A branch that has seen what is undone now is stopped, as one that saw what is doomed.
    fn stop_readers(&mut self, trail: &Trail, members: &BTreeSet<EffectId>) {
        for (branch, cause) in trail.readers(members) {
            let open = self
                .state
                .branches
                .get(&branch)
                .is_some_and(|known| known.state == BranchState::Open);
            if open {
                self.emit(Event::BranchStopped {
                    branch,
                    cause: Some(cause),
                    closed: false,
                    by: None,
                    reason: Some("it observed what a governed rollback undoes".into()),
                });
            }
        }
    }

    /// What is to run no more needs no approval of its run.
    fn drop_run_approvals(&mut self, held: &[EffectId]) {
        let waiting: Vec<ApprovalId> = self
            .state
            .approvals
            .values()
            .filter(|known| known.info.state == crate::model::ApprovalState::Pending)
            .filter(|known| matches!(known.info.subject, Subject::Effect(id) if held.contains(&id)))
            .map(|known| known.info.id)
            .collect();
        for approval in waiting {
            self.emit(Event::ApprovalStale { approval, successor: None });
        }
    }

    /// A call that was committed failed for good: what rests on it should not stand (section 3, Mode).
    pub(super) fn request_for_failure(&mut self, id: EffectId, reason: &str) -> Ruling<()> {
        let asked = self.state.requests.values().any(|asked| asked.request.targets.contains(id));
        if asked || !self.state.effects.contains(id) {
            return Ok(());
        }
        let request = Requested {
            of: None,
            targets: MemberSet::from(vec![id]),
            committed: MemberSet::default(),
            live: MemberSet::default(),
            by: "outbox".into(),
            reason: reason.to_owned(),
            trigger: Trigger::Automatic,
            program_order: false,
        };
        let found = self.found(request)?;
        if found.request.committed.len() + found.request.live.len() > 1 {
            self.ask_governed(found.request)?;
        }
        Ok(())
    }
}
