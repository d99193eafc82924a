//! A branch in memory: open, stopped, or closed with effects that are still in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::IdSet;
use crate::model::{BranchId, BranchState, EffectId, Key, Overwrite, ReadRule, Token};

/// A read that could not be admitted. It has happened in the world, so the branch is held by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The key that was read.
    pub key: Key,
    /// The writers that it may have seen and that are not yet settled.
    pub writers: BTreeSet<EffectId>,
    /// What void ones of them rested on: it holds nothing back, and falls like them.
    pub under: BTreeSet<EffectId>,
    /// The rule that kept it out.
    pub rule: ReadRule,
}

impl Held {
    /// All that the branch rests on because of it.
    pub fn rests_on(&self) -> impl Iterator<Item = EffectId> {
        self.writers.iter().chain(&self.under).copied()
    }

    /// An effect fell or was settled.
    pub fn forget(&mut self, effect: EffectId) {
        self.writers.remove(&effect);
        self.under.remove(&effect);
    }
}

/// A branch in memory.
#[derive(Clone, Debug)]
pub struct Branch {
    /// Its id.
    pub id: BranchId,
    /// Its name.
    pub name: String,
    /// Its agent.
    pub agent: String,
    /// Its parent.
    pub parent: Option<BranchId>,
    /// What it may rest on.
    pub reads: ReadRule,
    /// What writing over a live writer means.
    pub overwrite: Overwrite,
    /// Its lease, in milliseconds.
    pub lease_ms: Option<u64>,
    /// End of its lease, in milliseconds.
    pub lease_until_ms: Option<u64>,
    /// The last heartbeat's record; older ones are not needed.
    pub lease_record: Option<u64>,
    /// Its state.
    pub state: BranchState,
    /// It was merged into its parent.
    pub merged: bool,
    /// The effect that doomed it.
    pub cause: Option<EffectId>,
    /// Its current token.
    pub token: Token,
    /// Open children.
    pub children: BTreeSet<BranchId>,
    /// Its own effects that are in memory: live ones, and those that doom or delivery keep.
    pub effects: IdSet,
    /// Live effects, its children's included, that miss its vote.
    pub unvoted: IdSet,
    /// What its next effect follows: live eager effects that no other one of it rests on.
    pub tip: BTreeSet<EffectId>,
    /// All effects that were live in its parent, handed on to that or its own, when it was made,
    /// ascending. Those that were settled since may still be named.
    pub handed: Vec<EffectId>,
    /// Live ones of these under which all live ones of these are: they stop and change the branch
    /// with what becomes of them.
    pub base: BTreeSet<EffectId>,
    /// Live writers that its observations rest on.
    pub observed: BTreeSet<EffectId>,
    /// By observed writer, the keys for whose earlier writers it stands: the reader may have seen
    /// those too, so it goes on resting on them if this one falls.
    pub stands: BTreeMap<EffectId, BTreeSet<Key>>,
    /// Those of them whose version was named.
    pub named: BTreeSet<EffectId>,
    /// Void effects whose version it may have seen.
    pub voids: BTreeSet<EffectId>,
    /// A hint: whether a fence may have committed effects of it or of branches below. It may be set
    /// without need, so it counts in no comparison.
    pub has_committed: bool,
    /// Reads that could not be admitted, oldest first.
    pub held: Vec<Held>,
    /// Records that memory needs for it, ascending.
    pub records: Vec<u64>,
}

impl Branch {
    /// An effect was its parent's when it was made.
    pub fn was_handed(&self, effect: EffectId) -> bool {
        self.handed.binary_search(&effect).is_ok()
    }

    /// An effect was handed on to it, observed by it, or kept from it.
    pub fn holds(&self, effect: EffectId) -> bool {
        self.base.contains(&effect)
            || self.observed.contains(&effect)
            || self.held.iter().any(|held| held.rests_on().any(|on| on == effect))
    }

    /// It rests on an observed writer no more.
    pub fn unobserve(&mut self, effect: EffectId) -> bool {
        self.stands.remove(&effect);
        self.named.remove(&effect);
        self.observed.remove(&effect)
    }

    /// An observed writer stands for the earlier writers of these keys.
    pub fn stand<'k>(&mut self, effect: EffectId, keys: impl IntoIterator<Item = &'k Key>) {
        let mut keys = keys.into_iter().peekable();
        if keys.peek().is_some() {
            self.stands.entry(effect).or_default().extend(keys.cloned());
        }
    }

    /// Notes a record that memory needs for it.
    pub fn note(&mut self, record: u64) {
        if self.records.last() != Some(&record) {
            self.records.push(record);
        }
    }
}
