//! Member sets (interim form; the compact one takes its place).
use minicbor::{Decode, Encode};

use super::EffectId;

/// A set of effects, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct MemberSet(#[cbor(n(0), with = "super::ids::gaps")] Vec<EffectId>);

impl MemberSet {
    /// The effects, ascending.
    pub fn as_slice(&self) -> &[EffectId] {
        &self.0
    }
    /// The effects, ascending.
    pub fn iter(&self) -> impl Iterator<Item = EffectId> + '_ {
        self.0.iter().copied()
    }
    /// Number of effects.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Whether the effect is in it.
    pub fn contains(&self, effect: EffectId) -> bool {
        self.0.binary_search(&effect).is_ok()
    }
}

impl From<Vec<EffectId>> for MemberSet {
    fn from(mut effects: Vec<EffectId>) -> Self {
        effects.sort_unstable();
        effects.dedup();
        MemberSet(effects)
    }
}
