//! Who may: tokens of branches and effects (I9).

use super::{Ended, Ruling, Turn};
use crate::model::{BranchId, BranchState, Event, Refusal, Token};
use crate::state::Branch;

impl Turn<'_> {
    /// Writes down that somebody was turned away.
    pub(super) fn audit(&mut self, verb: &str, code: &str, reference: u64, held: Option<Token>) {
        self.emit(Event::Refused { verb: verb.to_owned(), code: code.to_owned(), reference, held });
    }

    /// The branch's name, for messages.
    pub(super) fn branch_name(&self, id: BranchId) -> Ruling<String> {
        if let Some(branch) = self.state.branches.get(&id) {
            return Ok(branch.name.clone());
        }
        match self.history.event(id.0)? {
            Some(Event::BranchCreated { name, .. }) => Ok(name),
            _ => Err(Refusal::no_such("branch", id.0).into()),
        }
    }

    /// How a branch ended that memory does not hold.
    pub(super) fn ended(&self, id: BranchId) -> Ruling<Ended> {
        let ended = self.history.ended(id)?;
        ended.ok_or_else(|| Refusal::no_such("branch", id.0).into())
    }

    /// Refuses a caller whose token of the branch is not the current one; the branch may be in any
    /// state, and out of memory.
    pub(super) fn holds(&mut self, id: BranchId, token: Token, verb: &str) -> Ruling<()> {
        let current = match self.state.branches.get(&id) {
            Some(branch) => branch.token,
            None => self.ended(id)?.token,
        };
        if current == token {
            return Ok(());
        }
        let refusal = Refusal::StaleToken {
            branch: self.branch_name(id)?,
            held: Some(token),
            current: Some(current),
        };
        self.audit(verb, refusal.code(), id.0, Some(token));
        Err(refusal.into())
    }

    /// The same, and the branch takes work.
    pub(super) fn holds_open(&mut self, id: BranchId, token: Token, verb: &str) -> Ruling<()> {
        self.holds(id, token, verb)?;
        self.takes_work(id)
    }

    /// Refuses where the branch is closed or doomed.
    pub(super) fn takes_work(&self, id: BranchId) -> Ruling<()> {
        let Some(branch) = self.state.branches.get(&id) else {
            let cause = self.ended(id)?.cause;
            return Err(Refusal::BranchClosed { branch: self.branch_name(id)?, cause }.into());
        };
        match branch.state {
            BranchState::Open => Ok(()),
            BranchState::Closed => Err(closed(branch).into()),
            BranchState::Doomed => Err(doomed(branch).into()),
        }
    }
}

/// The refusal of a closed branch.
pub(super) fn closed(branch: &Branch) -> Refusal {
    Refusal::BranchClosed { branch: branch.name.clone(), cause: branch.cause }
}

/// The refusal of a doomed branch.
pub(super) fn doomed(branch: &Branch) -> Refusal {
    Refusal::DoomedBranch { branch: branch.name.clone(), cause: branch.cause }
}
