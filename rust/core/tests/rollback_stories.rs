//! Stories about rollbacks: order, failure, guard, evidence, approvals, outbox.
#![allow(clippy::unwrap_used)] // A test that meets an error shall stop there.

mod decide_support;

use decide_support::{Store, plain, write};
use effectstore::model::*;

fn failed(store: &Store, id: RollbackId) -> Vec<(u64, FailureKind)> {
    store.report(id).failed.iter().map(|failure| (failure.effect.0, failure.kind)).collect()
}

fn ids(list: &[EffectId]) -> Vec<u64> {
    list.iter().map(|id| id.0).collect()
}

#[test]
fn a_chain_over_two_branches_is_undone_from_its_end() {
    let mut store = Store::new(Policy::default());
    let (planner, deployer) = (store.branch("plan"), store.branch("deploy"));
    let first = store.ran(planner, write("X"));
    let second = store.ran(deployer, plain("deploy").reads("X"));
    let third = store.ran(planner, write("Y"));
    let rollback = store.abort(&[first]).unwrap();
    let step = store.claim_as("agent-deploy").unwrap();
    assert_eq!((step.effect, step.info.generation, step.info.attempt), (second, 1, 1));
    assert_eq!(step.info.idempotency_key, format!("{}/{second}/1", "07".repeat(16)));
    store.complete(&step).unwrap();
    assert!(store.claim_as("agent-deploy").is_none());
    assert_eq!(store.undo_all(), [third, first]);
    assert!(!store.state.rollbacks.contains_key(&rollback), "a finished rollback leaves memory");
    assert!(store.state.effects.is_empty());
    assert!(matches!(&store.book.log.last().unwrap().1,
        Event::RollbackFinished { report, .. } if report.clean() && report.size() == 3));
}

#[test]
fn a_failed_inverse_holds_back_only_what_it_rested_on() {
    let mut store = Store::new(Policy::default());
    let (left, right) = (store.branch("left"), store.branch("right"));
    let base = store.ran(left, write("X"));
    let top = store.ran(left, write("Y"));
    let other = store.ran(right, write("Z"));
    let rollback = store.abort(&[base, other]).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, other);
    store.complete(&step).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, top);
    store.end(&step, StepEnd::Permanent(Problem::new("Gone", "no"))).unwrap();
    assert!(store.claim().is_none());
    assert_eq!(failed(&store, rollback), [(top, FailureKind::Permanent)]);
    let report = store.report(rollback);
    assert_eq!(report.blocked, [Blocked { effect: EffectId(base), by: vec![EffectId(top)] }]);
    let retry = Command::RetryStep {
        rollback,
        effect: EffectId(top),
        by: "ops".into(),
        reason: "fixed".into(),
    };
    store.run(&retry).unwrap();
    assert_eq!(store.undo_all(), [top, base]);
}

#[test]
fn the_policy_to_continue_waives_dependencies_and_never_the_order_of_writers() {
    let policy = Policy { on_failure: OnFailure::Continue, ..Policy::default() };
    let mut store = Store::new(policy);
    let line = store.branch("a");
    let old = store.ran(line, write("K"));
    let middle = store.ran(line, write("X"));
    let new = store.ran(line, write("K"));
    let rollback = store.abort(&[old]).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, new);
    store.end(&step, StepEnd::Permanent(Problem::default())).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, middle, "what only rested on it goes on");
    store.complete(&step).unwrap();
    assert!(store.claim().is_none(), "an earlier writer of its key does not");
    assert_eq!(store.report(rollback).blocked[0].effect.0, old);
    let resolve = Command::ResolveStep {
        rollback,
        effect: EffectId(new),
        by: "ops".into(),
        reason: "by hand".into(),
        versions: Vec::new(),
    };
    store.run(&resolve).unwrap();
    assert_eq!(store.undo_all(), [old]);
}

#[test]
fn a_later_live_writer_blocks_and_once_committed_is_a_conflict() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let early = store.ran(one, write("K"));
    let late = store.ran(two, write("K"));
    let rollback = store.abort(&[early]).unwrap();
    assert!(store.claim().is_none());
    assert_eq!(ids(&store.report(rollback).blocked[0].by), [late]);
    store.commit(&[late]);
    assert_eq!(failed(&store, rollback), [(early, FailureKind::Conflict)]);
    assert_eq!(store.report(rollback).failed[0].writer, Some(EffectId(late)));
    assert_eq!(store.state.alerts.len(), 1);
}

#[test]
fn a_compare_and_set_inverse_runs_over_a_later_writer_unless_its_call_was_late() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let mut call = write("K");
    call.inverse.as_mut().unwrap().compare_and_set = true;
    let early = store.ran(one, call);
    let late = store.ran(two, write("K"));
    store.abort(&[early]).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, early);
    store.complete(&step).unwrap();
    assert!(store.state.live_effect(EffectId(late)).is_some());
}

#[test]
fn an_undo_that_puts_an_earlier_value_back_makes_that_inverse_due_again() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let mut call = write("K");
    call.inverse.as_mut().unwrap().compare_and_set = true;
    let early = store.ran(one, call);
    let late = store.ran(two, write("K"));
    store.abort(&[early]).unwrap();
    assert_eq!(store.undo_all(), [early]);
    assert!(store.state.effects.contains(EffectId(early)), "its value may come back");
    let second = store.abort(&[late]).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, late);
    store.complete(&step).unwrap();
    let again = store.claim().unwrap();
    assert_eq!((again.effect, again.info.generation), (early, 2));
    assert!(!store.state.rollbacks.contains_key(&second) || store.report(second).clean());
    store.complete(&again).unwrap();
    assert!(store.state.effects.is_empty() && store.state.rollbacks.is_empty());
}

#[test]
fn a_late_report_opens_a_finished_rollback_under_a_new_key() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.register(line, write("K"));
    let rollback = store.abort(&[effect]).unwrap();
    assert_eq!(store.undo_all(), [effect]);
    assert_eq!(ids(&store.report(rollback).unsettled), [effect]);
    let closed =
        Command::Close { effect: EffectId(effect), by: "ops".into(), reason: "gone".into() };
    store.run(&closed).unwrap();
    assert!(store.state.rollbacks.is_empty());
    let refusal = store.done(effect).unwrap_err();
    assert_eq!(refusal.code(), "already_settled");
    assert!(!store.report(rollback).clean());
    assert_eq!(store.state.dirty_writers(&Key::from("K")), [EffectId(effect)]);
    let step = store.claim_as("agent-a").unwrap();
    assert_eq!((step.effect, step.info.generation), (effect, 2));
    store.complete(&step).unwrap();
    assert!(store.state.rollbacks.is_empty() && store.state.effects.is_empty());
    assert_eq!(store.done(effect).unwrap_err().code(), "already_settled");
    assert!(store.claim().is_none(), "a late report counts once");
}

#[test]
fn a_late_report_brings_back_earlier_writers_that_were_undone_since() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let early = store.ran(one, write("K"));
    let late = store.register(two, write("K"));
    let close = Command::Close { effect: EffectId(late), by: "ops".into(), reason: "gone".into() };
    store.abort(&[early, late]).unwrap();
    assert_eq!(store.undo_all(), [late, early]);
    store.run(&close).unwrap();
    assert!(store.state.effects.is_empty());
    store.done(late).unwrap_err();
    let order: Vec<(u64, u32)> = std::iter::from_fn(|| {
        let step = store.claim()?;
        store.complete(&step).unwrap();
        Some((step.effect, step.info.generation))
    })
    .collect();
    assert_eq!(order, [(late, 2), (early, 2)]);
    assert!(store.state.effects.is_empty() && store.state.rollbacks.is_empty());
}

#[test]
fn a_void_effect_that_ran_dooms_what_may_have_seen_it() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let ghost = store.register(one, write("K"));
    let reader = store.ran(two, plain("read").reads("K"));
    store.not_run(ghost).unwrap();
    assert!(store.state.live_effect(EffectId(reader)).is_some());
    assert_eq!(store.done(ghost).unwrap_err().code(), "already_settled");
    assert_eq!(store.undo_all(), [reader, ghost]);
    assert!(store.state.effects.is_empty());
}

#[test]
fn a_doomed_call_that_did_not_run_needs_no_undo() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let first = store.ran(line, write("X"));
    let second = store.register(line, write("Y"));
    let rollback = store.abort(&[first]).unwrap();
    store.not_run(second).unwrap();
    assert_eq!(ids(&store.report(rollback).discarded), [second]);
    assert_eq!(store.undo_all(), [first]);
}

#[test]
fn a_partial_plan_waits_for_a_person_who_answers_once() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.ran(line, write("X").class(Class::Partial));
    let rollback = store.abort(&[effect]).unwrap();
    let first = store.rollback(rollback).approvals[0];
    assert!(store.claim().is_none());
    let ask =
        Command::Ask { ask: Ask::Rollback(rollback), by: "ops".into(), reason: "again".into() };
    assert_eq!(store.run(&ask), Ok(Reply::Approval(first)));
    store.answer(first, false).unwrap();
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::Denied)]);
    let Ok(Reply::Approval(second)) = store.run(&ask) else { panic!() };
    assert_ne!(first, second);
    assert!(failed(&store, rollback).is_empty());
    assert_eq!(store.answer(first, true).unwrap_err().code(), "approval_closed");
    store.answer(second, true).unwrap();
    assert_eq!(store.undo_all(), [effect]);
    assert_eq!(store.answer(second, true).unwrap_err().code(), "approval_closed");
}

#[test]
fn a_changed_plan_makes_its_request_stale() {
    let mut store = Store::new(Policy { auto_keys: 1, ..Policy::default() });
    let line = store.branch("a");
    let first = store.ran(line, write("X"));
    let second = store.register(line, write("Y"));
    let rollback = store.abort(&[first]).unwrap();
    let approval = store.rollback(rollback).approvals[0];
    assert!(store.claim().is_none());
    store.not_run(second).unwrap();
    assert_eq!(store.state.approvals[&approval].info.state, ApprovalState::Stale);
    assert_eq!(store.undo_all(), [first], "one key is left, which needs nobody");
}

#[test]
fn an_undo_that_came_back_makes_undone_writers_due_again_that_memory_let_go() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let first = store.ran(one, write("B"));
    let middle = store.ran(two, write("B").writes("C"));
    let last = store.ran(one, write("C"));
    store.abort(&[first, middle, last]).unwrap();
    let stale = store.claim().unwrap();
    assert_eq!(stale.effect, last);
    store.wait(61_000);
    assert_eq!(store.undo_all(), [last, middle, first]);
    assert!(store.state.effects.is_empty(), "nothing is left to put back");
    assert_eq!(store.complete(&stale).unwrap_err().code(), "lease_lost");
    // The lost inverse may have put back what `middle` wrote, whose undo puts back what `first` did.
    assert_eq!(store.undo_all(), [middle, first]);
}

#[test]
fn a_rollback_that_waits_for_a_person_says_so_while_a_step_is_at_work() {
    let mut store = Store::new(Policy { require_inverse: false, ..Policy::default() });
    let line = store.branch("a");
    let mut bare = write("X");
    bare.inverse = None;
    let bare = store.register(line, bare);
    let other = store.ran(line, plain("look"));
    let rollback = store.abort(&[bare]).unwrap();
    store.not_run(bare).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.effect, other, "what is left needs nobody");
    assert_eq!(store.state_of(rollback), RollbackState::Running);
    assert_eq!(store.done(bare).unwrap_err().code(), "already_settled");
    assert_eq!(store.state_of(rollback), RollbackState::AwaitingApproval);
    store.complete(&step).unwrap();
    assert_eq!(store.state_of(rollback), RollbackState::AwaitingApproval);
}

#[test]
fn an_effect_without_inverse_fails_from_the_start_and_wants_a_written_reason() {
    let mut store = Store::new(Policy { require_inverse: false, ..Policy::default() });
    let line = store.branch("a");
    let mut call = write("X");
    call.inverse = None;
    let effect = store.ran(line, call);
    let rollback = store.abort(&[effect]).unwrap();
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::NotCompensable)]);
    let approval = store.rollback(rollback).approvals[0];
    let silent = Command::Answer { approval, approve: true, by: "boss".into(), reason: None };
    assert_eq!(store.run(&silent).unwrap_err().code(), "reason_required");
    assert_eq!(store.state.alerts.len(), 1);
}

#[test]
fn lost_leases_count_as_attempts_until_the_last() {
    let retry = Retry { max_attempts: 2, ..Retry::default() };
    let mut store = Store::new(Policy { retry, ..Policy::default() });
    let line = store.branch("a");
    let effect = store.ran(line, write("X"));
    let rollback = store.abort(&[effect]).unwrap();
    let first = store.claim().unwrap();
    store.wait(60_000);
    let second = store.claim().unwrap();
    assert_eq!((second.info.attempt, second.info.generation), (2, 1));
    assert_eq!(second.info.idempotency_key, first.info.idempotency_key);
    assert_eq!(store.complete(&first).unwrap_err().code(), "lease_lost");
    let hold = StepHold { effect: second.info.effect, token: second.info.token };
    store.run(&Command::RenewStep { hold, lease_ms: 90_000 }).unwrap();
    store.wait(60_000);
    assert_eq!(ids(&store.report(rollback).pending), [effect]);
    store.wait(30_000);
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::Timeout)]);
}

#[test]
fn evidence_on_a_claimed_step_waits_for_the_end_of_the_claim() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.register(line, write("X"));
    store.abort(&[effect]).unwrap();
    let step = store.claim().unwrap();
    store.done(effect).unwrap_err();
    store.complete(&step).unwrap();
    let again = store.claim().unwrap();
    assert_eq!((again.effect, again.info.generation, again.info.attempt), (effect, 2, 1));
    store.complete(&again).unwrap();
    assert!(store.state.rollbacks.is_empty());
}

#[test]
fn failed_attempts_wait_with_growing_backoff() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.ran(line, write("X"));
    store.abort(&[effect]).unwrap();
    for wait in [1_000, 2_000, 4_000, 8_000] {
        let step = store.claim().unwrap();
        store.end(&step, StepEnd::Failed(Problem::new("Busy", "later"))).unwrap();
        store.wait(wait - 1);
        assert!(store.claim().is_none());
        store.wait(1);
    }
    let step = store.claim().unwrap();
    assert_eq!(step.info.attempt, 5);
    store.end(&step, StepEnd::Failed(Problem::new("Busy", "later"))).unwrap();
    assert!(store.claim().is_none());
    assert_eq!(store.state.alerts.len(), 1);
}

#[test]
fn a_list_of_calls_is_handed_out_place_by_place() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let mut call = write("X");
    let undo = call.inverse.as_mut().unwrap();
    undo.calls.push(Call { tool: "tidy_up".into(), args: None });
    let effect = store.ran(line, call);
    store.abort(&[effect]).unwrap();
    let first = store.claim().unwrap();
    assert!(first.info.idempotency_key.ends_with("/1/0"));
    store.complete(&first).unwrap();
    let second = store.claim().unwrap();
    assert_eq!(second.info.tool, "tidy_up");
    assert!(second.info.idempotency_key.ends_with("/1/1"));
    store.complete(&second).unwrap();
    assert!(store.state.rollbacks.is_empty());
}

#[test]
fn an_inverse_past_its_window_is_not_attempted() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let mut call = write("X");
    call.inverse.as_mut().unwrap().deadline_after_ms = Some(5_000);
    let effect = store.ran(line, call.clone());
    let other = store.branch("b");
    let survivor = store.ran(other, {
        call.writes[0] = Key::from("Y");
        call
    });
    let rollback = store.abort(&[effect]).unwrap();
    store.wait(5_000);
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::Expired)]);
    assert_eq!(store.state.alerts.len(), 2, "one for the step, one for live effect {survivor}");
}

#[test]
fn a_manual_inverse_waits_for_the_person_that_confirms_it() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let mut call = write("X");
    call.inverse = Some(Inverse { manual: Some("call them".into()), ..Inverse::default() });
    let effect = store.ran(line, call);
    let rollback = store.abort(&[effect]).unwrap();
    assert!(store.claim().is_none());
    let resolve = Command::ResolveStep {
        rollback,
        effect: EffectId(effect),
        by: "ops".into(),
        reason: "called".into(),
        versions: Vec::new(),
    };
    store.run(&resolve).unwrap();
    assert!(store.state.rollbacks.is_empty());
}

#[test]
fn an_irreversible_call_runs_after_its_fence_and_an_approval() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let mut mail = Registration::new("mail", PayloadRef::of(b"m")).class(Class::Irreversible);
    mail.inverse = None;
    let effect = store.register(line, mail);
    let deliver = Command::Deliver { agent: "*".into(), tools: None, lease_ms: 10_000 };
    assert_eq!(store.run(&deliver), Ok(Reply::Delivery(None)));
    store.commit(&[effect]);
    let approval = *store.state.approvals.keys().next().unwrap();
    assert_eq!(store.run(&deliver), Ok(Reply::Delivery(None)));
    store.answer(approval, true).unwrap();
    let Ok(Reply::Delivery(Some(held))) = store.run(&deliver) else { panic!() };
    assert_eq!((held.effect.0, held.attempt), (effect, 1));
    assert_eq!(store.run(&deliver), Ok(Reply::Delivery(None)));
    store.wait(10_000);
    let Ok(Reply::Delivery(Some(again))) = store.run(&deliver) else { panic!() };
    assert_eq!((again.idempotency_key, again.attempt), (held.idempotency_key, 2));
    let lost =
        Command::HoldDelivery { effect: EffectId(effect), token: held.token, lease_ms: Some(1) };
    assert_eq!(store.run(&lost).unwrap_err().code(), "lease_lost");
    store.done(effect).unwrap();
    assert!(store.state.effects.is_empty() && store.state.approvals.is_empty());
}

#[test]
fn the_outbox_keeps_the_order_of_dependencies() {
    let policy = Policy { irreversible: IrreversibleRule::AfterFence, ..Policy::default() };
    let mut store = Store::new(policy);
    let line = store.branch("a");
    let first = store.register(line, plain("first").mode(Mode::Deferred));
    let second = store.register(line, plain("second").after([EffectId(first)]));
    store.commit(&[second]);
    let tools = |tool: &str| Some(vec![tool.to_owned()]);
    let deliver = |tools| Command::Deliver { agent: "agent-a".into(), tools, lease_ms: 10_000 };
    assert_eq!(store.run(&deliver(tools("second"))), Ok(Reply::Delivery(None)));
    let Ok(Reply::Delivery(Some(held))) = store.run(&deliver(None)) else { panic!() };
    assert_eq!(held.effect.0, first);
    assert_eq!(store.run(&deliver(None)), Ok(Reply::Delivery(None)));
    store.done(first).unwrap();
    let Ok(Reply::Delivery(Some(held))) = store.run(&deliver(None)) else { panic!() };
    assert_eq!(held.effect.0, second);
}

#[test]
fn a_step_without_a_handler_expires_and_goes_to_a_person() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let mut call = write("X");
    call.inverse.as_mut().unwrap().deadline_ms = Some(store.now_ms + 60_000);
    let effect = store.ran(line, call);
    let rollback = store.abort(&[effect]).unwrap();
    let step = store.claim().unwrap();
    store.end(&step, StepEnd::NoHandler).unwrap();
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::NoHandler)]);
    store.wait(59_999);
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::NoHandler)]);
    store.wait(1);
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::Expired)]);
    assert!(store.claim().is_none(), "an inverse past its window is not attempted");
    let told = store.book.log.iter().any(|(_, event)| {
        matches!(event, Event::Alerted { severity: Severity::Critical, text, .. } if text.contains("expired"))
    });
    assert!(told, "a person is called");
}

#[test]
fn a_step_without_a_handler_is_due_for_the_next_worker() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.ran(line, write("X"));
    let rollback = store.abort(&[effect]).unwrap();
    let step = store.claim().unwrap();
    store.end(&step, StepEnd::NoHandler).unwrap();
    assert_eq!(failed(&store, rollback), [(effect, FailureKind::NoHandler)]);
    assert_eq!(store.undo_all(), [effect]);
}

/// A branch whose calls carried what it had observed goes on after they were settled. What it needs of
/// their records must not bring them back to life at the next start (I10, I19).
#[test]
fn i10_a_settled_call_that_carried_an_observation_is_not_found_live_by_a_start() {
    for end in ["committed", "undone", "void", "committed by the parent"] {
        let mut store = Store::new(Policy::default());
        let above = store.branch("above");
        let parent = store.branch("parent");
        let made = store.run(&Command::CreateBranch {
            name: "below".into(),
            agent: "below".into(),
            parent: Some(parent.id),
            reads: ReadRule::Speculative,
            overwrite: Overwrite::Guard,
            lease_ms: None,
            parent_token: None,
        });
        let Ok(Reply::Branch(below)) = made else { panic!("{made:?}") };
        let first = store.ran(above, write("X"));
        let observe = Command::Observe {
            branch: below.id,
            token: below.token,
            keys: vec![Read::of("X")],
            since: None,
            durable: false,
        };
        let Ok(Reply::Observations(observations)) = store.run(&observe) else {
            panic!("no answer")
        };
        let call = Placed { branch: below.id, token: below.token, call: write("Y") };
        let observed = vec![Observed { branch: below.id, observations }];
        let registered = store.run(&Command::Register { calls: vec![call], observed }).unwrap();
        let Reply::Receipts(receipts) = registered else { panic!("{registered:?}") };
        let second = receipts[0].effect;
        if end == "void" {
            store.not_run(second.0).unwrap();
        } else {
            store.done(second.0).unwrap();
        }
        store.check();
        if end == "committed by the parent" {
            store.run(&Command::Merge { branch: below.id, token: below.token }).unwrap();
            store.check();
        }
        if end == "undone" {
            let target = Target::Effect(second);
            let reason = "no".to_owned();
            store.run(&Command::Abort { target, token: below.token, reason, by: None }).unwrap();
            store.undo_all();
        } else if end != "void" {
            store.commit(&[first, second.0]);
        }
        store.state.tidy();
        assert!(!store.state.effects.contains(second), "it is settled and gone");
        store.check();
    }
}

/// An intent of two targets, one of which another fence has committed: should the other turn out void, it
/// ends as committed, after a start too (I10).
#[test]
fn i10_an_intent_remembers_over_a_start_that_a_part_of_it_was_committed() {
    let mut store = Store::new(Policy::default());
    let (left, right) = (store.branch("left"), store.branch("right"));
    let first = store.ran(left, write("X"));
    let second = store.register(right, write("Y"));
    let targets = [first, second].map(|id| Target::Effect(EffectId(id)));
    let both = Command::Reconcile {
        commit: targets.to_vec(),
        abort: Vec::new(),
        closure: false,
        by: Some("judge".into()),
        reason: None,
        on_conflict: OnConflict::Raise,
        escalate: Escalate::Wait,
    };
    store.run(&both).unwrap();
    store.check();
    store.commit(&[first]);
    store.check();
    let known: Vec<bool> = store.state.intents.values().map(|intent| intent.committed).collect();
    let mut again = effectstore::state::State::default();
    for seq in store.state.needed() {
        let (now_ms, event) = &store.book.log[usize::try_from(seq).unwrap() - 1];
        again.apply(seq, *now_ms, event);
    }
    let found: Vec<bool> = again.intents.values().map(|intent| intent.committed).collect();
    assert_eq!((known.as_slice(), found), (&[true][..], vec![true]));
}
