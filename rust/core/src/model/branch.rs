//! Branches: one speculative line of work of one agent.

use minicbor::{Decode, Encode};

/// What a branch may rest on when it observes a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum ReadRule {
    /// Anything live.
    #[default]
    #[n(0)]
    Speculative,
    /// Only writers that are sealed.
    #[n(1)]
    Sealed,
    /// Only writers that are committed.
    #[n(2)]
    Committed,
}

/// What writing over a live writer means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Overwrite {
    /// A blind write makes no dependency; the guard protects the later writer.
    #[default]
    #[n(0)]
    Guard,
    /// The write rests on the live writers that it overwrites.
    #[n(1)]
    Depend,
}

/// The state of a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum BranchState {
    /// It takes new work.
    #[default]
    #[n(0)]
    Open,
    /// Merged, or aborted by name: it never takes work again.
    #[n(1)]
    Closed,
    /// Stopped by a doom until it resumes.
    #[n(2)]
    Doomed,
}
