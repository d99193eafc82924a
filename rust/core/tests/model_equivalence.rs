//! Random command sequences on a naive model, a store in memory and a store on disk: every answer,
//! refusal, state, closure, report and undo order must be the same after every step.
//!
//! `EFFECTSTORE_SEQUENCES` (or `PROPTEST_CASES`) is the number of sequences for each setting;
//! `EFFECTSTORE_SEED` the first seed; `EFFECTSTORE_SHRINK_MS` how long a failure may be made shorter.
//! A failure prints the shortest sequence that still fails.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

mod model;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use effectstore::{EffectStore, Options};
use model::dice::{Command, Setting};
use model::peer::Peer;
use model::play::Play;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestError, TestRunner};

const START_MS: u64 = 1_800_000_000_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn options(setting: &Setting, clock: &Arc<AtomicU64>) -> Options {
    let clock = Arc::clone(clock);
    let mut options = Options::default();
    options.limits = Some(setting.real_limits());
    options.policy = Some(setting.real_policy());
    options.clock = Some(Arc::new(move || clock.load(Ordering::SeqCst)));
    options
}

/// Plays a sequence on a fresh store; the story is told where it ends in a panic.
fn play(setting: &Setting, script: &[Command], on_disk: bool) -> Result<(), String> {
    let clock = Arc::new(AtomicU64::new(START_MS));
    let options = options(setting, &clock);
    let dir = tempfile::tempdir().unwrap();
    let path = on_disk.then(|| dir.path().join("store"));
    let store = match &path {
        Some(path) => EffectStore::open(path, options.clone()).unwrap(),
        None => EffectStore::in_memory(options.clone()).unwrap(),
    };
    let peer = Peer::new(store, options, path);
    let mut play = Play::new(setting, clock, peer);
    let played = catch_unwind(AssertUnwindSafe(|| {
        for (place, command) in script.iter().enumerate() {
            play.play(command);
            // Every third sequence reopens its store half-way, whatever else it does.
            if place == script.len() / 2 && script[0][11].is_multiple_of(3) {
                play.reopen();
            }
        }
        play.finish();
        play.peer.store.verify(None).expect("verify");
    }));
    played.map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        format!("{}\n{text}", play.story.join("\n"))
    })
}

thread_local! {
    static LOUD: Cell<bool> = const { Cell::new(true) };
}

/// Panics are the findings here, and shrinking makes many of them: this thread tells only the last.
fn quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if LOUD.get() {
                told(info);
            }
        }));
    });
    LOUD.set(false);
}

fn run(setting: &Setting) {
    let sequences = number("EFFECTSTORE_SEQUENCES").or(number("PROPTEST_CASES")).unwrap_or(24);
    let seed = number("EFFECTSTORE_SEED").unwrap_or(20_261_130);
    let config = Config {
        cases: u32::try_from(sequences).unwrap(),
        failure_persistence: None,
        max_shrink_iters: 20_000,
        max_shrink_time: u32::try_from(number("EFFECTSTORE_SHRINK_MS").unwrap_or(60_000)).unwrap(),
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    };
    quiet();
    let scripts = prop::collection::vec(any::<Command>(), 1..130);
    let outcome = TestRunner::new(config).run(&scripts, |script| {
        // Memory first: what fails there shrinks without touching a disk.
        let played = play(setting, &script, false).and_then(|()| play(setting, &script, true));
        played.map_err(TestCaseError::fail)
    });
    LOUD.set(true);
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(story, script)) => {
            panic!("{} commands, EFFECTSTORE_SEED={seed}\n{}", script.len(), story.message());
        }
        Err(aborted) => panic!("EFFECTSTORE_SEED={seed}: {aborted}"),
    }
}

#[test]
fn the_store_answers_as_the_model_on_speculative_branches() {
    run(&Setting::plain());
}

#[test]
fn the_store_answers_as_the_model_under_read_rules() {
    run(&Setting::rules());
}

#[test]
fn the_store_answers_as_the_model_on_nested_branches_with_leases() {
    run(&Setting::nested());
}

#[test]
fn the_store_answers_as_the_model_at_its_limits() {
    run(&Setting::strict());
}
