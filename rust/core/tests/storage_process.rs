//! The storage among processes: forks, kills, limits, several writers.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use effectstore::storage::{
    CommitFailure, LmdbStorage, OldestReader, SegmentLimits, Storage, StorageError, StorageOptions,
    Table,
};
use tempfile::tempdir;

const ROLE: &str = "EFFECTSTORE_TEST_ROLE";
const STORE: &str = "EFFECTSTORE_TEST_STORE";
const SEED: &str = "EFFECTSTORE_TEST_SEED";

fn options() -> StorageOptions {
    StorageOptions {
        reserve_bytes: 256 << 10,
        segments: SegmentLimits { records: 300, bytes: 100_000 },
        ..StorageOptions::default()
    }
}

fn open(dir: &Path) -> Arc<LmdbStorage> {
    LmdbStorage::open(dir, &options()).unwrap()
}

/// A record that says who it is at its beginning and whose length depends on its number.
fn record_of(seq: u64) -> Vec<u8> {
    let length = 16 + usize::try_from(seq.wrapping_mul(2_654_435_761) % 5000).unwrap();
    seq.to_be_bytes().into_iter().cycle().take(length).collect()
}

fn append(storage: &LmdbStorage, count: u64) -> Result<u64, StorageError> {
    let mut batch = storage.write()?;
    let head = batch.head()?;
    for seq in head + 1..=head + count {
        batch.append(seq, &record_of(seq))?;
        let key = format!("key {seq}");
        batch.put(Table::IdempotencyKeys, key.as_bytes(), &seq.to_be_bytes())?;
    }
    batch.commit()?;
    Ok(head + count)
}

/// Every record up to the head is whole, and the rows are exactly those of the records.
fn check(storage: &LmdbStorage) -> u64 {
    let view = storage.read().unwrap();
    let mut last = 0;
    view.scan(1, &mut |seq, record| {
        assert_eq!(record, record_of(seq), "record {seq}");
        last = seq;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(last, view.head().unwrap());
    let mut rows = 0;
    view.rows(Table::IdempotencyKeys, b"", &mut |key, value| {
        let seq = u64::from_be_bytes(value.try_into().unwrap());
        assert_eq!(key, format!("key {seq}").as_bytes());
        rows += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(rows, last);
    last
}

fn start(role: &str, dir: &Path, seed: u64) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "a_child_of_these_tests", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(STORE, dir)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a role to its end and returns what it said.
fn run(role: &str, dir: &Path) -> Vec<String> {
    let child = start(role, dir, 0);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{role}: {said}");
    said.lines().filter_map(|line| line.strip_prefix("said ")).map(str::to_owned).collect()
}

fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The test harness ends a line of its own late, so ours begin with a new one.
    writeln!(out, "\nsaid {text}").unwrap();
    out.flush().unwrap();
}

/// Not a test of its own: what the tests below start as another process.
#[test]
fn a_child_of_these_tests() {
    let Ok(role) = env::var(ROLE) else { return };
    let dir = env::var(STORE).unwrap();
    let dir = Path::new(&dir);
    let seed: u64 = env::var(SEED).unwrap().parse().unwrap();
    match role.as_str() {
        "write for ever" => write_for_ever(dir, seed),
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
        "limit the file" => limit_the_file(dir),
        "fail the data" => fail_writes(dir, false),
        "fail the meta page" => fail_writes(dir, true),
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
        std::thread::sleep(Duration::from_micros(20_000 + random % 60_000));
        for child in &mut children {
            child.kill().unwrap();
        }
        let mut acknowledged = 0;
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // The last line may be cut off by the kill.
            let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let numbers = whole.lines().filter_map(|line| line.strip_prefix("said "));
            acknowledged =
                numbers.map(|n| n.parse::<u64>().unwrap()).max().unwrap_or(0).max(acknowledged);
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
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(!storage.process_has_open(pid).unwrap());
        let text = String::from_utf8(output.stdout).unwrap();
        said.extend(text.lines().filter_map(|l| l.strip_prefix("said ")?.parse::<u64>().ok()));
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

fn wait_until_holding(child: &mut Child) {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    assert!(out.lines().map_while(Result::ok).any(|line| line == "said holding"));
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
fn fail_writes(dir: &Path, meta: bool) {
    let storage = open(dir);
    append(&storage, 10).unwrap();
    let wanted = if meta { libc::O_WRONLY | libc::O_DSYNC } else { libc::O_RDWR };
    let [victim] = data_descriptors(dir, wanted)[..] else { panic!("not the one descriptor") };
    let deaf = std::fs::File::open(dir.join("data.mdb")).unwrap();
    // SAFETY: replaces a descriptor of this process; that is the fault to be provoked.
    assert_eq!(unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&deaf), victim) }, victim);
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
