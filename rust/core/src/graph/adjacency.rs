//! One direction of a graph: a list of slots per slot, all lists in one array of words.
//!
//! Lists lie in blocks whose sizes are powers of two. A block that a list has outgrown or left is
//! used again for another list of its size, so that dropping ten thousand lists frees no memory
//! block by block and asks the allocator for nothing.

/// Smallest block, in words of 4 bytes.
const SMALLEST_BLOCK: u32 = 2;

/// Not a slot.
pub(super) const NO_SLOT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Default)]
struct List {
    offset: usize,
    len: u32,
    /// Size of the block, 0 for none, else a power of two.
    capacity: u32,
}

/// Lists of slots, indexed by slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Adjacency {
    lists: Vec<List>,
    words: Vec<u32>,
    /// Offsets of unused blocks, by the binary logarithm of their size.
    unused: Vec<Vec<usize>>,
    unused_words: usize,
}

impl Adjacency {
    #[inline]
    pub(super) fn entries(&self, slot: u32) -> &[u32] {
        let list = self.lists[slot as usize];
        &self.words[list.offset..list.offset + list.len as usize]
    }

    /// Sets a bit for each entry of the list of `slot`.
    #[inline]
    pub(super) fn mark(&self, slot: usize, marks: &mut [u64]) {
        let list = self.lists[slot];
        for &entry in &self.words[list.offset..list.offset + list.len as usize] {
            marks[entry as usize / 64] |= 1 << (entry % 64);
        }
    }

    /// Appends the list of the next slot.
    pub(super) fn push_list(&mut self, entries: &[u32]) {
        let len = count(entries.len());
        let mut list = List::default();
        if len > 0 {
            list = self.block(len);
            list.len = len;
            self.words[list.offset..list.offset + entries.len()].copy_from_slice(entries);
        }
        self.lists.push(list);
    }

    /// Appends empty lists for the next slots, each with room for as many entries as said.
    pub(super) fn push_empty_lists(&mut self, room: &[u32]) {
        for &wanted in room {
            let list = if wanted == 0 { List::default() } else { self.block(wanted) };
            self.lists.push(list);
        }
    }

    /// Adds `entry` to the list of `slot`. A full list first drops its entries that are not
    /// `alive` (`None`: all are), and grows only when half of it or more remains: a list that lives
    /// long holds no more than about four times what was ever alive in it at once.
    #[inline]
    pub(super) fn push(&mut self, slot: u32, entry: u32, alive: Option<impl Fn(u32) -> bool>) {
        let list = &self.lists[slot as usize];
        if list.len == list.capacity {
            self.lists[slot as usize] = self.with_room(*list, alive);
        }
        let list = &mut self.lists[slot as usize];
        self.words[list.offset + list.len as usize] = entry;
        list.len += 1;
    }

    /// Empties the list of `slot` and gives its block back.
    pub(super) fn drop_list(&mut self, slot: u32) {
        let list = std::mem::take(&mut self.lists[slot as usize]);
        self.give_back(list);
    }

    /// Whether so much of the array is unused that a copy is worth its cost.
    pub(super) fn is_wasteful(&self) -> bool {
        self.unused_words > self.words.len() / 2 + 65_536
    }

    /// A dense copy: the lists of the slots in `order`, each entry replaced by `renumbered[entry]`,
    /// entries whose new number is [`NO_SLOT`] left out.
    pub(super) fn renumbered(&self, order: &[u32], renumbered: &[u32]) -> Self {
        let mut copy = Self::default();
        copy.lists.reserve(order.len());
        copy.words.reserve(self.words.len() - self.unused_words);
        let mut entries = Vec::new();
        for &slot in order {
            entries.clear();
            let old = self.entries(slot).iter();
            let new = old.map(|&entry| renumbered[entry as usize]);
            entries.extend(new.filter(|&entry| entry != NO_SLOT));
            copy.push_list(&entries);
        }
        copy
    }

    pub(super) fn clear(&mut self) {
        self.lists.clear();
        self.words.clear();
        self.unused.clear();
        self.unused_words = 0;
    }

    fn with_room(&mut self, mut list: List, alive: Option<impl Fn(u32) -> bool>) -> List {
        if let Some(alive) = alive {
            let block = &mut self.words[list.offset..list.offset + list.len as usize];
            let mut kept = 0;
            for place in 0..block.len() {
                if alive(block[place]) {
                    block[kept] = block[place];
                    kept += 1;
                }
            }
            list.len = count(kept);
        }
        if list.len >= list.capacity / 2 { self.grown(list) } else { list }
    }

    fn grown(&mut self, old: List) -> List {
        let mut list = self.block(old.capacity + 1);
        self.words.copy_within(old.offset..old.offset + old.len as usize, list.offset);
        list.len = old.len;
        self.give_back(old);
        list
    }

    /// An empty list in a block of at least `wanted` words.
    fn block(&mut self, wanted: u32) -> List {
        let capacity = wanted.max(SMALLEST_BLOCK).next_power_of_two();
        let size = capacity as usize;
        let reused = self.unused.get_mut(capacity.ilog2() as usize).and_then(Vec::pop);
        let offset = if let Some(offset) = reused {
            self.unused_words -= size;
            offset
        } else {
            let end = self.words.len();
            self.words.resize(end + size, 0);
            end
        };
        List { offset, len: 0, capacity }
    }

    fn give_back(&mut self, list: List) {
        if list.capacity == 0 {
            return;
        }
        let class = list.capacity.ilog2() as usize;
        if self.unused.len() <= class {
            self.unused.resize(class + 1, Vec::new());
        }
        self.unused[class].push(list.offset);
        self.unused_words += list.capacity as usize;
    }
}

/// A list names each slot at most once and slots are below 2^31, so the bound is never met.
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::Adjacency;

    #[test]
    fn a_full_list_drops_what_is_dead_before_it_grows() {
        let mut lists = Adjacency::default();
        lists.push_list(&[]);
        for entry in 0..100_000 {
            lists.push(0, entry, Some(|other: u32| other + 10 >= entry));
            assert!(lists.entries(0).len() <= 64);
            let recent: Vec<u32> = (entry.saturating_sub(9)..=entry).collect();
            assert!(lists.entries(0).ends_with(&recent));
        }
        assert!(lists.words.len() < 200);
    }

    #[test]
    fn a_block_given_back_is_used_again() {
        let mut lists = Adjacency::default();
        let entries: Vec<u32> = (0..50).collect();
        for slot in 0..1_000 {
            lists.push_list(&entries);
            lists.drop_list(slot);
        }
        assert_eq!((lists.words.len(), lists.unused_words), (64, 64));
    }
}
