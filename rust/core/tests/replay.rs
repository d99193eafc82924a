//! I10, I19: a replay of the log gives equal tables, opening folds to the same state as a replay of
//! everything, and opening reads what is live, however long the history is.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

use std::borrow::Cow;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;

use effectstore::codec::INLINE_PAYLOAD_BYTES;
use effectstore::log::{load, replay};
use effectstore::model::*;
use effectstore::storage::{
    LmdbStorage, MemoryStorage, ReadView, RecordVisitor, RowVisitor, Storage, StorageError,
    StorageOptions, Table,
};
use effectstore::store::{NewBranch, Payloads};
use effectstore::{EffectStore, Options};

/// A view that counts the records that were read through it.
struct Counting<'a> {
    view: &'a dyn ReadView,
    records: Cell<u64>,
}

impl ReadView for Counting<'_> {
    fn head(&self) -> Result<u64, StorageError> {
        self.view.head()
    }

    fn record(&self, seq: u64) -> Result<Option<Cow<'_, [u8]>>, StorageError> {
        self.records.set(self.records.get() + 1);
        self.view.record(seq)
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StorageError> {
        self.view.get(table, key)
    }

    fn scan(&self, from: u64, visit: &mut RecordVisitor<'_>) -> Result<(), StorageError> {
        self.view.scan(from, &mut |seq, bytes| {
            self.records.set(self.records.get() + 1);
            visit(seq, bytes)
        })
    }

    fn rows(
        &self,
        table: Table,
        from: &[u8],
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), StorageError> {
        self.view.rows(table, from, visit)
    }
}

fn call(payloads: &mut Payloads, key: Option<String>) -> Registration {
    let args = payloads.put(b"\xa0".to_vec());
    let call = Registration::new("set", args).inverse(Inverse::call("unset", Some(args)));
    match key {
        Some(key) => call.idempotency_key(key),
        None => call,
    }
}

fn register(
    store: &EffectStore,
    branch: &BranchInfo,
    calls: Vec<Registration>,
    payloads: Payloads,
) -> Vec<Receipt> {
    let place = |call| Placed { branch: branch.id, token: branch.token, call };
    store.register(calls.into_iter().map(place).collect(), payloads, 0).unwrap()
}

/// Registers effects that nothing rests on, reports them from several threads (they share flushes),
/// and commits them.
fn settle(store: &EffectStore, branch: &BranchInfo, count: usize) {
    for share in (0..count).collect::<Vec<_>>().chunks(1_000) {
        let mut payloads = Payloads::default();
        let calls = share.iter().map(|_| call(&mut payloads, None).after([])).collect();
        let receipts = register(store, branch, calls, payloads);
        std::thread::scope(|scope| {
            for receipts in receipts.chunks(share.len().div_ceil(16)) {
                scope.spawn(move || {
                    for receipt in receipts {
                        let (id, token) = (receipt.effect, receipt.token.unwrap());
                        let none = Payloads::default();
                        store.done(id, token, b"\xf6".to_vec(), None, none, false).unwrap();
                    }
                });
            }
        });
        let target = Target::Branch(branch.id);
        let fence = store.commit(target, branch.token, Escalate::Never, 0).unwrap();
        assert_eq!(fence.committed.len(), share.len());
    }
}

fn branch(store: &EffectStore, name: impl Into<String>) -> BranchInfo {
    store.create_branch(NewBranch::named(name)).unwrap()
}

/// Opening folds to the state that a replay of everything gives; the records that opening reads.
fn opened_records(storage: &dyn Storage) -> (u64, u64) {
    let view = storage.read().unwrap();
    let counting = Counting { view: view.as_ref(), records: Cell::new(0) };
    let loaded = load(&counting).unwrap();
    let rebuilt = MemoryStorage::new([0; 16], &StorageOptions::default());
    let mut batch = rebuilt.write().unwrap();
    let replayed = replay(view.as_ref(), batch.as_mut()).unwrap();
    assert_eq!(loaded.state.difference(&replayed.state), None, "opening is not a full fold");
    (counting.records.get(), view.head().unwrap())
}

fn storage(path: &Path) -> std::sync::Arc<LmdbStorage> {
    LmdbStorage::open(path, &StorageOptions::default()).unwrap()
}

fn rows(storage: &dyn Storage, table: Table, from: u8, until: u8) -> usize {
    let mut count = 0;
    let view = storage.read().unwrap();
    view.rows(table, &[from], &mut |key, _| {
        if key[0] > until {
            return ControlFlow::Break(());
        }
        count += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    count
}

#[test]
fn i10_replay_rebuilds_every_table_with_a_thousand_names_keys_and_blobs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = EffectStore::open(&path, Options::default()).unwrap();
    let work = branch(&store, "work");
    for number in 0..1_000 {
        branch(&store, format!("branch {number} {}", "x".repeat(600)));
    }
    for share in 0..10 {
        let mut payloads = Payloads::default();
        let calls = (0..100).map(|item| {
            let name = format!("call {share} {item} {}", "k".repeat(600));
            let mut call = call(&mut payloads, Some(name)).after([]);
            // Just above the limit, and each unlike the others.
            let mut blob = vec![0x59; INLINE_PAYLOAD_BYTES + 1];
            blob[..8].copy_from_slice(&(share * 100 + item as u64).to_le_bytes());
            call.args = payloads.put(blob);
            call
        });
        let calls = calls.collect();
        register(&store, &work, calls, payloads);
    }
    store.verify(None).unwrap();
    store.close().unwrap();
    drop(store);
    {
        let storage = storage(&path);
        assert!(rows(storage.as_ref(), Table::Branches, 1, 1) > 1_000);
        assert!(rows(storage.as_ref(), Table::IdempotencyKeys, 0, 255) >= 1_000);
        assert!(rows(storage.as_ref(), Table::Blobs, 0, 255) >= 2_000, "two chunks each");
        opened_records(storage.as_ref());
    }
    let store = EffectStore::open(&path, Options::default()).unwrap();
    store.verify(None).unwrap();
    let known = store.branch_named(&format!("branch 999 {}", "x".repeat(600))).unwrap();
    assert_eq!(known.state, BranchState::Open);
}

#[test]
fn i19_opening_reads_what_is_live_and_what_came_after_the_last_fold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = EffectStore::open(&path, Options::default()).unwrap();
    let old = branch(&store, "straggler");
    let mut payloads = Payloads::default();
    let first = call(&mut payloads, None).writes("old");
    let straggler = register(&store, &old, vec![first], payloads)[0].effect;
    let work = branch(&store, "work");
    let mut doomed = Vec::new();
    for round in 0..5 {
        settle(&store, &work, 3_500);
        let lost = branch(&store, format!("lost {round}"));
        let mut payloads = Payloads::default();
        let calls = (0..20).map(|_| call(&mut payloads, None).after([])).collect();
        doomed.extend(register(&store, &lost, calls, payloads));
        store.abort(Target::Branch(lost.id), lost.token, "another way was better", None).unwrap();
    }
    store.verify(None).unwrap();
    store.close().unwrap();
    drop(store);
    {
        let storage = storage(&path);
        let storage: &dyn Storage = storage.as_ref();
        let (read, head) = opened_records(storage);
        assert!(head > 2 * 16_384, "the log has {head} records, too few for several rows");
        assert!(rows(storage, Table::Liveness, 0, 0xfe) >= 2, "several rows of liveness");
        // Two records for each effect settled since the last fold, and what is live.
        assert!(read < 2 * (4_096 + 1_000) + 1_000, "opening read {read} of {head} records");
    }
    let store = EffectStore::open(&path, Options::default()).unwrap();
    assert_eq!(store.effect(straggler).unwrap().state, EffectState::Live);
    assert_eq!(store.effect(doomed[0].effect).unwrap().state, EffectState::Doomed);
    store.verify(None).unwrap();
}
