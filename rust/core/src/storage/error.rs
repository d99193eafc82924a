//! What can go wrong with disk, file or process. Rules of the store are not refused in here.

use std::fmt;
use std::io;

/// Why a commit kept nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommitFailure {
    /// The disk had no room left. The store goes on.
    DiskFull,
    /// The memory map was full. The store goes on.
    MapFull,
    /// The batch held more pages than one transaction may. The store goes on.
    BatchTooLarge,
    /// A writing method of the batch had failed before. The store goes on.
    BatchBroken,
    /// This process has seen as many new log segments as it has handles for. The files must be
    /// opened again.
    HandlesExhausted,
    /// The system refused a write or a flush; its words. The files must be opened again.
    Io(String),
}

impl fmt::Display for CommitFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiskFull => f.write_str("the disk is full"),
            Self::MapFull => f.write_str("the memory map is full"),
            Self::BatchTooLarge => f.write_str("the batch is too large for one transaction"),
            Self::BatchBroken => f.write_str("an earlier write of the batch had failed"),
            Self::HandlesExhausted => f.write_str("no handle is left for a new log segment"),
            Self::Io(text) => write!(f, "the system refused a write or a flush: {text}"),
        }
    }
}

/// An error of disk, file or process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageError {
    /// Somebody else holds the store's writer lock.
    StoreBusy {
        /// The process that holds it; 0 if unknown.
        pid: u32,
        /// For how long it has, in milliseconds.
        held_for_ms: u64,
        /// Whether its number counts in another process namespace, that of another container.
        elsewhere: bool,
    },
    /// The memory map is full.
    StoreFull {
        /// Size of the map in bytes.
        map_size_bytes: u64,
    },
    /// The disk reserve could not be refilled, or the disk refused a write.
    DiskFull {
        /// What was being written.
        op: String,
    },
    /// The files hold something that this program did not write.
    Corrupted {
        /// The first bad place.
        place: String,
    },
    /// The files are no store, or one of a format that this program does not handle.
    Format {
        /// What is different.
        reason: String,
    },
    /// An earlier panic left the store unusable in this process.
    Poisoned {
        /// The panic's words.
        cause: String,
    },
    /// A commit failed and nothing of its batch was kept.
    NotCommitted {
        /// Why.
        cause: CommitFailure,
    },
    /// A commit failed at a point where it may have been kept, whole.
    CommitUnknown {
        /// What the system said.
        cause: String,
    },
    /// The data file is shorter than its own pages need.
    Truncated {
        /// Its length in bytes.
        have: u64,
        /// The length needed in bytes.
        need: u64,
    },
    /// The process is a child of the one that opened the store.
    Forked {
        /// The process that opened it.
        opened_by: u32,
    },
    /// The lock file was deleted or replaced while the store was open.
    LockLost {
        /// What is there instead.
        reason: String,
    },
    /// The store's history is older than what this process has seen of it.
    HistoryRewound {
        /// The head seen before.
        seen: u64,
        /// The head found now; `None` when the data file itself is another one.
        found: Option<u64>,
    },
    /// The store was closed, or could not be reopened after a failed commit.
    Closed,
    /// A write to a store that was opened for reading.
    ReadOnly,
    /// An option or argument that cannot be used.
    Options {
        /// Its name.
        option: &'static str,
        /// What is wrong with it and what to give instead.
        reason: String,
    },
    /// The system refused an operation.
    Io {
        /// The operation and the file it was about.
        op: String,
        /// The system's words.
        source: String,
    },
}

impl StorageError {
    /// An [`StorageError::Io`] from the system's answer; a full disk becomes
    /// [`StorageError::DiskFull`].
    pub(crate) fn io(op: impl Into<String>, source: &io::Error) -> Self {
        let op = op.into();
        if is_no_space(source) {
            return Self::DiskFull { op };
        }
        Self::Io { op, source: source.to_string() }
    }

    /// A [`StorageError::Corrupted`] at this place.
    pub(crate) fn corrupted(place: impl Into<String>) -> Self {
        Self::Corrupted { place: place.into() }
    }

    /// A stable name for programs, the same in every language.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::StoreBusy { .. } => "store_busy",
            Self::StoreFull { .. } => "store_full",
            Self::DiskFull { .. } => "disk_full",
            Self::Corrupted { .. } => "corrupted",
            Self::Format { .. } => "format",
            Self::Poisoned { .. } => "poisoned",
            Self::NotCommitted { .. } => "not_committed",
            Self::CommitUnknown { .. } => "commit_unknown",
            Self::Truncated { .. } => "truncated",
            Self::Forked { .. } => "forked",
            Self::LockLost { .. } => "lock_lost",
            Self::HistoryRewound { .. } => "history_rewound",
            Self::Closed => "store_closed",
            Self::ReadOnly => "read_only",
            Self::Options { .. } => "options",
            Self::Io { .. } => "io",
        }
    }

    /// Whether [`super::Storage::reopen`] must be called before the next write.
    pub const fn needs_reopen(&self) -> bool {
        matches!(
            self,
            Self::NotCommitted { cause: CommitFailure::Io(_) | CommitFailure::HandlesExhausted }
                | Self::CommitUnknown { .. }
                | Self::Closed
        )
    }
}

/// Whether the system says that there is no room: on the disk, by quota, or by the process's
/// limit on file sizes.
pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StoreBusy { pid, held_for_ms, elsewhere } => {
                write_busy(f, *pid, *held_for_ms, *elsewhere)
            }
            Self::StoreFull { map_size_bytes } => write!(
                f,
                "the store has used up its map of {map_size_bytes} bytes and nothing was stored; \
                 close old readers, or export it into a store created with a larger map_size"
            ),
            Self::DiskFull { op } => {
                write!(f, "the disk is full ({op}); free some space and try again")
            }
            Self::Corrupted { place } => write!(
                f,
                "the store is damaged at {place}; stop writing to it, verify it and restore a \
                 backup"
            ),
            Self::Format { reason } => {
                write!(f, "this program cannot use these files: {reason}; they were left untouched")
            }
            Self::Poisoned { cause } => write!(
                f,
                "an earlier panic in this process left the store unusable ({cause}); close and \
                 open it again"
            ),
            Self::NotCommitted { cause } => {
                write!(f, "the commit failed and nothing of it was kept: {cause}")
            }
            Self::CommitUnknown { cause } => write!(
                f,
                "the commit failed where it may have been kept ({cause}); reopen the store and \
                 look for what it wrote before trying again"
            ),
            Self::Truncated { have, need } => write!(
                f,
                "the data file has {have} bytes and needs {need}: it was cut off; restore a backup"
            ),
            Self::Forked { opened_by } => write!(
                f,
                "the store was opened by process {opened_by} before a fork and cannot be used in \
                 its child; open it anew here"
            ),
            Self::LockLost { reason } => write!(
                f,
                "the store's lock file is not the one that was opened ({reason}), so others could \
                 write at the same time; close the store everywhere and open it again. If its \
                 directory was removed, the store is gone with it: restore a backup"
            ),
            Self::HistoryRewound { seen, found: Some(found) } => write!(
                f,
                "the log ended at {seen} and now ends at {found}: the files were replaced by an \
                 older copy; close the store and find out who did"
            ),
            Self::HistoryRewound { seen, found: None } => write!(
                f,
                "the data file was replaced while its log ended at {seen}; close the store \
                 everywhere, find out who did, and open it again"
            ),
            Self::Closed => f.write_str("the store is closed; open it again"),
            Self::ReadOnly => {
                f.write_str("the store was opened for reading; open it without read_only to write")
            }
            Self::Options { option, reason } => write!(f, "{option}: {reason}"),
            Self::Io { op, source } => write!(f, "{op} failed: {source}"),
        }
    }
}

fn write_busy(
    f: &mut fmt::Formatter<'_>,
    pid: u32,
    held_for_ms: u64,
    elsewhere: bool,
) -> fmt::Result {
    match (pid, elsewhere) {
        (0, _) => f.write_str(
            "the store is being written by a process that cannot be named from here (another \
             container's, it may be); try again, or look there for one that hangs",
        ),
        (_, true) => write!(
            f,
            "the store is being written since {held_for_ms} ms by a process that another container \
             counts as number {pid}; try again, or end it there"
        ),
        (_, false) => write!(
            f,
            "the store is being written by process {pid} since {held_for_ms} ms; try again, or end \
             that process"
        ),
    }
}

impl std::error::Error for StorageError {}
