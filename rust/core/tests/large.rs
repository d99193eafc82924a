//! Sizes at the limits: a chain of a million live effects, a ring of ten thousand, a key with a
//! hundred thousand readers. Each is committed and, in a fresh store, aborted, on a thread whose
//! stack would not survive a recursion, and in bounded memory.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

use std::sync::{Mutex, PoisonError};
use std::thread;

use effectstore::model::*;
use effectstore::store::{NewBranch, Payloads};
use effectstore::{EffectStore, Options};

/// Stack of the thread that does the work, in bytes.
const STACK_BYTES: usize = 256 << 10;

/// Effects of one `register` call of many.
const BATCH: u64 = 50_000;

/// Resident memory is the process's, so the tests go one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs `work` on a small stack and checks that resident memory grows by no more than so many
/// bytes per effect.
fn bounded(effects: u64, bytes_each: u64, work: impl FnOnce() -> Site + Send) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = resident_kib();
    thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(STACK_BYTES);
        let site = small.spawn_scoped(scope, work).unwrap().join().unwrap();
        // The store is still open, so all that it holds is counted.
        let grown = resident_kib().saturating_sub(before) * 1024;
        let allowed = effects * bytes_each + (64 << 20);
        assert!(grown <= allowed, "{grown} bytes for {effects} effects, {allowed} allowed");
        drop(site);
    });
}

struct Site {
    store: EffectStore,
    branch: BranchInfo,
    _dir: Option<tempfile::TempDir>,
}

impl Site {
    fn new(on_disk: bool) -> Self {
        let mut options = Options::default();
        options.limits = Some(Limits {
            live_effects: 2_000_000,
            readers_per_version: 200_000,
            ..Limits::default()
        });
        let dir = on_disk.then(|| tempfile::tempdir().unwrap());
        let store = match &dir {
            Some(dir) => EffectStore::open(dir.path().join("s"), options).unwrap(),
            None => EffectStore::in_memory(options).unwrap(),
        };
        let branch = store.create_branch(NewBranch::named("b")).unwrap();
        Site { store, branch, _dir: dir }
    }

    /// Registers `count` effects in batches; `shape` says for each what it follows, given its place
    /// in its batch and the last effect of the batch before, and which keys it touches.
    fn register(
        &self,
        count: u64,
        shape: impl Fn(u64, u64, Option<EffectId>, Registration) -> Registration,
    ) -> Vec<Receipt> {
        let mut payloads = Payloads::default();
        let args = payloads.put(b"\xa0".to_vec());
        let mut receipts: Vec<Receipt> = Vec::new();
        while (receipts.len() as u64) < count {
            let first = receipts.len() as u64;
            let last = receipts.last().map(|receipt| receipt.effect);
            let calls = (first..count.min(first + BATCH))
                .map(|number| {
                    let call = Registration::new("set", args);
                    let call = call.inverse(Inverse::call("unset", Some(args)));
                    let call = shape(number, number - first, last, call);
                    Placed { branch: self.branch.id, token: self.branch.token, call }
                })
                .collect();
            receipts.extend(self.store.register(calls, payloads.clone(), 0).unwrap());
        }
        receipts
    }

    /// Reports all as done, from threads that share commits.
    fn report_done(&self, receipts: &[Receipt]) {
        thread::scope(|scope| {
            for part in receipts.chunks(receipts.len().div_ceil(256)) {
                scope.spawn(move || {
                    for receipt in part {
                        let (result, none) = (b"\xf6".to_vec(), Payloads::default());
                        let token = receipt.token.unwrap();
                        self.store.done(receipt.effect, token, result, None, none, true).unwrap();
                    }
                });
            }
        });
    }

    fn fences(&self, count: u64) {
        let target = Target::Branch(self.branch.id);
        let fence = self.store.commit(target, self.branch.token, Escalate::Never, 0).unwrap();
        assert_eq!((fence.status, fence.committed.len() as u64), (FenceStatus::Committed, count));
    }

    fn aborts(&self, root: EffectId, count: u64) {
        let target = Target::Effect(root);
        let answer = self.store.abort(target, self.branch.token, "too large", None).unwrap();
        assert_eq!(answer.doomed, vec![root]);
        assert_eq!(answer.cascaded.len() as u64, count - 1);
        let plan = self.store.plan(answer.rollback.unwrap()).unwrap();
        assert_eq!(plan.steps.len() as u64, count);
    }

    /// Each effect rests on the one before it.
    fn chain(&self, count: u64, keys: bool) -> Vec<Receipt> {
        self.register(count, |number, place, last, call| {
            let after = match (place, last) {
                (0, Some(last)) => vec![After::Effect(last)],
                (0, None) => Vec::new(),
                (place, _) => vec![After::Item(place - 1)],
            };
            let call = Registration { follows: Follows::These(after), ..call };
            if keys { call.writes(format!("k/{number}").as_str()) } else { call }
        })
    }

    /// A chain that late observations close to a ring, with a few shortcuts across it.
    fn ring(&self, count: u64) -> Vec<Receipt> {
        let receipts = self.chain(count, true);
        let last = count - 1;
        let shortcuts = (1..100).map(|number| (number * (count / 200), last - number * 7));
        for (from, to) in std::iter::once((0, last)).chain(shortcuts) {
            let from = receipts[usize::try_from(from).unwrap()];
            let keys = vec![Read::of(format!("k/{to}").as_str())];
            let seen = self.store.observe_late(from.effect, from.token.unwrap(), keys).unwrap();
            assert_eq!(seen[0].writers.len(), 1);
        }
        receipts
    }

    /// One effect writes a key and all others read it.
    fn readers(&self, count: u64) -> Vec<Receipt> {
        let mut receipts = self.register(1, |_, _, _, call| call.writes("config/X"));
        receipts.extend(self.register(count, |_, _, _, call| {
            Registration { follows: Follows::These(Vec::new()), ..call }.reads("config/X")
        }));
        receipts
    }
}

const MILLION: u64 = 1_000_000;
const RING: u64 = 10_000;
const READERS: u64 = 100_000;

#[test]
fn a_chain_of_a_million_commits_in_one_fence() {
    bounded(MILLION, 4_096, || {
        let site = Site::new(false);
        let receipts = site.chain(MILLION, false);
        site.report_done(&receipts);
        site.fences(MILLION);
        site
    });
}

#[test]
fn a_chain_of_a_million_falls_with_its_root() {
    bounded(MILLION, 4_096, || {
        let site = Site::new(false);
        let receipts = site.chain(MILLION, false);
        site.aborts(receipts[0].effect, MILLION);
        site
    });
}

#[test]
fn a_ring_of_ten_thousand_commits_as_one() {
    bounded(RING, 4_096, || {
        let site = Site::new(true);
        let receipts = site.ring(RING);
        site.report_done(&receipts);
        let target = Target::Effect(receipts[0].effect);
        let token = site.branch.token;
        let fence = site.store.commit(target, token, Escalate::Never, 0).unwrap();
        assert_eq!(fence.committed.len() as u64, RING);
        // So many settles fold the liveness table, with the next command: a replay agrees with it
        // before and after.
        site.store.verify(None).unwrap();
        site.chain(1, true);
        site.store.verify(None).unwrap();
        site
    });
}

#[test]
fn a_ring_of_ten_thousand_falls_as_one() {
    bounded(RING, 4_096, || {
        let site = Site::new(true);
        let receipts = site.ring(RING);
        site.aborts(receipts[RING as usize / 2].effect, RING);
        site
    });
}

#[test]
fn a_key_with_a_hundred_thousand_readers_commits_in_one_fence() {
    bounded(READERS, 4_096, || {
        let site = Site::new(true);
        let receipts = site.readers(READERS);
        site.report_done(&receipts);
        site.fences(READERS + 1);
        site
    });
}

#[test]
fn a_key_with_a_hundred_thousand_readers_falls_with_its_writer() {
    bounded(READERS, 4_096, || {
        let site = Site::new(true);
        let receipts = site.readers(READERS);
        site.aborts(receipts[0].effect, READERS + 1);
        site
    });
}
