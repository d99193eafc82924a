//! The storage among processes: several writers, killed holders of locks and slots, forks.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use effectstore::storage::{
    LmdbStorage, OldestReader, Storage, StorageError, StorageOptions, Table,
};
use storage_support::{
    append, check, open, options, record_of, role, run, said_numbers, say, start,
    wait_until_holding,
};
use tempfile::tempdir;

mod storage_support;

/// Not a test of its own: what the tests below start as another process.
#[test]
fn a_child_of_these_tests() {
    let Some((role, dir, _)) = role() else { return };
    let dir = dir.as_path();
    match role.as_str() {
        "write 200" => {
            let storage = open(dir);
            for _ in 0..200 {
                say(append(&storage, 1).unwrap());
            }
        }
        "hold a view" => {
            let storage = open(dir);
            let _view = storage.read().unwrap();
            say("holding");
            std::thread::sleep(Duration::from_secs(60));
        }
        "hold a batch" => {
            let storage = open(dir);
            let mut batch = storage.write().unwrap();
            let seq = batch.head().unwrap() + 1;
            batch.append(seq, b"never committed").unwrap();
            say("holding");
            std::thread::sleep(Duration::from_secs(60));
        }
        "fork" => fork(dir),
        "fork and stay" => {
            let _storage = open(dir);
            // SAFETY: this process has no other thread that holds a lock which the child would
            // need.
            let pid = unsafe { libc::fork() };
            if pid != 0 {
                say(pid);
            }
            std::thread::sleep(Duration::from_secs(60));
        }
        other => panic!("no such role: {other}"),
    }
}

#[test]
fn processes_write_in_turns_and_read_one_another() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    let children: Vec<Child> = (0..3).map(|n| start("write 200", dir.path(), n)).collect();
    for child in &children {
        // It is running, so sooner or later its byte of the owner file is locked.
        for _ in 0..2000 {
            if storage.process_has_open(child.id()).unwrap() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    for _ in 0..200 {
        append(&storage, 1).unwrap();
        let view = storage.read().unwrap();
        let head = view.head().unwrap();
        assert_eq!(view.record(head).unwrap().unwrap(), record_of(head));
    }
    let mut said = Vec::new();
    for child in children {
        let pid = child.id();
        said.extend(said_numbers(child));
        assert!(!storage.process_has_open(pid).unwrap());
    }
    assert!(storage.process_has_open(std::process::id()).unwrap());
    assert_eq!(check(&storage), 800);
    said.sort_unstable();
    said.dedup();
    assert_eq!(said.len(), 600, "two processes were given one number");
    // The segments that other processes sealed lie where this one would have put them.
    let mut expected = 1;
    let (mut records, mut bytes) = (0, 0);
    for seq in 1..=800 {
        if records >= 300 || bytes >= 100_000 {
            (expected, records, bytes) = (expected + 1, 0, 0);
        }
        records += 1;
        bytes += record_of(seq).len();
    }
    assert_eq!(storage.stats().unwrap().segments, expected);
}

#[test]
fn a_killed_batch_leaves_the_lock_to_the_next_writer() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 3).unwrap();
    let mut child = start("hold a batch", dir.path(), 0);
    wait_until_holding(&mut child);
    let waiting = std::thread::spawn({
        let storage = Arc::clone(&storage);
        move || append(&storage, 1)
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(waiting.join().unwrap(), Ok(4));
    assert_eq!(check(&storage), 4);
}

#[test]
fn slots_of_killed_readers_are_used_again() {
    let dir = tempdir().unwrap();
    let given = StorageOptions { max_readers: 1, ..options() };
    let storage = LmdbStorage::open(dir.path(), &given).unwrap();
    append(&storage, 1).unwrap();
    let slots = storage.stats().unwrap().max_readers;
    for _ in 0..2 * slots {
        let mut child = start("hold a view", dir.path(), 0);
        wait_until_holding(&mut child);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(storage.read().unwrap().head().unwrap(), 1);
}

#[test]
fn the_oldest_reader_is_named() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let stats = storage.stats().unwrap();
    assert_eq!((stats.readers, stats.oldest_reader), (0, None));
    let mut child = start("hold a view", dir.path(), 0);
    wait_until_holding(&mut child);
    append(&storage, 1).unwrap();
    append(&storage, 1).unwrap();
    let _view = storage.read().unwrap();
    let stats = storage.stats().unwrap();
    let oldest = OldestReader { pid: child.id(), transactions_behind: 2 };
    assert_eq!((stats.readers, stats.oldest_reader), (2, Some(oldest)));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_child_of_fork_is_refused_and_may_open_anew() {
    let dir = tempdir().unwrap();
    let said = run("fork", dir.path());
    assert_eq!(said, ["child ok", "parent ok"]);
    assert_eq!(check(&open(dir.path())), 4);
}

fn fork(dir: &Path) {
    let storage = open(dir);
    append(&storage, 1).unwrap();
    let view = storage.read().unwrap();
    let mut batch = storage.write().unwrap();
    batch.append(2, &record_of(2)).unwrap();
    batch.put(Table::IdempotencyKeys, b"key 2", &2_u64.to_be_bytes()).unwrap();
    let parent = std::process::id();
    // SAFETY: this process has no other thread that holds a lock which the child would need.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = StorageError::Forked { opened_by: parent };
        let mut ok = storage.read().err() == Some(refused.clone())
            && storage.write().err() == Some(refused.clone())
            && storage.stats().err() == Some(refused.clone())
            && storage.reserve_ok().err() == Some(refused.clone())
            && storage.process_has_open(parent).err() == Some(refused.clone())
            && storage.backup(&dir.join("backup"), &[]).err() == Some(refused.clone())
            && storage.reopen().err() == Some(refused.clone())
            && view.head().err() == Some(refused.clone())
            && view.record(1).err() == Some(refused.clone())
            && view.get(Table::Meta, b"k").err() == Some(refused.clone())
            && batch.append(3, b"x").err() == Some(refused.clone())
            && batch.put(Table::Meta, b"k", b"v").err() == Some(refused.clone())
            && batch.commit().err() == Some(refused);
        drop(view);
        // Opened anew, and while the parent's batch is still alive.
        let mine = open(dir);
        ok &= !Arc::ptr_eq(&mine, &storage);
        ok &= mine.read().unwrap().head().unwrap() == 1;
        ok &= mine.process_has_open(parent).unwrap();
        say("child ok");
        // SAFETY: leaves without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
    // Nothing that the child did has touched the parent's transactions.
    batch.commit().unwrap();
    assert_eq!(view.head().unwrap(), 1);
    drop(view);
    append(&storage, 2).unwrap();
    assert_eq!(check(&storage), 4);
    say("parent ok");
}

#[test]
fn a_child_of_fork_does_not_keep_its_parent_alive() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let mut child = start("fork and stay", dir.path(), 0);
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    let mut lines = out.lines().map_while(Result::ok);
    let grandchild: i32 = lines.find_map(|line| line.strip_prefix("said ")?.parse().ok()).unwrap();
    assert!(storage.process_has_open(child.id()).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    // The grandchild lets go of what it inherited as soon as it runs at all.
    let parent_seems_alive = (0..2000).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        storage.process_has_open(child.id()).unwrap()
    });
    // SAFETY: only sends a signal, to a process that this test has made.
    unsafe {
        assert_eq!(libc::kill(grandchild, 0), 0, "the grandchild ended too early");
        libc::kill(grandchild, libc::SIGKILL);
    }
    assert!(!parent_seems_alive);
}
