//! Reconcile: the merge authority settles winners and losers in one decision (section 6).

use std::collections::BTreeSet;

use super::doom::{Sentence, split};
use super::vote::Votes;
use super::{Fate, Ruling, Turn, decision};
use crate::model::{
    Blocker, BranchId, BranchState, Command, EffectId, EffectState, Escalate, FenceInfo,
    FenceStatus, OnConflict, Reconciliation, Refusal, Reply, Target, Trigger,
};
use crate::state::{Effect, IdSet};

impl Turn<'_> {
    pub(super) fn reconcile(&mut self, command: &Command) -> Ruling<Reply> {
        let Command::Reconcile { commit, abort, closure, by, reason, on_conflict, escalate } =
            command
        else {
            return Ok(Reply::Nothing);
        };
        if *closure && by.is_none() {
            return Err(Refusal::Options {
                option: "by",
                reason: "closure=True votes for the work of others; say who decides".into(),
            }
            .into());
        }
        for target in commit.iter().chain(abort) {
            self.must_exist(*target)?;
        }
        let mut targets = self.winners(commit)?;
        let (named, branches) = split(abort);
        let sentence = self.sentence(&named, &branches);
        let mut winners = self.state.closure(&targets);
        let mut dropped = false;
        if let Some(path) = self.conflict(&targets, &winners, &sentence) {
            match on_conflict {
                OnConflict::Raise => return Err(Refusal::ReconcileConflict { path }.into()),
                OnConflict::Abort => {
                    targets.clear();
                    winners.clear();
                    dropped = true;
                }
            }
        }
        let votes = self.authority_votes(commit, &targets, &winners, *closure);
        let all = votes.len() == winners.len();
        let counted = if all { Votes::All } else { Votes::WithListed(&votes) };
        let blockers = self.in_the_way(&winners, counted);
        if !blockers.is_empty() && *escalate == Escalate::Never {
            let target = commit.first().copied().unwrap_or(Target::Effect(EffectId(0)));
            let mut decision = decision(self.state, target);
            decision.blockers = blockers;
            return Err(
                Refusal::FenceClosure { decision: Box::new(decision), rollback: None }.into()
            );
        }
        let reason = reason.as_deref().unwrap_or("reconciled");
        let mut answer = self.settle_losers(abort, by.as_deref(), reason)?;
        self.settle_winners(
            &mut answer,
            commit,
            Winners { targets, closure: winners, votes, blockers, dropped },
            by.as_deref(),
        );
        Ok(Reply::Reconciliation(answer))
    }

    fn settle_winners(
        &mut self,
        answer: &mut Reconciliation,
        commit: &[Target],
        winners: Winners,
        by: Option<&str>,
    ) {
        if winners.targets.is_empty() {
            if !winners.dropped && !commit.is_empty() {
                answer.fence = Some(self.nothing_won(commit, by));
            }
            return;
        }
        let fence = if winners.blockers.is_empty() {
            // The fence says its own votes: all of them are for members of it.
            self.fence(None, winners.closure, commit.to_vec(), by.map(str::to_owned))
        } else {
            let unsealed: Vec<EffectId> = winners
                .votes
                .into_iter()
                .filter(|id| self.state.live_effect(*id).is_some_and(|effect| !effect.is_sealed()))
                .collect();
            self.vote_for(None, unsealed, by);
            self.intend(winners.targets, commit.to_vec(), by, winners.blockers)
        };
        answer.committed.clone_from(&fence.committed);
        answer.fence = Some(fence);
    }

    /// The fence of a commit side without live effects: committed, as far as anything of it is; one
    /// that asks for void effects only ends as aborted (section 5).
    fn nothing_won(&mut self, commit: &[Target], by: Option<&str>) -> FenceInfo {
        // A branch without live effects asks for nothing.
        let mut named = commit.iter().filter_map(|target| match target {
            Target::Effect(id) => Some(*id),
            Target::Branch(_) => None,
        });
        let void = |id: EffectId| self.history.fate(id).ok().flatten() == Some(Fate::Void);
        let asked = commit.iter().any(|target| matches!(target, Target::Effect(_)));
        if !asked || !named.all(void) {
            return self.fence(None, Vec::new(), commit.to_vec(), by.map(str::to_owned));
        }
        let waiting = self.intend(Vec::new(), commit.to_vec(), by, Vec::new());
        FenceInfo { status: FenceStatus::Aborted, ..waiting }
    }

    fn must_exist(&self, target: Target) -> Ruling<()> {
        match target {
            Target::Branch(branch) => self.branch_name(branch).map(|_| ()),
            Target::Effect(effect) => {
                if self.state.effects.contains(effect) || self.history.fate(effect)?.is_some() {
                    return Ok(());
                }
                Err(Refusal::no_such("effect", effect.0).into())
            }
        }
    }

    /// The live effects that the commit side names (C42).
    fn winners(&self, commit: &[Target]) -> Ruling<Vec<EffectId>> {
        let mut targets = IdSet::default();
        for target in commit {
            match *target {
                Target::Branch(id) => {
                    let Some(branch) = self.state.branches.get(&id) else {
                        return Err(self.ended_target(id)?);
                    };
                    match branch.state {
                        BranchState::Open => targets.unite(&branch.effects),
                        BranchState::Closed if branch.merged => {
                            return Err(super::tokens::closed(branch).into());
                        }
                        _ => return Err(self.lost(*target)),
                    }
                }
                Target::Effect(id) => match self.state.effects.get(id).map(Effect::shown_state) {
                    Some(EffectState::Live) => targets.insert(id),
                    Some(EffectState::Doomed) => return Err(self.lost(*target)),
                    None if self.history.fate(id)? == Some(Fate::Doomed) => {
                        return Err(self.lost(*target));
                    }
                    Some(_) | None => {}
                },
            }
        }
        Ok(self.state.living(&targets))
    }

    fn lost(&self, target: Target) -> super::Stop {
        let mut decision = decision(self.state, target);
        decision.kind = crate::model::DecisionKind::Abort;
        let rollback = decision
            .cause
            .and_then(|cause| self.state.effects.get(cause))
            .and_then(|effect| effect.rollback);
        Refusal::FenceClosure { decision: Box::new(decision), rollback }.into()
    }

    /// The path from a winner to the loser that it rests on, if there is one (C43).
    fn conflict(
        &mut self,
        targets: &[EffectId],
        winners: &[EffectId],
        losers: &Sentence,
    ) -> Option<Vec<EffectId>> {
        let meets = !losers.members.is_empty()
            && winners.iter().any(|id| losers.members.binary_search(id).is_ok());
        if !meets {
            return None;
        }
        let fallen: Vec<EffectId> = targets
            .iter()
            .copied()
            .filter(|target| losers.members.binary_search(target).is_ok())
            .collect();
        for winner in &fallen {
            for loser in &losers.direct {
                let path = self.state.graph.path(&mut self.state.scratch, winner.0, loser.0);
                if let Some(path) = path {
                    return Some(path.into_iter().map(EffectId).collect());
                }
            }
        }
        Some(fallen)
    }

    /// Whom the authority votes for: what it names, or with `closure` all that it rests on; never
    /// for unvoted deferred or irreversible effects of owners that it does not name (C44).
    fn authority_votes(
        &self,
        commit: &[Target],
        targets: &[EffectId],
        winners: &[EffectId],
        closure: bool,
    ) -> Vec<EffectId> {
        if !closure {
            return targets.to_vec();
        }
        let mut owners: BTreeSet<BranchId> = BTreeSet::new();
        for target in commit {
            match *target {
                Target::Branch(branch) => {
                    owners.insert(branch);
                }
                Target::Effect(id) => {
                    owners.extend(self.state.effects.get(id).map(|effect| effect.branch));
                }
            }
        }
        let mut briefs = self.state.effects.briefs();
        let mut votes = winners.to_vec();
        votes.retain(|id| {
            let Some((brief, owner)) = briefs.get(*id) else { return false };
            !brief.is_guarded() || owners.contains(&owner)
        });
        votes
    }

    /// Dooms in the name of the store itself.
    pub(super) fn doom_automatically(&mut self, named: &[EffectId], reason: &str) -> u64 {
        self.doom(named, &[], None, reason, Trigger::Automatic)
    }
}

/// The commit side of a reconcile.
struct Winners {
    targets: Vec<EffectId>,
    closure: Vec<EffectId>,
    votes: Vec<EffectId>,
    blockers: Vec<Blocker>,
    /// A conflict dropped the whole side.
    dropped: bool,
}
