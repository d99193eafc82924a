//! What decisions may ask about settled things that memory does not hold any more.

use crate::model::{ArtifactId, BranchId, EffectId, Event, Token};
use crate::state::pair_named;

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
    /// Committed, and undone by a governed rollback since: nothing new may rest on it.
    Compensated,
}

/// A closed branch that memory does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its last token.
    pub token: Token,
    /// It was merged; if not, it was aborted by name.
    pub merged: bool,
    /// The doomed effect that closed it, where there was one.
    pub cause: Option<EffectId>,
}

/// Read access to the log and its indexes, within the transaction that decides.
pub trait History {
    /// The branch of this name, closed ones included.
    fn branch_named(&self, name: &str) -> Result<Option<BranchId>, HistoryError>;

    /// How a branch ended that memory does not hold; `None` if there is no such branch.
    fn ended(&self, branch: BranchId) -> Result<Option<Ended>, HistoryError>;

    /// The effect that first registered under this idempotency key and has not become void.
    fn known_key(&self, key: &[u8]) -> Result<Option<EffectId>, HistoryError>;

    /// The time of a record, in milliseconds of the store's clock; `None` where it is not known.
    fn time_ms(&self, seq: u64) -> Result<Option<u64>, HistoryError> {
        let _ = seq;
        Ok(None)
    }

    /// The event of a record; `None` past the head.
    fn event(&self, seq: u64) -> Result<Option<Event>, HistoryError>;

    /// What became of an effect that memory does not hold; `None` if the record is no registration.
    fn fate(&self, effect: EffectId) -> Result<Option<Fate>, HistoryError>;

    /// The records of a pair of artifacts, ascending; none if its id is no primary's.
    fn artifact(&self, id: ArtifactId) -> Result<Vec<u64>, HistoryError> {
        let mut records = Vec::new();
        self.scan(id.0, &mut |seq, event| {
            if pair_named(seq, event) == Some(id) {
                records.push(seq);
            }
            // The first record decides whether there is such a pair.
            !records.is_empty()
        })?;
        Ok(records)
    }

    /// Visits the events from a record on, in order, until the visitor says `false`.
    fn scan(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, &Event) -> bool,
    ) -> Result<(), HistoryError>;
}
