//! Commands that make no sense whatever the store holds, stale holders of a parent, and words of
//! earlier holders and of calls that never happened.
#![allow(clippy::unwrap_used)] // A test that meets an error shall stop there.

mod decide_support;

use decide_support::{Store, plain, write};
use effectstore::decide::REASON_BYTES;
use effectstore::model::*;

fn refused(store: &mut Store, command: &Command) -> (&'static str, String) {
    let head = store.state.head;
    let refusal = store.run(command).unwrap_err();
    assert_eq!(store.state.head, head, "nothing of a senseless command is kept");
    (refusal.code(), refusal.to_string())
}

fn create(name: &str, agent: &str) -> Command {
    Command::CreateBranch {
        name: name.into(),
        agent: agent.into(),
        parent: None,
        reads: ReadRule::Speculative,
        overwrite: Overwrite::Guard,
        lease_ms: None,
        parent_token: None,
    }
}

#[test]
fn a_stale_holder_of_a_parent_makes_no_child_and_is_on_record() {
    let mut store = Store::new(Policy::default());
    let parent = store.branch("parent");
    let taken = Command::TakeOver { name: "parent".into(), worker_gone: false, by: None };
    let Ok(Reply::Branch(taken)) = store.run(&taken) else { panic!() };
    let child = |name: &str, token| Command::CreateBranch {
        name: name.into(),
        agent: "a".into(),
        parent: Some(parent.id),
        reads: ReadRule::Speculative,
        overwrite: Overwrite::Guard,
        lease_ms: None,
        parent_token: token,
    };
    assert_eq!(store.run(&child("c", Some(parent.token))).unwrap_err().code(), "stale_token");
    assert!(matches!(&store.book.log.last().unwrap().1,
        Event::Refused { verb, held, .. } if verb == "branch" && *held == Some(parent.token)));
    assert!(!store.state.names.contains_key("c"));
    store.run(&child("c", Some(taken.token))).unwrap();
    store.run(&child("d", None)).unwrap();
}

#[test]
fn names_and_reasons_say_something_and_not_too_much() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    assert_eq!(refused(&mut store, &create("", "x")).0, "options");
    assert_eq!(refused(&mut store, &create("b", " ")).0, "options");
    assert_eq!(refused(&mut store, &create("b", &"x".repeat(1025))).0, "limit_exceeded");
    let freeze = |by: &str, reason: String| Command::Freeze { by: by.into(), reason };
    assert_eq!(refused(&mut store, &freeze("", "why".into())).0, "options");
    assert_eq!(refused(&mut store, &freeze("ops", " \n".into())).0, "options");
    let longest = usize::try_from(REASON_BYTES).unwrap();
    let (code, text) = refused(&mut store, &freeze("ops", "x".repeat(longest + 1)));
    assert_eq!(code, "options");
    assert!(text.contains("16384"), "{text}");
    let (token, target) = (line.token, Target::Branch(line.id));
    let abort = Command::Abort { target, token, reason: String::new(), by: None };
    assert_eq!(refused(&mut store, &abort).0, "options");
    store.run(&freeze("ops", "x".repeat(longest))).unwrap();
}

#[test]
fn no_branch_is_of_the_agent_that_stands_for_every_agent() {
    let mut store = Store::new(Policy::default());
    let (code, text) = refused(&mut store, &create("b", "*"));
    assert_eq!(code, "options");
    assert!(text.contains("every agent"), "{text}");
}

#[test]
fn a_cost_is_a_number_and_an_approval_is_for_an_early_irreversible_call() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    for cost in [f64::NAN, f64::INFINITY, -1.0] {
        let call = Registration { cost: Some(cost), ..plain("t") };
        assert_eq!(store.try_register(line, call).unwrap_err().code(), "options");
    }
    let call = Registration { approval: Some(ApprovalId(1)), ..plain("t") };
    let refusal = store.try_register(line, call).unwrap_err();
    assert_eq!(refusal.code(), "options");
    assert!(refusal.to_string().starts_with("approval"), "{refusal}");
    assert!(store.state.effects.is_empty());
    assert_eq!(store.try_register(line, plain("")).unwrap_err().code(), "options");
}

#[test]
fn a_rule_of_retry_makes_sense_wherever_it_is_given() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let wrong = [
        Retry { max_attempts: 0, ..Retry::default() },
        Retry { backoff: f64::NAN, ..Retry::default() },
        Retry { jitter: 1.5, ..Retry::default() },
    ];
    for retry in wrong {
        let mut call = write("X");
        call.inverse.as_mut().unwrap().retry = Some(retry.clone());
        assert_eq!(store.try_register(line, call).unwrap_err().code(), "options");
        let spec = ClaimSpec { retry: Some(retry), ..Store::spec("a") };
        assert_eq!(refused(&mut store, &Command::Claim { spec }).0, "options");
    }
}

#[test]
fn a_lease_of_nothing_is_no_lease() {
    let mut store = Store::new(Policy::default());
    let Command::CreateBranch { name, agent, parent, reads, overwrite, parent_token, .. } =
        create("b", "x")
    else {
        panic!()
    };
    let lease_ms = Some(0);
    let made =
        Command::CreateBranch { name, agent, parent, reads, overwrite, lease_ms, parent_token };
    assert_eq!(refused(&mut store, &made).0, "options");
}

#[test]
fn a_not_run_after_a_stale_done_is_refused_doomed_or_not() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let effect = store.register(line, write("X"));
    let taken = Command::TakeOver { name: "a".into(), worker_gone: false, by: None };
    store.run(&taken).unwrap();
    let stale = Command::Done {
        effect: EffectId(effect),
        token: line.token,
        result: PayloadRef::of(b"r"),
        inverse: None,
    };
    assert_eq!(store.run(&stale).unwrap_err().code(), "stale_token");
    let rollback = store.abort(&[effect]).unwrap();
    assert_eq!(store.not_run(effect).unwrap_err().code(), "already_settled");
    assert!(store.report(rollback).discarded.is_empty(), "the call ran, so it is undone");
    assert_eq!(store.undo_all(), [effect]);
}

#[test]
fn a_reader_rests_on_what_a_writer_that_became_void_meanwhile_rested_on() {
    let mut store = Store::new(Policy::default());
    let (one, two) = (store.branch("one"), store.branch("two"));
    let reader = store.register(two, plain("look").reads("K"));
    let late = store.register(two, Registration { follows: Follows::These(vec![]), ..plain("t") });
    let base = store.ran(one, write("B"));
    let void = store.register(one, write("K"));
    store.not_run(void).unwrap();
    store.done(reader).unwrap();
    assert!(
        store.state.closure(&[EffectId(reader)]).contains(&EffectId(base)),
        "by its declared read"
    );
    let effect = EffectId(late);
    let token = store.state.effects.get(effect).unwrap().token;
    let keys = vec![Read { key: "K".into(), version: None }];
    store.run(&Command::ObserveLate { effect, token, keys }).unwrap();
    assert!(store.state.closure(&[effect]).contains(&EffectId(base)), "by what it read late");
}

fn signal(line: decide_support::Line, why: &str, upstream: &str) -> Command {
    Command::SignalBreak {
        branch: line.id,
        token: Some(line.token),
        severity: BreakSeverity::Transient,
        reason: why.into(),
        recoverable: true,
        upstream: vec![upstream.into()],
        ack_within_ms: 1_000,
    }
}

#[test]
fn a_break_says_why_and_names_agents_and_neither_at_any_length() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let longest = usize::try_from(REASON_BYTES).unwrap();
    let long_name = "x".repeat(1025);
    assert_eq!(refused(&mut store, &signal(line, " ", "up")).0, "options");
    let (code, text) = refused(&mut store, &signal(line, &"x".repeat(longest + 1), "up"));
    assert_eq!((code, text.contains("16384")), ("options", true), "{text}");
    assert_eq!(refused(&mut store, &signal(line, "why", "")).0, "options");
    assert_eq!(refused(&mut store, &signal(line, "why", &long_name)).0, "limit_exceeded");
    store.run(&signal(line, &"x".repeat(longest), &"x".repeat(1024))).unwrap();
    let notice = NoticeId(store.state.head);
    let ack = |agent: &str| Command::AckNotice { notice, agent: agent.into() };
    assert_eq!(refused(&mut store, &ack("")).0, "options");
    assert_eq!(refused(&mut store, &ack(&long_name)).0, "limit_exceeded");
}

fn artifact(change: impl Fn(&mut ArtifactSpec)) -> Box<ArtifactSpec> {
    let mut spec = ArtifactSpec {
        artifact_type: "SCRIPT".into(),
        name: "fix".into(),
        sha256: [7; 32],
        content: None,
        content_ref: Some("here".into()),
        class: Class::Full,
        agent: Some("ann".into()),
    };
    change(&mut spec);
    Box::new(spec)
}

#[test]
fn names_and_reasons_of_artifacts_say_something_and_not_too_much() {
    let mut store = Store::new(Policy::default());
    let longest = usize::try_from(REASON_BYTES).unwrap();
    let create = |primary, compensation, by: &str| Command::CreateArtifacts {
        primary,
        compensation,
        by: by.into(),
        idempotency_key: None,
    };
    let plain = || artifact(|_| {});
    for (text, code) in [(" ".to_owned(), "options"), ("x".repeat(1025), "limit_exceeded")] {
        let odd = [
            artifact(|spec| spec.artifact_type.clone_from(&text)),
            artifact(|spec| spec.name.clone_from(&text)),
            artifact(|spec| spec.content_ref = Some(text.clone())),
            artifact(|spec| spec.agent = Some(text.clone())),
        ];
        for spec in odd {
            assert_eq!(refused(&mut store, &create(spec.clone(), plain(), "ana")).0, code);
            assert_eq!(refused(&mut store, &create(plain(), spec, "ana")).0, code);
        }
        assert_eq!(refused(&mut store, &create(plain(), plain(), &text)).0, code);
    }
    let Ok(Reply::Artifact(id)) = store.run(&create(plain(), plain(), "ana")) else { panic!() };
    let bring = |state, by: &str, reason: Option<String>| Command::MoveArtifact {
        artifact: id,
        state,
        by: by.into(),
        reason,
    };
    let reject = |reason| bring(ArtifactState::Rejected, "ana", reason);
    for nothing in [None, Some(String::new()), Some(" ".into())] {
        assert_eq!(refused(&mut store, &reject(nothing)).0, "options");
    }
    let too_long = Some("x".repeat(longest + 1));
    assert_eq!(refused(&mut store, &reject(too_long.clone())).0, "options");
    let submit = |by: &str, reason| bring(ArtifactState::InReview, by, reason);
    assert_eq!(refused(&mut store, &submit("", None)).0, "options");
    assert_eq!(refused(&mut store, &submit(&"x".repeat(1025), None)).0, "limit_exceeded");
    store.run(&submit("ana", None)).unwrap();
    let approve = |reason| bring(ArtifactState::Approved, "ben", reason);
    assert_eq!(refused(&mut store, &approve(too_long)).0, "options");
    store.run(&approve(Some("x".repeat(longest)))).unwrap();
    let fail = |by: &str, reason: &str, run_id: Option<&str>| Command::FailArtifact {
        artifact: id,
        by: by.into(),
        reason: reason.into(),
        run_id: run_id.map(str::to_owned),
        args: PayloadRef::of(b"args"),
    };
    let long = "x".repeat(1025);
    assert_eq!(refused(&mut store, &fail("", "why", None)).0, "options");
    assert_eq!(refused(&mut store, &fail(&long, "why", None)).0, "limit_exceeded");
    assert_eq!(refused(&mut store, &fail("ana", " ", None)).0, "options");
    assert_eq!(refused(&mut store, &fail("ana", "why", Some(""))).0, "options");
    assert_eq!(refused(&mut store, &fail("ana", "why", Some(&long))).0, "limit_exceeded");
    // An error's text is shortened and never refused: what failed has failed.
    store.run(&fail("ana", &"x".repeat(longest + 1), Some("run-7"))).unwrap();
}
