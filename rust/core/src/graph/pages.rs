//! From id to slot: small pages of ids, present only where an id of the page is.
//!
//! The first level is an ordered map rather than an array, so that the distance between an old
//! straggler and the newest id costs nothing: memory is at most one page per id held.

use std::collections::BTreeMap;

/// Ids per page. A page that serves a single id costs about 300 bytes, a full one 5 bytes per id.
const PAGE_IDS: u64 = 64;
const PAGE_SLOTS: usize = 64;

#[derive(Debug, Clone)]
struct Page {
    /// One bit per id of the page.
    present: u64,
    slots: [u32; PAGE_SLOTS],
}

impl Page {
    fn get(&self, id: u64) -> Option<u32> {
        let place = id % PAGE_IDS;
        (self.present >> place & 1 == 1).then(|| self.slots[place as usize])
    }
}

/// Map from id to slot.
#[derive(Debug, Clone, Default)]
pub(super) struct IdTable {
    pages: BTreeMap<u64, Box<Page>>,
}

impl IdTable {
    pub(super) fn get(&self, id: u64) -> Option<u32> {
        self.pages.get(&(id / PAGE_IDS)).and_then(|page| page.get(id))
    }

    /// A reader that remembers its last page: ids asked for together are mostly neighbours.
    pub(super) fn finder(&self) -> Finder<'_> {
        Finder { table: self, last: None }
    }

    /// Sets the slot of `id`, which must not be in the table yet.
    pub(super) fn insert(&mut self, id: u64, slot: u32) {
        let page = self
            .pages
            .entry(id / PAGE_IDS)
            .or_insert_with(|| Box::new(Page { present: 0, slots: [0; PAGE_SLOTS] }));
        let place = id % PAGE_IDS;
        page.present |= 1 << place;
        page.slots[place as usize] = slot;
    }

    /// Takes out those of `ids` that are there and tells `taken` the id and slot of each. Ids of
    /// one page that follow one another cost one look-up.
    pub(super) fn remove_each(&mut self, ids: &[u64], mut taken: impl FnMut(u64, u32)) {
        let mut rest = ids;
        while let Some(&first) = rest.first() {
            let key = first / PAGE_IDS;
            let same = rest.iter().take_while(|&&id| id / PAGE_IDS == key).count();
            let (group, later) = rest.split_at(same);
            rest = later;
            let Some(page) = self.pages.get_mut(&key) else { continue };
            for &id in group {
                if let Some(slot) = page.get(id) {
                    page.present &= !(1 << (id % PAGE_IDS));
                    taken(id, slot);
                }
            }
            if page.present == 0 {
                self.pages.remove(&key);
            }
        }
    }

    /// Gives each id, in ascending order, the slot that `renumber` answers for its old one.
    pub(super) fn renumber(&mut self, mut renumber: impl FnMut(u64, u32) -> u32) {
        for (&key, page) in &mut self.pages {
            let mut left = page.present;
            while left != 0 {
                let place = left.trailing_zeros();
                left &= left - 1;
                let slot = &mut page.slots[place as usize];
                *slot = renumber(key * PAGE_IDS + u64::from(place), *slot);
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
    }
}

/// See [`IdTable::finder`].
pub(super) struct Finder<'a> {
    table: &'a IdTable,
    last: Option<(u64, &'a Page)>,
}

impl Finder<'_> {
    pub(super) fn get(&mut self, id: u64) -> Option<u32> {
        let key = id / PAGE_IDS;
        match self.last {
            Some((last, page)) if last == key => page.get(id),
            _ => {
                let page = self.table.pages.get(&key)?;
                self.last = Some((key, page));
                page.get(id)
            }
        }
    }
}
