//! Bytes and tables: an append-only log of numbered records and a few side tables, changed
//! together in durable batches. Nothing in here knows what an effect is.
//!
//! Invariants:
//! - The log is numbered from 1 without gaps; a record never changes once its batch is committed.
//! - A batch is there whole or not at all, and is durable when [`WriteBatch::commit`] returns `Ok`.
//! - A [`ReadView`] shows one committed state for as long as it lives.

use std::borrow::Cow;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

mod error;
mod lmdb;
pub(crate) mod machine;
mod memory;
mod options;
mod turn;

pub use error::{CommitFailure, StorageError};
pub use lmdb::LmdbStorage;
pub use memory::MemoryStorage;
pub use options::{MAX_KEY_BYTES, SegmentLimits, StorageOptions};
pub use turn::WriteTurn;

/// How long [`Storage::write`] waits for other writers.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// A side table. Each one maps byte strings to byte strings in the order of the keys' bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Branches by name.
    Branches,
    /// Idempotency keys and the effects that were registered with them.
    IdempotencyKeys,
    /// Chunks of payloads that are too large to lie in a record.
    Blobs,
    /// Rows of the liveness bitmap.
    Liveness,
    /// Artifacts.
    Artifacts,
    /// Facts about the store itself. Keys that begin with `storage.` belong to this module and
    /// are refused to callers.
    Meta,
}

impl Table {
    /// Every table, in a fixed order.
    pub const ALL: [Self; 6] = [
        Self::Branches,
        Self::IdempotencyKeys,
        Self::Blobs,
        Self::Liveness,
        Self::Artifacts,
        Self::Meta,
    ];

    /// The table's name on disk.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Branches => "branches",
            Self::IdempotencyKeys => "idempotency_keys",
            Self::Blobs => "blobs",
            Self::Liveness => "liveness",
            Self::Artifacts => "artifacts",
            Self::Meta => "meta",
        }
    }

    /// The table's place in [`Table::ALL`].
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a visitor of [`ReadView::scan`] is: called with each record's number and bytes.
pub type RecordVisitor<'v> = dyn FnMut(u64, &[u8]) -> ControlFlow<()> + 'v;

/// What a visitor of [`ReadView::rows`] is: called with each row's key and value.
pub type RowVisitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// One consistent state of the store. Keep it short-lived: an old view stops the store from
/// reusing space.
pub trait ReadView {
    /// The number of the last record; 0 for an empty log.
    fn head(&self) -> Result<u64, StorageError>;

    /// The record of this number, or `None` if the log does not hold it.
    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError>;

    /// The value under `key`, or `None`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError>;

    /// Visits the records from `from` (inclusive) upwards until the visitor breaks or the log
    /// ends.
    ///
    /// # Errors
    /// [`StorageError::Corrupted`] names the first number that is missing.
    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError>;

    /// Visits the rows of a table from the key `from` (inclusive) upwards until the visitor
    /// breaks or the table ends.
    fn rows(
        &self,
        table: Table,
        from: &[u8],
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StorageError>;
}

/// A write transaction. It sees its own writes; dropping it without [`WriteBatch::commit`] leaves
/// the store as it was. There is one at a time, and it stays on the thread that began it.
///
/// After an error of a writing method the batch cannot be committed any more.
pub trait WriteBatch: ReadView {
    /// Appends a record. Its number must be the head's plus one.
    ///
    /// # Errors
    /// [`StorageError::Options`] for another number, [`StorageError::StoreFull`] when the map is
    /// full.
    fn append(&mut self, seq: u64, record: &[u8]) -> Result<(), StorageError>;

    /// Puts a row, replacing the one under the same key.
    ///
    /// # Errors
    /// [`StorageError::Options`] for an empty key, one longer than [`MAX_KEY_BYTES`] or one that
    /// this module keeps for itself; [`StorageError::StoreFull`] when the map is full.
    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StorageError>;

    /// Deletes a row; nothing happens if there is none.
    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StorageError>;

    /// Makes the batch durable and visible.
    ///
    /// # Errors
    /// [`StorageError::NotCommitted`]: nothing of it was kept.
    /// [`StorageError::CommitUnknown`]: it was kept whole or not at all, and nobody can say which
    /// before [`Storage::reopen`]. See [`StorageError::needs_reopen`].
    fn commit(self: Box<Self>) -> Result<(), StorageError>;
}

/// A store of records and tables that threads share.
pub trait Storage: Send + Sync {
    /// A view of the newest committed state.
    fn read(&self) -> Result<Box<dyn ReadView + '_>, StorageError>;

    /// Waits until no other thread or process has the turn to write, and takes it. Whoever gives
    /// it back and wants it again comes after those who wait.
    ///
    /// # Errors
    /// [`StorageError::StoreBusy`] when `patience` is over: it names the process that has it.
    fn take_turn(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError>;

    /// Begins a batch; the turn is given back with it.
    fn write_in<'s>(
        &'s self,
        turn: WriteTurn<'s>,
    ) -> Result<Box<dyn WriteBatch + 's>, StorageError>;

    /// Begins a batch, after waiting for the turn as long as [`WRITE_PATIENCE`].
    ///
    /// # Errors
    /// [`StorageError::StoreBusy`], and as for the batch.
    fn write(&self) -> Result<Box<dyn WriteBatch + '_>, StorageError> {
        self.write_in(self.take_turn(WRITE_PATIENCE)?)
    }

    /// How far the log is durable, as the last writer of any process said. A hint: it may lag, and
    /// a damaged page may say anything.
    fn durable_head(&self) -> u64;

    /// A count that each durable batch of any process moves.
    fn changes(&self) -> u32;

    /// Sleeps until the count is not `seen` any more, or `at_most` so long; it may wake early, and
    /// for a change that others made it may rarely sleep the whole time.
    fn wait_for_change(&self, seen: u32, at_most: Duration);

    /// Wakes everybody who waits for a change.
    fn announce(&self);

    /// Sizes and counts, for metrics.
    fn stats(&self) -> Result<StorageStats, StorageError>;

    /// What the store said about itself at its creation.
    fn format(&self) -> FormatRecord;

    /// Whether the disk reserve is full. When it is not, the layer above refuses new work with the
    /// error given here and goes on with what ends or undoes old work.
    ///
    /// # Errors
    /// [`StorageError::DiskFull`] when the last attempt to refill the reserve failed.
    fn reserve_ok(&self) -> Result<(), StorageError>;

    /// Writes a copy of the newest committed state into the directory `to`, which must not exist
    /// or be empty, and puts `marks` into the copy's [`Table::Meta`].
    fn backup(&self, to: &Path, marks: &[(&[u8], &[u8])]) -> Result<(), StorageError>;

    /// Whether the process of this number has the store open. Another process's number is
    /// meaningful only among processes that share a process namespace.
    fn process_has_open(&self, pid: u32) -> Result<bool, StorageError>;

    /// Marks that this process is at what record `seq` says, until it lets go or ends, however that
    /// comes about. The mark is no part of the store's content.
    fn hold(&self, seq: u64) -> Result<(), StorageError>;

    /// Takes a mark of this process away.
    fn let_go(&self, seq: u64) -> Result<(), StorageError>;

    /// Whether another process has the mark of record `seq`. This process's own marks do not count.
    fn is_held_elsewhere(&self, seq: u64) -> Result<bool, StorageError>;

    /// Closes and opens the files again after an error for which
    /// [`StorageError::needs_reopen`] holds. Waits until every view and batch is gone, so the
    /// caller must hold none. Before anything is read from the answer that others may act on, the
    /// caller must make one durable commit: what a failed commit left could otherwise still
    /// vanish in a power cut.
    fn reopen(&self) -> Result<(), StorageError>;
}

/// Sizes and counts of a store at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StorageStats {
    /// Number of the last record.
    pub head: u64,
    /// Number of log segments.
    pub segments: u64,
    /// Rows of each table, in the order of [`Table::ALL`].
    pub rows: [u64; 6],
    /// Length of the data file in bytes; 0 where there is none.
    pub file_bytes: u64,
    /// Bytes of the data file that the newest state may use.
    pub used_bytes: u64,
    /// Zeroes written ahead of `used_bytes`.
    pub reserve_bytes: u64,
    /// Size of the memory map in bytes; 0 where there is none.
    pub map_size_bytes: u64,
    /// Whether the reserve keeps its promise on this file system. On overlay and copy-on-write
    /// file systems, zeroes that are overwritten need room anew.
    pub reserve_is_sure: bool,
    /// Views that are open, over all processes.
    pub readers: u32,
    /// Reader slots there are.
    pub max_readers: u32,
    /// The view that keeps the most space from being reused. `None`: nobody reads.
    pub oldest_reader: Option<OldestReader>,
}

/// The oldest view there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldestReader {
    /// Number of the process that holds it.
    pub pid: u32,
    /// How many committed transactions have followed it.
    pub transactions_behind: u64,
}

/// Whether a key of [`Table::Meta`] belongs to this module.
pub(crate) fn is_own_key(table: Table, key: &[u8]) -> bool {
    table == Table::Meta && key.starts_with(OWN_PREFIX)
}

/// What the keys of [`Table::Meta`] begin with that belong to this module.
pub(crate) const OWN_PREFIX: &[u8] = b"storage.";

/// Refuses keys that no table can hold or that callers may not touch.
pub(crate) fn check_key(table: Table, key: &[u8]) -> Result<(), StorageError> {
    let reason = if key.is_empty() {
        "an empty key cannot be stored".to_owned()
    } else if key.len() > MAX_KEY_BYTES {
        format!("{} bytes are more than the {MAX_KEY_BYTES} of a table's key", key.len())
    } else if is_own_key(table, key) {
        "keys of meta that begin with `storage.` belong to the storage".to_owned()
    } else {
        return Ok(());
    };
    Err(StorageError::Options { option: "key", reason })
}

/// Refuses a record that does not follow the head.
pub(crate) fn check_next(head: u64, seq: u64) -> Result<(), StorageError> {
    if head.checked_add(1) == Some(seq) {
        return Ok(());
    }
    let reason = format!("{seq} was given and the log ends at {head}");
    Err(StorageError::Options { option: "seq", reason })
}

/// What a store says about itself; written once, at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FormatRecord {
    /// Version of the file format.
    pub version: u32,
    /// Oldest version of the format whose programs may read this store.
    pub min_reader: u32,
    /// Oldest version of the format whose programs may write this store.
    pub min_writer: u32,
    /// Version of LMDB's own data format; 0 in memory.
    pub lmdb_data_version: u32,
    /// Bytes of a page; 0 in memory.
    pub page_size_bytes: u32,
    /// Whether numbers inside LMDB's pages are little-endian.
    pub little_endian: bool,
    /// Size of the memory map in bytes; 0 in memory.
    pub map_size_bytes: u64,
    /// Where segments of the log end.
    pub segments: SegmentLimits,
    /// A random name that no other store has.
    pub store_id: [u8; 16],
    /// When the store was created, as given by the caller: milliseconds since 1970.
    pub created_ms: u64,
}
