//! What the tests with several processes share.
#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::missing_panics_doc)]

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use effectstore::storage::{
    LmdbStorage, SegmentLimits, Storage, StorageError, StorageOptions, Table,
};

const ROLE: &str = "EFFECTSTORE_TEST_ROLE";
const STORE: &str = "EFFECTSTORE_TEST_STORE";
const SEED: &str = "EFFECTSTORE_TEST_SEED";

pub fn options() -> StorageOptions {
    StorageOptions {
        reserve_bytes: 256 << 10,
        segments: SegmentLimits { records: 300, bytes: 100_000 },
        ..StorageOptions::default()
    }
}

pub fn open(dir: &Path) -> Arc<LmdbStorage> {
    LmdbStorage::open(dir, &options()).unwrap()
}

/// A record that says who it is at its beginning and whose length depends on its number.
pub fn record_of(seq: u64) -> Vec<u8> {
    let length = 16 + usize::try_from(seq.wrapping_mul(2_654_435_761) % 5000).unwrap();
    seq.to_be_bytes().into_iter().cycle().take(length).collect()
}

pub fn append(storage: &LmdbStorage, count: u64) -> Result<u64, StorageError> {
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
pub fn check(storage: &LmdbStorage) -> u64 {
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

pub fn start(role: &str, dir: &Path, seed: u64) -> Child {
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
pub fn run(role: &str, dir: &Path) -> Vec<String> {
    let child = start(role, dir, 0);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{role}: {said}");
    said.lines().filter_map(|line| line.strip_prefix("said ")).map(str::to_owned).collect()
}

pub fn say(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // The test harness ends a line of its own late, so ours begin with a new one.
    writeln!(out, "\nsaid {text}").unwrap();
    out.flush().unwrap();
}

pub fn wait_until_holding(child: &mut Child) {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    assert!(out.lines().map_while(Result::ok).any(|line| line == "said holding"));
}

/// What a child was started for; `None` in the process that runs the tests.
pub fn role() -> Option<(String, PathBuf, u64)> {
    let role = env::var(ROLE).ok()?;
    let seed = env::var(SEED).unwrap().parse().unwrap();
    Some((role, env::var_os(STORE).unwrap().into(), seed))
}

/// The numbers that a child said before it ended or was killed.
pub fn said_numbers(child: Child) -> Vec<u64> {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    // The last line may be cut off by a kill.
    let whole = said.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let numbers = whole.lines().filter_map(|line| line.strip_prefix("said "));
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Waits for the first number that a child says, and takes no more than that from its output.
pub fn first_number(child: &mut Child) -> u64 {
    let out = child.stdout.as_mut().unwrap();
    loop {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte[0] != b'\n' {
            out.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&line);
        let number = line.strip_prefix("said ").and_then(|number| number.trim().parse().ok());
        if let Some(number) = number {
            return number;
        }
    }
}
