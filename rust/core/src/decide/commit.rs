//! The fence: one decision for a whole closure, or an intent that waits for it (section 5).

use super::tokens::doomed;
use super::vote::Votes;
use super::{Ruling, Turn, decision};
use crate::model::{
    Authority, Blocker, BranchId, BranchState, EffectId, EffectState, Escalate, Event, FenceId,
    FenceInfo, FenceStatus, MemberSet, Name, Refusal, Reply, Target, Token,
};
use crate::state::{Effect, Intent};

impl Turn<'_> {
    pub(super) fn commit(
        &mut self,
        target: Target,
        token: Token,
        escalate: Escalate,
    ) -> Ruling<Reply> {
        let Some(owner) = self.owner_of(target) else {
            return self.commit_settled(target);
        };
        self.holds(owner, token, "commit")?;
        if self.state.policy.authority == Authority::Reconcile {
            let target = self.target_name(target)?;
            return Err(Refusal::CommitReserved { target }.into());
        }
        let targets = self.commit_targets(target, owner)?;
        if targets.is_empty() {
            let Target::Branch(_) = target else { return Ok(Reply::Fence(nothing_left())) };
            // The vote covers what the branches below have so far, though none of it is asked for.
            let votes = self.owners_part(target, owner, &[]);
            self.vote_for(Some(owner), votes, None);
            return Ok(Reply::Fence(self.fence(None, Vec::new(), vec![target], None)));
        }
        let closure = self.state.closure(&targets);
        let votes = self.owners_part(target, owner, &closure);
        // What misses the owner's vote gets it now, what its children have registered included.
        let blockers = self.in_the_way(&closure, Votes::WithOwner(owner));
        if blockers.is_empty() {
            // A vote that this fence uses up is said by the fence itself.
            let left = without(&votes, &closure);
            self.vote_for(Some(owner), left, None);
            return Ok(Reply::Fence(self.fence(None, closure, vec![target], None)));
        }
        if escalate == Escalate::Never {
            let mut decision = decision(self.state, target);
            decision.blockers = blockers;
            return Err(
                Refusal::FenceClosure { decision: Box::new(decision), rollback: None }.into()
            );
        }
        self.vote_for(Some(owner), votes, None);
        Ok(Reply::Fence(self.intend(targets, vec![target], None, blockers)))
    }

    /// The branch that owns a target in memory; `None` for what is settled and gone.
    fn owner_of(&self, target: Target) -> Option<BranchId> {
        match target {
            Target::Branch(branch) => Some(branch),
            Target::Effect(effect) => self.state.effects.get(effect).map(|e| e.branch),
        }
    }

    /// Commit of an effect that memory does not hold: it is decided already.
    fn commit_settled(&self, target: Target) -> Ruling<Reply> {
        let Target::Effect(effect) = target else { return Ok(Reply::Fence(nothing_left())) };
        match self.history.fate(effect)? {
            None => Err(Refusal::no_such("effect", effect.0).into()),
            Some(super::Fate::Committed | super::Fate::Compensated) => {
                Ok(Reply::Fence(nothing_left()))
            }
            Some(_) => Err(self.aborted(target)),
        }
    }

    fn aborted(&self, target: Target) -> super::Stop {
        let mut decision = decision(self.state, target);
        decision.kind = crate::model::DecisionKind::Abort;
        let rollback = decision
            .cause
            .and_then(|cause| self.state.effects.get(cause))
            .and_then(|effect| effect.rollback);
        Refusal::FenceClosure { decision: Box::new(decision), rollback }.into()
    }

    /// The refusal of a commit that names a closed branch which memory does not hold.
    pub(super) fn ended_target(&self, branch: BranchId) -> Ruling<super::Stop> {
        let ended = self.ended(branch)?;
        Ok(if ended.merged {
            Refusal::BranchClosed { branch: self.branch_name(branch)?, cause: None }.into()
        } else {
            let decision = Box::new(super::of_ended(branch, &ended));
            Refusal::FenceClosure { decision, rollback: None }.into()
        })
    }

    /// The live effects that a commit asks for (C36).
    fn commit_targets(&self, target: Target, owner: BranchId) -> Ruling<Vec<EffectId>> {
        let Some(branch) = self.state.branches.get(&owner) else {
            return Err(self.ended_target(owner)?);
        };
        match target {
            Target::Branch(_) => match branch.state {
                BranchState::Open => Ok(self.state.live_of(owner)),
                BranchState::Closed if branch.merged => Err(super::tokens::closed(branch).into()),
                _ => Err(self.aborted(target)),
            },
            Target::Effect(effect) => match self.state.effects.get(effect).map(Effect::shown_state)
            {
                Some(EffectState::Live) if branch.state == BranchState::Doomed => {
                    Err(doomed(branch).into())
                }
                Some(EffectState::Live) => Ok(vec![effect]),
                Some(EffectState::Committed) | None => Ok(Vec::new()),
                Some(EffectState::Doomed | EffectState::Void) => Err(self.aborted(target)),
            },
        }
    }

    /// What the owner votes for: its part of the closure, or all that it has registered.
    fn owners_part(&self, target: Target, owner: BranchId, closure: &[EffectId]) -> Vec<EffectId> {
        let Some(branch) = self.state.branches.get(&owner) else { return Vec::new() };
        match target {
            Target::Branch(_) => branch.unvoted.to_vec(),
            Target::Effect(_) => {
                closure.iter().copied().filter(|id| branch.unvoted.contains(*id)).collect()
            }
        }
    }

    /// Commits a closure in one record.
    pub(super) fn fence(
        &mut self,
        intent: Option<FenceId>,
        closure: Vec<EffectId>,
        target: Vec<Target>,
        by: Option<String>,
    ) -> FenceInfo {
        let committed = closure.clone();
        let seq = self.emit(Event::Fenced {
            intent,
            members: MemberSet::from(closure),
            target,
            by: by.clone(),
        });
        FenceInfo {
            id: Some(intent.unwrap_or(FenceId(seq))),
            status: FenceStatus::Committed,
            committed,
            blockers: Vec::new(),
            by,
        }
    }

    /// Leaves an intent, or finds the one that asks for the same.
    pub(super) fn intend(
        &mut self,
        targets: Vec<EffectId>,
        target: Vec<Target>,
        by: Option<&str>,
        blockers: Vec<Blocker>,
    ) -> FenceInfo {
        let same = self
            .state
            .intents
            .values()
            .find(|intent| intent.targets.iter().copied().eq(targets.iter().copied()))
            .map(|intent| intent.id);
        let id = same.unwrap_or_else(|| {
            FenceId(self.emit(Event::Intended {
                targets: MemberSet::from(targets),
                target,
                by: by.map(str::to_owned),
            }))
        });
        FenceInfo {
            id: Some(id),
            status: FenceStatus::Waiting,
            committed: Vec::new(),
            blockers,
            by: by.map(str::to_owned),
        }
    }

    /// Intents whose watched blocker is gone look again; those with nothing in the way commit, in
    /// order of id (C37). Waiting itself costs nothing.
    pub(super) fn settle_intents(&mut self) {
        while let Some(id) = self.state.awake.pop_first() {
            let Some(intent) = self.state.intents.get(&id) else { continue };
            if intent.targets.is_empty() {
                self.close_intent(id);
                continue;
            }
            if self.keep_watching(id) {
                continue;
            }
            // The closure must not hold what another fence of this very turn has settled.
            self.state.tidy();
            let Some(intent) = self.state.intents.get(&id) else { continue };
            let (target, by) = (intent.target.clone(), intent.by.clone());
            let targets: Vec<EffectId> = intent.targets.iter().copied().collect();
            let closure = self.state.closure(&targets);
            let mut blockers: Vec<EffectId> = self
                .in_the_way(&closure, Votes::Cast)
                .into_iter()
                .map(|blocker| blocker.effect)
                .collect();
            blockers.dedup();
            if blockers.is_empty() {
                self.fence(Some(id), closure, target, by);
            } else {
                self.watch(id, blockers);
            }
        }
    }

    /// An intent without targets: another fence committed them, or all of them are void.
    fn close_intent(&mut self, id: FenceId) {
        let Some(Intent { committed, target, by, .. }) = self.state.intents.get(&id).cloned()
        else {
            return;
        };
        if committed {
            self.emit(Event::Fenced {
                intent: Some(id),
                members: MemberSet::default(),
                target,
                by,
            });
        } else {
            self.emit(Event::IntentEnded { intent: id, cause: None });
        }
    }

    /// Drops blockers that are gone from the last look; whether one is left, which is watched now.
    fn keep_watching(&mut self, id: FenceId) -> bool {
        let Some(intent) = self.state.intents.get_mut(&id) else { return false };
        while let Some(blocker) = intent.blockers.last().copied() {
            let gone = self.state.effects.get(blocker).is_none_or(|effect| {
                !effect.is_live() || (effect.is_sealed() && !effect.blocks_by_outcome())
            });
            if !gone {
                if let Some(effect) = self.state.effects.get_mut(blocker)
                    && !effect.watchers.contains(&id)
                {
                    effect.watchers.push(id);
                }
                return true;
            }
            intent.blockers.pop();
        }
        false
    }

    fn watch(&mut self, id: FenceId, blockers: Vec<EffectId>) {
        if let Some(intent) = self.state.intents.get_mut(&id) {
            intent.blockers = blockers;
        }
        self.keep_watching(id);
    }

    fn target_name(&self, target: Target) -> Ruling<Name> {
        Ok(match target {
            Target::Branch(branch) => Name::Text(self.branch_name(branch)?),
            Target::Effect(effect) => Name::Id(effect.0),
        })
    }
}

/// Those of an ascending list that are not in another one.
fn without(list: &[EffectId], other: &[EffectId]) -> Vec<EffectId> {
    let mut other = other.iter().peekable();
    let mut left = Vec::new();
    for id in list {
        while other.next_if(|taken| *taken < id).is_some() {}
        if other.peek() != Some(&id) {
            left.push(*id);
        }
    }
    left
}

/// The answer where everything asked for is committed already.
fn nothing_left() -> FenceInfo {
    FenceInfo {
        id: None,
        status: FenceStatus::Committed,
        committed: Vec::new(),
        blockers: Vec::new(),
        by: None,
    }
}
