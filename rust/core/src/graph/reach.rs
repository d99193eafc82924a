//! Closure and cascade: everything that can be reached along edges, one way or the other.

use super::adjacency::Adjacency;
use super::live::{GONE, LiveGraph};
use super::walk::Scratch;

impl LiveGraph {
    /// Ancestors: all that `targets` rest on, directly or through others, and those of the targets
    /// that are in the graph, ascending.
    pub fn closure(&self, scratch: &mut Scratch, targets: &[u64]) -> Vec<u64> {
        self.reach(scratch, &self.needs, targets, |_| true)
    }

    /// The same, walking only through ids for which `keep` answers true; the others, targets
    /// included, are left out. `keep` is asked at most once per id, in no promised order.
    pub fn closure_where(
        &self,
        scratch: &mut Scratch,
        targets: &[u64],
        keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        self.reach(scratch, &self.needs, targets, keep)
    }

    /// Descendants: all that rests on `targets`, directly or through others, and those of the
    /// targets that are in the graph, ascending.
    pub fn cascade(&self, scratch: &mut Scratch, targets: &[u64]) -> Vec<u64> {
        self.reach(scratch, &self.needed_by, targets, |_| true)
    }

    /// The same, walking only through ids for which `keep` answers true; see
    /// [`closure_where`](Self::closure_where).
    pub fn cascade_where(
        &self,
        scratch: &mut Scratch,
        targets: &[u64],
        keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        self.reach(scratch, &self.needed_by, targets, keep)
    }

    fn reach(
        &self,
        scratch: &mut Scratch,
        edges: &Adjacency,
        targets: &[u64],
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        scratch.begin(self.ids.len());
        let mut finder = self.table.finder();
        for slot in targets.iter().filter_map(|&id| finder.get(id)) {
            scratch.meet(slot);
        }
        // Once everything has been met, no edge leads to anything new: whoever commits all that is
        // live pays for no edge. Where dead slots are around, only the targets tell.
        let all = if self.ids.len() == self.len || scratch.queue.len() == self.len {
            self.len
        } else {
            usize::MAX
        };
        while let Some(slot) = scratch.next() {
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
        scratch.sort_found();
        let mut ids: Vec<u64> = scratch.found.iter().map(|&slot| self.ids[slot as usize]).collect();
        if self.unordered {
            ids.sort_unstable();
        }
        ids
    }
}
