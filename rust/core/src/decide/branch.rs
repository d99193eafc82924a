//! Branches: created, taken over, resumed, merged, kept alive.

use std::collections::BTreeSet;

use super::tokens::{closed, doomed};
use super::{Ruling, Turn};
use crate::model::{
    BranchId, BranchInfo, BranchState, Command, EffectId, Event, HeldRead, Inherited, Overwrite,
    ReadRule, Refusal, Reply, Stand, Token,
};

impl Turn<'_> {
    pub(super) fn branch(&mut self, command: &Command) -> Ruling<Reply> {
        let id = match command {
            Command::CreateBranch {
                name,
                agent,
                parent,
                reads,
                overwrite,
                lease_ms,
                parent_token,
            } => {
                let rules = (*reads, *overwrite, *lease_ms);
                self.create_branch(name, agent, (*parent, *parent_token), rules)?
            }
            Command::TakeOver { name, worker_gone, by } => {
                self.take_over(name, *worker_gone, by.as_deref())?
            }
            Command::Resume { branch, token } => self.resume(*branch, *token)?,
            Command::Merge { branch, token } => return self.merge(*branch, *token),
            Command::Heartbeat { branch, token } => self.heartbeat(*branch, *token)?,
            _ => return Ok(Reply::Nothing),
        };
        self.branch_reply(id)
    }

    pub(super) fn branch_reply(&self, id: BranchId) -> Ruling<Reply> {
        match self.state.branch_info(id) {
            Some(info) => Ok(Reply::Branch(info)),
            None => self.ended_info(id).map(Reply::Branch),
        }
    }

    /// A closed branch that memory does not hold.
    fn ended_info(&self, id: BranchId) -> Ruling<BranchInfo> {
        let Some(Event::BranchCreated { name, agent, parent, reads, .. }) =
            self.history.event(id.0)?
        else {
            return Err(Refusal::no_such("branch", id.0).into());
        };
        let parent = parent.map(|parent| self.branch_name(parent)).transpose()?;
        // A takeover in this very turn handed out the newest token; the table does not know it yet.
        let fresh = self.taken_now(id);
        let token = fresh.map_or_else(|| self.ended(id).map(|ended| ended.token), Ok)?;
        let (state, tip) = (BranchState::Closed, Vec::new());
        Ok(BranchInfo { id, name, agent, parent, token, state, tip, reads })
    }

    fn taken_now(&self, id: BranchId) -> Option<Token> {
        let first = self.next() - self.events.len() as u64;
        let taken =
            |event: &Event| matches!(event, Event::BranchTaken { branch, .. } if *branch == id);
        let place = self.events.iter().rposition(taken)?;
        Some(Token { incarnation: self.state.incarnation, number: first + place as u64 })
    }

    fn create_branch(
        &mut self,
        name: &str,
        agent: &str,
        parent: (Option<BranchId>, Option<Token>),
        (reads, overwrite, lease_ms): (ReadRule, Overwrite, Option<u64>),
    ) -> Ruling<BranchId> {
        // Whoever holds a stale handle has lost the branch, and with it the right to work below it.
        if let (Some(parent), Some(token)) = parent {
            self.holds(parent, token, "branch")?;
        }
        let (parent, _) = parent;
        if self.state.names.contains_key(name) || self.history.branch_named(name)?.is_some() {
            return Err(Refusal::BranchExists { branch: name.to_owned() }.into());
        }
        if let Some(parent) = parent {
            self.takes_work(parent)?;
        }
        let inherited = parent.and_then(|parent| self.handed_on(parent)).map(Box::new);
        Ok(BranchId(self.emit(Event::BranchCreated {
            name: name.to_owned(),
            agent: agent.to_owned(),
            parent,
            reads,
            overwrite,
            lease_ms,
            inherited,
        })))
    }

    fn handed_on(&self, parent: BranchId) -> Option<Inherited> {
        let parent = self.state.branches.get(&parent)?;
        let held = |held: &crate::state::Held| HeldRead {
            key: held.key.clone(),
            writers: held.writers.iter().copied().collect(),
            under: held.under.iter().copied().collect(),
            rule: held.rule,
        };
        // The tip stands for the eager ones, since all of them are in it or under it; the others
        // are nobody's program predecessors and have to be named.
        let live = |id: &EffectId| self.state.live_effect(*id).is_some();
        let deferred = |id: &EffectId| {
            self.state.live_effect(*id).is_some_and(crate::state::Effect::is_deferred)
        };
        let mut base: BTreeSet<EffectId> = parent.tip.iter().copied().filter(live).collect();
        let handed = parent.base.iter().copied();
        base.extend(parent.effects.iter().chain(handed).filter(deferred));
        Some(Inherited {
            base: base.into_iter().collect(),
            observed: parent.observed.iter().copied().collect(),
            named: parent.named.iter().copied().collect(),
            voids: parent.voids.iter().copied().collect(),
            held: parent.held.iter().map(held).collect(),
            stands: parent
                .stands
                .iter()
                .flat_map(|(effect, keys)| keys.iter().map(|key| (*effect, key.clone())))
                .map(|(effect, key)| Stand { effect, key })
                .collect(),
        })
    }

    fn take_over(&mut self, name: &str, worker_gone: bool, by: Option<&str>) -> Ruling<BranchId> {
        let id = match self.state.names.get(name) {
            Some(id) => *id,
            None => match self.history.branch_named(name)? {
                Some(id) => id,
                None => {
                    return Err(Refusal::no_such_branch(name).into());
                }
            },
        };
        self.emit(Event::BranchTaken { branch: id, by: by.map(str::to_owned), worker_gone });
        Ok(id)
    }

    fn resume(&mut self, id: BranchId, token: Token) -> Ruling<BranchId> {
        self.holds(id, token, "resume")?;
        if self.state.branches.get(&id).is_none_or(|branch| branch.state == BranchState::Closed) {
            self.takes_work(id)?;
        }
        self.emit(Event::BranchResumed { branch: id });
        Ok(id)
    }

    fn merge(&mut self, id: BranchId, token: Token) -> Ruling<Reply> {
        self.holds_open(id, token, "merge")?;
        let parent = self.state.branches.get(&id).and_then(|branch| branch.parent);
        let Some(parent) = parent else {
            return Err(Refusal::Options {
                option: "branch",
                reason: "only a branch with a parent merges; seal or commit this one".into(),
            }
            .into());
        };
        if let Some(parent) = self.state.branches.get(&parent) {
            match parent.state {
                BranchState::Open => {}
                BranchState::Doomed => return Err(doomed(parent).into()),
                BranchState::Closed => return Err(closed(parent).into()),
            }
        }
        let info = self.state.branch_info(id);
        self.vote(id);
        self.emit(Event::BranchMerged { branch: id });
        let closed =
            info.map(|info| BranchInfo { state: BranchState::Closed, tip: Vec::new(), ..info });
        closed.map(Reply::Branch).ok_or_else(|| Refusal::no_such("branch", id.0).into())
    }

    fn heartbeat(&mut self, id: BranchId, token: Token) -> Ruling<BranchId> {
        self.holds_open(id, token, "heartbeat")?;
        let lease = self.state.branches.get(&id).and_then(|branch| branch.lease_ms);
        if let Some(lease) = lease {
            self.emit(Event::BranchLeased {
                branch: id,
                until_ms: self.now_ms.saturating_add(lease),
            });
        }
        Ok(id)
    }

    /// Refuses while a step of the branch is being undone: undo makes no new work (I16).
    pub(super) fn compensating(&self, id: BranchId) -> Option<Refusal> {
        if self.state.rollbacks.is_empty() {
            return None;
        }
        let branch = self.state.branches.get(&id)?;
        let claimed = |effect: EffectId| {
            let effect = self.state.effects.get(effect)?;
            effect.step.as_ref()?.is_claimed().then_some(effect.rollback).flatten()
        };
        let rollback = branch.effects.iter().find_map(claimed)?;
        Some(Refusal::CompensationScope { branch: branch.name.clone(), rollback })
    }
}
