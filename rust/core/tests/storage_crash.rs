//! The storage under kills, failing writes and a full disk.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::process::Child;
use std::time::Duration;

use effectstore::storage::{CommitFailure, Storage, StorageError};
use effectstore::store::NewBranch;
use effectstore::{EffectStore, Error, Options};
use storage_support::{append, check, first_number, open, role, run, said_numbers, say, start};
use tempfile::tempdir;

mod storage_support;

/// Not a test of its own: what the tests below start as another process.
#[test]
fn a_child_of_these_tests() {
    let Some((role, dir, seed)) = role() else { return };
    let dir = dir.as_path();
    match role.as_str() {
        "write for ever" => write_for_ever(dir, seed),
        "create for ever" => {
            for n in 0_u64.. {
                drop(open(&dir.join(n.to_string())));
                say(n);
            }
        }
        "limit the file" => limit_the_file(dir),
        "fail the data" => fail_writes(dir, false),
        "fail the meta page" => fail_writes(dir, true),
        "doubt a store" => doubt_a_store(dir),
        other => panic!("no such role: {other}"),
    }
}

fn write_for_ever(dir: &Path, seed: u64) {
    let storage = open(dir);
    let mut random = seed;
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
        say(append(&storage, 1 + (random >> 33) % 40).unwrap());
    }
}

#[test]
fn killed_writers_lose_nothing_that_they_acknowledged() {
    let dir = tempdir().unwrap();
    let mut random: u64 = 0x9E37_79B9;
    let mut rounds_with_progress = 0;
    for round in 0..50 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
        // Two writers in every third round; the zeroes are written ahead by both.
        let mut children: Vec<Child> = (0..=u64::from(round % 3 == 0))
            .map(|n| start("write for ever", dir.path(), random ^ n))
            .collect();
        let mut acknowledged = 0;
        if round % 2 == 0 {
            // Somewhere in its start.
            std::thread::sleep(Duration::from_micros(random % 20_000));
        } else {
            acknowledged = first_number(&mut children[0]);
            std::thread::sleep(Duration::from_micros(random % 60_000));
        }
        for child in &mut children {
            child.kill().unwrap();
        }
        for child in children {
            let last = said_numbers(child).into_iter().max().unwrap_or(0);
            acknowledged = acknowledged.max(last);
        }
        if !dir.path().join("data.mdb").exists() {
            continue;
        }
        let storage = open(dir.path());
        let head = check(&storage);
        assert!(head >= acknowledged, "round {round}: {head} of {acknowledged}");
        append(&storage, 1).unwrap();
        rounds_with_progress += u64::from(acknowledged > 0);
    }
    assert!(rounds_with_progress >= 25, "only {rounds_with_progress} rounds wrote anything");
}

#[test]
fn killed_creators_leave_stores_or_what_the_next_one_replaces() {
    let mut random: u64 = 0x5DEE_CE66;
    let mut begun = 0;
    for round in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
        let dir = tempdir().unwrap();
        let mut child = start("create for ever", dir.path(), 0);
        first_number(&mut child);
        std::thread::sleep(Duration::from_micros(random % 10_000));
        child.kill().unwrap();
        let said = said_numbers(child);
        let made = std::fs::read_dir(dir.path()).unwrap().count() as u64;
        assert!(made >= said.len() as u64);
        for n in 0..=made {
            let path = dir.path().join(n.to_string());
            let torn = path.exists() && !path.join("data.mdb").exists();
            begun += u64::from(torn);
            let storage = open(&path);
            assert_eq!(append(&storage, 3), Ok(3));
            assert_eq!(check(&storage), 3);
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 4);
        }
    }
    assert!(begun > 0, "no kill hit a creation, so nothing was tested");
}

#[test]
fn no_room_for_the_file_refuses_new_work_and_keeps_the_old() {
    let dir = tempdir().unwrap();
    let said = run("limit the file", dir.path());
    assert_eq!(said, ["reserve refused", "commits went on", "commit refused", "room again"]);
    check(&open(dir.path()));
}

/// A limit on file sizes stands in for a full disk: both fail where the file would grow.
fn limit_the_file(dir: &Path) {
    let storage = open(dir);
    append(&storage, 10).unwrap();
    let set_limit = |bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is whole; without the signal a write fails with an error.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
    };
    set_limit(storage.stats().unwrap().file_bytes);
    let mut commits = 0;
    while storage.reserve_ok().is_ok() {
        append(&storage, 1).unwrap();
        commits += 1;
        assert!(commits < 1000);
    }
    assert!(matches!(storage.reserve_ok(), Err(StorageError::DiskFull { .. })));
    say("reserve refused");
    // The zeroes written ahead take what must still be written.
    let refused = loop {
        match append(&storage, 1) {
            Ok(_) => commits += 1,
            Err(refused) => break refused,
        }
        assert!(commits < 1000);
    };
    assert!(commits > 20, "only {commits}");
    say("commits went on");
    let cause = CommitFailure::DiskFull;
    let full = refused == StorageError::NotCommitted { cause };
    // A write that was cut short tells LMDB nothing of the reason.
    let short = matches!(refused, StorageError::NotCommitted { cause: CommitFailure::Io(_) });
    assert!(full || short, "{refused}");
    let head = check(&storage);
    say("commit refused");
    set_limit(libc::RLIM_INFINITY);
    if refused.needs_reopen() {
        assert_eq!(storage.write().err(), Some(StorageError::Closed));
        storage.reopen().unwrap();
    }
    assert_eq!(append(&storage, 5), Ok(head + 5));
    assert_eq!(storage.reserve_ok(), Ok(()));
    check(&storage);
    say("room again");
}

#[test]
fn a_failed_write_of_data_is_not_committed_and_needs_a_reopen() {
    let dir = tempdir().unwrap();
    assert_eq!(run("fail the data", dir.path()), ["not committed", "goes on"]);
    check(&open(dir.path()));
}

#[test]
fn a_failed_write_of_the_meta_page_is_unknown_and_needs_a_reopen() {
    let dir = tempdir().unwrap();
    assert_eq!(run("fail the meta page", dir.path()), ["unknown", "goes on"]);
    check(&open(dir.path()));
}

#[test]
fn a_store_says_which_of_two_things_a_failed_write_of_the_meta_page_was_and_goes_on() {
    let dir = tempdir().unwrap();
    assert_eq!(run("doubt a store", dir.path()), ["not committed", "goes on"]);
}

fn doubt_a_store(dir: &Path) {
    let store = EffectStore::open(dir, Options::default()).unwrap();
    store.create_branch(NewBranch::named("before")).unwrap();
    make_deaf(dir, libc::O_WRONLY | libc::O_DSYNC);
    let refused = store.create_branch(NewBranch::named("failed")).unwrap_err();
    let cause = matches!(refused, Error::Storage(StorageError::NotCommitted { .. }));
    assert!(cause, "{refused}");
    say("not committed");
    store.create_branch(NewBranch::named("failed")).unwrap();
    let names = store.branches(0, 9).unwrap().into_iter().map(|branch| branch.name);
    assert!(names.eq(["before", "failed"]));
    store.verify(None).unwrap();
    say("goes on");
}

/// This process's descriptors of the data file that have exactly these of the three flags.
fn data_descriptors(dir: &Path, wanted: i32) -> Vec<i32> {
    let data = dir.canonicalize().unwrap().join("data.mdb");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if std::fs::read_link(entry.path()).ok().as_ref() != Some(&data) {
            continue;
        }
        let fd: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: only asks for the descriptor's flags.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if flags & (libc::O_ACCMODE | libc::O_APPEND | libc::O_DSYNC) == wanted {
            found.push(fd);
        }
    }
    found
}

/// Puts a descriptor for reading in the place of the one that LMDB writes through.
fn make_deaf(dir: &Path, wanted: i32) {
    let [victim] = data_descriptors(dir, wanted)[..] else { panic!("not the one descriptor") };
    let deaf = std::fs::File::open(dir.join("data.mdb")).unwrap();
    // SAFETY: replaces a descriptor of this process; that is the fault to be provoked.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&deaf), victim) }, victim);
}

fn fail_writes(dir: &Path, meta: bool) {
    let storage = open(dir);
    append(&storage, 10).unwrap();
    make_deaf(dir, if meta { libc::O_WRONLY | libc::O_DSYNC } else { libc::O_RDWR });
    let refused = append(&storage, 1).unwrap_err();
    assert!(refused.needs_reopen(), "{refused}");
    if meta {
        assert!(matches!(refused, StorageError::CommitUnknown { .. }), "{refused}");
        assert_eq!(storage.read().err(), Some(StorageError::Closed));
        say("unknown");
    } else {
        let cause = matches!(refused, StorageError::NotCommitted { cause: CommitFailure::Io(_) });
        assert!(cause, "{refused}");
        assert_eq!(check(&storage), 10);
        say("not committed");
    }
    assert_eq!(storage.write().err(), Some(StorageError::Closed));
    storage.reopen().unwrap();
    let head = check(&storage);
    assert!(head == 10 || (meta && head == 11), "{head}");
    assert_eq!(append(&storage, 2), Ok(head + 2));
    say("goes on");
}
