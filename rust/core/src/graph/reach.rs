//! Closure and cascade: everything that can be reached along edges, one way or the other.

use super::adjacency::Adjacency;
use super::live::{GONE, LiveGraph};
use super::walk::Scratch;

/// A walk that has met so many goes on as a sweep, which costs less per edge and something per slot.
const SWEEP_FROM: usize = 128;

impl LiveGraph {
    /// Ancestors: all that `targets` rest on, directly or through others, and those of the targets
    /// that are in the graph, ascending.
    pub fn closure(&self, scratch: &mut Scratch, targets: &[u64]) -> Vec<u64> {
        if self.is_all(targets) {
            return targets.to_vec();
        }
        self.closure_where(scratch, targets, |_| true)
    }

    /// The same, walking only through ids for which `keep` answers true; the others, targets
    /// included, are left out. `keep` is asked in no promised order, and may be asked again.
    pub fn closure_where(
        &self,
        scratch: &mut Scratch,
        targets: &[u64],
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        if self.reach(scratch, &self.needs, targets, &mut keep) {
            return self.reached(scratch);
        }
        self.sweep_down(scratch, keep)
    }

    /// Descendants: all that rests on `targets`, directly or through others, and those of the
    /// targets that are in the graph, ascending.
    pub fn cascade(&self, scratch: &mut Scratch, targets: &[u64]) -> Vec<u64> {
        self.cascade_where(scratch, targets, |_| true)
    }

    /// The same, walking only through ids for which `keep` answers true; see
    /// [`closure_where`](Self::closure_where).
    pub fn cascade_where(
        &self,
        scratch: &mut Scratch,
        targets: &[u64],
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        if self.reach(scratch, &self.needed_by, targets, &mut keep) {
            return self.reached(scratch);
        }
        self.sweep_up(scratch, keep)
    }

    /// Whether these are all that is in the graph, ascending: then no edge leads to anything new.
    fn is_all(&self, targets: &[u64]) -> bool {
        let mut finder = self.table.finder();
        targets.len() == self.len
            && targets.is_sorted_by(|left, right| left < right)
            && targets.iter().all(|&id| finder.get(id).is_some())
    }

    /// Walks until nothing new is met, or until so much is that a sweep is the cheaper way to go on;
    /// whether it came to its end.
    fn reach(
        &self,
        scratch: &mut Scratch,
        edges: &Adjacency,
        targets: &[u64],
        keep: &mut impl FnMut(u64) -> bool,
    ) -> bool {
        scratch.begin(self.ids.len());
        let mut finder = self.table.finder();
        for slot in targets.iter().filter_map(|&id| finder.get(id)) {
            scratch.meet(slot);
        }
        let most = if self.is_in_order() { SWEEP_FROM } else { usize::MAX };
        // Once everything has been met, no edge leads to anything new: whoever commits all that is
        // live pays for no edge. Where dead slots are around, only the targets tell.
        let all = if self.ids.len() == self.len || scratch.queue.len() == self.len {
            self.len
        } else {
            usize::MAX
        };
        while let Some(slot) = scratch.next() {
            if scratch.queue.len() > most && scratch.queue.len() < all {
                return false;
            }
            let id = self.ids[slot as usize];
            if id == GONE || !keep(id) {
                continue;
            }
            scratch.found.push(slot);
            if scratch.queue.len() < all {
                for &next in edges.entries(slot) {
                    scratch.meet(next);
                }
            }
        }
        true
    }

    /// What a walk to its end has found, ascending.
    fn reached(&self, scratch: &mut Scratch) -> Vec<u64> {
        scratch.sort_found();
        let mut ids: Vec<u64> = scratch.found.iter().map(|&slot| self.ids[slot as usize]).collect();
        if self.unordered {
            ids.sort_unstable();
        }
        ids
    }
}
