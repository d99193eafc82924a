//! The effects in memory, found by id in constant time.
//!
//! Ids are numbers of the log, so neighbours lie close together: pages of slots, allocated where
//! something lives, cost eight bytes for every 256 numbers that an old straggler keeps behind it.

use std::collections::VecDeque;

use super::effect::Effect;
use crate::model::{BranchId, Class, EffectId, MemberSet, Outcome};

const PAGE: usize = 256;

/// What a fence asks of an effect, in a byte: one over ten thousand effects then reads ten thousand
/// bytes that lie side by side, and not as many places all over memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Brief(u8);

impl Brief {
    const LIVE: u8 = 1;
    const READY: u8 = 2;
    const SEALED: u8 = 4;
    const OWNERS: u8 = 8;
    const QUIET: u8 = 16;
    const GUARDED: u8 = 32;
    const SETTLED: u8 = 64;
    /// The effect may have changed since.
    const STALE: u8 = 128;

    fn of(effect: &Effect) -> Self {
        let votes_are_owners = effect.missing_votes.iter().all(|missing| *missing == effect.branch);
        let quiet = effect.intents.is_empty() && effect.watchers.is_empty();
        let facts = [
            (Self::LIVE, effect.is_live()),
            (Self::READY, effect.outcome != Outcome::Unknown || effect.is_deferred()),
            (Self::SEALED, effect.missing_votes.is_empty()),
            (Self::OWNERS, votes_are_owners),
            (Self::QUIET, quiet && !effect.is_deferred()),
            (Self::GUARDED, effect.is_deferred() || effect.class == Class::Irreversible),
        ];
        Brief(facts.iter().filter(|(_, holds)| *holds).map(|(bit, _)| bit).sum())
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Registered, neither committed nor doomed nor void.
    pub fn is_live(self) -> bool {
        self.has(Self::LIVE)
    }

    /// Its outcome does not keep a fence from committing it.
    pub fn is_ready(self) -> bool {
        self.has(Self::READY)
    }

    /// Every vote that it needs is there.
    pub fn is_sealed(self) -> bool {
        self.has(Self::SEALED)
    }

    /// At most the vote of the branch that owns it is missing.
    pub fn needs_owner_at_most(self) -> bool {
        self.has(Self::OWNERS)
    }

    /// Deferred or irreversible: the merge authority votes for it only where it names its owner.
    pub fn is_guarded(self) -> bool {
        self.has(Self::GUARDED)
    }
}

struct Page {
    cells: [Option<Box<Effect>>; PAGE],
    briefs: [Brief; PAGE],
    owners: [BranchId; PAGE],
}

/// A reader of briefs that remembers its last page: effects asked for together are mostly neighbours.
pub struct Briefs<'e> {
    effects: &'e Effects,
    last: Option<(u64, &'e Page)>,
}

impl Briefs<'_> {
    /// See [`Effects::brief`].
    pub fn get(&mut self, id: EffectId) -> Option<(Brief, BranchId)> {
        let number = id.0 / PAGE as u64;
        let page = match self.last {
            Some((last, page)) if last == number => page,
            _ => {
                let (place, _) = self.effects.place(id)?;
                let page = self.effects.pages[place].as_deref()?;
                self.last = Some((number, page));
                page
            }
        };
        page.brief(slot(id))
    }
}

impl Page {
    fn brief(&self, slot: usize) -> Option<(Brief, BranchId)> {
        let brief = self.briefs[slot];
        if brief == Brief::default() || brief.has(Brief::SETTLED) {
            return None;
        }
        if brief.has(Brief::STALE) {
            let effect = self.cells[slot].as_deref()?;
            return Some((Brief::of(effect), effect.branch));
        }
        Some((brief, self.owners[slot]))
    }

    /// Settles an effect if it is live and nothing else waits for it.
    fn settle(&mut self, slot: usize) -> bool {
        let brief = &mut self.briefs[slot];
        if brief.has(Brief::STALE)
            && let Some(effect) = self.cells[slot].as_deref()
        {
            *brief = Brief::of(effect);
        }
        let quiet = brief.is_live() && brief.has(Brief::QUIET);
        if quiet {
            *brief = Brief(Brief::SETTLED);
        }
        quiet
    }

    fn new() -> Box<Self> {
        Box::new(Page {
            cells: [const { None }; PAGE],
            briefs: [Brief::default(); PAGE],
            owners: [BranchId(0); PAGE],
        })
    }
}

fn slot(id: EffectId) -> usize {
    #[allow(clippy::cast_possible_truncation)] // The remainder is below 256.
    {
        (id.0 % PAGE as u64) as usize
    }
}

/// Effects by id.
#[derive(Default)]
pub struct Effects {
    /// Page number of the first page.
    first: u64,
    pages: VecDeque<Option<Box<Page>>>,
    /// How many slots of each page are filled.
    filled: VecDeque<u32>,
    /// Effects whose brief is stale.
    changed: Vec<EffectId>,
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
        Some((page, slot(id)))
    }

    /// The effect, if it is in memory. One that a fence has settled is not, even before
    /// [`State::tidy`](super::State::tidy) has let it go.
    pub fn get(&self, id: EffectId) -> Option<&Effect> {
        let (page, slot) = self.place(id)?;
        let page = self.pages[page].as_ref()?;
        if page.briefs[slot].has(Brief::SETTLED) { None } else { page.cells[slot].as_deref() }
    }

    /// The effect, if it is in memory, to change it. Its brief is read anew by
    /// [`refresh`](Self::refresh), or until then whenever it is asked for.
    pub fn get_mut(&mut self, id: EffectId) -> Option<&mut Effect> {
        let (page, slot) = self.place(id)?;
        let page = self.pages[page].as_mut()?;
        let brief = &mut page.briefs[slot];
        if brief.has(Brief::SETTLED) {
            return None;
        }
        let effect = page.cells[slot].as_deref_mut()?;
        if !brief.has(Brief::STALE) {
            brief.0 |= Brief::STALE;
            self.changed.push(id);
        }
        Some(effect)
    }

    /// Brings the briefs of changed effects up to date.
    pub(super) fn refresh(&mut self) {
        while let Some(id) = self.changed.pop() {
            let Some((page, slot)) = self.place(id) else { continue };
            let Some(page) = self.pages[page].as_mut() else { continue };
            if let Some(effect) = page.cells[slot].as_deref()
                && !page.briefs[slot].has(Brief::SETTLED)
            {
                page.briefs[slot] = Brief::of(effect);
                page.owners[slot] = effect.branch;
            }
        }
    }

    /// What a fence asks of an effect in memory, and the branch that owns it; `None` also where
    /// nothing of all that is true.
    pub fn brief(&self, id: EffectId) -> Option<(Brief, BranchId)> {
        self.briefs().get(id)
    }

    /// A reader of many briefs.
    pub fn briefs(&self) -> Briefs<'_> {
        Briefs { effects: self, last: None }
    }

    /// A fence settles those of its members that nothing else waits for: from now on they are not in
    /// memory, though their places are freed only by [`remove`](Self::remove). How many they were; the
    /// others are told to `other`.
    pub(super) fn settle(&mut self, members: &MemberSet, mut other: impl FnMut(EffectId)) -> u64 {
        let mut settled = 0;
        let mut rest = members.as_slice();
        while let Some(first) = rest.first() {
            let number = first / PAGE as u64;
            let same = rest.iter().take_while(|id| *id / PAGE as u64 == number).count();
            let (group, later) = rest.split_at(same);
            rest = later;
            let Some((page, _)) = self.place(EffectId(*first)) else { continue };
            let Some(page) = self.pages[page].as_deref_mut() else { continue };
            for id in group.iter().copied().map(EffectId) {
                if page.settle(slot(id)) {
                    settled += 1;
                } else {
                    other(id);
                }
            }
        }
        settled
    }

    /// An effect that a fence has settled and that is still to be let go.
    pub(super) fn settled(&self, id: EffectId) -> Option<&Effect> {
        let (page, slot) = self.place(id)?;
        let page = self.pages[page].as_ref()?;
        if page.briefs[slot].has(Brief::SETTLED) { page.cells[slot].as_deref() } else { None }
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
        let cells = self.pages[page].get_or_insert_with(Page::new);
        cells.briefs[slot] = Brief::of(&effect);
        cells.owners[slot] = effect.branch;
        if let Some(old) = cells.cells[slot].replace(Box::new(effect)) {
            self.deferred -= usize::from(old.is_deferred());
        } else {
            self.filled[page] += 1;
            self.len += 1;
        }
    }

    /// Lets an effect go.
    pub fn remove(&mut self, id: EffectId) -> Option<Box<Effect>> {
        let (page, slot) = self.place(id)?;
        let cells = self.pages[page].as_mut()?;
        let effect = cells.cells[slot].take()?;
        cells.briefs[slot] = Brief::default();
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

    /// Lets an effect go that a fence has settled; any other stays.
    pub(super) fn remove_settled(&mut self, id: EffectId) -> Option<Box<Effect>> {
        self.settled(id)?;
        self.remove(id)
    }

    /// All effects, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.pages.iter().flatten().flat_map(|page| {
            let kept = page.cells.iter().zip(&page.briefs);
            kept.filter(|(_, brief)| !brief.has(Brief::SETTLED))
                .filter_map(|(cell, _)| cell.as_deref())
        })
    }
}
