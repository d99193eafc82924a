//! The log: records in order, chained, with the tables that a replay of it rebuilds.

mod append;
mod index;
mod liveness;
mod load;
mod past;
mod payload;
mod transfer;
mod verify;

pub use append::{Batch, Tail};
pub use index::{Index, is_void};
pub use load::{Loaded, catch_up, load, replay};
pub use past::Past;
pub use payload::{Payloads, read_payload};
pub use transfer::{export, import};
pub use verify::{VerifyReport, verify};

use crate::decide::HistoryError;
use crate::storage::StorageError;

/// A place of the log that cannot be read.
pub(crate) fn corrupted(place: impl Into<String>) -> StorageError {
    StorageError::Corrupted { place: place.into() }
}

/// A storage error as the decisions see it.
pub(crate) fn unreadable(error: &StorageError) -> HistoryError {
    HistoryError(error.to_string())
}
