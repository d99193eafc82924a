//! The two kinds of no: a rule refused, or the disk, the file or the process failed.

use crate::decide::Stop;
use crate::model::Refusal;
use crate::storage::StorageError;

/// What a call of the store can fail with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A rule said no; nothing changed beyond an audit record.
    Refused {
        /// Which rule, with what it concerns.
        refusal: Refusal,
        /// The item of a batch, from 0.
        index: Option<usize>,
    },
    /// Disk, file or process.
    Storage(StorageError),
}

impl Error {
    /// The stable code, shared with Python, C and the command line.
    ///
    /// ```
    /// use effectstore::{Error, model::Refusal};
    /// let error = Error::from(Refusal::InverseRequired { tool: "t".into() });
    /// assert_eq!(error.code(), "inverse_required");
    /// ```
    pub fn code(&self) -> &'static str {
        match self {
            Error::Refused { refusal, .. } => refusal.code(),
            Error::Storage(error) => match error {
                StorageError::StoreBusy { .. } => "store_busy",
                StorageError::StoreFull { .. } => "store_full",
                StorageError::DiskFull { .. } => "disk_full",
                StorageError::Corrupted { .. } => "corrupted",
                StorageError::Format { .. } => "format",
                StorageError::Poisoned { .. } => "poisoned",
                StorageError::NotCommitted { .. } => "not_committed",
                StorageError::CommitUnknown { .. } => "commit_unknown",
                StorageError::Truncated { .. } => "truncated",
                StorageError::Forked { .. } => "forked",
                StorageError::LockLost { .. } => "lock_lost",
                StorageError::HistoryRewound { .. } => "history_rewound",
                StorageError::Closed => "store_closed",
                StorageError::ReadOnly => "read_only",
                StorageError::Options { .. } => "options",
                StorageError::Io { .. } => "io",
            },
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Refused { refusal, index: Some(index) } => write!(f, "item {index}: {refusal}"),
            Error::Refused { refusal, index: None } => refusal.fmt(f),
            Error::Storage(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        Error::Storage(error)
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        Error::Refused { refusal, index: None }
    }
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Refused { refusal, index } => Error::Refused { refusal, index },
            Stop::Unreadable(error) => Error::Storage(StorageError::Corrupted { place: error.0 }),
        }
    }
}
