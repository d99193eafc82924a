//! The gate and the shared page: who may write among processes, who is named, who is woken.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::process::Child;
use std::time::{Duration, Instant};

use effectstore::storage::{Storage, StorageError};
use effectstore::store::NewBranch;
use effectstore::{EffectStore, Error, Options};
use storage_support::{
    append, check, first_number, open, role, said_numbers, say, start, wait_until_holding,
};
use tempfile::tempdir;

mod storage_support;

/// Not a test of its own: what the tests below start as another process.
#[test]
fn a_child_of_these_tests() {
    let Some((role, dir, seed)) = role() else { return };
    let dir = dir.as_path();
    match role.as_str() {
        "hold a batch" => {
            let storage = open(dir);
            let _batch = storage.write().unwrap();
            say("holding");
            std::thread::sleep(Duration::from_secs(60));
        }
        "wait first" => {
            let storage = open(dir);
            say(1);
            drop(storage.take_turn(Duration::from_secs(60)).unwrap());
            std::thread::sleep(Duration::from_secs(60));
        }
        // Says how long it waited for its turns, in microseconds: mean and longest; and how many
        // turns others had in between, at most.
        "loop" => {
            let storage = open(dir);
            append(&storage, 1).unwrap();
            say(0);
            let (mut all, mut longest, mut passed) = (0, 0, 0);
            for _ in 0..seed {
                let (began, before) = (Instant::now(), storage.read().unwrap().head().unwrap());
                let turn = storage.take_turn(Duration::from_secs(60)).unwrap();
                let waited = u64::try_from(began.elapsed().as_micros()).unwrap();
                (all, longest) = (all + waited, longest.max(waited));
                let mut batch = storage.write_in(turn).unwrap();
                let seq = batch.head().unwrap() + 1;
                passed = passed.max(seq - 1 - before);
                batch.append(seq, &storage_support::record_of(seq)).unwrap();
                let key = format!("key {seq}");
                let table = effectstore::storage::Table::IdempotencyKeys;
                batch.put(table, key.as_bytes(), &seq.to_be_bytes()).unwrap();
                batch.commit().unwrap();
            }
            say(all / seed);
            say(longest);
            say(passed);
        }
        "make a branch when asked" => {
            let store = EffectStore::open(dir, Options::default()).unwrap();
            say(0);
            for number in 0..seed {
                std::thread::sleep(Duration::from_millis(30));
                store.create_branch(NewBranch::named(format!("{number}"))).unwrap();
                let now = std::time::SystemTime::now();
                say(now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos());
            }
        }
        other => panic!("no such role: {other}"),
    }
}

fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Stops a child, and waits until all of it is: one of its threads may be in the middle of a call
/// that still takes a lock.
fn stop(child: &Child) {
    signal(child, libc::SIGSTOP);
    let stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    };
    let tasks = format!("/proc/{}/task", child.id());
    while !std::fs::read_dir(&tasks).unwrap().all(stopped) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_stopped_holder_is_named_within_the_timeout_and_hands_over_when_killed() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let mut child = start("hold a batch", dir.path(), 0);
    wait_until_holding(&mut child);
    stop(&child);
    let began = Instant::now();
    let refused = storage.take_turn(Duration::from_millis(300)).unwrap_err();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_millis(600), "{took:?}");
    let StorageError::StoreBusy { pid, held_for_ms, elsewhere } = refused else {
        panic!("{refused}")
    };
    assert_eq!((pid, elsewhere), (child.id(), false));
    assert!((300..10_000).contains(&held_for_ms), "{held_for_ms}");
    // Reading needs no turn.
    assert_eq!(storage.read().unwrap().head().unwrap(), 1);
    let waiting = std::thread::spawn({
        let storage = std::sync::Arc::clone(&storage);
        move || append(&storage, 1).map(|seq| (seq, Instant::now()))
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    let killed = Instant::now();
    end(child);
    let (seq, got) = waiting.join().unwrap().unwrap();
    assert_eq!(seq, 2);
    assert!(got - killed < Duration::from_millis(500), "{:?}", got - killed);
    assert_eq!(check(&storage), 2);
}

#[test]
fn the_verbs_of_a_store_say_who_is_in_the_way_and_looking_goes_on() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("store");
    let mut options = Options::default();
    options.busy_timeout_ms = 200;
    let store = EffectStore::open(&path, options).unwrap();
    store.create_branch(NewBranch::named("a")).unwrap();
    let mut child = start("hold a batch", &path, 0);
    wait_until_holding(&mut child);
    stop(&child);
    let refused = store.create_branch(NewBranch::named("b")).unwrap_err();
    let Error::Storage(StorageError::StoreBusy { pid, .. }) = refused else { panic!("{refused}") };
    assert_eq!(pid, child.id());
    assert_eq!(store.branch_named("a").unwrap().name, "a");
    end(child);
    store.create_branch(NewBranch::named("b")).unwrap();
    store.verify(None).unwrap();
}

#[test]
fn a_stopped_waiter_does_not_hold_up_the_others() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let turn = storage.take_turn(Duration::from_secs(1)).unwrap();
    let mut child = start("wait first", dir.path(), 0);
    first_number(&mut child);
    std::thread::sleep(Duration::from_millis(100));
    stop(&child);
    drop(turn);
    let began = Instant::now();
    for _ in 0..20 {
        append(&storage, 1).unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    end(child);
    assert_eq!(check(&storage), 21);
}

#[test]
fn two_looping_writers_take_turns() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let children: Vec<Child> = (0..2).map(|_| start("loop", dir.path(), 500)).collect();
    for child in children {
        let said = said_numbers(child);
        let [.., mean, longest, passed] = said[..] else { panic!("{said:?}") };
        println!("mean wait {mean} us, longest {longest} us, {passed} turns of others");
        // Counted in turns, since a flush of a busy machine may take any time; and whom the
        // scheduler of a loaded machine leaves out is not waiting at the gate. A polled lock starves
        // a process for longer than this.
        assert!(passed <= 20 || longest < 500_000, "{passed} turns of others in {longest} us");
    }
    assert_eq!(check(&storage), 1003);
}

#[test]
fn a_page_of_garbage_costs_time_and_nothing_else() {
    let dir = tempdir().unwrap();
    let storage = open(dir.path());
    append(&storage, 1).unwrap();
    let path = dir.path().join("shared.page");
    let children: Vec<Child> = (0..2).map(|_| start("loop", dir.path(), 150)).collect();
    let mut page = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut state = 7_u64;
    for round in 0..60 {
        let mut garbage = vec![0_u8; 4096];
        for byte in &mut garbage {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = if round % 7 == 0 { 0xff } else { state.to_be_bytes()[0] };
        }
        // The header, too, now and then.
        let from = if round % 2 == 0 { 64 } else { 0 };
        page.seek(SeekFrom::Start(from)).unwrap();
        page.write_all(&garbage[usize::try_from(from).unwrap()..]).unwrap();
        append(&storage, 1).unwrap();
        if round % 10 == 5 {
            std::fs::remove_file(&path).unwrap();
            append(&storage, 1).unwrap();
            page = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    for child in children {
        assert_eq!(said_numbers(child).len(), 4, "a child failed");
    }
    assert_eq!(check(&storage), 1 + 60 + 6 + 2 + 300);
}

#[test]
fn a_page_is_made_anew_where_it_is_not_this_stores() {
    let dir = tempdir().unwrap();
    let other = tempdir().unwrap();
    let path = dir.path().join("shared.page");
    drop(open(dir.path()));
    let whole = std::fs::read(&path).unwrap();
    assert_eq!((&whole[..8], whole.len()), (b"effpage\0".as_slice(), 4096));
    for bad in [Vec::new(), vec![0; 10], vec![0xab; 4096], whole[..4095].to_vec()] {
        std::fs::write(&path, &bad).unwrap();
        let storage = open(dir.path());
        append(&storage, 1).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[..48], whole[..48]);
    }
    // Another store's page, copied with its directory.
    std::fs::create_dir(other.path().join("s")).unwrap();
    let there = other.path().join("s/shared.page");
    drop(open(&other.path().join("s")));
    std::fs::write(&there, &whole).unwrap();
    append(&open(&other.path().join("s")), 1).unwrap();
    assert_ne!(std::fs::read(&there).unwrap()[..48], whole[..48]);
    // A page of a later version is left to those who know it, and a link leads nowhere.
    let mut newer = whole.clone();
    newer[8] = 9;
    std::fs::write(&path, &newer).unwrap();
    append(&open(dir.path()), 1).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), newer);
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    append(&open(dir.path()), 1).unwrap();
    assert_eq!(check(&open(dir.path())), 6);
}

#[test]
fn a_wait_for_the_log_is_woken_by_another_process() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("store");
    let store = EffectStore::open(&path, Options::default()).unwrap();
    let mut child = start("make a branch when asked", &path, 20);
    first_number(&mut child);
    let mut since = store.log(0, 10, 0).unwrap().last().unwrap().seq;
    let out = BufReader::new(child.stdout.take().unwrap());
    let mut said = out.lines().map_while(Result::ok).filter_map(|line| {
        line.strip_prefix("said ").and_then(|number| number.parse::<u128>().ok())
    });
    let mut delays = Vec::new();
    for _ in 0..20 {
        let entries = store.log(since, 10, 5_000).unwrap();
        let now = std::time::SystemTime::now();
        let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
        since = entries.last().expect("nothing came").seq;
        delays.push(now.saturating_sub(said.next().unwrap()) / 1000);
    }
    child.wait().unwrap();
    delays.sort_unstable();
    println!("woken after {} us, at most {} us", delays[10], delays[19]);
    // The sleep would be a second without a wake-up.
    assert!(delays[10] < 200_000, "{delays:?}");
}
