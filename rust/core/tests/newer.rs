//! Rolling versions: what a later version of this program has written stops this one from writing and
//! from answering of the state, and from nothing else.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;

use effectstore::codec::{Record, chain};
use effectstore::storage::{LmdbStorage, Storage, StorageError, StorageOptions};
use effectstore::store::NewBranch;
use effectstore::{EffectStore, Error, Options};

/// Appends a record as a later version would: a header of the same shape, and its chain hash.
fn append(storage: &dyn Storage, header: &[u8], fits: bool) -> u64 {
    let mut batch = storage.write().unwrap();
    let head = batch.head().unwrap();
    let before = Record::stored_hash(&batch.record(head).unwrap().unwrap()).unwrap();
    let mut record = header.to_vec();
    let mut hash = chain(&before, head + 1, header);
    hash[0] ^= u8::from(!fits);
    record.extend([0x58, 32]);
    record.extend(hash);
    batch.append(head + 1, &record).unwrap();
    batch.commit().unwrap();
    head + 1
}

/// `{0: 1796000000000, 4: [900, ["later"]]}`
const UNKNOWN_KIND: &[u8] =
    b"\xa2\x00\x1b\x00\x00\x01\xa2\x2a\xe4\xf4\x00\x04\x82\x19\x03\x84\x81\x65later";

fn made(path: &Path) {
    let store = EffectStore::open(path, Options::default()).unwrap();
    store.create_branch(NewBranch::named("A")).unwrap();
}

fn storage(path: &Path) -> std::sync::Arc<LmdbStorage> {
    LmdbStorage::open(path, &StorageOptions::default()).unwrap()
}

fn is_format<T: std::fmt::Debug>(answer: Result<T, Error>, says: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error, Error::Storage(StorageError::Format { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains(says) && text.contains("upgrade"), "{text}");
}

#[test]
fn an_unknown_kind_stops_writing_and_not_the_reading_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made(&path);
    let unknown = append(storage(&path).as_ref(), UNKNOWN_KIND, true);
    for read_only in [true, false] {
        let mut options = Options::default();
        options.read_only = read_only;
        let store = EffectStore::open(&path, options).unwrap();
        let entries = store.log(0, 100, 0).unwrap();
        assert_eq!(entries.len() as u64, unknown);
        let last = entries.last().unwrap();
        assert_eq!((last.kind.as_str(), last.body.as_slice()), ("unknown_900", UNKNOWN_KIND));
        assert_eq!(store.explain(2).unwrap()[0].kind, "branch_created");
        let report = store.verify(None).unwrap();
        assert_eq!((report.records, report.newer), (unknown, Some(unknown)));
        is_format(store.branch_named("A"), "record 3");
        if !read_only {
            is_format(store.create_branch(NewBranch::named("B")), "event 900");
            store.export(&dir.path().join("export")).unwrap();
            store.backup(&dir.path().join("backup")).unwrap();
        }
    }
    // Nothing was written.
    assert_eq!(storage(&path).read().unwrap().head().unwrap(), unknown);
}

#[test]
fn a_process_that_runs_meets_it_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made(&path);
    let store = EffectStore::open(&path, Options::default()).unwrap();
    let unknown = append(storage(&path).as_ref(), UNKNOWN_KIND, true);
    is_format(store.create_branch(NewBranch::named("B")), "record 3");
    is_format(store.branch_named("A"), "record 3");
    assert_eq!(store.log(unknown - 1, 1, 0).unwrap().len(), 1);
    store.close().unwrap();
}

#[test]
fn unknown_optional_fields_are_kept_and_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made(&path);
    // `{0: 0, 4: [3, ["me", "later"]], 9: true}`: Unfrozen with one more field, and one more key.
    let header = b"\xa3\x00\x00\x04\x82\x03\x82\x62me\x65later\x09\xf5";
    let seq = append(storage(&path).as_ref(), header, true);
    let store = EffectStore::open(&path, Options::default()).unwrap();
    assert_eq!(store.verify(None).unwrap().newer, None);
    store.create_branch(NewBranch::named("B")).unwrap();
    assert_eq!(store.log(seq - 1, 1, 0).unwrap()[0].body, header);
}

#[test]
fn damage_is_not_taken_for_a_later_version() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    made(&path);
    append(storage(&path).as_ref(), UNKNOWN_KIND, false);
    let refused = EffectStore::open(&path, Options::default()).unwrap_err();
    assert!(matches!(refused, Error::Storage(StorageError::Corrupted { .. })), "{refused}");
}
