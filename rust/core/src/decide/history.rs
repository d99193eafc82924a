//! What decisions may ask about settled things that memory does not hold any more.

use crate::model::{BranchId, EffectId, Event};

/// The log or a table could not be read; the text names the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryError(pub String);

/// What became of a registered effect that memory does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Committed.
    Committed,
    /// Doomed; its rollback is finished.
    Doomed,
    /// Void.
    Void,
}

/// Read access to the log and its indexes, within the transaction that decides.
pub trait History {
    /// The branch of this name, closed ones included.
    fn branch_named(&self, name: &str) -> Result<Option<BranchId>, HistoryError>;

    /// Whether a branch that memory does not hold was merged into its parent; if not, it was aborted.
    fn merged(&self, branch: BranchId) -> Result<bool, HistoryError>;

    /// The effect that first registered under this idempotency key and has not become void.
    fn known_key(&self, key: &[u8]) -> Result<Option<EffectId>, HistoryError>;

    /// The event of a record; `None` past the head.
    fn event(&self, seq: u64) -> Result<Option<Event>, HistoryError>;

    /// What became of an effect that memory does not hold; `None` if the record is no registration.
    fn fate(&self, effect: EffectId) -> Result<Option<Fate>, HistoryError>;

    /// Visits the events from a record on, in order, until the visitor says `false`.
    fn scan(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, &Event) -> bool,
    ) -> Result<(), HistoryError>;
}
