//! Artifacts on disk: every state survives a restart and a fold of the liveness table, replay gives
//! equal tables, deciding again gives the recorded events, and content is checked when handed out.
#![allow(clippy::unwrap_used)] // A test that meets an error shall stop there.

use std::ops::ControlFlow;
use std::path::Path;

use effectstore::codec::{Header, Record};
use effectstore::decide::decide;
use effectstore::log::{Batch, Index, Past, Payloads, Tail};
use effectstore::model::ArtifactState::*;
use effectstore::model::*;
use effectstore::state::State;
use effectstore::storage::{LmdbStorage, MemoryStorage, ReadView, Storage, StorageOptions, Table};
use effectstore::store::{CompensateOptions, Handled, NewArtifact, NewBranch, sha256};
use effectstore::{EffectStore, Options};

fn open(path: &Path) -> EffectStore {
    EffectStore::open(path, Options::default()).unwrap()
}

fn create(store: &EffectStore) -> ArtifactId {
    let fix = NewArtifact::held("SCRIPT", "fix", b"add".to_vec());
    let undo = NewArtifact::held("SCRIPT", "undo", b"drop".to_vec());
    store.artifacts().create(fix, undo, "ana").unwrap().primary.id
}

/// Brings a new pair into a state by the verbs that lead there.
fn bring(store: &EffectStore, state: ArtifactState) -> ArtifactId {
    let id = create(store);
    let pairs = store.artifacts();
    let approved = |upto: ArtifactState| {
        pairs.submit(id, "ana").unwrap();
        if upto != InReview {
            pairs.approve(id, "ben", None).unwrap();
        }
        if !matches!(upto, InReview | Approved) {
            pairs.promote(id, "ben").unwrap();
        }
        if !matches!(upto, InReview | Approved | Promoted) {
            pairs.start(id, "runner").unwrap();
        }
    };
    match state {
        Draft => {}
        Rejected => drop(pairs.reject(id, "ben", "no").unwrap()),
        InReview | Approved | Promoted | Executing => approved(state),
        Completed => {
            approved(state);
            pairs.complete(id, "runner").unwrap();
        }
        Failed | Compensated | Uncompensated => {
            approved(state);
            pairs.fail(id, "runner", "exit code 1", None).unwrap();
            let run = pairs.get(id).unwrap().run.unwrap();
            let options =
                CompensateOptions { rollback: Some(run.rollback), ..CompensateOptions::default() };
            let problem = || Problem::new("Gone", "no");
            if state != Failed {
                store
                    .compensate(&options, &mut |_| match state {
                        Compensated => Handled::Completed(None),
                        _ => Handled::End(StepEnd::Permanent(problem())),
                    })
                    .unwrap();
            }
        }
    }
    assert_eq!(pairs.get(id).unwrap().primary.state, state);
    id
}

/// Settles so many effects that the liveness table is folded.
fn settle(store: &EffectStore, name: &str, count: usize) {
    let branch = store.create_branch(NewBranch::named(name)).unwrap();
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xa0".to_vec());
    let call = || {
        let call = Registration::new("set", args).inverse(Inverse::call("unset", None));
        Placed { branch: branch.id, token: branch.token, call: call.after([]).mode(Mode::Deferred) }
    };
    let calls: Vec<Placed> = (0..count).map(|_| call()).collect();
    store.register(calls, payloads, 0).unwrap();
    // What never ran needs no undo, so one record settles all of it; the next command folds.
    store.abort(Target::Branch(branch.id), branch.token, "enough", None).unwrap();
    store.tick().unwrap();
    store.create_branch(NewBranch::named(format!("{name}-after"))).unwrap();
}

fn is_folded(path: &Path) -> bool {
    let storage = LmdbStorage::open(path, &StorageOptions::default()).unwrap();
    storage.read().unwrap().get(Table::Meta, b"liveness").unwrap().is_some()
}

#[test]
fn every_state_survives_a_restart_and_a_fold_of_the_liveness_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(dir.path());
    let ids: Vec<(ArtifactId, ArtifactState)> =
        ArtifactState::ALL.into_iter().map(|state| (bring(&store, state), state)).collect();
    let told: Vec<ArtifactPair> =
        ids.iter().map(|(id, _)| store.artifacts().get(*id).unwrap()).collect();
    for round in 0..2 {
        store.close().unwrap();
        drop(store);
        assert_eq!(is_folded(dir.path()), round == 1);
        store = open(dir.path());
        store.verify(None).unwrap();
        for ((id, state), before) in ids.iter().zip(&told) {
            let pair = store.artifacts().get(*id).unwrap();
            assert_eq!(pair, *before, "{state:?}");
            assert_eq!(store.artifacts().get(pair.compensation.id).unwrap(), pair);
        }
        assert_eq!(store.artifacts().list(0, 100).unwrap(), told);
        if round == 0 {
            settle(&store, "many", 4_200);
            store.verify(None).unwrap();
        }
    }
    // From memory that was folded anew, every open pair goes on where it was.
    let next = |state: ArtifactState| match state {
        Draft => Some(InReview),
        InReview => Some(Approved),
        Approved => Some(Promoted),
        Promoted => Some(Executing),
        Executing => Some(Completed),
        _ => None,
    };
    for (id, state) in ids {
        let pairs = store.artifacts();
        match next(state) {
            Some(InReview) => drop(pairs.submit(id, "ana").unwrap()),
            Some(Approved) => drop(pairs.approve(id, "ben", None).unwrap()),
            Some(Promoted) => drop(pairs.promote(id, "ben").unwrap()),
            Some(Executing) => drop(pairs.start(id, "runner").unwrap()),
            Some(_) => drop(pairs.complete(id, "runner").unwrap()),
            None => drop(pairs.submit(id, "ana").unwrap_err()),
        }
    }
    store.verify(None).unwrap();
}

#[test]
fn i19_pairs_that_are_settled_cost_no_memory() {
    let store = EffectStore::in_memory(Options::default()).unwrap();
    let mut kept = Vec::new();
    for state in ArtifactState::ALL {
        let id = bring(&store, state);
        if !matches!(state, Completed | Rejected | Compensated) {
            kept.push(id);
        }
    }
    let replayed = folded(&store);
    assert_eq!(replayed.artifacts.len(), kept.len());
    assert!(kept.iter().all(|id| replayed.artifacts.get(*id).is_some()));
}

/// The state that a fold of the whole log gives.
fn folded(store: &EffectStore) -> State {
    let mut state = State::default();
    for entry in store.log(0, usize::MAX, 0).unwrap() {
        let header: Header = minicbor::decode(&entry.body).unwrap();
        state.apply(entry.seq, header.time_ms, &header.event);
    }
    state
}

#[test]
fn i10_commands_about_artifacts_decided_again_give_the_recorded_events() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    for state in ArtifactState::ALL {
        let id = bring(&store, state);
        // Saying it again is decided by what memory holds no more.
        let _ = store.artifacts().fail(id, "other", "again", Some("run"));
        let _ = store.artifacts().promote(id, "other");
    }
    store.close().unwrap();
    drop(store);
    let storage = LmdbStorage::open(dir.path(), &StorageOptions::default()).unwrap();
    let view = storage.read().unwrap();
    let again = MemoryStorage::new([0; 16], &StorageOptions::default());
    let (mut state, mut index, mut tail) = (State::default(), Index::default(), Tail::default());
    let mut group: Vec<Record> = Vec::new();
    view.scan(1, &mut |_, bytes| {
        group.push(Record::decode(bytes).unwrap());
        if group.last().unwrap().header.more.unwrap_or(0) == 0 {
            decide_again(&again, (&mut state, &mut index, &mut tail), &group);
            group.clear();
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let rows = |view: &dyn ReadView| {
        let mut rows = Vec::new();
        view.rows(Table::Artifacts, &[0], &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        rows
    };
    let stored = rows(view.as_ref());
    assert_eq!(stored.len(), ArtifactState::ALL.len());
    assert_eq!(stored, rows(again.read().unwrap().as_ref()));
}

fn decide_again(
    storage: &dyn Storage,
    (state, index, tail): (&mut State, &mut Index, &mut Tail),
    group: &[Record],
) {
    let header = &group[0].header;
    let command = header.command.clone().unwrap();
    let mut batch = Batch::new(storage.write().unwrap());
    let verdict = {
        let past = Past::new(batch.write.as_ref() as &dyn ReadView, index);
        decide(state, &past, &command, header.time_ms)
    };
    let recorded: Vec<Event> = group.iter().map(|record| record.header.event.clone()).collect();
    assert_eq!(verdict.events, recorded, "{command:?}");
    let id = header.command_id.unwrap();
    let none = Payloads::default();
    batch.append(tail, index, state, &command, id, header.time_ms, &recorded, &none).unwrap();
    batch.write.commit().unwrap();
    assert_eq!(tail.hash, group.last().unwrap().hash);
}

#[test]
fn content_is_checked_when_it_is_handed_out() {
    let store = EffectStore::in_memory(Options::default()).unwrap();
    let large = vec![b'x'; 200_000];
    let fix = NewArtifact::held("SCRIPT", "fix", large.clone());
    let undo = NewArtifact::elsewhere("SCRIPT", "undo", "s3://bucket/undo", sha256(b"drop"));
    let pair = store.artifacts().create(fix, undo, "ana").unwrap();
    let pairs = store.artifacts();
    assert_eq!(pairs.content(pair.primary.id).unwrap(), large);
    assert_eq!(pairs.content(pair.compensation.id).unwrap_err().code(), "options");
    pairs.check(pair.compensation.id, b"drop").unwrap();
    let refused = pairs.check(pair.compensation.id, b"dropped").unwrap_err();
    assert_eq!(refused.code(), "content_mismatch");
    assert!(refused.to_string().contains(&pair.compensation.id.to_string()));
}

#[test]
fn a_run_whose_content_was_changed_is_not_handed_out() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let undo = vec![b'u'; 100_000];
    let fix = NewArtifact::held("SCRIPT", "fix", b"add".to_vec());
    let pair = store
        .artifacts()
        .create(fix, NewArtifact::held("SCRIPT", "undo", undo.clone()), "ana")
        .unwrap();
    let id = pair.primary.id;
    store.artifacts().submit(id, "ana").unwrap();
    store.artifacts().approve(id, "ben", None).unwrap();
    store.close().unwrap();
    drop(store);
    {
        let storage = LmdbStorage::open(dir.path(), &StorageOptions::default()).unwrap();
        let mut batch = storage.write().unwrap();
        let mut key = PayloadRef::of(&undo).hash.to_vec();
        key.extend_from_slice(&0_u32.to_be_bytes());
        assert!(batch.get(Table::Blobs, &key).unwrap().is_some());
        batch.put(Table::Blobs, &key, &vec![b'v'; 65_536]).unwrap();
        batch.commit().unwrap();
    }
    let store = open(dir.path());
    assert_eq!(
        store.artifacts().content(pair.compensation.id).unwrap_err().code(),
        "content_mismatch"
    );
    store.artifacts().fail(id, "runner", "exit code 1", Some("7")).unwrap();
    let mut ran = 0;
    let report = store
        .compensate(&CompensateOptions::default(), &mut |_| {
            ran += 1;
            Handled::Completed(None)
        })
        .unwrap();
    assert_eq!(ran, 0, "nothing ran");
    assert_eq!(report.report.failed[0].kind, FailureKind::ContentMismatch);
    assert_eq!(report.report.failed[0].problem.error_type, "ContentMismatchError");
    assert!(store.claim(&claim(), 0).unwrap().is_none());
    let told = store.artifacts().get(id).unwrap();
    assert_eq!(told.primary.state, Uncompensated);
    assert_eq!(told.run.unwrap().outcome.unwrap().kind, Some(FailureKind::ContentMismatch));
    let alerts = store.alerts(0, 10).unwrap();
    assert_eq!((alerts.len(), alerts[0].severity), (1, Severity::Critical));
}

fn claim() -> ClaimSpec {
    ClaimSpec {
        agent: "*".into(),
        tools: None,
        lease_ms: 1_000,
        rollback: None,
        retry: None,
        on_failure: None,
        except: Vec::new(),
    }
}

#[test]
fn a_key_makes_one_pair_over_a_restart_and_stands_for_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let made = |store: &EffectStore, fix: &[u8], undo: &[u8], key: &[u8]| {
        let fix = NewArtifact::held("SCRIPT", "fix", fix.to_vec());
        let undo = NewArtifact::held("SCRIPT", "undo", undo.to_vec());
        store.artifacts().create_once(fix, undo, "ana", key)
    };
    let conflict = |answer: Result<ArtifactPair, effectstore::Error>| match answer {
        Err(effectstore::Error::Refused { refusal, .. }) => match refusal {
            Refusal::IdempotencyConflict { effect, differs } => (effect.0, differs),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let store = open(&path);
    let first = made(&store, b"add", b"drop", b"k").unwrap().primary.id;
    store.artifacts().submit(first, "ana").unwrap();
    store.close().unwrap();
    let store = open(&path);
    let again = made(&store, b"add", b"drop", b"k").unwrap();
    assert_eq!((again.primary.id, again.primary.state), (first, InReview), "as it is by now");
    assert_eq!(conflict(made(&store, b"other", b"drop", b"k")), (first.0, "primary"));
    assert_eq!(conflict(made(&store, b"add", b"other", b"k")), (first.0, "compensation"));
    assert_ne!(made(&store, b"add", b"drop", b"l").unwrap().primary.id, first);
    let branch = store.create_branch(NewBranch::named("a")).unwrap();
    let register = |key: &[u8]| {
        let mut payloads = Payloads::default();
        let args = payloads.put(b"args".to_vec());
        let undo = Inverse::call("undo", None);
        let call = Registration::new("put", args).inverse(undo).idempotency_key(key);
        let placed = Placed { branch: branch.id, token: branch.token, call };
        store.register(vec![placed], payloads, 0)
    };
    let known = register(b"call").unwrap()[0].effect;
    assert_eq!(conflict(made(&store, b"add", b"drop", b"call")), (known.0, "kind"));
    let refused = register(b"k").unwrap_err();
    assert!(refused.to_string().contains("another kind"), "{refused}");
    store.verify(None).unwrap();
}
