//! Stories about pairs of artifacts: each rule of RFC-012, section 8. After every command the support
//! folds the records that memory says it needs, and compares (I10, I19).
#![allow(clippy::unwrap_used)] // A test that meets an error shall stop there.

mod decide_support;

use decide_support::{Store, plain, write};
use effectstore::model::*;

use ArtifactState::*;

fn spec(name: &str) -> Box<ArtifactSpec> {
    Box::new(ArtifactSpec {
        artifact_type: format!("run-{name}"),
        name: name.into(),
        sha256: [7; 32],
        content: Some(PayloadRef::of(name.as_bytes())),
        content_ref: None,
        class: Class::Full,
        agent: None,
    })
}

fn create_with(store: &mut Store, compensation: Box<ArtifactSpec>) -> ArtifactId {
    let (primary, by) = (spec("fix"), "ana".into());
    match store.run(&Command::CreateArtifacts { primary, compensation, by, idempotency_key: None })
    {
        Ok(Reply::Artifact(id)) => id,
        other => panic!("{other:?}"),
    }
}

fn create(store: &mut Store) -> ArtifactId {
    create_with(store, spec("undo"))
}

fn bring_by(
    store: &mut Store,
    artifact: ArtifactId,
    state: ArtifactState,
    by: &str,
    reason: Option<&str>,
) -> Result<Reply, Refusal> {
    let (by, reason) = (by.to_owned(), reason.map(str::to_owned));
    store.run(&Command::MoveArtifact { artifact, state, by, reason })
}

fn bring(store: &mut Store, id: ArtifactId, states: &[ArtifactState]) {
    for state in states {
        bring_by(store, id, *state, "ben", Some("read both")).unwrap();
    }
}

fn fail(store: &mut Store, artifact: ArtifactId) -> Result<Reply, Refusal> {
    store.run(&Command::FailArtifact {
        artifact,
        by: "runner".into(),
        reason: "exit code 1".into(),
        run_id: Some("run-7".into()),
        args: PayloadRef::of(b"context"),
    })
}

/// The states of primary and compensation; `None` once memory has let the pair go.
fn states(store: &Store, id: ArtifactId) -> Option<(ArtifactState, ArtifactState)> {
    let pair = &store.state.artifacts.get(id)?.info;
    Some((pair.primary.state, pair.compensation.state))
}

fn alerts(store: &Store) -> Vec<(Severity, u64, String)> {
    let told = |alert: &AlertInfo| (alert.severity, alert.reference, alert.text.clone());
    store.state.alerts.values().map(told).collect()
}

fn rollback_of(store: &Store, id: ArtifactId) -> RollbackId {
    store.state.artifacts.get(id).unwrap().info.run.as_ref().unwrap().rollback
}

const READY: &[ArtifactState] = &[InReview, Approved, Promoted];

#[test]
fn rule_1_a_compensation_is_created_with_its_primary_in_one_command() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    assert_eq!(store.kinds(2), ["artifact_created", "artifact_created"]);
    let pair = &store.state.artifacts.get(id).unwrap().info;
    assert_eq!(pair.compensation.id.0, id.0 + 1);
    assert_eq!(pair.compensation.compensates_for, Some(id));
    assert_eq!(pair.primary.compensates_for, None);
}

#[test]
fn rules_2_and_3_both_are_reviewed_approved_and_promoted_as_one() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    assert_eq!(states(&store, id), Some((Draft, Draft)));
    for state in READY {
        bring(&mut store, id, &[*state]);
        assert_eq!(states(&store, id), Some((*state, *state)));
    }
    bring(&mut store, id, &[Executing]);
    assert_eq!(states(&store, id), Some((Executing, Promoted)));
    let compensation = ArtifactId(id.0 + 1);
    for state in READY {
        let refused = bring_by(&mut store, compensation, *state, "ben", None).unwrap_err();
        assert!(matches!(refused, Refusal::ArtifactState { state: "promoted", .. }), "{refused}");
    }
}

#[test]
fn the_table_of_transitions_is_the_only_way() {
    for first in ArtifactState::ALL {
        let path: &[ArtifactState] = match first {
            Draft => &[],
            InReview => &[InReview],
            Approved => &[InReview, Approved],
            Promoted => READY,
            Executing => &[InReview, Approved, Promoted, Executing],
            Completed => &[InReview, Approved, Promoted, Executing, Completed],
            Rejected => &[Rejected],
            Failed | Compensated | Uncompensated => continue,
        };
        for next in ArtifactState::ALL {
            let mut store = Store::new(Policy::default());
            let id = create(&mut store);
            bring(&mut store, id, path);
            let records = store.book.log.len();
            let answer = bring_by(&mut store, id, next, "ben", Some("looked at it"));
            let allowed = first.may_become(next) && !next.has_failed();
            assert_eq!(answer.is_ok(), allowed, "{first:?} to {next:?}");
            if !allowed {
                assert!(matches!(&answer, Err(Refusal::ArtifactState { artifact, state, .. })
                    if *artifact == id && *state == first.name()));
                assert_eq!(store.book.log.len(), records, "a refusal stores nothing");
            }
        }
    }
}

#[test]
fn rule_4_a_failure_makes_the_compensation_due_and_it_is_claimed_like_any_step() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    bring(&mut store, id, READY);
    assert!(store.claim().is_none());
    fail(&mut store, id).unwrap();
    assert_eq!(states(&store, id), Some((Failed, Executing)));
    let step = store.claim_as("anybody").unwrap();
    assert_eq!(step.info.tool, "run-undo");
    assert_eq!(step.info.artifact, Some(ArtifactId(id.0 + 1)));
    assert_eq!(step.info.rollback, rollback_of(&store, id));
    assert!(alerts(&store).is_empty());
    store.complete(&step).unwrap();
    assert_eq!(store.kinds(3), ["step_completed", "artifact_ran", "rollback_finished"]);
    assert_eq!(states(&store, id), None, "what is settled leaves memory (I19)");
    assert!(store.state.effects.is_empty() && store.state.branches.is_empty());
    assert_eq!(store.state.needed().len(), 1, "only the settings are left");
}

#[test]
fn rule_4_an_agent_that_is_named_runs_it_and_nobody_else() {
    let mut store = Store::new(Policy::default());
    let undo = Box::new(ArtifactSpec { agent: Some("operator".into()), ..*spec("undo") });
    let id = create_with(&mut store, undo);
    bring(&mut store, id, READY);
    fail(&mut store, id).unwrap();
    assert!(store.claim_as("anybody").is_none());
    assert!(store.claim_as("operator").is_some());
}

#[test]
fn rule_4_without_an_approval_an_alert_calls_for_a_person_and_nothing_runs() {
    for path in [&[][..], &[InReview]] {
        let mut store = Store::new(Policy::default());
        let id = create(&mut store);
        bring(&mut store, id, path);
        fail(&mut store, id).unwrap();
        assert_eq!(store.kinds(2), ["artifact_failed", "alerted"]);
        let told = alerts(&store);
        assert_eq!((told.len(), told[0].0, told[0].1), (1, Severity::Critical, id.0));
        assert!(told[0].2.contains("manual intervention"), "{}", told[0].2);
        assert!(store.claim().is_none());
        assert_eq!(states(&store, id), None);
        fail(&mut store, id).unwrap();
        assert_eq!(alerts(&store).len(), 1, "said once");
    }
}

#[test]
fn a_failure_is_taken_once() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    bring(&mut store, id, &[InReview, Approved, Promoted, Executing]);
    fail(&mut store, id).unwrap();
    let records = store.book.log.len();
    fail(&mut store, id).unwrap();
    let step = store.claim().unwrap();
    fail(&mut store, id).unwrap();
    store.complete(&step).unwrap();
    fail(&mut store, id).unwrap();
    assert_eq!(store.state.rollbacks.len(), 0);
    assert_eq!(store.book.log.len(), records + 4, "claim, end, execution record, finished");
    assert!(store.claim().is_none());
}

#[test]
fn what_ended_well_or_was_withdrawn_cannot_fail() {
    for end in [&[InReview, Approved, Promoted, Executing, Completed][..], &[Rejected]] {
        let mut store = Store::new(Policy::default());
        let id = create(&mut store);
        bring(&mut store, id, end);
        assert_eq!(states(&store, id), None);
        let refused = fail(&mut store, id).unwrap_err();
        assert!(matches!(refused, Refusal::ArtifactState { artifact, .. } if artifact == id));
    }
}

#[test]
fn rule_5_the_run_has_an_execution_record_with_its_provenance() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    bring(&mut store, id, READY);
    fail(&mut store, id).unwrap();
    let rollback_is = rollback_of(&store, id);
    let step = store.claim_as("operator").unwrap();
    store.end(&step, StepEnd::Failed(Problem::new("Flaky", "again"))).unwrap();
    store.wait(2_000);
    let step = store.claim_as("operator").unwrap();
    store.complete(&step).unwrap();
    let record = store.book.log.iter().rev().find_map(|(_, event)| match event {
        Event::ArtifactRan {
            artifact,
            compensation,
            run,
            rollback,
            state,
            kind,
            attempts,
            by,
            sha256,
            approved_by,
        } => {
            assert_eq!((*artifact, compensation.0), (id, id.0 + 1));
            assert_eq!((run.0, *rollback), (step.effect, rollback_is));
            assert_eq!((*kind, *attempts, *sha256), (None, 2, [7; 32]));
            assert_eq!((by.as_deref(), approved_by.as_deref()), (Some("operator"), Some("ben")));
            Some(*state)
        }
        _ => None,
    });
    assert_eq!(record, Some(Compensated));
}

#[test]
fn a_compensation_that_fails_ends_uncompensated_with_a_critical_alert_until_a_person_acts() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    bring(&mut store, id, READY);
    fail(&mut store, id).unwrap();
    let rollback = rollback_of(&store, id);
    let step = store.claim().unwrap();
    store.end(&step, StepEnd::Permanent(Problem::new("Gone", "no"))).unwrap();
    assert_eq!(states(&store, id), Some((Uncompensated, Failed)));
    let told = alerts(&store);
    assert_eq!((told.len(), told[0].0, told[0].1), (1, Severity::Critical, id.0));
    assert!(told[0].2.contains("manual intervention is required"), "{}", told[0].2);
    let (effect, by) = (EffectId(step.effect), "ops".to_owned());
    let reason = "repaired".to_owned();
    store
        .run(&Command::RetryStep { rollback, effect, by: by.clone(), reason: reason.clone() })
        .unwrap();
    assert_eq!(states(&store, id), Some((Failed, Executing)));
    let step = store.claim().unwrap();
    store.end(&step, StepEnd::Mismatched(Problem::new("Changed", "no"))).unwrap();
    assert_eq!(store.report(rollback).failed[0].kind, FailureKind::ContentMismatch);
    assert_eq!(states(&store, id), Some((Uncompensated, Failed)));
    let versions = Vec::new();
    store.run(&Command::ResolveStep { rollback, effect, by, reason, versions }).unwrap();
    assert_eq!(states(&store, id), None);
    assert!(store.book.log.iter().any(|(_, event)| matches!(event,
        Event::ArtifactRan { state: Compensated, by: Some(by), .. } if by == "ops")));
}

#[test]
fn the_approval_of_the_pair_covers_the_run_whatever_the_matrix_says() {
    let mut store = Store::new(Policy { auto_keys: 0, ..Policy::default() });
    let undo = Box::new(ArtifactSpec { class: Class::Partial, ..*spec("undo") });
    let id = create_with(&mut store, undo);
    bring(&mut store, id, READY);
    fail(&mut store, id).unwrap();
    assert!(store.state.approvals.is_empty());
    assert!(store.claim().is_some());
    // An ordinary rollback of the same policy still asks.
    let line = store.branch("a");
    let effect = store.ran(line, write("K"));
    store.abort(&[effect]).unwrap();
    assert_eq!(store.state.approvals.len(), 1);
}

#[test]
fn an_irreversible_compensation_runs_only_under_an_approval_of_its_own() {
    let mut store = Store::new(Policy::default());
    let undo = Box::new(ArtifactSpec { class: Class::Irreversible, ..*spec("undo") });
    let id = create_with(&mut store, undo);
    bring(&mut store, id, READY);
    fail(&mut store, id).unwrap();
    assert!(store.claim().is_none());
    let approval = *store.state.approvals.keys().next().unwrap();
    assert!(store.state.approvals[&approval].info.reason_required);
    store.answer(approval, false).unwrap();
    assert_eq!(states(&store, id), Some((Uncompensated, Failed)));
    let rollback = rollback_of(&store, id);
    let (ask, by) = (Ask::Rollback(rollback), "ops".to_owned());
    let Ok(Reply::Approval(again)) =
        store.run(&Command::Ask { ask, by, reason: "it must be".into() })
    else {
        panic!("asked again")
    };
    store.answer(again, true).unwrap();
    assert_eq!(states(&store, id), Some((Failed, Executing)), "the run is due once more");
    let step = store.claim().unwrap();
    store.complete(&step).unwrap();
    assert_eq!(states(&store, id), None);
}

#[test]
fn duties_are_separated_and_reasons_written_where_the_policy_and_the_class_say_so() {
    let mut store = Store::new(Policy { separation_of_duties: true, ..Policy::default() });
    let id = create(&mut store);
    bring_by(&mut store, id, InReview, "cleo", None).unwrap();
    for by in ["ana", "cleo"] {
        let refused = bring_by(&mut store, id, Approved, by, None).unwrap_err();
        assert!(matches!(refused, Refusal::ArtifactDuties { .. }), "{refused}");
    }
    bring_by(&mut store, id, Approved, "ben", None).unwrap();
    let undo = Box::new(ArtifactSpec { class: Class::Irreversible, ..*spec("undo") });
    let id = create_with(&mut store, undo);
    bring_by(&mut store, id, InReview, "cleo", None).unwrap();
    for reason in [None, Some("  ")] {
        let refused = bring_by(&mut store, id, Approved, "ben", reason).unwrap_err();
        assert!(matches!(refused, Refusal::ArtifactReasonRequired { .. }), "{refused}");
    }
    bring_by(&mut store, id, Approved, "ben", Some("there is no other way")).unwrap();
}

#[test]
fn an_inverse_names_only_code_that_is_there_and_approved() {
    let mut store = Store::new(Policy::default());
    let line = store.branch("a");
    let id = create(&mut store);
    let call = |named: &str| {
        let mut call = plain("tool");
        call.inverse.as_mut().unwrap().artifact = Some(named.to_owned());
        call
    };
    for odd in ["no-such", "999", "1", "-1"] {
        let refused = store.try_register(line, call(odd)).unwrap_err();
        assert!(matches!(refused, Refusal::NotFound { .. }), "{odd}: {refused}");
    }
    let refused = store.try_register(line, call("")).unwrap_err();
    assert!(matches!(refused, Refusal::Options { option: "artifact", .. }), "{refused}");
    let undo = (id.0 + 1).to_string();
    let refused = store.try_register(line, call(&undo)).unwrap_err();
    assert!(matches!(refused, Refusal::ArtifactState { state: "draft", .. }), "{refused}");
    bring(&mut store, id, &[InReview, Approved]);
    let effect = store.ran(line, call(&undo));
    store.abort(&[effect]).unwrap();
    let step = store.claim().unwrap();
    assert_eq!(step.info.artifact, Some(ArtifactId(id.0 + 1)));
    // Once withdrawn it can be named no more.
    bring(&mut store, id, &[Rejected]);
    let other = store.branch("b");
    let refused = store.try_register(other, call(&undo)).unwrap_err();
    assert!(matches!(refused, Refusal::ArtifactState { state: "rejected", .. }), "{refused}");
}

#[test]
fn bad_input_is_refused_before_anything_is_stored() {
    let mut store = Store::new(Policy::default());
    let records = store.book.log.len();
    let long = "x".repeat(1025);
    let odd: Vec<ArtifactSpec> = vec![
        ArtifactSpec { artifact_type: String::new(), ..*spec("a") },
        ArtifactSpec { name: " \n".into(), ..*spec("a") },
        ArtifactSpec { name: long.clone(), ..*spec("a") },
        ArtifactSpec { content: None, ..*spec("a") },
        ArtifactSpec { content_ref: Some("here".into()), ..*spec("a") },
        ArtifactSpec { content: None, content_ref: Some(String::new()), ..*spec("a") },
        ArtifactSpec { agent: Some(String::new()), ..*spec("a") },
        ArtifactSpec {
            content: Some(PayloadRef { length: (1 << 20) + 1, hash: [0; 32] }),
            ..*spec("a")
        },
    ];
    for spec_of in odd {
        for (primary, compensation) in
            [(Box::new(spec_of.clone()), spec("b")), (spec("b"), Box::new(spec_of.clone()))]
        {
            let by = "ana".to_owned();
            let refused = store.run(&Command::CreateArtifacts {
                primary,
                compensation,
                by,
                idempotency_key: None,
            });
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, Refusal::Options { .. } | Refusal::LimitExceeded { .. }),
                "{spec_of:?}: {refused}"
            );
        }
    }
    for by in ["", "   ", &long] {
        let (primary, compensation) = (spec("a"), spec("b"));
        let by = by.to_owned();
        store
            .run(&Command::CreateArtifacts { primary, compensation, by, idempotency_key: None })
            .unwrap_err();
    }
    for id in [0, 1, 77] {
        let refused = bring_by(&mut store, ArtifactId(id), InReview, "ana", None).unwrap_err();
        assert!(matches!(refused, Refusal::NotFound { .. }), "{refused}");
        assert!(matches!(fail(&mut store, ArtifactId(id)), Err(Refusal::NotFound { .. })));
    }
    assert_eq!(store.book.log.len(), records);
}

#[test]
fn a_run_takes_a_branch_name_that_nobody_has() {
    let mut store = Store::new(Policy::default());
    let id = create(&mut store);
    bring(&mut store, id, READY);
    store.branch(&format!("artifact {id}"));
    fail(&mut store, id).unwrap();
    assert!(store.state.names.contains_key(&format!("artifact {id}'")));
    assert!(store.claim().is_some());
}
