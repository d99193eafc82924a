//! What a set of steps weighs in the approval matrix.

use std::collections::BTreeSet;

use crate::model::{Class, Key, Policy, Reach};

/// The approval that a plan needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApprovalNeed {
    /// Digest of the exact plan.
    pub digest: [u8; 32],
    /// Whether the answer needs a written reason.
    pub reason_required: bool,
}

/// The worst class of a set, and how many keys it wrote: an effect that names none counts as one.
#[derive(Debug, Default)]
pub struct Weight {
    reach: Reach,
    keys: BTreeSet<Key>,
    nameless: u64,
    bound: u64,
}

impl Weight {
    /// Of no step yet.
    pub fn new(policy: &Policy) -> Self {
        Weight { bound: policy.most_keys(), ..Weight::default() }
    }

    /// Adds a step.
    pub fn add(&mut self, class: Class, has_inverse: bool, writes: &[Key]) {
        let reach = match class {
            _ if !has_inverse => Reach::NotCompensable,
            Class::Full => Reach::Full,
            Class::Partial => Reach::Partial,
            Class::Irreversible => Reach::Irreversible,
        };
        self.reach = self.reach.max(reach);
        self.nameless += u64::from(writes.is_empty());
        // Past the bound only that it was passed counts.
        if self.count() <= self.bound {
            self.keys.extend(writes.iter().cloned());
        }
    }

    fn count(&self) -> u64 {
        self.keys.len() as u64 + self.nameless
    }

    /// Whether a person must approve it, and if so whether with a written reason.
    pub fn needed(&self, policy: &Policy) -> Option<bool> {
        policy.approval(self.reach, self.count())
    }
}
