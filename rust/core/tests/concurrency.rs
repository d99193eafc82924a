//! Several threads on one store on disk: ids, one decision, no panics, waiters that wake.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use effectstore::model::*;
use effectstore::store::{NewBranch, Payloads};
use effectstore::{EffectStore, Error, Options};

fn store() -> (tempfile::TempDir, EffectStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = EffectStore::open(dir.path().join("store"), Options::default()).unwrap();
    (dir, store)
}

fn branch(store: &EffectStore, name: impl Into<String>) -> BranchInfo {
    store.create_branch(NewBranch::named(name)).unwrap()
}

/// Registers a write and reports it as done.
fn write(store: &EffectStore, branch: &BranchInfo, key: &str, read: Option<&str>) -> EffectId {
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xa0".to_vec());
    let mut call =
        Registration::new("set", args).writes(key).inverse(Inverse::call("unset", Some(args)));
    if let Some(read) = read {
        call = call.reads(read);
    }
    let placed = Placed { branch: branch.id, token: branch.token, call };
    let receipt = store.register(vec![placed], payloads, 0).unwrap()[0];
    let token = receipt.token.unwrap();
    let none = Payloads::default();
    store.done(receipt.effect, token, b"\xf6".to_vec(), None, none, false).unwrap();
    receipt.effect
}

fn code<T>(answer: &Result<T, Error>) -> &'static str {
    answer.as_ref().map_or_else(Error::code, |_| "ok")
}

#[test]
fn i9_eight_threads_get_unique_ids_and_the_log_has_no_gap() {
    const THREADS: u64 = 8;
    const EACH: u64 = 60;
    let (_dir, store) = store();
    let begin = Barrier::new(usize::try_from(THREADS).unwrap());
    let mut ids: Vec<u64> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|worker| {
                let (store, begin) = (&store, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let own = branch(store, format!("worker {worker}"));
                    let mut ids = vec![own.id.0];
                    for number in 0..EACH {
                        ids.push(write(store, &own, &format!("{worker}"), None).0);
                        if number % 7 == 6 {
                            let target = Target::Branch(own.id);
                            let fence = store.commit(target, own.token, Escalate::Wait, 0);
                            let fence = fence.expect("a commit of one's own work");
                            assert_eq!(fence.status, FenceStatus::Committed);
                            ids.push(fence.id.unwrap().0);
                        }
                    }
                    ids
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no thread panics")).collect()
    });
    let answered = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), answered, "an id was answered twice");
    let records = store.log(0, usize::MAX, 0).unwrap();
    assert!(records.iter().map(|record| record.seq).eq(1..=records.len() as u64), "a gap");
    // Branches, registrations, outcomes and fences, and nothing else but the store's creation.
    assert_eq!(records.len() as u64, answered as u64 + THREADS * EACH + 1);
    store.verify(None).unwrap();
}

#[test]
fn t1_commit_racing_abort_makes_one_decision_a_thousand_times() {
    let (_dir, store) = store();
    let mut won = [0, 0];
    for round in 0..1_000 {
        let (a, b) = (branch(&store, format!("a{round}")), branch(&store, format!("b{round}")));
        let key = format!("key {round}");
        let first = write(&store, &a, &key, None);
        let second = write(&store, &b, "other", Some(&key));
        store.seal(a.id, a.token).unwrap();
        let begin = Barrier::new(2);
        let (committed, aborted) = std::thread::scope(|scope| {
            let commit = scope.spawn(|| {
                begin.wait();
                store.commit(Target::Branch(b.id), b.token, Escalate::Wait, 0)
            });
            begin.wait();
            if round % 2 == 0 {
                std::thread::yield_now();
            }
            let aborted = store.abort(Target::Branch(a.id), a.token, "contradicted", None);
            (commit.join().expect("no panic"), aborted.expect("an abort answers what was decided"))
        });
        let states = [first, second].map(|effect| store.effect(effect).unwrap().state);
        match committed {
            Ok(fence) => {
                assert_eq!(fence.status, FenceStatus::Committed, "round {round}");
                assert_eq!(states, [EffectState::Committed; 2], "round {round}");
                assert!(aborted.doomed.is_empty() && aborted.rollback.is_none(), "{aborted:?}");
                assert_eq!(aborted.kept, vec![first], "round {round}");
                won[0] += 1;
            }
            Err(error) => {
                assert!(["fence_closure", "doomed_branch"].contains(&error.code()), "{error}");
                assert_eq!(states, [EffectState::Doomed; 2], "round {round}");
                assert_eq!((aborted.doomed, aborted.cascaded), (vec![first], vec![second]));
                let rollback = store.rollback(aborted.rollback.unwrap()).unwrap();
                assert_eq!(rollback.effects, vec![first, second], "T1: round {round}");
                won[1] += 1;
                let steps = store.compensate(&Default::default(), &mut |_| {
                    effectstore::store::Handled::Completed(None)
                });
                assert!(steps.unwrap().report.clean());
            }
        }
    }
    assert!(won[0] > 0 && won[1] > 0, "one side always won: {won:?}");
    store.verify(None).unwrap();
}

#[test]
fn i7_reconcile_racing_reconcile_settles_every_effect_once() {
    let (_dir, store) = store();
    for round in 0..300 {
        let (a, b) = (branch(&store, format!("a{round}")), branch(&store, format!("b{round}")));
        let left = write(&store, &a, &format!("left {round}"), None);
        let right = write(&store, &b, &format!("right {round}"), None);
        let begin = Barrier::new(2);
        let judge = |winner: &BranchInfo, loser: &BranchInfo| {
            let (commit, abort) = (Target::Branch(winner.id), Target::Branch(loser.id));
            begin.wait();
            let by = Some("judge");
            let conflict = OnConflict::Raise;
            store.reconcile(vec![commit], vec![abort], false, by, None, conflict, Escalate::Never)
        };
        let (one, other) = std::thread::scope(|scope| {
            let one = scope.spawn(|| judge(&a, &b));
            let other = judge(&b, &a);
            (one.join().expect("no panic"), other)
        });
        let states = [left, right].map(|effect| store.effect(effect).unwrap().state);
        let (winner, refused) = match (&one, &other) {
            (Ok(done), refused @ Err(_)) | (refused @ Err(_), Ok(done)) => (done, refused),
            both => panic!("round {round}: {both:?}"),
        };
        assert_eq!(code(refused), "fence_closure", "round {round}");
        let first_won = one.is_ok();
        let expected = if first_won {
            [EffectState::Committed, EffectState::Doomed]
        } else {
            [EffectState::Doomed, EffectState::Committed]
        };
        assert_eq!(states, expected, "round {round}: {winner:?}");
        assert_eq!((winner.committed.len(), winner.doomed.len()), (1, 1), "round {round}");
    }
    store.verify(None).unwrap();
}

#[test]
fn i21_a_waiting_commit_is_woken_by_the_seal_of_another_thread() {
    let (_dir, store) = store();
    let (a, b) = (branch(&store, "a"), branch(&store, "b"));
    let first = write(&store, &a, "key", None);
    let second = write(&store, &b, "other", Some("key"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let began = Instant::now();
            let fence = store.commit(Target::Branch(b.id), b.token, Escalate::Wait, 30_000);
            (fence, began.elapsed())
        });
        // The seal has to come after the commit began to wait, or there is nothing to wake.
        while store.fences(0, 10).unwrap().is_empty() {
            std::thread::yield_now();
        }
        store.seal(a.id, a.token).unwrap();
        let (fence, took) = waiter.join().expect("no panic");
        let fence = fence.unwrap();
        assert_eq!((fence.status, fence.committed), (FenceStatus::Committed, vec![first, second]));
        assert!(took < Duration::from_secs(10), "woken after {took:?}");
    });
}

#[test]
fn i21_a_waiting_commit_hears_of_the_abort_of_another_thread() {
    let (_dir, store) = store();
    let (a, b) = (branch(&store, "a"), branch(&store, "b"));
    write(&store, &a, "key", None);
    write(&store, &b, "other", Some("key"));
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| store.commit(Target::Branch(b.id), b.token, Escalate::Wait, 30_000));
        while store.fences(0, 10).unwrap().is_empty() {
            std::thread::yield_now();
        }
        store.abort(Target::Branch(a.id), a.token, "contradicted", None).unwrap();
        assert_eq!(code(&waiter.join().expect("no panic")), "fence_closure");
    });
}
