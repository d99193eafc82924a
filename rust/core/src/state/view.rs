//! Views of the state: what answers show, and measures that limits ask for.

use std::collections::BTreeMap;

use super::{Effect, State};
use crate::model::{BranchId, BranchInfo, EffectId, Outcome};

impl Effect {
    /// Its unknown outcome keeps a fence from committing it.
    pub fn blocks_by_outcome(&self) -> bool {
        self.outcome == Outcome::Unknown && !self.is_deferred()
    }
}

impl State {
    /// A snapshot of a branch in memory.
    pub fn branch_info(&self, id: BranchId) -> Option<BranchInfo> {
        let branch = self.branches.get(&id)?;
        let parent = branch
            .parent
            .and_then(|parent| self.branches.get(&parent))
            .map(|parent| parent.name.clone());
        Some(BranchInfo {
            id,
            name: branch.name.clone(),
            agent: branch.agent.clone(),
            parent,
            token: branch.token,
            state: branch.state,
            tip: branch.tip.iter().copied().collect(),
            reads: branch.reads,
        })
    }

    /// Length of the longest chain of live effects that ends in one of these. The members of a ring
    /// count as a chain in the order of their ids.
    pub fn longest_chain(&mut self, ends: &[EffectId]) -> u64 {
        let mut longest: BTreeMap<EffectId, u64> = BTreeMap::new();
        for id in self.closure(ends) {
            let below = self
                .graph
                .dependencies(id.0)
                .into_iter()
                .filter_map(|on| longest.get(&EffectId(on)).copied())
                .max()
                .unwrap_or(0);
            longest.insert(id, below + 1);
        }
        longest.values().copied().max().unwrap_or(0)
    }
}
