//! Sweeps: closure and cascade of many, in one pass over the slots in their order.
//!
//! Where no edge points to something newer, whatever a slot rests on has a smaller one. So a pass
//! from the highest marked slot down meets every slot after all that could mark it, and an edge costs
//! one bit and no queue. A pass up over the dependents does the same for the cascade.

use super::live::{GONE, LiveGraph};
use super::walk::Scratch;

const BITS: u32 = u64::BITS;

impl LiveGraph {
    /// Whether slots are in the order of ids and every edge goes to a smaller one.
    pub(super) fn is_in_order(&self) -> bool {
        !self.unordered && !self.has_late_edges()
    }

    /// Goes on with a walk along dependencies from what it has met; the ids found, ascending.
    pub(super) fn sweep_down(
        &self,
        scratch: &mut Scratch,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        let (_, highest) = scratch.begin_sweep();
        for word in (0..=highest).rev() {
            let mut seen = 0;
            // Marks come in below the bit that is looked at, in this word too.
            while let Some(bit) = (scratch.marks[word] & !seen).checked_ilog2() {
                seen |= 1 << bit;
                if let Some(slot) = self.visit(scratch, word, bit, &mut keep) {
                    self.near.mark(slot, &self.needs, &mut scratch.marks);
                }
            }
        }
        self.found(scratch, 0, highest)
    }

    /// The same along dependents.
    pub(super) fn sweep_up(
        &self,
        scratch: &mut Scratch,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Vec<u64> {
        let (lowest, _) = scratch.begin_sweep();
        let highest = self.ids.len().saturating_sub(1) / BITS as usize;
        for word in lowest..=highest {
            let mut seen = 0;
            loop {
                let fresh = scratch.marks[word] & !seen;
                if fresh == 0 {
                    break;
                }
                let bit = fresh.trailing_zeros();
                seen |= 1 << bit;
                if let Some(slot) = self.visit(scratch, word, bit, &mut keep) {
                    self.needed_by.mark(slot, &mut scratch.marks);
                }
            }
        }
        self.found(scratch, lowest, highest)
    }

    /// The slot of a mark, if it belongs to the answer.
    #[inline]
    fn visit(
        &self,
        scratch: &mut Scratch,
        word: usize,
        bit: u32,
        keep: &mut impl FnMut(u64) -> bool,
    ) -> Option<usize> {
        let slot = word * BITS as usize + bit as usize;
        let id = self.ids[slot];
        if id == GONE || !keep(id) {
            // Nothing that is still to come can mark it again.
            scratch.marks[word] &= !(1 << bit);
            return None;
        }
        Some(slot)
    }

    /// Reads the answer off the marks, and clears them.
    fn found(&self, scratch: &mut Scratch, lowest: usize, highest: usize) -> Vec<u64> {
        let marks = &mut scratch.marks[lowest..=highest];
        let count: u32 = marks.iter().map(|word| word.count_ones()).sum();
        let mut found = Vec::with_capacity(count as usize);
        for (word, ids) in marks.iter_mut().zip(self.ids[lowest * BITS as usize..].chunks(64)) {
            let mut left = std::mem::take(word);
            while left != 0 {
                found.push(ids[left.trailing_zeros() as usize]);
                left &= left - 1;
            }
        }
        scratch.end_sweep();
        found
    }
}
