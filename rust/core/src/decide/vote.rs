//! Votes: what an owner, or the merge authority, says may be committed.

use super::{Ruling, Turn};
use crate::model::{Blocker, BranchId, EffectId, Event, MemberSet, Reply, Token};

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
        self.state
            .branches
            .get(&id)
            .map_or_else(Vec::new, |branch| branch.unvoted.iter().copied().collect())
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
    pub(super) fn in_the_way(
        &self,
        closure: &[EffectId],
        votes: &dyn Fn(&crate::state::Effect) -> bool,
    ) -> Vec<Blocker> {
        super::look::blockers(self.state, closure, votes)
    }
}

/// The votes that the branch's owner would give count as given (C35).
pub(super) fn with_vote_of(branch: BranchId) -> impl Fn(&crate::state::Effect) -> bool {
    move |effect| effect.missing_votes.iter().all(|missing| *missing == branch)
}
