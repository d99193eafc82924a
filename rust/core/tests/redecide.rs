//! I10: deciding recorded commands again, at their positions and moments, gives the recorded events.
//!
//! A random sequence is played on a store; then its log is read, the commands are decided again on a
//! state that is folded up to each of them, and the log that this makes must have the same hashes.
#![allow(missing_docs, dead_code, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

mod model;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use effectstore::codec::Record;
use effectstore::decide::decide;
use effectstore::log::{Batch, Index, Past, Payloads, Tail};
use effectstore::model as real;
use effectstore::model::{BranchId, Command, Event, Observed, Placed, Target};
use effectstore::state::State;
use effectstore::storage::{LmdbStorage, MemoryStorage, ReadView, Storage, StorageOptions};
use effectstore::store::{BreakSignal, CompensateOptions, EffectFilter, Handled, NewBranch};
use effectstore::{EffectStore, Options};
use model::dice::{self, Setting};
use model::peer::Peer;
use model::play::Play;

/// The commands of a seed.
fn script(seed: u64, commands: usize) -> Vec<dice::Command> {
    let mut state = seed;
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    let mut command = || {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&next().to_le_bytes());
        bytes[8..].copy_from_slice(&next().to_le_bytes()[..4]);
        bytes
    };
    (0..commands).map(|_| command()).collect()
}

/// The records of one command.
struct Group {
    first: u64,
    records: Vec<Record>,
}

fn groups(view: &dyn ReadView) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut left = 0;
    view.scan(1, &mut |seq, bytes| {
        let record = Record::decode(bytes).expect("a record");
        if left == 0 {
            left = record.header.more.unwrap_or(0);
            groups.push(Group { first: seq, records: vec![record] });
        } else {
            left -= 1;
            groups.last_mut().unwrap().records.push(record);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(left, 0, "the last command is whole");
    groups
}

/// A registration is not written down, since its events say it all.
fn command_of(group: &Group) -> Command {
    if let Some(command) = &group.records[0].header.command {
        return command.clone();
    }
    let mut calls = Vec::new();
    let mut observed: BTreeMap<BranchId, Vec<real::Observation>> = BTreeMap::new();
    for record in &group.records {
        let Event::Registered(registered) = &record.header.event else {
            panic!("record {} has neither a command nor a registration", group.first);
        };
        calls.push(Placed {
            branch: registered.branch,
            token: registered.token,
            call: registered.call.clone(),
        });
        if !registered.observed.is_empty() {
            observed.insert(registered.branch, registered.observed.clone());
        }
    }
    let observed =
        observed.into_iter().map(|(branch, observations)| Observed { branch, observations });
    Command::Register { calls, observed: observed.collect() }
}

/// Decides every command again on what came before it.
fn decide_again(view: &dyn ReadView) -> usize {
    let storage = MemoryStorage::new([0; 16], &StorageOptions::default());
    let (mut state, mut index, mut tail) = (State::default(), Index::default(), Tail::default());
    let groups = groups(view);
    for group in &groups {
        let header = &group.records[0].header;
        let command = command_of(group);
        let mut batch = Batch::new(storage.write().unwrap());
        let verdict = {
            let past = Past::new(batch.write.as_ref() as &dyn ReadView, &index);
            decide(&mut state, &past, &command, header.time_ms)
        };
        let recorded: Vec<&Event> = group.records.iter().map(|r| &r.header.event).collect();
        let decided: Vec<&Event> = verdict.events.iter().collect();
        assert_eq!(decided, recorded, "I10: record {}, {command:?}", group.first);
        let id = header.command_id.expect("the first record of a command has its id");
        let none = Payloads::default();
        batch
            .append(
                &mut tail,
                &mut index,
                &state,
                &command,
                id,
                header.time_ms,
                &verdict.events,
                &none,
            )
            .unwrap();
        batch.write.commit().unwrap();
        let last = group.records.last().unwrap();
        assert_eq!(tail.hash, last.hash, "I10: the chain after record {}", tail.head);
    }
    groups.len()
}

/// Plays a sequence on a store on disk and gives back what it left there.
fn played(setting: &Setting, seed: u64) -> (tempfile::TempDir, Arc<LmdbStorage>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let clock = Arc::new(AtomicU64::new(1_800_000_000_000));
    let mut options = Options::default();
    let moment = Arc::clone(&clock);
    options.clock = Some(Arc::new(move || moment.load(Ordering::SeqCst)));
    // Sequences of two agents: some do not confirm in time.
    options.policy = Some(real::Policy { confirm_within_ms: 100_000, ..setting.real_policy() });
    options.limits = Some(setting.real_limits());
    let store = EffectStore::open(&path, options.clone()).unwrap();
    let mut play = Play::new(setting, clock, Peer::new(store, options, Some(path.clone())));
    play.compare = false;
    // Whether answers are right is another test's matter: what is in the log must follow from it.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let _ = catch_unwind(AssertUnwindSafe(|| {
        for command in script(seed, 150) {
            play.play(&command);
        }
        play.finish();
    }));
    std::panic::set_hook(told);
    play.peer.store.close().unwrap();
    drop(play);
    let storage = LmdbStorage::open(&path, &StorageOptions::default()).unwrap();
    (dir, storage)
}

#[test]
fn i10_commands_decided_again_at_their_positions_give_the_recorded_events() {
    let settings = [Setting::plain(), Setting::rules(), Setting::nested(), Setting::strict()];
    let sequences = std::env::var("EFFECTSTORE_SEQUENCES").ok().and_then(|n| n.parse().ok());
    let mut commands = 0;
    for (place, setting) in (0_u64..).zip(&settings) {
        for seed in 0..sequences.unwrap_or(6) {
            let (_dir, storage) = played(setting, seed * 4 + place);
            commands += decide_again(storage.read().unwrap().as_ref());
        }
    }
    assert!(commands > 100, "only {commands} commands were decided again");
}

/// A branch with one call that ran, on a store whose time is `clock`.
fn ran(store: &EffectStore, name: &str, key: &str, reads: &str) -> (BranchId, real::Token) {
    let new = NewBranch { agent: Some(name.to_owned()), ..NewBranch::named(name) };
    let branch = store.create_branch(new).unwrap();
    let mut payloads = Payloads::default();
    let args = payloads.put(b"\xf6".to_vec());
    let undo = real::Inverse::call("undo", Some(args));
    let call = real::Registration::new("do", args).writes(key).reads(reads).inverse(undo);
    let placed = Placed { branch: branch.id, token: branch.token, call };
    let receipt = store.register(vec![placed], payloads, 0).unwrap()[0];
    let token = receipt.token.unwrap();
    store.done(receipt.effect, token, vec![0xf6], None, Payloads::default(), true).unwrap();
    (branch.id, branch.token)
}

#[test]
fn i10_breaks_notices_and_confirmations_decided_again_give_the_recorded_events() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let clock = Arc::new(AtomicU64::new(1_800_000_000_000));
    let mut options = Options::default();
    let moment = Arc::clone(&clock);
    options.clock = Some(Arc::new(move || moment.load(Ordering::SeqCst)));
    let wait = |ms: u64| clock.fetch_add(ms, Ordering::SeqCst);
    let store = EffectStore::open(&path, options.clone()).unwrap();
    let (up, up_token) = ran(&store, "up", "U", "none");
    let (down, _) = ran(&store, "down", "D", "U");
    ran(&store, "side", "S", "D");
    let signal = BreakSignal {
        reason: "lost".into(),
        upstream: vec!["up".into(), "far".into()],
        ack_within_ms: 1_000,
        ..BreakSignal::default()
    };
    store.signal_break(down, signal.clone()).unwrap();
    store.signal_break(down, BreakSignal { recoverable: false, ..signal }).unwrap();
    let abort = store.abort(Target::Branch(up), up_token, "follows", None).unwrap();
    let notices = store.notices("*", 0, 100).unwrap();
    store.ack_notice(notices[0].id, &notices[0].agent).unwrap();
    assert!(store.ack_notice(notices[1].id, "nobody").is_err());
    wait(1_000);
    store.tick().unwrap();
    // Opened anew between the signal and what follows from it.
    store.close().unwrap();
    drop(store);
    let store = EffectStore::open(&path, options).unwrap();
    wait(300_000);
    store.tick().unwrap();
    let rollback = store.rollback(abort.rollbacks[0].max(abort.rollback.unwrap())).unwrap();
    assert!(!rollback.report.downstream_confirmed);
    let all = CompensateOptions::default();
    let done = store.compensate(&all, &mut |_| Handled::Completed(None)).unwrap();
    assert!(done.report.clean(), "{done:?}");
    for notice in store.notices("*", 0, 100).unwrap() {
        store.ack_notice(notice.id, &notice.agent).unwrap();
    }
    store.verify(None).unwrap();
    store.close().unwrap();
    drop(store);
    let storage = LmdbStorage::open(&path, &StorageOptions::default()).unwrap();
    let view = storage.read().unwrap();
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for group in groups(view.as_ref()) {
        for record in &group.records {
            *kinds.entry(record.header.event.kind()).or_default() += 1;
        }
    }
    for kind in ["break_signalled", "notified", "notice_acknowledged", "break_unheard"] {
        assert!(kinds.contains_key(kind), "{kind} never happened: {kinds:?}");
    }
    for kind in ["break_confirmed", "confirm_by", "step_failed"] {
        assert!(kinds.contains_key(kind), "{kind} never happened: {kinds:?}");
    }
    decide_again(view.as_ref());
}

/// Asks for what was committed to be undone, agrees to some of it, and undoes what may be undone.
fn govern(path: &std::path::Path) -> usize {
    let mut options = Options::default();
    options.clock = Some(Arc::new(|| 1_900_000_000_000));
    let store = EffectStore::open(path, options).unwrap();
    let committed =
        EffectFilter { state: Some(real::EffectState::Committed), ..EffectFilter::default() };
    let mut begun = 0;
    for (place, effect) in store.effects(0, usize::MAX, &committed).unwrap().iter().enumerate() {
        let targets = vec![real::Target::Effect(effect.id)];
        let asked =
            store.request_rollback(targets, "judge", "wrong", real::Trigger::Judge, place % 2 == 0);
        // An earlier one may have undone it already.
        let Ok(asked) = asked else { continue };
        let before = store.impact(asked.id).unwrap().effects;
        assert_eq!(before, asked.effects);
        let approve = place % 3 != 2;
        let answered = store.answer(asked.approvals[0], approve, "ops", Some("looked at it"));
        assert!(answered.is_ok(), "nothing happened in between: {answered:?}");
        begun += usize::from(approve);
        let options =
            CompensateOptions { rollback: Some(asked.id), ..CompensateOptions::default() };
        store.compensate(&options, &mut |_| Handled::Completed(None)).unwrap();
        for id in &asked.effects {
            let state = store.effect(*id).unwrap().state;
            assert!(approve || state != real::EffectState::Doomed, "a denial dooms nothing");
        }
        store.verify(None).unwrap();
    }
    store.close().unwrap();
    begun
}

#[test]
fn i10_governed_rollbacks_decided_again_give_the_recorded_events() {
    let settings = [Setting::plain(), Setting::nested()];
    let mut begun = 0;
    for (place, setting) in (0_u64..).zip(&settings) {
        for seed in 0..4 {
            let (dir, storage) = played(setting, 1_000 + seed * 4 + place);
            drop(storage);
            let path = dir.path().join("store");
            begun += govern(&path);
            let storage = LmdbStorage::open(&path, &StorageOptions::default()).unwrap();
            decide_again(storage.read().unwrap().as_ref());
        }
    }
    assert!(begun > 8, "only {begun} governed rollbacks began");
}
