//! What a branch's next effect follows, and what a child holds of its parent's.
//!
//! A child is handed on all that is live in its parent. Its tip is computed over all of it, but what
//! becomes of an effect concerns the child by its *base* alone: few effects, under which the others
//! are. Invariants, for every open branch:
//! - each live effect that was handed on is in the base or under a member of it;
//! - what of the tip was handed on is in the base.

use std::collections::BTreeSet;

use super::{State, ids, raw};
use crate::model::{BranchId, EffectId};

impl State {
    /// What a child made now is handed on: what is live of the branch, its own or handed on.
    pub(super) fn to_hand_on(&self, parent: BranchId) -> Vec<EffectId> {
        let Some(parent) = self.branches.get(&parent) else { return Vec::new() };
        let mut handed = parent.handed.clone();
        handed.extend(parent.effects.iter());
        handed.retain(|id| self.live_effect(*id).is_some());
        handed.sort_unstable();
        handed.dedup();
        handed
    }

    /// The first live effects handed on to a branch that ways down from here meet, ascending; those
    /// that fall are passed through.
    pub fn handed_under(
        &self,
        branch: BranchId,
        from: &[EffectId],
        falls: &dyn Fn(EffectId) -> bool,
    ) -> Vec<EffectId> {
        let Some(branch) = self.branches.get(&branch) else { return Vec::new() };
        let mut found = BTreeSet::new();
        if branch.handed.is_empty() {
            return Vec::new();
        }
        let mut met: BTreeSet<EffectId> = from.iter().copied().collect();
        let mut todo = from.to_vec();
        while let Some(id) = todo.pop() {
            if branch.was_handed(id) && self.live_effect(id).is_some() && !falls(id) {
                found.insert(id);
                continue;
            }
            let below = ids(self.graph.dependencies(id.0));
            todo.extend(below.into_iter().filter(|below| met.insert(*below)));
        }
        found.into_iter().collect()
    }

    /// Computes a branch's base anew from all that was handed on. A fold of what memory needs may
    /// have missed ways through effects that are gone.
    pub(super) fn refresh_base(&mut self, id: BranchId) {
        let Some(branch) = self.branches.get(&id) else { return };
        let (eager, mut base): (Vec<EffectId>, Vec<EffectId>) = branch
            .handed
            .iter()
            .copied()
            .filter(|id| self.live_effect(*id).is_some())
            .partition(|id| self.live_effect(*id).is_some_and(|effect| !effect.is_deferred()));
        base.extend(ids(self.graph.uncovered(&mut self.scratch, &raw(&eager))));
        self.take_to_base(id, base);
    }

    /// Computes a branch's tip anew: its live eager effects, and those handed on, that no other live
    /// eager one of it rests on, directly or through others.
    pub(super) fn refresh_tip(&mut self, id: BranchId) {
        let Some(branch) = self.branches.get(&id) else { return };
        // Whose newest member a ring's tip is may be under the base.
        let rings = self.graph.has_late_edges();
        let handed = if rings { branch.handed.as_slice() } else { &[] };
        let candidates: BTreeSet<EffectId> = branch
            .effects
            .iter()
            .chain(branch.base.iter().copied())
            .chain(handed.iter().copied())
            .filter(|id| self.live_effect(*id).is_some_and(|effect| !effect.is_deferred()))
            .collect();
        let tip: BTreeSet<EffectId> =
            ids(self.graph.uncovered(&mut self.scratch, &raw(&candidates))).into_iter().collect();
        let Some(branch) = self.branches.get_mut(&id) else { return };
        let new: Vec<EffectId> = tip
            .iter()
            .copied()
            .filter(|id| branch.was_handed(*id) && !branch.base.contains(id))
            .collect();
        branch.tip = tip;
        self.take_to_base(id, new);
    }

    /// These are told to the branch when something becomes of them.
    fn take_to_base(&mut self, id: BranchId, new: Vec<EffectId>) {
        let Some(branch) = self.branches.get_mut(&id) else { return };
        for effect in new {
            if branch.base.insert(effect)
                && let Some(effect) = self.effects.get_mut(effect)
            {
                effect.held_by.push(id);
            }
        }
    }
}
