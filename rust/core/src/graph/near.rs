//! What an effect rests on close by, as a mask over the slots just before its own.
//!
//! Most of what a call rests on was registered shortly before it. A sweep then takes a few words for
//! an effect whatever its degree; only where something lies farther off does it read the list too.

use super::adjacency::Adjacency;

const BITS: usize = u64::BITS as usize;

/// Words of a mask: that of the slot itself and those before it, 256 slots and up.
const WORDS: usize = 5;

/// A mask per slot. It may name slots whose id has left, like the lists.
#[derive(Debug, Clone, Default)]
pub(super) struct Near {
    /// The last word is that of the slot itself.
    masks: Vec<[u64; WORDS]>,
    /// A bit per slot: it has an entry that its mask does not hold.
    far: Vec<u64>,
}

impl Near {
    /// Appends the mask of the next slot.
    pub(super) fn push(&mut self, entries: &[u32]) {
        let slot = self.masks.len();
        self.masks.push([0; WORDS]);
        self.far.resize(self.masks.len().div_ceil(BITS), 0);
        for &entry in entries {
            self.add(slot, entry as usize);
        }
    }

    /// Adds an entry to the mask of a slot.
    pub(super) fn add(&mut self, slot: usize, entry: usize) {
        let (own, word) = (slot / BITS, entry / BITS);
        match (word + WORDS).checked_sub(own + 1).filter(|place| *place < WORDS) {
            Some(place) => self.masks[slot][place] |= 1 << (entry % BITS),
            None => self.far[slot / BITS] |= 1 << (slot % BITS),
        }
    }

    /// Marks what a slot rests on.
    #[inline]
    pub(super) fn mark(&self, slot: usize, lists: &Adjacency, marks: &mut [u64]) {
        let own = slot / BITS;
        let mask = &self.masks[slot];
        // The first slots have fewer words before them, and nothing in the others.
        let skipped = WORDS.saturating_sub(own + 1);
        let first = (own + 1).saturating_sub(WORDS);
        for (mark, mask) in marks[first..=own].iter_mut().zip(&mask[skipped..]) {
            *mark |= mask;
        }
        if self.far[own] >> (slot % BITS) & 1 == 1 {
            lists.mark(slot, marks);
        }
    }

    pub(super) fn clear(&mut self) {
        self.masks.clear();
        self.far.clear();
    }
}
