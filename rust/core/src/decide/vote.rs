//! Votes: what an owner, or the merge authority, says may be committed.

use super::{Ruling, Turn};
use crate::model::{Blocker, BranchId, EffectId, Event, MemberSet, Reply, Token};
use crate::state::{Brief, State};

impl Turn<'_> {
    pub(super) fn seal(&mut self, id: BranchId, token: Token) -> Ruling<Reply> {
        self.holds_open(id, token, "seal")?;
        self.vote(id);
        self.branch_reply(id)
    }

    /// The branch votes for all that it and those below it have registered so far (C39).
    pub(super) fn vote(&mut self, id: BranchId) {
        let members = self.unvoted(id);
        self.vote_for(Some(id), members, None);
    }

    /// Live effects that miss the branch's vote.
    pub(super) fn unvoted(&self, id: BranchId) -> Vec<EffectId> {
        self.state.branches.get(&id).map_or_else(Vec::new, |branch| branch.unvoted.to_vec())
    }

    /// Records votes; nothing is written where there is none to give.
    pub(super) fn vote_for(
        &mut self,
        branch: Option<BranchId>,
        members: Vec<EffectId>,
        by: Option<&str>,
    ) {
        if !members.is_empty() {
            let by = by.map(str::to_owned);
            self.emit(Event::Voted { branch, members: MemberSet::from(members), by });
        }
    }

    /// The members of a closure that keep it from being committed, given votes that are about to be
    /// cast (I11).
    pub(super) fn in_the_way(&self, closure: &[EffectId], votes: Votes<'_>) -> Vec<Blocker> {
        super::look::blockers(self.state, closure, votes)
    }
}

/// The votes that count in a look at a closure.
#[derive(Clone, Copy)]
pub(super) enum Votes<'a> {
    /// Those that have been cast.
    Cast,
    /// These, and those that the owner of a branch would give (C35).
    WithOwner(BranchId),
    /// These, and the merge authority's for the effects listed, ascending.
    WithListed(&'a [EffectId]),
    /// The merge authority votes for every member.
    All,
}

impl Votes<'_> {
    /// Whether a live effect has every vote that it needs.
    pub(super) fn cover(self, state: &State, id: EffectId, brief: Brief, owner: BranchId) -> bool {
        match self {
            Votes::All => true,
            _ if brief.is_sealed() => true,
            Votes::Cast => false,
            Votes::WithOwner(branch) if branch == owner && brief.needs_owner_at_most() => true,
            Votes::WithOwner(branch) => state.effects.get(id).is_some_and(|effect| {
                effect.missing_votes.iter().all(|missing| *missing == branch)
            }),
            Votes::WithListed(listed) => listed.binary_search(&id).is_ok(),
        }
    }
}
