//! Confirmation in the decisions: downstream agents have until the limit, and a time-out is no consent.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

mod decide_support;

use decide_support::{Claimed, Line, Store, plain, write};
use effectstore::model::*;

const LIMIT_MS: u64 = 10_000;

fn policy() -> Policy {
    Policy { auto_keys: 100, confirm_within_ms: LIMIT_MS, ..Policy::default() }
}

fn count(store: &Store, kind: &str) -> usize {
    store.book.log.iter().filter(|(_, event)| event.kind() == kind).count()
}

/// What `upper` wrote was read by `lower`, and what that wrote by `lowest`.
fn chain(store: &mut Store) -> [u64; 3] {
    let [a, b, c] = ["a", "b", "c"].map(|name| store.branch(name));
    let upper = store.ran(a, write("X"));
    let lower = store.ran(b, write("Y").reads("X"));
    let lowest = store.ran(c, write("Z").reads("Y"));
    [upper, lower, lowest]
}

fn failures(report: &Report) -> Vec<(u64, FailureKind)> {
    report.failed.iter().map(|failure| (failure.effect.0, failure.kind)).collect()
}

fn blocked(report: &Report) -> Vec<(u64, Vec<u64>)> {
    let ids = |by: &[EffectId]| by.iter().map(|id| id.0).collect();
    report.blocked.iter().map(|known| (known.effect.0, ids(&known.by))).collect()
}

#[test]
fn a_downstream_agent_that_is_silent_to_the_limit_is_unconfirmed_and_blocks_what_is_upstream() {
    let mut store = Store::new(policy());
    let [upper, lower, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS - 1);
    assert!(failures(&store.report(rollback)).is_empty());
    store.wait(1);
    let report = store.report(rollback);
    assert_eq!(failures(&report), [(lowest, FailureKind::Unconfirmed)]);
    assert_eq!(blocked(&report), [(upper, vec![lowest]), (lower, vec![lowest])]);
    assert!(!report.downstream_confirmed && !report.clean());
    let alert = store.state.alerts.values().next().unwrap();
    assert_eq!(alert.severity, Severity::Critical);
    assert!(alert.text.contains("agent-c") && !alert.text.contains("agent-a"), "{}", alert.text);
    // It is told once, and nothing more happens by time alone.
    let records = store.book.log.len();
    store.wait(10 * LIMIT_MS);
    assert_eq!(store.book.log.len(), records);
}

#[test]
fn a_late_confirmation_resumes_and_the_next_agent_has_its_own_time() {
    let mut store = Store::new(policy());
    let [upper, lower, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS);
    assert!(store.claim_as("agent-a").is_none(), "a time-out is taken as consent");
    let late = store.claim_as("agent-c").unwrap();
    assert_eq!(late.effect, lowest);
    store.complete(&late).unwrap();
    store.wait(LIMIT_MS - 1);
    assert!(failures(&store.report(rollback)).is_empty());
    store.wait(1);
    let report = store.report(rollback);
    assert_eq!(failures(&report), [(lower, FailureKind::Unconfirmed)]);
    assert_eq!(store.undo_all(), [lower, upper]);
}

#[test]
fn the_last_agent_upstream_keeps_nobody_waiting_and_may_take_its_time() {
    let mut store = Store::new(policy());
    let [upper, lower, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    for effect in [lowest, lower] {
        let step = store.claim().unwrap();
        assert_eq!(step.effect, effect);
        store.complete(&step).unwrap();
    }
    store.wait(5 * LIMIT_MS);
    assert!(failures(&store.report(rollback)).is_empty());
    assert_eq!(count(&store, "alerted"), 0);
    assert_eq!(store.undo_all(), [upper]);
}

#[test]
fn a_rollback_of_one_agent_is_not_watched() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    let first = store.ran(a, write("X"));
    store.ran(a, write("Y"));
    store.abort(&[first]).unwrap();
    store.wait(5 * LIMIT_MS);
    assert_eq!((count(&store, "confirm_by"), count(&store, "alerted")), (0, 0));
}

#[test]
fn every_step_that_ends_well_gives_its_agent_the_whole_time_again() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let upper = store.ran(a, write("X"));
    for key in ["K", "L", "M"] {
        store.ran(b, write(key).reads("X"));
    }
    let rollback = store.abort(&[upper]).unwrap();
    for _ in 0..3 {
        store.wait(LIMIT_MS - 1);
        assert!(failures(&store.report(rollback)).is_empty());
        let step = store.claim_as("agent-b").unwrap();
        store.complete(&step).unwrap();
    }
    assert_eq!(store.undo_all(), [upper]);
}

#[test]
fn a_step_at_which_somebody_is_working_is_not_taken_from_them() {
    let mut store = Store::new(policy());
    let [upper, _, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    let step = store.claim_as("agent-c").unwrap();
    store.wait(2 * LIMIT_MS);
    assert!(failures(&store.report(rollback)).is_empty());
    // The lease is given back, so the next limit finds the step idle.
    store.end(&step, StepEnd::Interrupted).unwrap();
    store.wait(LIMIT_MS);
    assert_eq!(failures(&store.report(rollback)), [(lowest, FailureKind::Unconfirmed)]);
}

#[test]
fn i09_a_stale_confirmation_is_refused_and_the_step_stays() {
    let mut store = Store::new(policy());
    let [upper, _, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    let stale: Claimed = store.claim_as("agent-c").unwrap();
    store.wait(60_000);
    store.wait(LIMIT_MS);
    assert_eq!(failures(&store.report(rollback)), [(lowest, FailureKind::Unconfirmed)]);
    assert_eq!(store.complete(&stale).unwrap_err().code(), "lease_lost");
    assert!(store.claim_as("agent-a").is_none(), "a stale confirmation counts");
    let report = store.report(rollback);
    assert!(!report.completed.contains(&EffectId(lowest)) && !report.downstream_confirmed);
}

#[test]
fn continue_is_no_consent_either() {
    let mut store = Store::new(Policy { on_failure: OnFailure::Continue, ..policy() });
    let [upper, _, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS);
    for agent in ["agent-a", "agent-b"] {
        let spec = ClaimSpec { on_failure: Some(OnFailure::Continue), ..Store::spec(agent) };
        let claimed = store.run(&Command::Claim { spec }).unwrap();
        assert_eq!(claimed, Reply::Step(None));
    }
    assert_eq!(failures(&store.report(rollback)), [(lowest, FailureKind::Unconfirmed)]);
}

#[test]
fn a_person_may_stand_in_for_the_silent_agent() {
    let mut store = Store::new(policy());
    let [upper, lower, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS);
    let (effect, by, reason) = (EffectId(lowest), "ops".to_owned(), "by hand".to_owned());
    store
        .run(&Command::ResolveStep { rollback, effect, by, reason, versions: Vec::new() })
        .unwrap();
    assert_eq!(store.undo_all(), [lower, upper]);
}

#[test]
fn a_retry_gives_the_silent_agent_another_limit() {
    let mut store = Store::new(policy());
    let [upper, _, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS);
    let (effect, by, reason) = (EffectId(lowest), "ops".to_owned(), "it is back".to_owned());
    store.run(&Command::RetryStep { rollback, effect, by, reason }).unwrap();
    store.wait(LIMIT_MS - 1);
    assert!(failures(&store.report(rollback)).is_empty());
    store.wait(1);
    assert_eq!(failures(&store.report(rollback)), [(lowest, FailureKind::Unconfirmed)]);
    assert_eq!(count(&store, "alerted"), 2);
}

#[test]
fn the_time_runs_from_the_approval_where_one_is_needed() {
    let mut store = Store::new(Policy { auto_keys: 1, ..policy() });
    let [upper, _, lowest] = chain(&mut store);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(5 * LIMIT_MS);
    assert_eq!(count(&store, "confirm_by"), 0);
    let approval = *store.rollback(rollback).approvals.last().unwrap();
    store.answer(approval, true).unwrap();
    store.wait(LIMIT_MS - 1);
    assert!(failures(&store.report(rollback)).is_empty());
    store.wait(1);
    assert_eq!(failures(&store.report(rollback)), [(lowest, FailureKind::Unconfirmed)]);
}

#[test]
fn agents_of_two_rollbacks_wait_for_each_other_by_their_keys() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let earlier = store.ran(a, write("X"));
    let later = store.ran(b, write("X"));
    let first = store.abort(&[earlier]).unwrap();
    let second = store.abort(&[later]).unwrap();
    store.wait(LIMIT_MS);
    assert_eq!(failures(&store.report(second)), [(later, FailureKind::Unconfirmed)]);
    assert_eq!(blocked(&store.report(first)), [(earlier, vec![later])]);
    assert_eq!(store.undo_all(), [later, earlier]);
}

#[test]
fn the_agent_that_broke_has_its_time_too() {
    let mut store = Store::new(policy());
    let (up, down) = (store.branch("up"), store.branch("down"));
    let below = store.ran(down, plain("d"));
    let above = store.ran(up, plain("u"));
    signal(&mut store, down);
    let rollback = store.abort(&[above]).unwrap();
    store.wait(LIMIT_MS);
    assert_eq!(blocked(&store.report(rollback)), [(above, vec![below])]);
    let held = store.state.effects.get(EffectId(below)).unwrap().rollback.unwrap();
    assert_eq!(failures(&store.report(held)), [(below, FailureKind::Unconfirmed)]);
    assert_eq!(store.undo_all(), [below, above]);
}

fn signal(store: &mut Store, line: Line) {
    store
        .run(&Command::SignalBreak {
            branch: line.id,
            token: None,
            severity: BreakSeverity::Transient,
            reason: "lost".into(),
            recoverable: true,
            upstream: vec!["agent-up".into()],
            ack_within_ms: 60_000,
        })
        .unwrap();
}

#[test]
fn an_unconfirmed_step_past_its_window_is_not_attempted() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let upper = store.ran(a, write("X"));
    let mut call = write("Y").reads("X");
    let inverse = call.inverse.as_mut().unwrap();
    inverse.deadline_ms = Some(store.now_ms + 2 * LIMIT_MS);
    let lower = store.ran(b, call);
    let rollback = store.abort(&[upper]).unwrap();
    store.wait(LIMIT_MS);
    assert_eq!(failures(&store.report(rollback)), [(lower, FailureKind::Unconfirmed)]);
    store.wait(LIMIT_MS);
    assert_eq!(failures(&store.report(rollback)), [(lower, FailureKind::Expired)]);
    assert!(store.claim().is_none());
}
