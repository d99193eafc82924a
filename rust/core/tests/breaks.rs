//! BREAK in the decisions: doom, notices, acknowledgements, escalation, and the order of upstream
//! agents. Every command is followed by a fold of the records that memory needs.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::pedantic)]

mod decide_support;

use decide_support::{Line, Store, plain, write};
use effectstore::model::*;

fn policy() -> Policy {
    Policy { auto_keys: 100, ..Policy::default() }
}

fn signal(store: &mut Store, line: Line, upstream: &[&str]) -> Reconciliation {
    match store.run(&command(line, upstream, true, 30_000)) {
        Ok(Reply::Reconciliation(done)) => done,
        other => panic!("{other:?}"),
    }
}

fn command(line: Line, upstream: &[&str], recoverable: bool, ack_within_ms: u64) -> Command {
    Command::SignalBreak {
        branch: line.id,
        token: None,
        severity: BreakSeverity::Permanent,
        reason: "model drift".into(),
        recoverable,
        upstream: upstream.iter().map(|name| format!("agent-{name}")).collect(),
        ack_within_ms,
    }
}

/// Unacknowledged notices: id and agent.
fn inbox(store: &Store) -> Vec<(NoticeId, String)> {
    store.state.breaks.notices.iter().map(|(id, (_, agent))| (*id, agent.clone())).collect()
}

fn agents(store: &Store) -> Vec<String> {
    inbox(store).into_iter().map(|(_, agent)| agent).collect()
}

fn ack_all(store: &mut Store) {
    for (notice, agent) in inbox(store) {
        store.run(&Command::AckNotice { notice, agent }).unwrap();
    }
}

fn count(store: &Store, kind: &str) -> usize {
    store.book.log.iter().filter(|(_, event)| event.kind() == kind).count()
}

#[test]
fn i07_a_break_dooms_its_branch_with_the_cascade_in_one_decision() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let first = store.ran(a, write("K"));
    let second = store.ran(b, plain("read").reads("K"));
    let done = signal(&mut store, a, &[]);
    assert_eq!((done.doomed, done.cascaded), (vec![EffectId(first)], vec![EffectId(second)]));
    assert_eq!(count(&store, "doomed"), 1);
    assert_eq!(agents(&store), ["agent-a", "agent-b"]);
    assert_eq!(store.undo_all(), [second, first]);
    ack_all(&mut store);
    assert!(store.state.breaks.known.is_empty(), "a BREAK that is over stays in memory");
}

#[test]
fn a_branch_that_only_saw_what_fell_is_told_too() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    store.ran(a, write("K"));
    let read = Read { key: Key::from("K"), version: None };
    let seen = Command::Observe {
        branch: b.id,
        token: b.token,
        keys: vec![read],
        since: None,
        durable: true,
    };
    store.run(&seen).unwrap();
    signal(&mut store, a, &["c"]);
    assert_eq!(agents(&store), ["agent-a", "agent-b", "agent-c"]);
}

#[test]
fn the_order_of_a_break_holds_without_an_edge_and_for_what_falls_later() {
    let mut store = Store::new(policy());
    let (up, down) = (store.branch("up"), store.branch("down"));
    let below = store.ran(down, plain("d"));
    let above = store.ran(up, plain("u"));
    signal(&mut store, down, &["up"]);
    store.abort(&[above]).unwrap();
    assert!(store.claim_as("agent-up").is_none(), "upstream starts before the one that broke");
    let step = store.claim_as("agent-down").unwrap();
    assert_eq!(step.effect, below);
    assert!(store.claim_as("agent-up").is_none(), "a claim is no confirmation");
    store.complete(&step).unwrap();
    assert_eq!(count(&store, "break_confirmed"), 1);
    assert_eq!(store.claim_as("agent-up").unwrap().effect, above);
}

#[test]
fn a_failed_step_of_the_agent_that_broke_is_no_confirmation() {
    let mut store = Store::new(policy());
    let (up, down) = (store.branch("up"), store.branch("down"));
    let below = store.ran(down, plain("d"));
    let above = store.ran(up, plain("u"));
    signal(&mut store, down, &["up"]);
    let rollback = store.abort(&[above]).unwrap();
    let step = store.claim_as("agent-down").unwrap();
    store.end(&step, StepEnd::Permanent(Problem::new("Refused", "no"))).unwrap();
    assert!(store.claim().is_none());
    let report = store.report(rollback);
    assert_eq!(report.blocked[0].by, [EffectId(below)]);
    assert!(!report.downstream_confirmed);
    store
        .run(&Command::ResolveStep {
            rollback: step.info.rollback,
            effect: EffectId(below),
            by: "ops".into(),
            reason: "by hand".into(),
            versions: Vec::new(),
        })
        .unwrap();
    assert_eq!(store.undo_all(), [above]);
}

#[test]
fn continue_waives_the_order_of_a_break_like_that_of_dependencies() {
    let mut store = Store::new(Policy { on_failure: OnFailure::Continue, ..policy() });
    let (up, down) = (store.branch("up"), store.branch("down"));
    store.ran(down, plain("d"));
    let above = store.ran(up, plain("u"));
    signal(&mut store, down, &["up"]);
    store.abort(&[above]).unwrap();
    let step = store.claim_as("agent-down").unwrap();
    store.end(&step, StepEnd::Permanent(Problem::new("Refused", "no"))).unwrap();
    assert_eq!(store.claim_as("agent-up").unwrap().effect, above);
    assert_eq!(count(&store, "break_confirmed"), 0, "a failure is no confirmation");
}

#[test]
fn i13_recorded_order_stands_above_the_order_of_a_break() {
    let mut store = Store::new(policy());
    let (up, down) = (store.branch("up"), store.branch("down"));
    let below = store.ran(down, write("K"));
    let reader = store.ran(up, plain("read").reads("K"));
    let last = store.ran(down, plain("d"));
    let blind = store.ran(up, Registration { follows: Follows::These(Vec::new()), ..plain("u") });
    signal(&mut store, down, &["up"]);
    store.abort(&[blind]).unwrap();
    // `reader` rests on `below`, so it cannot wait for all of `down`; `blind` can, and does.
    assert_eq!(store.undo_all(), [last, reader, below, blind]);
}

#[test]
fn of_breaks_against_each_other_the_first_one_counts() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let (one, two) = (store.ran(a, plain("x")), store.ran(b, plain("y")));
    signal(&mut store, a, &["b"]);
    signal(&mut store, b, &["a"]);
    assert_eq!(store.undo_all(), [one, two]);
    assert_eq!(count(&store, "break_confirmed"), 2);
}

#[test]
fn an_unknown_or_idle_upstream_agent_holds_nothing_up() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    signal(&mut store, a, &["nobody"]);
    assert_eq!(count(&store, "break_confirmed"), 1, "there was nothing to undo");
    ack_all(&mut store);
    assert!(store.state.breaks.known.is_empty());
}

#[test]
fn i21_a_missing_acknowledgement_is_escalated_once_and_a_late_one_still_counts() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    store.ran(a, write("K"));
    store.ran(b, plain("read").reads("K"));
    signal(&mut store, a, &[]);
    let (notice, agent) = inbox(&store)[0].clone();
    store.run(&Command::AckNotice { notice, agent: agent.clone() }).unwrap();
    store.run(&Command::AckNotice { notice, agent }).unwrap();
    assert_eq!(count(&store, "notice_acknowledged"), 1, "a second acknowledgement is recorded");
    store.wait(29_999);
    assert_eq!(count(&store, "break_unheard"), 0);
    store.wait(1);
    store.wait(60_000);
    assert_eq!((count(&store, "break_unheard"), count(&store, "alerted")), (1, 1));
    let alert = store.state.alerts.values().next().unwrap();
    assert_eq!(alert.severity, Severity::Critical);
    assert!(alert.text.contains("agent-b") && !alert.text.contains("agent-a"), "{}", alert.text);
    ack_all(&mut store);
    assert_eq!(count(&store, "notice_acknowledged"), 2);
}

#[test]
fn an_acknowledgement_in_time_raises_nothing() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    store.ran(a, write("K"));
    signal(&mut store, a, &["b"]);
    ack_all(&mut store);
    store.wait(31_000);
    assert_eq!((count(&store, "break_unheard"), count(&store, "alerted")), (0, 0));
}

#[test]
fn a_notice_is_acknowledged_by_its_own_agent_only() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    signal(&mut store, a, &[]);
    let (notice, _) = inbox(&store)[0].clone();
    for (notice, agent) in [(notice, "agent-b"), (NoticeId(a.id.0), "agent-a")] {
        let refused = store.run(&Command::AckNotice { notice, agent: agent.into() });
        assert_eq!(refused.unwrap_err().code(), "not_found");
    }
    assert_eq!(agents(&store), ["agent-a"]);
}

#[test]
fn an_unrecoverable_break_closes_the_branch_and_all_below() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    store.ran(a, write("K"));
    store.run(&command(a, &[], false, 30_000)).unwrap();
    let resumed = store.run(&Command::Resume { branch: a.id, token: a.token });
    assert_eq!(resumed.unwrap_err().code(), "branch_closed");
}

#[test]
fn a_recoverable_break_of_an_idle_branch_stops_it_until_it_resumes() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    let done = signal(&mut store, a, &[]);
    assert!(done.doomed.is_empty() && done.rollback.is_none());
    assert_eq!(store.try_register(a, plain("x")).unwrap_err().code(), "doomed_branch");
    let resumed = store.run(&Command::Resume { branch: a.id, token: a.token }).unwrap();
    let Reply::Branch(info) = resumed else { panic!("{resumed:?}") };
    store.ran(Line { id: a.id, token: info.token }, plain("x"));
}

#[test]
fn a_break_of_a_doomed_branch_decides_nothing_anew_and_is_told_all_the_same() {
    let mut store = Store::new(policy());
    let (a, b) = (store.branch("a"), store.branch("b"));
    let first = store.ran(a, write("K"));
    let second = store.ran(b, plain("read").reads("K"));
    let rollback = store.abort(&[first]).unwrap();
    let done = signal(&mut store, a, &[]);
    assert_eq!((done.rollback, done.rollbacks), (None, vec![rollback]));
    assert_eq!((count(&store, "doomed"), agents(&store).len()), (1, 2));
    // A second one may close it.
    store.run(&command(a, &[], false, 30_000)).unwrap();
    let resumed = store.run(&Command::Resume { branch: a.id, token: a.token });
    assert_eq!(resumed.unwrap_err().code(), "branch_closed");
    assert_eq!(store.undo_all(), [second, first]);
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_stored() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    store.ran(a, write("K"));
    let records = store.book.log.len();
    let name = "x".repeat(2_000);
    let many: Vec<String> = (0..1_025).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let nobody = Line { id: BranchId(1), token: a.token };
    for (command, code) in [
        (command(a, &["a"], true, 30_000), "options"),
        (command(a, &[&name], true, 30_000), "limit_exceeded"),
        (command(a, &many, true, 30_000), "options"),
        (command(a, &[], true, 0), "options"),
        (command(nobody, &[], true, 30_000), "not_found"),
    ] {
        assert_eq!(store.run(&command).unwrap_err().code(), code, "{command:?}");
    }
    assert_eq!(store.book.log.len(), records);
}

#[test]
fn i09_a_stale_holder_signals_no_break() {
    let mut store = Store::new(policy());
    let a = store.branch("a");
    store.ran(a, write("K"));
    let taken = Command::TakeOver { name: "a".into(), worker_gone: false, by: None };
    store.run(&taken).unwrap();
    let Command::SignalBreak {
        branch, severity, reason, recoverable, upstream, ack_within_ms, ..
    } = command(a, &[], true, 30_000)
    else {
        panic!()
    };
    let stale = Command::SignalBreak {
        branch,
        token: Some(a.token),
        severity,
        reason,
        recoverable,
        upstream,
        ack_within_ms,
    };
    assert_eq!(store.run(&stale).unwrap_err().code(), "stale_token");
    assert_eq!((count(&store, "doomed"), count(&store, "refused")), (0, 1));
}

#[test]
fn i13_random_breaks_never_turn_recorded_order_round_and_leave_nothing_stuck() {
    let mut seed = 0x5eed_u64;
    let mut roll = |sides: u64| {
        // An LCG is chance enough for choosing among a handful of shapes.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % sides
    };
    let keys = ["K", "L", "M", "X"];
    for _ in 0..40 {
        let mut store = Store::new(policy());
        let names = ["a", "b", "c", "d"];
        let lines = names.map(|name| store.branch(name));
        for _ in 0..12 {
            let mut call = write(keys[roll(4) as usize]);
            if roll(2) == 0 {
                call = call.reads(keys[roll(4) as usize]);
            }
            if roll(3) == 0 {
                call.follows = Follows::These(Vec::new());
            }
            // A branch that was stopped takes no more work.
            let line = lines[roll(4) as usize];
            if let Ok(effect) = store.try_register(line, call) {
                store.done(effect).unwrap();
            }
            if roll(6) == 0 {
                let upstream: Vec<&str> = names.into_iter().filter(|_| roll(2) == 0).collect();
                let broke = roll(4) as usize;
                let others: Vec<&str> =
                    upstream.into_iter().filter(|name| *name != names[broke]).collect();
                signal(&mut store, lines[broke], &others);
            }
        }
        let rest: Vec<u64> = store.state.effects.iter().map(|effect| effect.id.0).collect();
        store.abort(&rest);
        let (nodes, edges) = store.state.undo_edges();
        let effects: Vec<u64> =
            nodes.into_iter().filter(|id| store.state.effects.contains(EffectId(*id))).collect();
        let order = store.undo_all();
        let mut undone = order.clone();
        undone.sort_unstable();
        assert_eq!(undone, effects, "something is stuck");
        let place = |id: u64| order.iter().position(|undone| *undone == id);
        for (first, then, why) in edges {
            if let (Some(first), Some(then)) = (place(first), place(then)) {
                assert!(first < then, "{why:?} is turned round");
            }
        }
        let held = store.state.breaks.known.values().filter(|known| !known.confirmed).count();
        assert_eq!(held, 0, "an order outlives its confirmation");
    }
}
