//! What LMDB's errors mean here.

use std::io;

use heed::MdbError;

use crate::storage::error::is_no_space;
use crate::storage::{CommitFailure, StorageError};

/// The error of a step other than a commit. `op` names the step.
pub(super) fn of_step(op: &str, map_size_bytes: u64, error: &heed::Error) -> StorageError {
    match error {
        heed::Error::Io(source) => of_system(op, map_size_bytes, source),
        heed::Error::Mdb(error) => of_lmdb(op, map_size_bytes, *error),
        heed::Error::EnvAlreadyOpened => StorageError::Options {
            option: "path",
            reason: "another handle of this process has these files open".to_owned(),
        },
        heed::Error::Encoding(source) | heed::Error::Decoding(source) => {
            StorageError::Io { op: op.to_owned(), source: source.to_string() }
        }
    }
}

fn of_system(op: &str, map_size_bytes: u64, source: &io::Error) -> StorageError {
    if source.raw_os_error() == Some(libc::ENOMEM) {
        return StorageError::Options {
            option: "map_size",
            reason: format!(
                "{op}: the system does not allow a map of {map_size_bytes} bytes; raise the limit \
                 on address space (ulimit -v), or create the store with a smaller map_size"
            ),
        };
    }
    StorageError::io(op, source)
}

fn of_lmdb(op: &str, map_size_bytes: u64, error: MdbError) -> StorageError {
    match error {
        MdbError::MapFull => StorageError::StoreFull { map_size_bytes },
        MdbError::Corrupted | MdbError::PageNotFound | MdbError::KeyExist => {
            StorageError::corrupted(format!("{op} ({error})"))
        }
        MdbError::Invalid | MdbError::VersionMismatch | MdbError::Incompatible => {
            StorageError::Format { reason: format!("{op}: {error}") }
        }
        MdbError::ReadersFull => StorageError::Options {
            option: "max_readers",
            reason: "every reader slot is in use; close iterators and views, or open the store \
                     with more slots once every process has closed it"
                .to_owned(),
        },
        MdbError::Panic => StorageError::Closed,
        MdbError::DbsFull => not_committed(CommitFailure::HandlesExhausted),
        MdbError::TxnFull => not_committed(CommitFailure::BatchTooLarge),
        MdbError::BadTxn => not_committed(CommitFailure::BatchBroken),
        other => StorageError::Io { op: op.to_owned(), source: other.to_string() },
    }
}

/// The error of a commit. `fatal` says that LMDB failed while it wrote the meta page: after that
/// nobody can tell whether the disk has the old page or the new one.
pub(super) fn of_commit(fatal: bool, error: &heed::Error) -> StorageError {
    if fatal {
        return StorageError::CommitUnknown { cause: error.to_string() };
    }
    not_committed(match error {
        heed::Error::Io(source) if is_no_space(source) => CommitFailure::DiskFull,
        heed::Error::Mdb(MdbError::MapFull) => CommitFailure::MapFull,
        heed::Error::Mdb(MdbError::TxnFull) => CommitFailure::BatchTooLarge,
        heed::Error::Mdb(MdbError::BadTxn) => CommitFailure::BatchBroken,
        heed::Error::Mdb(MdbError::DbsFull) => CommitFailure::HandlesExhausted,
        other => CommitFailure::Io(other.to_string()),
    })
}

const fn not_committed(cause: CommitFailure) -> StorageError {
    StorageError::NotCommitted { cause }
}
