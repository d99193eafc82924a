//! Confirmation in memory: who takes part in a rollback, and until when its agents are to confirm.

use std::collections::BTreeSet;

use super::breaks::before;
use super::{State, Timer};
use crate::model::{EffectId, RollbackId};

/// Whose effects a rollback undoes. It is derived from what is in memory, and counts in no comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owners {
    /// One agent's.
    Sole(String),
    /// Those of several.
    Several,
}

impl State {
    /// Folds until when the agents of a rollback are to confirm; the last one counts.
    pub(super) fn fold_confirm_by(&mut self, seq: u64, id: RollbackId, until_ms: Option<u64>) {
        self.forget_confirmation(id);
        let Some(rollback) = self.rollbacks.get_mut(&id) else { return };
        rollback.confirm_record = Some(seq);
        rollback.confirm_by_ms = until_ms;
        self.timers.extend(until_ms.map(|until| (until, Timer::Confirm(id))));
    }

    /// Nobody is to confirm a rollback any more.
    pub(super) fn forget_confirmation(&mut self, id: RollbackId) {
        let Some(rollback) = self.rollbacks.get_mut(&id) else { return };
        rollback.confirm_record = None;
        if let Some(until) = rollback.confirm_by_ms.take() {
            self.timers.remove(&(until, Timer::Confirm(id)));
        }
    }

    /// Whether the unfinished rollbacks undo effects of more than one agent.
    pub fn several_agents_undo(&mut self) -> bool {
        let open: Vec<RollbackId> =
            self.rollbacks.values().filter(|known| known.open).map(|known| known.id).collect();
        let mut sole: Option<String> = None;
        for id in open {
            match (self.owners_of(id), &sole) {
                (Some(Owners::Several), _) => return true,
                (Some(Owners::Sole(agent)), Some(known)) if agent != known => return true,
                (Some(Owners::Sole(agent)), None) => sole = Some(agent.clone()),
                _ => {}
            }
        }
        false
    }

    fn owners_of(&mut self, id: RollbackId) -> Option<&Owners> {
        if !self.owners.contains_key(&id) {
            let rollback = self.rollbacks.get(&id)?;
            let mut members = rollback.members.iter().filter_map(|id| self.effects.get(*id));
            let first = members.next().map_or("", |effect| self.owner(effect));
            let found = if members.all(|effect| self.owner(effect) == first) {
                Owners::Sole(first.to_owned())
            } else {
                Owners::Several
            };
            self.owners.insert(id, found);
        }
        self.owners.get(&id)
    }

    /// Effects of unfinished rollbacks that have to be undone before some effect of another agent that
    /// is not undone yet, directly or through others.
    pub fn awaited_by_others(&self, agent: &str) -> BTreeSet<u64> {
        let (nodes, edges) = self.undo_edges();
        let waits = |node: &u64| {
            let effect = self.effects.get(EffectId(*node));
            let effect = effect.filter(|effect| self.owner(effect) != agent);
            let step = effect.and_then(|effect| effect.step.as_ref());
            step.is_some_and(|step| !step.is_finished())
        };
        let others: Vec<u64> = nodes.into_iter().filter(waits).collect();
        before(&others, &edges)
    }
}
