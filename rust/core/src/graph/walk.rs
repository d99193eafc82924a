//! Working memory of walks, kept between walks so that a small one costs only what it visits.

/// What a walk over a [`LiveGraph`](super::LiveGraph) needs: visited marks and a queue.
///
/// Make one, keep it, and pass it to each walk. It holds no result and belongs to no graph; its
/// size is one bit per slot of the largest graph seen, and what the largest walk visited.
#[derive(Debug, Default, Clone)]
pub struct Scratch {
    /// One bit per slot. Every slot marked is in `queue`, but during a sweep.
    pub(super) marks: Vec<u64>,
    /// A sweep has begun and has not ended.
    sweeping: bool,
    /// Slots in the order in which they were first met.
    pub(super) queue: Vec<u32>,
    /// How many of the queue have been taken out of it.
    head: usize,
    /// Slots that belong to the answer.
    pub(super) found: Vec<u32>,
    /// For each place in the queue the place it was met from, where a walk wants to know.
    pub(super) met_from: Vec<usize>,
}

impl Scratch {
    /// Empty working memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the walk before. It is done at the start of a walk, not at its end, so that a walk
    /// cut short by a panic in a caller's closure leaves nothing wrong behind.
    pub(super) fn begin(&mut self, slots: usize) {
        if std::mem::take(&mut self.sweeping) {
            self.marks.fill(0);
        }
        for &slot in &self.queue {
            self.marks[slot as usize / 64] = 0;
        }
        self.queue.clear();
        self.found.clear();
        self.met_from.clear();
        self.head = 0;
        if self.marks.len() * 64 < slots {
            self.marks.resize(slots.div_ceil(64), 0);
        }
    }

    /// Turns the walk into a sweep; the lowest and the highest word with a mark.
    pub(super) fn begin_sweep(&mut self) -> (usize, usize) {
        self.sweeping = true;
        let words = self.queue.drain(..).map(|slot| slot as usize / 64);
        words.fold((usize::MAX, 0), |(low, high), word| (low.min(word), high.max(word)))
    }

    /// All marks are cleared.
    pub(super) fn end_sweep(&mut self) {
        self.sweeping = false;
    }

    #[inline]
    pub(super) fn is_marked(&self, slot: u32) -> bool {
        self.marks[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    /// Queues `slot` unless it was met before; whether it was new.
    #[inline]
    pub(super) fn meet(&mut self, slot: u32) -> bool {
        let word = &mut self.marks[slot as usize / 64];
        let bit = 1 << (slot % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.queue.push(slot);
        true
    }

    /// The next slot of the queue.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        let slot = self.queue.get(self.head).copied()?;
        self.head += 1;
        Some(slot)
    }

    /// The place in the queue of the slot that [`next`](Self::next) answered last.
    pub(super) fn place(&self) -> usize {
        self.head.saturating_sub(1)
    }

    /// Sorts `found`. A large answer is read off the marks, which costs a few nanoseconds per slot
    /// where sorting costs some ten.
    pub(super) fn sort_found(&mut self) {
        let lowest = self.found.iter().min().copied().unwrap_or(0) / 64;
        let highest = self.found.iter().max().copied().unwrap_or(0) / 64;
        if self.found.len() < 128 || (highest - lowest) as usize > 4 * self.found.len() {
            self.found.sort_unstable();
            return;
        }
        if self.found.len() < self.queue.len() {
            for &slot in &self.queue {
                self.marks[slot as usize / 64] = 0;
            }
            for &slot in &self.found {
                self.marks[slot as usize / 64] |= 1 << (slot % 64);
            }
        }
        self.found.clear();
        for place in lowest..=highest {
            let mut left = self.marks[place as usize];
            while left != 0 {
                self.found.push(place * 64 + left.trailing_zeros());
                left &= left - 1;
            }
        }
    }
}
