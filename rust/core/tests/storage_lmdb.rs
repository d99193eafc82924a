//! The storage on disk: creation, opening, and files that are not what they should be.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Barrier};

use effectstore::storage::{
    CommitFailure, LmdbStorage, SegmentLimits, Storage, StorageError, StorageOptions, Table,
};
use tempfile::{TempDir, tempdir};

fn options() -> StorageOptions {
    StorageOptions { reserve_bytes: 512 << 10, ..StorageOptions::default() }
}

fn open(dir: &Path) -> Result<Arc<LmdbStorage>, StorageError> {
    LmdbStorage::open(dir, &options())
}

fn append(storage: &LmdbStorage, count: u64) {
    let mut batch = storage.write().unwrap();
    let head = batch.head().unwrap();
    for seq in head + 1..=head + count {
        batch.append(seq, &seq.to_le_bytes().repeat(50)).unwrap();
    }
    batch.commit().unwrap();
}

fn head(storage: &LmdbStorage) -> u64 {
    storage.read().unwrap().head().unwrap()
}

/// A store with some records, closed.
fn closed_store() -> TempDir {
    let dir = tempdir().unwrap();
    let storage = open(dir.path()).unwrap();
    append(&storage, 500);
    drop(storage);
    dir
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_new_store_is_private_and_says_what_it_is() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("store");
    let given = StorageOptions { created_ms: 42, ..options() };
    let storage = LmdbStorage::open(&path, &given).unwrap();
    assert_eq!(mode(&path), 0o700);
    for file in ["data.mdb", "lock.mdb", "owner.lock", "shared.page"] {
        assert_eq!(mode(&path.join(file)), 0o600, "{file}");
    }
    assert_eq!(fs::read_dir(&path).unwrap().count(), 4);
    let format = storage.format();
    assert_eq!((format.version, format.min_reader, format.min_writer), (0, 0, 0));
    assert_eq!((format.created_ms, format.lmdb_data_version), (42, 1));
    assert_eq!(format.map_size_bytes, 1 << 40);
    assert_ne!(format.store_id, [0; 16]);
    append(&storage, 3);
    drop(storage);
    let storage = open(&path).unwrap();
    assert_eq!(storage.format(), format);
    assert_eq!(head(&storage), 3);
    let other = open(&dir.path().join("other")).unwrap();
    assert_ne!(other.format().store_id, format.store_id);
}

#[test]
fn an_empty_directory_becomes_a_store_and_another_is_refused() {
    let dir = tempdir().unwrap();
    append(&open(dir.path()).unwrap(), 1);
    let other = tempdir().unwrap();
    fs::write(other.path().join("notes.txt"), "mine").unwrap();
    let refused = open(other.path()).err().unwrap();
    assert!(matches!(refused, StorageError::Options { option: "path", .. }), "{refused}");
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 1);
    let missing = StorageOptions { create: false, ..options() };
    let refused = LmdbStorage::open(&dir.path().join("none"), &missing).err().unwrap();
    assert!(matches!(refused, StorageError::Io { .. }), "{refused}");
    assert!(!dir.path().join("none").exists());
}

#[test]
fn what_a_crashed_creation_left_is_replaced() {
    let dir = tempdir().unwrap();
    for content in [&b""[..], &[0; 4096], b"torn"] {
        let path = dir.path().join(format!("store{}", content.len()));
        let scratch = path.join(".effectstore-new-4711");
        fs::create_dir_all(&scratch).unwrap();
        fs::write(scratch.join("data.mdb"), content).unwrap();
        fs::write(scratch.join("lock.mdb"), content).unwrap();
        let storage = open(&path).unwrap();
        append(&storage, 2);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 4);
    }
}

#[test]
fn creators_at_once_make_one_store() {
    for _ in 0..10 {
        let dir = tempdir().unwrap();
        let path = dir.path().join("store");
        let barrier = Barrier::new(6);
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let storage = open(&path).unwrap();
                        append(&storage, 1);
                        storage.format().store_id
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!(head(&open(&path).unwrap()), 6);
    }
}

#[test]
fn a_second_open_shares_the_handle() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("store");
    let first = open(&path).unwrap();
    let again = open(&path).unwrap();
    symlink(&path, dir.path().join("link")).unwrap();
    let by_link = open(&dir.path().join("link")).unwrap();
    let hard = dir.path().join("hard");
    fs::create_dir(&hard).unwrap();
    fs::hard_link(path.join("data.mdb"), hard.join("data.mdb")).unwrap();
    let by_hard_link = open(&hard).unwrap();
    for other in [&again, &by_link, &by_hard_link] {
        assert!(Arc::ptr_eq(&first, other));
    }
    append(&first, 1);
    assert_eq!(head(&by_hard_link), 1);
    for (given, name) in [
        (StorageOptions { read_only: true, ..options() }, "read_only"),
        (StorageOptions { map_size_bytes: Some(1 << 30), ..options() }, "map_size"),
        (StorageOptions { max_readers: 7, ..options() }, "max_readers"),
        (StorageOptions { reserve_bytes: 7, ..options() }, "reserve_bytes"),
    ] {
        let refused = LmdbStorage::open(&path, &given).err().unwrap();
        assert!(matches!(&refused, StorageError::Options { option, .. } if *option == name));
    }
    drop((again, by_link, by_hard_link));
    append(&first, 1);
    drop(first);
    // Closed by its last owner, it can be opened with other options.
    let given = StorageOptions { max_readers: 7, ..options() };
    assert_eq!(head(&LmdbStorage::open(&path, &given).unwrap()), 2);
}

#[test]
fn opening_and_closing_at_once_never_opens_twice() {
    let dir = tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    append(&open(dir.path()).unwrap(), 1);
                }
            });
        }
    });
    assert_eq!(head(&open(dir.path()).unwrap()), 200);
}

#[test]
fn a_store_opened_for_reading_refuses_to_write() {
    let dir = closed_store();
    let given = StorageOptions { read_only: true, ..options() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    assert_eq!(head(&storage), 500);
    assert_eq!(storage.write().err(), Some(StorageError::ReadOnly));
    assert_eq!(storage.stats().unwrap().head, 500);
}

#[test]
fn a_file_that_was_cut_off_is_refused_at_every_length() {
    let dir = closed_store();
    let data = dir.path().join("data.mdb");
    let used = {
        let storage = open(dir.path()).unwrap();
        storage.stats().unwrap().used_bytes
    };
    let whole = fs::read(&data).unwrap();
    for length in [0, 1, 151, 4096, 8191, 8192, used / 2, used - 4096, used - 1] {
        fs::write(&data, &whole[..usize::try_from(length).unwrap()]).unwrap();
        let refused = open(dir.path()).err().unwrap();
        let StorageError::Truncated { have, need } = refused else { panic!("{length}: {refused}") };
        assert_eq!(have, length);
        assert!(need > have);
    }
    // The zeroes beyond the data are no part of it.
    fs::write(&data, &whole[..usize::try_from(used).unwrap()]).unwrap();
    let storage = open(dir.path()).unwrap();
    assert_eq!(head(&storage), 500);
    append(&storage, 1);
}

#[test]
fn a_file_whose_last_pages_were_never_written_is_whole() {
    let dir = tempdir().unwrap();
    let given = StorageOptions { reserve_bytes: 0, ..StorageOptions::default() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    append(&storage, 2000);
    let mut short = 0;
    for round in 1..20_usize {
        // Pages taken at the end of the file and given back in the same batch.
        let mut batch = storage.write().unwrap();
        batch.put(Table::Blobs, b"kept", &vec![1; round * 9000]).unwrap();
        batch.put(Table::Blobs, b"large", &vec![2; round * 200_000]).unwrap();
        batch.delete(Table::Blobs, b"large").unwrap();
        batch.commit().unwrap();
        let stats = storage.stats().unwrap();
        short += usize::from(stats.file_bytes < stats.used_bytes);
        let copy = tempdir().unwrap();
        fs::copy(dir.path().join("data.mdb"), copy.path().join("data.mdb")).unwrap();
        let copied = LmdbStorage::open(copy.path(), &given).unwrap();
        assert_eq!(head(&copied), head(&storage));
        append(&copied, 1);
        append(&storage, 1);
    }
    assert!(short > 0, "no round made such a file, so nothing was tested");
}

#[test]
fn a_file_cut_off_under_a_running_store_stops_its_writes() {
    let dir = closed_store();
    let storage = open(dir.path()).unwrap();
    let data = OpenOptions::new().write(true).open(dir.path().join("data.mdb")).unwrap();
    data.set_len(8192).unwrap();
    let refused = storage.write().err().unwrap();
    assert!(matches!(refused, StorageError::Truncated { have: 8192, .. }), "{refused}");
}

#[test]
fn foreign_files_are_refused() {
    let flip = |at: u64| {
        let dir = closed_store();
        let path = dir.path().join("data.mdb");
        let data = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        for page in [0, 4096] {
            let mut byte = [0];
            data.read_exact_at(&mut byte, page + at).unwrap();
            data.write_all_at(&[byte[0] ^ 0x20], page + at).unwrap();
        }
        open(dir.path()).err().unwrap()
    };
    // The magic number, the version, the flags of the page, the page size.
    for at in [16, 17, 18, 19, 20, 23, 40] {
        let refused = flip(at);
        assert!(matches!(refused, StorageError::Format { .. }), "byte {at}: {refused}");
    }
    // The map's size.
    for at in [33, 36, 38] {
        let refused = flip(at);
        let typed = matches!(
            refused,
            StorageError::Format { .. }
                | StorageError::Options { option: "map_size", .. }
                | StorageError::Corrupted { .. }
                | StorageError::Io { .. }
        );
        assert!(typed, "byte {at}: {refused}");
    }
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("data.mdb"), vec![b'x'; 20_000]).unwrap();
    assert!(matches!(open(dir.path()), Err(StorageError::Format { .. })));
}

#[test]
fn another_programs_lmdb_file_is_refused() {
    use heed::types::Bytes;
    let dir = tempdir().unwrap();
    // SAFETY: the files are this test's own.
    let env = unsafe { heed::EnvOpenOptions::new().max_dbs(2).open(dir.path()).unwrap() };
    let txn = env.write_txn().unwrap();
    env.create_databases_and_commit(txn, |opener, txn| {
        opener.create_database::<Bytes, Bytes>(txn, Some("meta"))?;
        Ok::<_, heed::Error>(heed::CommitOrAbort::<(), ()>::Commit(()))
    })
    .unwrap();
    drop(env);
    let refused = open(dir.path()).err().unwrap();
    assert!(matches!(refused, StorageError::Format { .. }), "{refused}");
}

#[test]
fn a_lock_file_that_is_gone_stops_writes() {
    let dir = closed_store();
    let storage = open(dir.path()).unwrap();
    let lock = dir.path().join("lock.mdb");
    let kept = dir.path().join("kept");
    fs::rename(&lock, &kept).unwrap();
    assert!(matches!(storage.write(), Err(StorageError::LockLost { .. })));
    fs::write(&lock, fs::read(&kept).unwrap()).unwrap();
    assert!(matches!(storage.write(), Err(StorageError::LockLost { .. })));
    fs::rename(&kept, &lock).unwrap();
    append(&storage, 1);
}

#[test]
fn a_data_file_that_was_replaced_stops_writes() {
    let dir = closed_store();
    let data = dir.path().join("data.mdb");
    let copy = dir.path().join("copy");
    fs::copy(&data, &copy).unwrap();
    let storage = open(dir.path()).unwrap();
    append(&storage, 5);
    fs::rename(&copy, &data).unwrap();
    let refused = storage.write().err().unwrap();
    assert_eq!(refused, StorageError::HistoryRewound { seen: 505, found: None });
    assert!(matches!(storage.reopen(), Err(StorageError::HistoryRewound { .. })));
    assert_eq!(storage.write().err(), Some(StorageError::Closed));
}

#[test]
fn a_store_overwritten_by_an_older_copy_is_noticed() {
    let dir = closed_store();
    let data = dir.path().join("data.mdb");
    let old = fs::read(&data).unwrap();
    let storage = open(dir.path()).unwrap();
    append(&storage, 1);
    append(&storage, 1);
    // In place, as `cp` does it.
    let file = OpenOptions::new().write(true).open(&data).unwrap();
    file.write_all_at(&old, 0).unwrap();
    let refused = storage.write().err().unwrap();
    assert!(matches!(refused, StorageError::HistoryRewound { seen: 502, .. }), "{refused}");
}

#[test]
fn a_full_map_refuses_writes_and_goes_on_reading() {
    let dir = tempdir().unwrap();
    let map_size_bytes = 1 << 20;
    let given = StorageOptions { map_size_bytes: Some(map_size_bytes), ..options() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    append(&storage, 10);
    let mut seq = 10;
    let refused = loop {
        let mut batch = storage.write().unwrap();
        let outcome = batch.append(seq + 1, &[b'r'; 3000]);
        match outcome.and_then(|()| batch.commit()) {
            Ok(()) => seq += 1,
            Err(refused) => break refused,
        }
        assert!(seq < 1000);
    };
    let typed = matches!(refused, StorageError::StoreFull { map_size_bytes: m } if m == map_size_bytes)
        || refused == StorageError::NotCommitted { cause: CommitFailure::MapFull };
    assert!(typed, "{refused}");
    assert!(!refused.needs_reopen());
    assert_eq!(head(&storage), seq);
    assert_eq!(storage.read().unwrap().record(seq).unwrap().unwrap(), [b'r'; 3000].as_slice());
    // A batch that failed in the middle cannot be committed.
    let mut batch = storage.write().unwrap();
    assert!(batch.append(seq + 1, &vec![b'r'; 2 << 20]).is_err());
    let broken = batch.commit().unwrap_err();
    assert_eq!(broken, StorageError::NotCommitted { cause: CommitFailure::BatchBroken });
    assert_eq!(head(&storage), seq);
}

#[test]
fn three_hundred_threads_read_at_once() {
    let dir = closed_store();
    let storage = open(dir.path()).unwrap();
    let barrier = Barrier::new(300);
    std::thread::scope(|scope| {
        for number in 0..300_u64 {
            let (storage, barrier) = (&storage, &barrier);
            scope.spawn(move || {
                let view = storage.read().unwrap();
                barrier.wait();
                let seq = number + 1;
                assert_eq!(view.record(seq).unwrap().unwrap(), seq.to_le_bytes().repeat(50));
            });
        }
    });
    append(&storage, 1);
}

#[test]
fn a_full_reader_table_is_an_error_that_names_the_option() {
    let dir = closed_store();
    let given = StorageOptions { max_readers: 3, ..options() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    let slots = storage.stats().unwrap().max_readers;
    let mut views: Vec<_> = (0..slots).map(|_| storage.read().unwrap()).collect();
    let refused = storage.read().err().unwrap();
    assert!(matches!(refused, StorageError::Options { option: "max_readers", .. }), "{refused}");
    views.pop();
    assert_eq!(storage.read().unwrap().head().unwrap(), 500);
}

#[test]
fn the_reserve_is_kept_and_lies_beyond_the_data() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path()).unwrap();
    for _ in 0..40 {
        append(&storage, 200);
        let batch = storage.write().unwrap();
        drop(batch);
        let stats = storage.stats().unwrap();
        assert!(stats.reserve_bytes >= 512 << 10, "{stats:?}");
        assert!(stats.reserve_bytes <= 1 << 20, "{stats:?}");
        assert_eq!(storage.reserve_ok(), Ok(()));
    }
    assert!(storage.stats().unwrap().used_bytes > 3 << 20);
}

#[test]
fn a_backup_is_a_store_with_its_marks() {
    let dir = tempdir().unwrap();
    let given =
        StorageOptions { segments: SegmentLimits { records: 100, bytes: 1 << 20 }, ..options() };
    let storage = LmdbStorage::open(&dir.path().join("store"), &given).unwrap();
    append(&storage, 950);
    let to = dir.path().join("backup");
    let view = storage.read().unwrap();
    storage.backup(&to, &[(b"mark", b"restored from here")]).unwrap();
    drop(view);
    append(&storage, 1);
    assert!(matches!(storage.backup(&to, &[]), Err(StorageError::Options { option: "to", .. })));
    let batch = storage.write().unwrap();
    let busy = storage.backup(&dir.path().join("busy"), &[]);
    assert!(matches!(busy, Err(StorageError::StoreBusy { .. })));
    drop(batch);
    let copy = open(&to).unwrap();
    assert_eq!(mode(&to.join("data.mdb")), 0o600);
    assert_eq!(head(&copy), 950);
    assert_eq!(copy.stats().unwrap().segments, 10);
    assert_eq!(copy.format(), storage.format());
    let view = copy.read().unwrap();
    assert_eq!(view.get(Table::Meta, b"mark").unwrap().unwrap(), b"restored from here");
    assert_eq!(storage.read().unwrap().get(Table::Meta, b"mark").unwrap(), None);
    append(&copy, 1);
}

#[test]
fn a_reopened_store_goes_on() {
    let dir = closed_store();
    let storage = open(dir.path()).unwrap();
    append(&storage, 1);
    storage.reopen().unwrap();
    append(&storage, 1);
    assert_eq!(head(&storage), 502);
    let batch = storage.write().unwrap();
    assert!(matches!(storage.reopen(), Err(StorageError::StoreBusy { .. })));
    drop(batch);
    append(&storage, 1);
}

#[test]
fn a_thousand_segments_open_again() {
    let dir = tempdir().unwrap();
    let given =
        StorageOptions { segments: SegmentLimits { records: 2, bytes: 1 << 20 }, ..options() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    append(&storage, 1500);
    // More segments than this process has handles for: the files must be opened again.
    let mut batch = storage.write().unwrap();
    for seq in 1501..=3000 {
        batch.append(seq, b"r").unwrap();
    }
    let refused = batch.commit().unwrap_err();
    let cause = CommitFailure::HandlesExhausted;
    assert_eq!(refused, StorageError::NotCommitted { cause });
    assert!(refused.needs_reopen());
    assert_eq!(head(&storage), 1500);
    storage.reopen().unwrap();
    append(&storage, 1500);
    assert_eq!(storage.stats().unwrap().segments, 1500);
}
