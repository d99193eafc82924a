//! Store time within a boot and over boots (reliability case 13).
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::path::Path;
use std::sync::{Arc, Mutex};

use effectstore::model::*;
use effectstore::store::{MachineTime, NewBranch, Payloads};
use effectstore::{EffectStore, Options};

const DAY_MS: u64 = 86_400_000;
const START_MS: u64 = 1_796_000_000_000;

/// A machine whose clocks a test sets.
#[derive(Clone)]
struct Machine(Arc<Mutex<MachineTime>>);

impl Machine {
    fn new() -> Self {
        let time = MachineTime { wall_ms: START_MS, boot_ms: 5_000, boot_id: [1; 16] };
        Machine(Arc::new(Mutex::new(time)))
    }

    fn set(&self, change: impl FnOnce(&mut MachineTime)) {
        change(&mut self.0.lock().unwrap());
    }

    fn open(&self, path: &Path) -> EffectStore {
        let machine = self.clone();
        let mut options = Options::default();
        options.machine = Some(Arc::new(move || *machine.0.lock().unwrap()));
        EffectStore::open(path, options).unwrap()
    }
}

fn leased(store: &EffectStore, name: &str, lease_ms: u64) -> BranchInfo {
    let mut new = NewBranch::named(name);
    new.lease_ms = Some(lease_ms);
    store.create_branch(new).unwrap()
}

fn live(store: &EffectStore, branch: &BranchInfo, deadline_ms: Option<u64>) -> EffectId {
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xa0".to_vec());
    let mut inverse = Inverse::call("unset", Some(args));
    inverse.deadline_ms = deadline_ms;
    let call = Registration::new("set", args).writes(branch.name.as_str()).inverse(inverse);
    let placed = Placed { branch: branch.id, token: branch.token, call };
    store.register(vec![placed], payloads, 0).unwrap()[0].effect
}

#[test]
fn steps_of_the_wall_clock_bend_no_lease_and_no_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine::new();
    let store = machine.open(&dir.path().join("store"));
    let branch = leased(&store, "A", 60_000);
    live(&store, &branch, Some(START_MS + 120_000));
    for wall_ms in [START_MS + 10 * DAY_MS, START_MS - 10 * DAY_MS, 0, START_MS] {
        machine.set(|time| time.wall_ms = wall_ms);
        assert_eq!((store.now_ms(), store.tick().unwrap()), (START_MS, 0));
    }
    machine.set(|time| time.boot_ms += 59_999);
    assert_eq!(store.tick().unwrap(), 0);
    machine.set(|time| time.boot_ms += 2);
    assert!(store.tick().unwrap() > 0);
    assert_eq!(store.branch_named("A").unwrap().state, BranchState::Doomed);
    store.verify(None).unwrap();
}

#[test]
fn all_handles_of_a_boot_have_one_time_whenever_they_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let machine = Machine::new();
    let first = machine.open(&path);
    machine.set(|time| {
        time.wall_ms += DAY_MS;
        time.boot_ms += 1_000;
    });
    let second = machine.open(&path);
    assert_eq!((first.now_ms(), second.now_ms()), (START_MS + 1_000, START_MS + 1_000));
    drop((first, second));
    machine.set(|time| time.wall_ms = 0);
    assert_eq!(machine.open(&path).now_ms(), START_MS + 1_000);
}

#[test]
fn leases_of_another_boot_are_over_and_deadlines_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let machine = Machine::new();
    let store = machine.open(&path);
    let branch = leased(&store, "A", 30 * DAY_MS);
    let free = store.create_branch(NewBranch::named("B")).unwrap();
    let held = live(&store, &branch, None);
    let kept = live(&store, &free, Some(START_MS + DAY_MS));
    drop(store);
    // The same boot: nothing happens.
    let store = machine.open(&path);
    assert_eq!(store.branch_named("A").unwrap().state, BranchState::Open);
    drop(store);
    machine.set(|time| {
        *time = MachineTime { wall_ms: START_MS + 60_000, boot_ms: 3_000, boot_id: [2; 16] };
    });
    let store = machine.open(&path);
    assert_eq!(store.now_ms(), START_MS + 60_000);
    assert_eq!(store.branch_named("A").unwrap().state, BranchState::Doomed);
    assert_eq!(store.effect(held).unwrap().state, EffectState::Doomed);
    assert_eq!(store.effect(kept).unwrap().state, EffectState::Live);
    let records = store.verify(None).unwrap().records;
    drop(store);
    // Once for each boot.
    let store = machine.open(&path);
    assert_eq!(store.verify(None).unwrap().records, records);
    // A lease of this boot lives on.
    leased(&store, "C", 1_000);
    drop(store);
    assert_eq!(machine.open(&path).branch_named("C").unwrap().state, BranchState::Open);
}

#[test]
fn opening_a_restored_copy_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let machine = Machine::new();
    let store = machine.open(&path);
    leased(&store, "A", 30 * DAY_MS);
    store.backup(&copy).unwrap();
    let records = store.verify(None).unwrap().records;
    machine.set(|time| time.boot_id = [2; 16]);
    let restored = machine.open(&copy);
    assert_eq!(restored.verify(None).unwrap().records, records);
    // Its first write starts the incarnation and the boot.
    restored.create_branch(NewBranch::named("B")).unwrap();
    assert_eq!(restored.incarnation().unwrap(), 2);
    assert_eq!(restored.branch_named("A").unwrap().state, BranchState::Doomed);
    restored.verify(None).unwrap();
}

#[test]
fn a_reader_of_a_new_boot_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let machine = Machine::new();
    let records = {
        let store = machine.open(&path);
        leased(&store, "A", 1_000);
        store.verify(None).unwrap().records
    };
    machine.set(|time| time.boot_id = [2; 16]);
    let mut options = Options::default();
    options.read_only = true;
    let clocks = machine.clone();
    options.machine = Some(Arc::new(move || *clocks.0.lock().unwrap()));
    let store = EffectStore::open(&path, options).unwrap();
    assert_eq!(store.branch_named("A").unwrap().state, BranchState::Open);
    assert_eq!(store.verify(None).unwrap().records, records);
}
