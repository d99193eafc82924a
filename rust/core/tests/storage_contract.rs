//! What every storage promises, checked on each of them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::ops::ControlFlow;
use std::sync::Arc;

use effectstore::storage::{
    LmdbStorage, MAX_KEY_BYTES, MemoryStorage, ReadView, SegmentLimits, Storage, StorageError,
    StorageOptions, Table,
};
use proptest::prelude::*;

fn options() -> StorageOptions {
    StorageOptions {
        map_size_bytes: Some(1 << 28),
        reserve_bytes: 256 << 10,
        segments: SegmentLimits { records: 7, bytes: 400 },
        created_ms: 1_700_000_000_000,
        ..StorageOptions::default()
    }
}

/// Runs a test on each storage.
fn on_each(test: impl Fn(&dyn Storage)) {
    test(&MemoryStorage::new([7; 16], &options()));
    let dir = tempfile::tempdir().unwrap();
    let lmdb: Arc<LmdbStorage> = LmdbStorage::open(&dir.path().join("s"), &options()).unwrap();
    test(&*lmdb);
}

fn record_of(seq: u64) -> Vec<u8> {
    let length = usize::try_from(seq * 37 % 150).unwrap();
    let mut bytes = format!("record {seq}").into_bytes();
    bytes.resize(bytes.len() + length, b'.');
    bytes
}

fn append(storage: &dyn Storage, count: u64) {
    let mut batch = storage.write().unwrap();
    for seq in (batch.head().unwrap() + 1..).take(usize::try_from(count).unwrap()) {
        batch.append(seq, &record_of(seq)).unwrap();
    }
    batch.commit().unwrap();
}

fn scan(view: &(impl ReadView + ?Sized), from: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    view.scan(from, &mut |seq, record| {
        found.push((seq, record.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn rows(view: &(impl ReadView + ?Sized), table: Table, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    view.rows(table, from, &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn expected(numbers: std::ops::RangeInclusive<u64>) -> Vec<(u64, Vec<u8>)> {
    numbers.map(|seq| (seq, record_of(seq))).collect()
}

#[test]
fn an_empty_log_has_head_zero() {
    on_each(|storage| {
        let view = storage.read().unwrap();
        assert_eq!(view.head().unwrap(), 0);
        assert_eq!(view.record(0).unwrap(), None);
        assert_eq!(view.record(1).unwrap(), None);
        assert_eq!(scan(&*view, 0), []);
        assert_eq!(storage.stats().unwrap().head, 0);
        assert_eq!(storage.format().created_ms, 1_700_000_000_000);
        assert_eq!(storage.reserve_ok(), Ok(()));
    });
}

#[test]
fn records_come_back_in_order_over_many_segments() {
    on_each(|storage| {
        for count in [1, 5, 1, 2, 30, 1, 0, 11] {
            append(storage, count);
        }
        let view = storage.read().unwrap();
        assert_eq!(view.head().unwrap(), 51);
        for from in [0, 1, 2, 6, 7, 8, 9, 14, 15, 50, 51, 52, u64::MAX] {
            assert_eq!(scan(&*view, from), expected(from.max(1)..=51), "from {from}");
        }
        for seq in 1..=51 {
            assert_eq!(view.record(seq).unwrap().unwrap(), record_of(seq));
        }
        for seq in [0, 52, u64::MAX] {
            assert_eq!(view.record(seq).unwrap(), None);
        }
        let mut visited = 0;
        view.scan(3, &mut |seq, _| {
            visited += 1;
            if seq == 12 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!(visited, 10);
    });
}

#[test]
fn a_batch_sees_its_own_records_over_segments() {
    on_each(|storage| {
        append(storage, 4);
        let mut batch = storage.write().unwrap();
        for seq in 5..=40 {
            batch.append(seq, &record_of(seq)).unwrap();
            assert_eq!(batch.head().unwrap(), seq);
            assert_eq!(batch.record(seq).unwrap().unwrap(), record_of(seq));
            assert_eq!(batch.record(seq + 1).unwrap(), None);
        }
        for from in [0, 1, 4, 5, 7, 8, 20, 40, 41] {
            assert_eq!(scan(&*batch, from), expected(from.max(1)..=40), "from {from}");
        }
        let mut visited = Vec::new();
        batch
            .scan(2, &mut |seq, _| {
                visited.push(seq);
                if seq == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(visited, [2, 3]);
        assert_eq!(storage.read().unwrap().head().unwrap(), 4);
        batch.commit().unwrap();
        assert_eq!(scan(&*storage.read().unwrap(), 1), expected(1..=40));
    });
}

#[test]
fn numbers_must_follow_the_head() {
    on_each(|storage| {
        append(storage, 3);
        let mut batch = storage.write().unwrap();
        for wrong in [0, 1, 3, 5, u64::MAX] {
            let refused = batch.append(wrong, b"x").unwrap_err();
            assert!(matches!(refused, StorageError::Options { option: "seq", .. }), "{refused}");
        }
        batch.append(4, &record_of(4)).unwrap();
        batch.commit().unwrap();
        assert_eq!(storage.read().unwrap().head().unwrap(), 4);
    });
}

#[test]
fn rows_are_put_replaced_deleted_and_listed_in_order() {
    on_each(|storage| {
        let mut batch = storage.write().unwrap();
        for (index, table) in Table::ALL.into_iter().enumerate() {
            for key in ["b", "a", "ab", "c"] {
                batch.put(table, key.as_bytes(), format!("{key}{index}").as_bytes()).unwrap();
            }
        }
        batch.commit().unwrap();
        let mut batch = storage.write().unwrap();
        batch.put(Table::Branches, b"b", b"new").unwrap();
        batch.put(Table::Branches, b"aa", b"").unwrap();
        batch.delete(Table::Branches, b"a").unwrap();
        batch.delete(Table::Branches, b"none").unwrap();
        let own: Vec<_> = [("aa", ""), ("ab", "ab0"), ("b", "new"), ("c", "c0")]
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .into();
        assert_eq!(batch.get(Table::Branches, b"a").unwrap(), None);
        assert_eq!(batch.get(Table::Branches, b"b").unwrap().unwrap(), b"new");
        assert_eq!(rows(&*batch, Table::Branches, b""), own);
        assert_eq!(rows(&*batch, Table::Branches, b"b"), own[2..]);
        batch.commit().unwrap();
        let view = storage.read().unwrap();
        assert_eq!(rows(&*view, Table::Branches, b""), own);
        assert_eq!(rows(&*view, Table::Branches, b"ab"), own[1..]);
        assert_eq!(rows(&*view, Table::Branches, b"abc"), own[2..]);
        assert_eq!(rows(&*view, Table::Branches, b"d"), []);
        assert_eq!(rows(&*view, Table::Branches, &[b'b'; 600]), own[3..]);
        assert_eq!(rows(&*view, Table::Meta, b"").len(), 4);
        assert_eq!(storage.stats().unwrap().rows, [4; 6]);
    });
}

#[test]
fn a_dropped_batch_leaves_nothing() {
    on_each(|storage| {
        append(storage, 5);
        let mut batch = storage.write().unwrap();
        for seq in 6..=30 {
            batch.append(seq, b"gone").unwrap();
        }
        batch.put(Table::Meta, b"k", b"gone").unwrap();
        drop(batch);
        assert_eq!(scan(&*storage.read().unwrap(), 1), expected(1..=5));
        assert_eq!(storage.read().unwrap().get(Table::Meta, b"k").unwrap(), None);
        append(storage, 25);
        assert_eq!(scan(&*storage.read().unwrap(), 1), expected(1..=30));
    });
}

#[test]
fn a_view_keeps_its_state() {
    on_each(|storage| {
        append(storage, 5);
        let old = storage.read().unwrap();
        append(storage, 20);
        let mut batch = storage.write().unwrap();
        batch.put(Table::Blobs, b"k", b"v").unwrap();
        batch.commit().unwrap();
        assert_eq!(scan(&*old, 1), expected(1..=5));
        assert_eq!(old.head().unwrap(), 5);
        assert_eq!(old.record(6).unwrap(), None);
        assert_eq!(old.get(Table::Blobs, b"k").unwrap(), None);
        assert_eq!(storage.read().unwrap().head().unwrap(), 25);
    });
}

#[test]
fn keys_at_the_limit() {
    on_each(|storage| {
        let mut batch = storage.write().unwrap();
        for length in [1, 510, 511] {
            batch.put(Table::Artifacts, &vec![b'k'; length], b"v").unwrap();
        }
        for bad in [&b""[..], &[b'k'; MAX_KEY_BYTES + 1], &[b'k'; 10_000]] {
            for refused in [
                batch.put(Table::Artifacts, bad, b"v").unwrap_err(),
                batch.delete(Table::Artifacts, bad).unwrap_err(),
            ] {
                assert!(matches!(refused, StorageError::Options { option: "key", .. }));
            }
            assert_eq!(batch.get(Table::Artifacts, bad).unwrap(), None);
        }
        let refused = batch.put(Table::Meta, b"storage.format", b"").unwrap_err();
        assert!(matches!(refused, StorageError::Options { option: "key", .. }));
        batch.commit().unwrap();
        assert_eq!(rows(&*storage.read().unwrap(), Table::Artifacts, b"").len(), 3);
    });
}

#[test]
fn large_values_come_back() {
    on_each(|storage| {
        let large: Vec<u8> = (0..1_u32 << 20).map(|i| i.to_le_bytes()[1]).collect();
        let mut batch = storage.write().unwrap();
        batch.append(1, &large).unwrap();
        batch.append(2, b"").unwrap();
        batch.put(Table::Blobs, b"large", &large).unwrap();
        batch.commit().unwrap();
        let view = storage.read().unwrap();
        assert_eq!(view.record(1).unwrap().unwrap(), large);
        assert_eq!(view.record(2).unwrap().unwrap(), b"".as_slice());
        assert_eq!(view.get(Table::Blobs, b"large").unwrap().unwrap(), large);
    });
}

#[test]
fn a_thread_cannot_begin_two_batches() {
    on_each(|storage| {
        let batch = storage.write().unwrap();
        let refused = storage.write().err().unwrap();
        assert!(matches!(refused, StorageError::StoreBusy { .. }), "{refused}");
        drop(batch);
        append(storage, 1);
    });
}

#[test]
fn a_panic_inside_a_batch_leaves_no_lock_and_no_change() {
    on_each(|storage| {
        append(storage, 2);
        let panicked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let mut batch = storage.write().unwrap();
                    batch.append(3, b"gone").unwrap();
                    panic!("inside a batch");
                })
                .join()
        });
        assert!(panicked.is_err());
        assert_eq!(storage.read().unwrap().head().unwrap(), 2);
        append(storage, 1);
        assert_eq!(scan(&*storage.read().unwrap(), 1), expected(1..=3));
    });
}

#[test]
fn threads_take_turns() {
    on_each(|storage| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        append(storage, 1);
                        let view = storage.read().unwrap();
                        let head = view.head().unwrap();
                        assert_eq!(view.record(head).unwrap().unwrap(), record_of(head));
                    }
                });
            }
        });
        assert_eq!(scan(&*storage.read().unwrap(), 1), expected(1..=160));
    });
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<u8>),
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
}

fn steps() -> impl Strategy<Value = Vec<(Vec<Step>, bool)>> {
    let key = proptest::collection::vec(0_u8..3, 1..4);
    let value = proptest::collection::vec(any::<u8>(), 0..200);
    let step = prop_oneof![
        3 => value.clone().prop_map(Step::Append),
        2 => (0..6_usize, key.clone(), value).prop_map(|(t, k, v)| Step::Put(t, k, v)),
        1 => (0..6_usize, key).prop_map(|(t, k)| Step::Delete(t, k)),
    ];
    proptest::collection::vec((proptest::collection::vec(step, 0..25), any::<bool>()), 0..12)
}

/// Runs one batch and returns what it saw of itself.
fn run(storage: &dyn Storage, steps: &[Step], commit: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut batch = storage.write().unwrap();
    for step in steps {
        match step {
            Step::Append(record) => {
                let seq = batch.head().unwrap() + 1;
                batch.append(seq, record).unwrap();
            }
            Step::Put(table, key, value) => batch.put(Table::ALL[*table], key, value).unwrap(),
            Step::Delete(table, key) => batch.delete(Table::ALL[*table], key).unwrap(),
        }
    }
    let seen = content(&*batch);
    if commit {
        batch.commit().unwrap();
    }
    seen
}

fn content(view: &(impl ReadView + ?Sized)) -> Vec<(Vec<u8>, Vec<u8>)> {
    let records = scan(view, 0).into_iter().map(|(seq, record)| (seq.to_be_bytes().into(), record));
    let rows = Table::ALL.into_iter().flat_map(|table| rows(view, table, b""));
    records.chain(rows).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn both_storages_agree(batches in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let memory = MemoryStorage::new([7; 16], &options());
        let lmdb = LmdbStorage::open(&dir.path().join("s"), &options()).unwrap();
        for (index, (steps, commit)) in batches.iter().enumerate() {
            // What is remembered about the newest segment goes with the files.
            if index % 3 == 2 {
                lmdb.reopen().unwrap();
            }
            prop_assert_eq!(run(&memory, steps, *commit), run(&*lmdb, steps, *commit));
            let (memory, lmdb) = (memory.read().unwrap(), lmdb.read().unwrap());
            prop_assert_eq!(content(&*memory), content(&*lmdb));
        }
        let segments = lmdb.stats().unwrap().segments;
        drop(lmdb);
        // The segments' places depend on the log alone, not on who measured them and when.
        let lmdb = LmdbStorage::open(&dir.path().join("s"), &options()).unwrap();
        prop_assert_eq!(content(&*memory.read().unwrap()), content(&*lmdb.read().unwrap()));
        prop_assert_eq!(segments, segments_of(&lmdb.read().unwrap().as_ref()));
    }
}

/// How many segments the rule makes of a log.
fn segments_of(view: &&dyn ReadView) -> u64 {
    let limits = options().segments;
    let (mut segments, mut records, mut bytes) = (1, 0, 0);
    for (_, record) in scan(*view, 1) {
        if records >= limits.records || bytes >= limits.bytes {
            (segments, records, bytes) = (segments + 1, 0, 0);
        }
        records += 1;
        bytes += record.len() as u64;
    }
    segments
}
