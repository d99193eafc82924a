//! A set of effects of one branch, kept as words of bits.
//!
//! Ids are numbers of the log, so those of a branch lie close together: a word holds up to 64 of
//! them, and the sets of branches that worked side by side are united word by word.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::EffectId;

const BITS: u64 = u64::BITS as u64;

/// Effects, ascending.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct IdSet {
    /// By the number of the word; none is zero.
    words: BTreeMap<u64, u64>,
}

fn place(id: EffectId) -> (u64, u64) {
    (id.0 / BITS, 1 << (id.0 % BITS))
}

impl IdSet {
    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Whether it holds this one.
    pub fn contains(&self, id: EffectId) -> bool {
        let (word, bit) = place(id);
        self.words.get(&word).is_some_and(|bits| bits & bit != 0)
    }

    /// Takes an effect in.
    pub fn insert(&mut self, id: EffectId) {
        let (word, bit) = place(id);
        *self.words.entry(word).or_default() |= bit;
    }

    /// Lets an effect go, if it is there.
    pub fn remove(&mut self, id: EffectId) {
        self.remove_each(&[id]);
    }

    /// Lets ascending effects go.
    pub fn remove_each(&mut self, ids: &[EffectId]) {
        let mut rest = ids;
        while let Some(first) = rest.first() {
            let (word, _) = place(*first);
            let mut gone = 0;
            while let Some((id, later)) = rest.split_first()
                && id.0 / BITS == word
            {
                gone |= place(*id).1;
                rest = later;
            }
            if let Some(bits) = self.words.get_mut(&word) {
                *bits &= !gone;
                if *bits == 0 {
                    self.words.remove(&word);
                }
            }
        }
    }

    /// Lets all go.
    pub fn clear(&mut self) {
        self.words.clear();
    }

    /// Takes in all of another set.
    pub fn unite(&mut self, other: &IdSet) {
        for (word, bits) in &other.words {
            *self.words.entry(*word).or_default() |= bits;
        }
    }

    /// Its effects, ascending.
    pub fn iter(&self) -> impl Iterator<Item = EffectId> {
        self.words.iter().flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| u64::from(left.trailing_zeros()))?;
                left &= left - 1;
                Some(EffectId(word * BITS + bit))
            })
        })
    }

    /// Its effects as a list.
    pub fn to_vec(&self) -> Vec<EffectId> {
        let count: u32 = self.words.values().map(|bits| bits.count_ones()).sum();
        let mut ids = Vec::with_capacity(count as usize);
        for (word, bits) in &self.words {
            let mut left = *bits;
            while left != 0 {
                ids.push(EffectId(word * BITS + u64::from(left.trailing_zeros())));
                left &= left - 1;
            }
        }
        ids
    }
}

impl Extend<EffectId> for IdSet {
    fn extend<I: IntoIterator<Item = EffectId>>(&mut self, ids: I) {
        for id in ids {
            self.insert(id);
        }
    }
}

impl FromIterator<EffectId> for IdSet {
    fn from_iter<I: IntoIterator<Item = EffectId>>(ids: I) -> Self {
        let mut set = Self::default();
        set.extend(ids);
        set
    }
}

impl fmt::Debug for IdSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_an_ordered_set_would(
            changes in prop::collection::vec((any::<bool>(), 0u64..400), 0..300),
            gone in prop::collection::btree_set(0u64..400, 0..80),
            more in prop::collection::btree_set(0u64..2_000, 0..80),
        ) {
            let (mut set, mut plain) = (IdSet::default(), BTreeSet::new());
            for (add, id) in changes {
                if add {
                    set.insert(EffectId(id));
                    plain.insert(EffectId(id));
                } else {
                    set.remove(EffectId(id));
                    plain.remove(&EffectId(id));
                }
            }
            let gone: Vec<EffectId> = gone.into_iter().map(EffectId).collect();
            set.remove_each(&gone);
            plain.retain(|id| gone.binary_search(id).is_err());
            let more: IdSet = more.into_iter().map(EffectId).collect();
            set.unite(&more);
            plain.extend(more.iter());
            prop_assert_eq!(set.to_vec(), plain.iter().copied().collect::<Vec<_>>());
            prop_assert!(set.iter().eq(plain.iter().copied()));
            prop_assert_eq!(set.is_empty(), plain.is_empty());
            for id in 0..2_000 {
                prop_assert_eq!(set.contains(EffectId(id)), plain.contains(&EffectId(id)));
            }
        }
    }
}
