//! The dependency graph over effects that are not settled.
//!
//! Invariants:
//! - an id has a slot exactly while it is in the graph; a slot serves one id and is not given to
//!   another one before every list has been rewritten without it (`renumber`);
//! - for two ids in the graph, one is in the other's list of dependencies exactly if the second is
//!   in the first's list of dependents, once in each;
//! - lists may still name slots whose id has left; every reader skips them. Removal therefore costs
//!   nothing per edge, which is what makes a fence over 10,000 effects cheap;
//! - `late` holds every id in the graph with an edge to a newer id, and with it an id no older than
//!   the newest that it points to. Without such an edge, whatever is older than an id cannot rest
//!   on it.

use std::collections::BTreeMap;

use super::adjacency::{Adjacency, NO_SLOT};
use super::near::Near;
use super::pages::IdTable;
use super::walk::Scratch;

/// Stands in `ids` where the id of a slot has left the graph.
pub(super) const GONE: u64 = u64::MAX;
/// Slots are numbered below this, so that twice as many still fit in 32 bits.
const MAX_SLOTS: usize = 1 << 31;
/// Dead slots that are always tolerated, so that small graphs are not renumbered all the time.
const DEAD_SLOTS: usize = 1024;

/// Dependencies among effects that are not settled: live ones, and doomed ones not yet undone.
///
/// An edge goes from an effect to one that it rests on. Edges may form rings, since a late
/// observation can point to a newer effect. Ids are sequence numbers; `u64::MAX` is not one.
///
/// Readers take `&self`; those that walk also take a [`Scratch`]. No walk recurses; each costs time
/// linear in the edges of what it visits. Memory is bounded by the ids and edges held, however far
/// apart the ids are: when more slots are dead than alive, the next insertion renumbers all, which
/// takes some 10 to 20 ns per edge held and comes at most once per as many removals as ids are held.
#[derive(Debug, Clone, Default)]
pub struct LiveGraph {
    pub(super) table: IdTable,
    /// Id of each slot, or [`GONE`].
    pub(super) ids: Vec<u64>,
    pub(super) needs: Adjacency,
    pub(super) near: Near,
    pub(super) needed_by: Adjacency,
    pub(super) len: usize,
    /// The greatest id that got a slot since the last renumbering.
    newest: u64,
    /// Some slot may have a smaller id than a slot before it.
    pub(super) unordered: bool,
    late: BTreeMap<u64, u64>,
    buffer: Vec<u32>,
    own: Scratch,
}

impl LiveGraph {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of ids in the graph.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no id is in the graph.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether something in the graph rests on something newer.
    pub fn has_late_edges(&self) -> bool {
        !self.late.is_empty()
    }

    /// Whether `id` is in the graph.
    pub fn contains(&self, id: u64) -> bool {
        self.table.get(id).is_some()
    }

    /// The ids in the graph, ascending.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.ids.iter().copied().filter(|&id| id != GONE).collect();
        ids.sort_unstable();
        ids
    }

    /// Adds `id`, resting on those of `deps` that are in the graph; the others are settled.
    ///
    /// Answers false, with nothing changed, if `id` is there already, is `u64::MAX`, or is one more
    /// than 2^31 (far beyond what the limit on live effects lets in).
    pub fn insert(&mut self, id: u64, deps: &[u64]) -> bool {
        self.make_room();
        let start = self.ids.len();
        let new = self.place(id, deps);
        self.link(start);
        new
    }

    /// Adds many, each as [`insert`](Self::insert) does, in the order given: an item may rest on
    /// those before it. Answers how many were new. It costs less than one by one, since the number of
    /// dependents is known before their lists are made.
    pub fn insert_many<D: AsRef<[u64]>>(
        &mut self,
        items: impl IntoIterator<Item = (u64, D)>,
    ) -> usize {
        self.make_room();
        let start = self.ids.len();
        for (id, deps) in items {
            self.place(id, deps.as_ref());
        }
        self.link(start);
        self.ids.len() - start
    }

    /// Adds a late edge: `from` rests on `on`, which may be newer. Answers whether it is new: false
    /// if it is there already, if the two are the same, or if one of them is not in the graph.
    pub fn add_dependency(&mut self, from: u64, on: u64) -> bool {
        let (Some(slot), Some(dep)) = (self.table.get(from), self.table.get(on)) else {
            return false;
        };
        if slot == dep || self.needs.entries(slot).contains(&dep) {
            return false;
        }
        self.add_edge(slot, dep);
        true
    }

    /// Takes `id` out with its edges: it is settled. Answers whether it was there.
    pub fn remove(&mut self, id: u64) -> bool {
        self.remove_many(&[id]) == 1
    }

    /// Takes out those of `ids` that are there, and answers how many. Cheapest for sorted ids.
    pub fn remove_many(&mut self, ids: &[u64]) -> usize {
        let mut removed = 0;
        self.table.remove_each(ids, |id, slot| {
            self.ids[slot as usize] = GONE;
            self.needs.drop_list(slot);
            self.needed_by.drop_list(slot);
            if !self.late.is_empty() {
                self.late.remove(&id);
            }
            removed += 1;
        });
        self.len -= removed;
        if self.len == 0 {
            self.clear();
        }
        removed
    }

    /// What `id` rests on directly, ascending; empty if `id` is not in the graph.
    pub fn dependencies(&self, id: u64) -> Vec<u64> {
        self.table.get(id).map_or_else(Vec::new, |slot| self.alive_ids(self.needs.entries(slot)))
    }

    /// What rests on `id` directly, ascending; empty if `id` is not in the graph.
    pub fn dependents(&self, id: u64) -> Vec<u64> {
        let slot = self.table.get(id);
        slot.map_or_else(Vec::new, |slot| self.alive_ids(self.needed_by.entries(slot)))
    }

    /// At least the number of effects that rest directly on `id`, found without a walk.
    pub fn dependents_bound(&self, id: u64) -> usize {
        self.table.get(id).map_or(0, |slot| self.needed_by.entries(slot).len())
    }

    /// A shortest way from `from` along dependencies to `to`, both included; `None` if `from` does
    /// not rest on `to` or one of them is not in the graph. Of several it is the one that is found
    /// first when older dependencies are looked at first, so it is the same in every process.
    pub fn path(&self, scratch: &mut Scratch, from: u64, to: u64) -> Option<Vec<u64>> {
        let (start, goal) = (self.table.get(from)?, self.table.get(to)?);
        let floor = self.floor(to);
        scratch.begin(self.ids.len());
        scratch.meet(start);
        scratch.met_from.push(0);
        let mut deps = Vec::new();
        while let Some(slot) = scratch.next() {
            if slot == goal {
                return Some(self.way_back(scratch));
            }
            if self.ids[slot as usize] < floor {
                continue;
            }
            deps.clear();
            let entries = self.needs.entries(slot).iter().copied();
            deps.extend(entries.filter(|&dep| self.is_alive(dep)));
            deps.sort_unstable_by_key(|&dep| self.ids[dep as usize]);
            for &dep in &deps {
                if scratch.meet(dep) {
                    scratch.met_from.push(scratch.place());
                }
            }
        }
        None
    }

    /// Those of `candidates` that no other candidate rests on, directly or through any effects in
    /// the graph, ascending. Of candidates that rest on one another in a ring the newest stays,
    /// unless a candidate outside of the ring rests on it. Candidates not in the graph are left out.
    pub fn uncovered(&self, scratch: &mut Scratch, candidates: &[u64]) -> Vec<u64> {
        let mut newest_first: Vec<(u64, u32)> =
            candidates.iter().filter_map(|&id| Some((id, self.table.get(id)?))).collect();
        newest_first.sort_unstable_by(|left, right| right.cmp(left));
        newest_first.dedup();
        let Some(&(oldest, _)) = newest_first.last() else { return Vec::new() };
        let floor = self.floor(oldest);
        // A candidate that no walk before it has met does not lie below the candidates before it,
        // so of those that stay in the first pass only a later one can cover an earlier one.
        let mut uncovered = self.not_met_before(scratch, &newest_first, floor);
        if uncovered.len() > 1 && !self.late.is_empty() {
            // In reverse, what covers is walked before what it covers.
            uncovered.reverse();
            uncovered = self.not_met_before(scratch, &uncovered, floor);
        }
        let mut ids: Vec<u64> = uncovered.into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// `id` is void, it never happened: what rested on it rests on its dependencies instead, and
    /// `id` leaves the graph. Answers its dependents, ascending. An effect never comes to rest on
    /// itself. The cost is the number of dependents times that of dependencies, at worst.
    pub fn inherit(&mut self, id: u64) -> Vec<u64> {
        let Some(slot) = self.table.get(id) else { return Vec::new() };
        let deps = self.alive_slots(self.needs.entries(slot));
        let dependents = self.alive_slots(self.needed_by.entries(slot));
        let mut known = std::mem::take(&mut self.own);
        for &dependent in &dependents {
            if deps.is_empty() {
                break;
            }
            known.begin(self.ids.len());
            known.meet(dependent);
            for &entry in self.needs.entries(dependent) {
                known.meet(entry);
            }
            for &dep in &deps {
                if !known.is_marked(dep) {
                    self.add_edge(dependent, dep);
                }
            }
        }
        self.own = known;
        let mut ids: Vec<u64> = dependents.iter().map(|&slot| self.ids[slot as usize]).collect();
        ids.sort_unstable();
        self.remove(id);
        ids
    }

    /// Gives `id` a slot and the list of what it rests on. Its place in the lists of dependents
    /// follows with [`link`](Self::link), before anything else is done.
    fn place(&mut self, id: u64, deps: &[u64]) -> bool {
        if id == GONE || self.ids.len() >= MAX_SLOTS || self.contains(id) {
            return false;
        }
        let Ok(slot) = u32::try_from(self.ids.len()) else { return false };
        let mut slots = std::mem::take(&mut self.buffer);
        slots.clear();
        let mut finder = self.table.finder();
        slots.extend(deps.iter().filter_map(|&dep| finder.get(dep)));
        if !slots.is_sorted_by(|left, right| left < right) {
            slots.sort_unstable();
            slots.dedup();
        }
        let newest_dep = slots.iter().map(|&dep| self.ids[dep as usize]).max().unwrap_or(id);
        self.note_late(id, newest_dep);
        self.unordered |= id < self.newest;
        self.newest = self.newest.max(id);
        self.table.insert(id, slot);
        self.ids.push(id);
        self.needs.push_list(&slots);
        self.near.push(&slots);
        self.len += 1;
        self.buffer = slots;
        true
    }

    /// Enters the slots from `start` on as dependents of what they rest on.
    fn link(&mut self, start: usize) {
        let mut counts = std::mem::take(&mut self.buffer);
        counts.clear();
        counts.resize(self.ids.len() - start, 0);
        let slots = (0u32..).take(self.ids.len()).skip(start);
        for slot in slots.clone() {
            for &dep in self.needs.entries(slot) {
                if let Some(place) = (dep as usize).checked_sub(start) {
                    counts[place] += 1;
                }
            }
        }
        self.needed_by.push_empty_lists(&counts);
        let ids = &self.ids;
        let some_dead = ids.len() > self.len;
        for slot in slots {
            for &dep in self.needs.entries(slot) {
                let alive = some_dead.then_some(|entry: u32| ids[entry as usize] != GONE);
                self.needed_by.push(dep, slot, alive);
            }
        }
        self.buffer = counts;
    }

    fn is_alive(&self, slot: u32) -> bool {
        self.ids[slot as usize] != GONE
    }

    fn alive_slots(&self, slots: &[u32]) -> Vec<u32> {
        slots.iter().copied().filter(|&slot| self.is_alive(slot)).collect()
    }

    fn alive_ids(&self, slots: &[u32]) -> Vec<u64> {
        let ids = slots.iter().map(|&slot| self.ids[slot as usize]);
        let mut ids: Vec<u64> = ids.filter(|&id| id != GONE).collect();
        ids.sort_unstable();
        ids
    }

    /// Ids below this cannot rest on `oldest` or something newer: to get up there takes a late edge
    /// to it, or to where such an edge begins or above, and so on.
    fn floor(&self, oldest: u64) -> u64 {
        let mut floor = oldest;
        for (&from, &on) in self.late.range(..oldest).rev() {
            if on >= floor {
                floor = from;
            }
        }
        floor
    }

    /// Both ends alive, different, and the edge not there yet.
    fn add_edge(&mut self, slot: u32, dep: u32) {
        let ids = &self.ids;
        let alive = |entry: u32| ids[entry as usize] != GONE;
        self.needs.push(slot, dep, Some(alive));
        self.near.add(slot as usize, dep as usize);
        self.needed_by.push(dep, slot, Some(alive));
        self.note_late(self.ids[slot as usize], self.ids[dep as usize]);
    }

    fn note_late(&mut self, from: u64, on: u64) {
        if on > from {
            let newest = self.late.entry(from).or_insert(on);
            *newest = on.max(*newest);
        }
    }

    /// Walks down from each of `starts` in turn, with one set of marks, and answers those that no
    /// walk before had met.
    fn not_met_before(
        &self,
        scratch: &mut Scratch,
        starts: &[(u64, u32)],
        floor: u64,
    ) -> Vec<(u64, u32)> {
        scratch.begin(self.ids.len());
        let mut new = Vec::new();
        for &(start, slot) in starts {
            if !scratch.meet(slot) {
                continue;
            }
            new.push((start, slot));
            while let Some(slot) = scratch.next() {
                // A dead slot has no entries.
                if self.ids[slot as usize] >= floor {
                    for &dep in self.needs.entries(slot) {
                        scratch.meet(dep);
                    }
                }
            }
        }
        new
    }

    /// The ids from the start of a walk to the slot taken last.
    fn way_back(&self, scratch: &Scratch) -> Vec<u64> {
        let mut place = scratch.place();
        let mut way = vec![self.ids[scratch.queue[place] as usize]];
        while place != 0 {
            place = scratch.met_from[place];
            way.push(self.ids[scratch.queue[place] as usize]);
        }
        way.reverse();
        way
    }

    /// Renumbers if more slots are dead than alive, or an array is mostly unused. Each such pass is
    /// paid for by the removals since the one before.
    fn make_room(&mut self) {
        let dead = self.ids.len() - self.len;
        if dead > self.len + DEAD_SLOTS || self.needs.is_wasteful() || self.needed_by.is_wasteful()
        {
            self.renumber();
        }
    }

    /// Gives the ids present new slots, in ascending order of ids, and drops all dead entries.
    fn renumber(&mut self) {
        let mut order = Vec::with_capacity(self.len);
        let mut ids = Vec::with_capacity(self.len);
        let mut renumbered = vec![NO_SLOT; self.ids.len()];
        let mut next = 0;
        self.table.renumber(|id, slot| {
            let new = next;
            next += 1;
            order.push(slot);
            ids.push(id);
            renumbered[slot as usize] = new;
            new
        });
        self.needs = self.needs.renumbered(&order, &renumbered);
        self.needed_by = self.needed_by.renumbered(&order, &renumbered);
        self.late.clear();
        self.near.clear();
        for (slot, &id) in (0..).zip(&ids) {
            self.near.push(self.needs.entries(slot));
            let newest = self.needs.entries(slot).iter().max().copied().unwrap_or(0);
            if newest > slot {
                self.late.insert(id, ids[newest as usize]);
            }
        }
        self.newest = ids.last().copied().unwrap_or(0);
        self.ids = ids;
        self.unordered = false;
    }

    /// Starts anew. A small graph keeps its arrays, since it often becomes empty and fills again.
    fn clear(&mut self) {
        if self.ids.len() > 4 * DEAD_SLOTS {
            *self = Self::default();
            return;
        }
        self.table.clear();
        self.ids.clear();
        self.needs.clear();
        self.near.clear();
        self.needed_by.clear();
        self.late.clear();
        self.newest = 0;
        self.unordered = false;
    }
}
