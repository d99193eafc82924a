//! Folding that a call never happened: who rested on it rests on what it rested on.

use super::fold_effect::merge_records;
use super::{Effect, State, Timer, ids};
use crate::model::{BranchId, EffectId, Key};

impl State {
    /// Writers of these keys that became void while it ran may have been seen (C22).
    pub(super) fn see_voided(&mut self, id: EffectId, keys: Vec<Key>) {
        let mut voids: Vec<EffectId> = Vec::new();
        let mut records: Vec<u64> = Vec::new();
        for key in keys {
            let Some(trace) = self.keys.get(&key).and_then(|entry| entry.trace.as_ref()) else {
                continue;
            };
            let seen = trace.voided.iter().filter(|(void, at)| *at > id.0 && *void != id);
            let before = voids.len();
            voids.extend(seen.map(|(void, _)| *void));
            if voids.len() > before {
                records.extend(trace.records.iter().copied());
            }
        }
        if let Some(effect) = self.effects.get_mut(id) {
            effect.voids.extend(voids);
            effect.voids.sort_unstable();
            effect.voids.dedup();
            merge_records(&mut effect.records, &records);
        }
    }

    /// A live effect never happened: what rested on it inherits what it rested on.
    pub(super) fn make_void(&mut self, seq: u64, id: EffectId, observed: &[EffectId]) {
        self.wake_watchers(id);
        // What its last look added is inherited, too.
        self.rest_on_more(seq, id, observed);
        let below = ids(self.graph.dependencies(id.0));
        let above = ids(self.graph.inherit(id.0));
        let Some(effect) = self.effects.remove(id) else { return };
        self.live -= 1;
        self.settles += 1;
        self.running.remove(&id);
        if let Some(deadline) = effect.deadline_ms {
            self.timers.remove(&(deadline, Timer::Window(id)));
        }
        for heir in &above {
            if let Some(heir) = self.effects.get_mut(*heir) {
                heir.voids.push(id);
                // It rested on what the void effect had inherited from void ones in its turn.
                heir.voids.extend(effect.voids.iter().copied());
                heir.voids.sort_unstable();
                heir.voids.dedup();
                merge_records(&mut heir.records, &effect.records);
            }
        }
        let mut holders = effect.held_by.clone();
        holders.sort_unstable();
        holders.dedup();
        for holder in &holders {
            self.replace_held(*holder, &effect, &below);
        }
        self.rest_branch_on(effect.branch, observed, &effect);
        for level in self.lineage(effect.branch) {
            if let Some(branch) = self.branches.get_mut(&level) {
                branch.unvoted.remove(id);
            }
        }
        if let Some(branch) = self.branches.get_mut(&effect.branch) {
            branch.effects.remove(id);
        }
        let mut earlier = Vec::new();
        for key in &effect.writes {
            if let Some(entry) = self.keys.get_mut(key) {
                entry.writers.retain(|writer| *writer != id);
                earlier.extend(entry.writers.iter().copied());
            }
            self.refresh_frontier(key);
            if !effect.is_deferred() {
                self.keys.trace(key, seq, &effect.records, |trace| trace.voided.push((id, seq)));
            }
            self.clear_later(key);
            self.keys.shrink(key);
        }
        for holder in holders.iter().chain([&effect.branch]) {
            self.leave_tip(*holder, id, &below);
        }
        for intent in &effect.intents {
            if let Some(intent) = self.intents.get_mut(intent) {
                intent.targets.remove(&id);
            }
            self.awake.insert(*intent);
        }
        // An undone writer may have stayed only because this one's undo could put its value back.
        for writer in earlier {
            self.try_release(writer);
        }
        self.forget_branch(effect.branch);
    }

    /// The tip without a void effect. One that rested on nothing covered nothing, so that the rest of
    /// the tip is what it was: a turn of thousands of calls that never ran looks at each once.
    fn leave_tip(&mut self, branch: BranchId, void: EffectId, below: &[EffectId]) {
        if !below.is_empty() {
            self.refresh_tip(branch);
        } else if let Some(branch) = self.branches.get_mut(&branch) {
            branch.tip.remove(&void);
        }
    }

    /// In a branch that holds the void effect as handed on, observed or refused, what it rested on
    /// takes its place.
    fn replace_held(&mut self, holder: BranchId, effect: &Effect, below: &[EffectId]) {
        let (void, records) = (effect.id, &effect.records);
        let live: Vec<EffectId> =
            below.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect();
        let handed = self.handed_under(holder, below, &|_| false);
        let Some(branch) = self.branches.get_mut(&holder) else { return };
        let mut held = live.clone();
        if branch.base.remove(&void) {
            branch.base.extend(handed.iter().copied());
            held.extend(handed);
            // What it started from failed, maybe because of what that rested on (C26).
            branch.observed.extend(live.iter().copied());
            branch.voids.extend(effect.voids.iter().copied());
            for heir in &live {
                branch.stand(*heir, effect.unnamed_reads());
            }
        }
        let mut stood = branch.stands.get(&void).cloned().unwrap_or_default();
        if branch.unobserve(void) {
            branch.observed.extend(live.iter().copied());
            branch.voids.insert(void);
            branch.voids.extend(effect.voids.iter().copied());
            stood.extend(effect.unnamed_reads().cloned());
            for heir in &live {
                branch.stand(*heir, &stood);
            }
        }
        for held in &mut branch.held {
            if held.writers.remove(&void) | held.under.remove(&void) {
                held.under.extend(live.iter().copied());
                branch.voids.insert(void);
            }
        }
        merge_records(&mut branch.records, records);
        for effect in held {
            if let Some(effect) = self.effects.get_mut(effect) {
                effect.held_by.push(holder);
            }
        }
    }

    fn rest_branch_on(&mut self, branch: BranchId, observed: &[EffectId], effect: &Effect) {
        let live: Vec<EffectId> =
            observed.iter().copied().filter(|id| self.live_effect(*id).is_some()).collect();
        for effect in &live {
            if let Some(effect) = self.effects.get_mut(*effect) {
                effect.held_by.push(branch);
            }
        }
        if let Some(known) = self.branches.get_mut(&branch) {
            for heir in &live {
                known.stand(*heir, effect.unnamed_reads());
            }
            known.observed.extend(live);
            known.voids.extend(effect.voids.iter().copied());
            merge_records(&mut known.records, &effect.records);
        }
    }
}
