//! The effects in memory, found by id in constant time.
//!
//! Ids are numbers of the log, so neighbours lie close together: pages of slots, allocated where
//! something lives, cost eight bytes for every 256 numbers that an old straggler keeps behind it.

use std::collections::VecDeque;

use super::effect::Effect;
use crate::model::EffectId;

const PAGE: usize = 256;
type Page = [Option<Box<Effect>>; PAGE];

/// Effects by id.
#[derive(Default)]
pub struct Effects {
    /// Page number of the first page.
    first: u64,
    pages: VecDeque<Option<Box<Page>>>,
    /// How many slots of each page are filled.
    filled: VecDeque<u32>,
    len: usize,
    deferred: usize,
}

impl Effects {
    /// Number of effects in memory.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of deferred effects in memory.
    pub fn deferred(&self) -> usize {
        self.deferred
    }

    /// Whether none is in memory.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn place(&self, id: EffectId) -> Option<(usize, usize)> {
        let page = (id.0 / PAGE as u64).checked_sub(self.first)?;
        let page = usize::try_from(page).ok().filter(|page| *page < self.pages.len())?;
        #[allow(clippy::cast_possible_truncation)] // The remainder is below 256.
        Some((page, (id.0 % PAGE as u64) as usize))
    }

    /// The effect, if it is in memory.
    pub fn get(&self, id: EffectId) -> Option<&Effect> {
        let (page, slot) = self.place(id)?;
        self.pages[page].as_ref()?[slot].as_deref()
    }

    /// The effect, if it is in memory.
    pub fn get_mut(&mut self, id: EffectId) -> Option<&mut Effect> {
        let (page, slot) = self.place(id)?;
        self.pages[page].as_mut()?[slot].as_deref_mut()
    }

    /// Whether the effect is in memory.
    pub fn contains(&self, id: EffectId) -> bool {
        self.get(id).is_some()
    }

    /// Takes an effect in; an older one of the same id is replaced.
    pub fn insert(&mut self, effect: Effect) {
        let page = effect.id.0 / PAGE as u64;
        if self.pages.is_empty() {
            self.first = page;
        }
        while page < self.first {
            self.pages.push_front(None);
            self.filled.push_front(0);
            self.first -= 1;
        }
        while self.first + self.pages.len() as u64 <= page {
            self.pages.push_back(None);
            self.filled.push_back(0);
        }
        let Some((page, slot)) = self.place(effect.id) else { return };
        self.deferred += usize::from(effect.is_deferred());
        let cells = self.pages[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        match cells[slot].replace(Box::new(effect)) {
            Some(old) => self.deferred -= usize::from(old.is_deferred()),
            None => {
                self.filled[page] += 1;
                self.len += 1;
            }
        }
    }

    /// Lets an effect go.
    pub fn remove(&mut self, id: EffectId) -> Option<Box<Effect>> {
        let (page, slot) = self.place(id)?;
        let effect = self.pages[page].as_mut()?[slot].take()?;
        self.len -= 1;
        self.deferred -= usize::from(effect.is_deferred());
        self.filled[page] -= 1;
        if self.filled[page] == 0 {
            self.pages[page] = None;
            while self.pages.front().is_some_and(Option::is_none) {
                self.pages.pop_front();
                self.filled.pop_front();
                self.first += 1;
            }
            while self.pages.back().is_some_and(Option::is_none) {
                self.pages.pop_back();
                self.filled.pop_back();
            }
        }
        Some(effect)
    }

    /// All effects, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.pages.iter().flatten().flat_map(|page| page.iter().filter_map(Option::as_deref))
    }
}
