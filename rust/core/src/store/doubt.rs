//! What callers are told where nobody could say at first whether a commit was kept.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use super::{EffectStore, NewBranch, Options};
use crate::error::Error;
use crate::model::BranchInfo;
use crate::storage::{
    FormatRecord, MemoryStorage, ReadView, RecordVisitor, RowVisitor, Storage, StorageError,
    StorageOptions, StorageStats, Table, WriteBatch, WriteTurn,
};

const SURE: u8 = 0;
const KEPT: u8 = 1;
const LOST: u8 = 2;
/// Lost, and the commit that is to settle it fails as well.
const LOST_FOR_NOW: u8 = 3;

/// A storage in memory that leaves the next commit in doubt, as a failed write of LMDB's meta page
/// does: whether it was kept is what the mood says.
struct Doubtful {
    inner: MemoryStorage,
    mood: AtomicU8,
}

struct Batch<'s> {
    inner: Box<dyn WriteBatch + 's>,
    mood: &'s AtomicU8,
}

impl ReadView for Batch<'_> {
    fn head(&self) -> Result<u64, StorageError> {
        self.inner.head()
    }

    fn record(&self, seq: u64) -> Result<Option<std::borrow::Cow<'_, [u8]>>, StorageError> {
        self.inner.record(seq)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.inner.get(table, key)
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        self.inner.scan(from, visit)
    }

    fn rows(
        &self,
        table: Table,
        from: &[u8],
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StorageError> {
        self.inner.rows(table, from, visit)
    }
}

impl WriteBatch for Batch<'_> {
    fn append(&mut self, seq: u64, record: &[u8]) -> Result<(), StorageError> {
        self.inner.append(seq, record)
    }

    fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), StorageError> {
        self.inner.put(table, key, value)
    }

    fn delete(&mut self, table: Table, key: &[u8]) -> Result<(), StorageError> {
        self.inner.delete(table, key)
    }

    fn commit(self: Box<Self>) -> Result<(), StorageError> {
        let doubt = || StorageError::CommitUnknown { cause: "the meta page".into() };
        match self.mood.load(Ordering::Relaxed) {
            KEPT => {
                self.mood.store(SURE, Ordering::Relaxed);
                self.inner.commit()?;
                Err(doubt())
            }
            LOST => {
                self.mood.store(SURE, Ordering::Relaxed);
                Err(doubt())
            }
            LOST_FOR_NOW => Err(doubt()),
            _ => self.inner.commit(),
        }
    }
}

impl Storage for Doubtful {
    fn read(&self) -> Result<Box<dyn ReadView + '_>, StorageError> {
        self.inner.read()
    }

    fn take_turn(&self, patience: Duration) -> Result<WriteTurn<'_>, StorageError> {
        self.inner.take_turn(patience)
    }

    fn write_in<'s>(
        &'s self,
        turn: WriteTurn<'s>,
    ) -> Result<Box<dyn WriteBatch + 's>, StorageError> {
        Ok(Box::new(Batch { inner: self.inner.write_in(turn)?, mood: &self.mood }))
    }

    fn durable_head(&self) -> u64 {
        self.inner.durable_head()
    }

    fn changes(&self) -> u32 {
        self.inner.changes()
    }

    fn wait_for_change(&self, seen: u32, at_most: Duration) {
        self.inner.wait_for_change(seen, at_most);
    }

    fn announce(&self) {
        self.inner.announce();
    }

    fn stats(&self) -> Result<StorageStats, StorageError> {
        self.inner.stats()
    }

    fn format(&self) -> FormatRecord {
        self.inner.format()
    }

    fn reserve_ok(&self) -> Result<(), StorageError> {
        self.inner.reserve_ok()
    }

    fn backup(&self, to: &Path, marks: &[(&[u8], &[u8])]) -> Result<(), StorageError> {
        self.inner.backup(to, marks)
    }

    fn process_has_open(&self, pid: u32) -> Result<bool, StorageError> {
        self.inner.process_has_open(pid)
    }

    fn hold(&self, seq: u64) -> Result<(), StorageError> {
        self.inner.hold(seq)
    }

    fn let_go(&self, seq: u64) -> Result<(), StorageError> {
        self.inner.let_go(seq)
    }

    fn is_held_elsewhere(&self, seq: u64) -> Result<bool, StorageError> {
        self.inner.is_held_elsewhere(seq)
    }

    fn reopen(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// A store with one branch, the next commit of which is in doubt.
fn in_doubt(mood: u8) -> (Arc<Doubtful>, EffectStore, BranchInfo) {
    let inner = MemoryStorage::new([7; 16], &StorageOptions::default());
    let storage = Arc::new(Doubtful { inner, mood: AtomicU8::new(SURE) });
    let shared = Arc::clone(&storage) as Arc<dyn Storage>;
    let store = EffectStore::start(shared, PathBuf::from(":memory:"), Options::default()).unwrap();
    let branch = store.create_branch(NewBranch::named("a")).unwrap();
    storage.mood.store(mood, Ordering::Relaxed);
    (storage, store, branch)
}

fn names(store: &EffectStore) -> Vec<String> {
    store.branches(0, 10).unwrap().into_iter().map(|branch| branch.name).collect()
}

#[test]
fn a_commit_in_doubt_that_was_kept_is_answered_as_if_nothing_had_happened() {
    let (_, store, _) = in_doubt(KEPT);
    let made = store.create_branch(NewBranch::named("b")).unwrap();
    assert_eq!(store.branch(made.id).unwrap().name, "b");
    store.create_branch(NewBranch::named("c")).unwrap();
    assert_eq!(names(&store), ["a", "b", "c"]);
    store.verify(None).unwrap();
}

#[test]
fn a_commit_in_doubt_that_was_not_kept_is_not_committed_and_can_be_tried_again() {
    let (_, store, _) = in_doubt(LOST);
    let refused = store.create_branch(NewBranch::named("b")).unwrap_err();
    assert!(matches!(refused, Error::Storage(StorageError::NotCommitted { .. })), "{refused}");
    assert_eq!(names(&store), ["a"]);
    store.create_branch(NewBranch::named("b")).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
    store.verify(None).unwrap();
}

#[test]
fn a_commit_stays_in_doubt_only_while_no_other_can_be_made() {
    let (storage, store, _) = in_doubt(LOST_FOR_NOW);
    let refused = store.create_branch(NewBranch::named("b")).unwrap_err();
    assert!(matches!(refused, Error::Storage(StorageError::CommitUnknown { .. })), "{refused}");
    storage.mood.store(SURE, Ordering::Relaxed);
    store.create_branch(NewBranch::named("b")).unwrap();
    assert_eq!(names(&store), ["a", "b"]);
}
