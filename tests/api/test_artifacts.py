"""Executable artifacts and their compensations: each rule of RFC-012, section 8, and what it leaves open."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import (
    ArtifactPair,
    ArtifactSpec,
    ArtifactStateError,
    ContentMismatchError,
    IdempotencyConflictError,
    Inverse,
    LimitExceededError,
    NotFoundError,
    OptionsError,
    Policy,
    ReasonRequiredError,
    RefusedError,
    SeparationOfDutiesError,
    Store,
)
from support import Child, OpenStore, rest_of
from world import AT_ONCE, FakeClock

FIX, UNDO = b"alter table add column", b"alter table drop column"
FIX_SPEC = ArtifactSpec("script", "fix", content=FIX)
UNDO_SPEC = ArtifactSpec("script", "undo-fix", content=UNDO)
STATES = (
    "draft", "in_review", "approved", "promoted", "executing", "completed", "failed", "failed_compensated",
    "failed_uncompensated", "rejected",
)  # fmt: skip


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def elsewhere(data: bytes, **options: Any) -> ArtifactSpec:
    return ArtifactSpec("script", "elsewhere", content_ref="s3://bucket/undo.sql", content_hash=sha(data), **options)


def approved(store: Store, compensation: ArtifactSpec = UNDO_SPEC) -> ArtifactPair:
    pair = store.artifacts.create(FIX_SPEC, compensation, by="ana")
    store.artifacts.submit(pair, by="ana")
    return store.artifacts.approve(pair, by="ben", reason="read both")


def promoted(store: Store, compensation: ArtifactSpec = UNDO_SPEC) -> ArtifactPair:
    return store.artifacts.promote(approved(store, compensation), by="ben")


def bring(store: Store, state: str) -> ArtifactPair:
    """A new pair in this state, by the verbs that lead there."""
    artifacts = store.artifacts
    pair = artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    if state == "rejected":
        return artifacts.reject(pair, by="ben", reason="not like this")
    verbs = ("submit", "approve", "promote", "start")
    last = {"draft": 0, "in_review": 1, "approved": 2, "promoted": 3}.get(state, 4)
    for verb in verbs[:last]:
        pair = getattr(artifacts, verb)(pair, by="ben")
    if state == "completed":
        return artifacts.complete(pair, by="runner")
    if state.startswith("failed"):
        pair = artifacts.fail(pair, by="runner", reason="exit code 1")
        if state != "failed":
            assert pair.run is not None
            handler = run if state == "failed_compensated" else broken
            store.compensate({"script": handler}, rollback=pair.run.rollback)
            pair = artifacts.get(pair)
    assert pair.state == state
    return pair


def run(args: Any, step: effectstore.Step) -> None:
    assert step.content() == UNDO


def broken(args: Any, step: effectstore.Step) -> None:
    raise effectstore.PermanentError("the column is gone")


def test_rule_1_a_compensation_is_created_with_its_primary(store: Store) -> None:
    pair = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    assert (pair.primary.is_compensation, pair.primary.compensates_for) == (False, None)
    assert (pair.compensation.is_compensation, pair.compensation.compensates_for) == (True, pair.id)
    assert [record.kind for record in store.log()][-2:] == ["artifact_created", "artifact_created"]
    with pytest.raises(TypeError):
        store.artifacts.create(FIX_SPEC, by="ana")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        store.artifacts.create(FIX_SPEC, None, by="ana")  # type: ignore[arg-type]


def test_rule_1_a_pair_is_created_once_under_a_key(open_store: OpenStore) -> None:
    """Whoever does not know whether its call arrived says it again; the key is the store's, whatever it stands for."""
    store = open_store()
    pair = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="fix-7")
    store.artifacts.submit(pair, by="ana")
    written = len(list(store.log()))
    for by in ("ana", "ben"):
        again = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by=by, idempotency_key="fix-7")
        assert (again.id, again.primary.state, again.created_by) == (pair.id, "in_review", "ana")
    assert len(list(store.log())) == written
    for primary, compensation, differs in (
        (UNDO_SPEC, UNDO_SPEC, "primary"),
        (dataclasses.replace(FIX_SPEC, reversibility="irreversible"), UNDO_SPEC, "primary"),
        (FIX_SPEC, FIX_SPEC, "compensation"),
    ):
        with pytest.raises(IdempotencyConflictError) as conflict:
            store.artifacts.create(primary, compensation, by="ana", idempotency_key="fix-7")
        assert (conflict.value.effect, conflict.value.differs) == (pair.id, differs)
    store.artifacts.reject(pair, by="ben", reason="not now")
    store.close()
    store = open_store()
    again = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="fix-7")
    assert (again.id, again.primary.state) == (pair.id, "rejected")
    assert store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="fix-8").id != pair.id
    branch = store.branch("A")
    with pytest.raises(IdempotencyConflictError) as conflict:
        branch.register("put", {}, inverse=Inverse("undo", {}), idempotency_key="fix-7")
    assert (conflict.value.effect, conflict.value.differs) == (pair.id, "kind")
    effect = branch.register("put", {}, inverse=Inverse("undo", {}), idempotency_key=b"call")
    with pytest.raises(IdempotencyConflictError) as conflict:
        store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key=b"call")
    assert (conflict.value.effect, conflict.value.differs) == (effect.id, "kind")
    with pytest.raises(LimitExceededError):
        store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="k" * 100_000)
    store.verify()


def test_rule_1_keys_of_settled_pairs_are_kept_as_long_as_the_policy_says(
    open_store: OpenStore, clock: FakeClock
) -> None:
    store = open_store(policy=Policy(key_retention=60), clock=clock)
    kept = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="open")
    settled = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key="settled")
    store.artifacts.reject(settled, by="ben", reason="not now")
    clock.advance(61)
    again = [store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana", idempotency_key=key) for key in ("open", "settled")]
    assert again[0].id == kept.id
    assert again[1].id > settled.id
    store.verify()


def test_rules_2_and_3_both_are_reviewed_approved_and_promoted_as_one(store: Store) -> None:
    pair = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    for verb, state in (("submit", "in_review"), ("approve", "approved"), ("promote", "promoted")):
        pair = getattr(store.artifacts, verb)(pair, by="ben")
        assert (pair.primary.state, pair.compensation.state) == (state, state)
    assert [(moved.state, moved.by) for moved in pair.moves] == [
        ("in_review", "ben"), ("approved", "ben"), ("promoted", "ben"),
    ]  # fmt: skip
    with pytest.raises(ArtifactStateError, match=f"compensates for artifact {pair.id}") as caught:
        store.artifacts.start(pair.compensation, by="ben")
    assert (caught.value.artifact, caught.value.state) == (pair.compensation.id, "promoted")


def test_the_schema_of_section_8_2_is_told(store: Store) -> None:
    pair = approved(store, elsewhere(UNDO))
    told = pair.compensation.to_dict()
    assert told == {
        "id": pair.compensation.id,
        "type": "script",
        "name": "elsewhere",
        "is_compensation": True,
        "compensates_for": pair.id,
        "state": "approved",
        "content_ref": "s3://bucket/undo.sql",
        "content_hash": sha(UNDO),
        "size": None,
        "reversibility": "full",
        "agent": None,
    }
    json.dumps(pair.to_dict())
    assert pickle.loads(pickle.dumps(pair)) == pair
    with pytest.raises(AttributeError):
        pair.primary.name = "other"  # type: ignore[misc]
    assert not hasattr(pair, "__dict__")


def test_rule_4_a_failure_makes_the_run_due_and_its_handler_is_told_why(store: Store) -> None:
    pair = promoted(store)
    assert store.claim("anybody") is None
    failed = store.artifacts.fail(pair, by="runner", reason="exit code 1", run_id="run-7")
    assert (failed.state, failed.compensation.state) == ("failed", "executing")
    assert failed.failure == effectstore.ArtifactFailure("exit code 1", "run-7", "runner")
    step = store.claim("anybody")
    assert step is not None
    assert step.tool == "script"
    assert step.args == {"compensating_for": pair.id, "failure_reason": "exit code 1", "run_id": "run-7"}
    assert (step.artifact, step.content()) == (pair.compensation.id, UNDO)
    assert step.to_dict()["artifact"] == pair.compensation.id
    step.complete()
    assert store.artifacts.get(pair).state == "failed_compensated"


def test_rule_4_compensate_runs_it_with_decorated_functions_too(store: Store) -> None:
    seen = []

    @effectstore.tool(name="rfc012_script", inverse=lambda: Inverse("x"))
    def script(compensating_for: int, failure_reason: str, run_id: str) -> None:
        seen.append((compensating_for, failure_reason, run_id))

    pair = promoted(store, ArtifactSpec("rfc012_script", "undo", content=UNDO))
    started = store.artifacts.start(pair, by="runner")
    store.artifacts.fail(pair, by="runner", reason="boom")
    assert store.compensate().clean
    assert seen == [(pair.id, "boom", str(started.moves[-1].record))], "without a name, the run goes by its record"


def test_rule_4_attempts_retries_and_leases_are_those_of_every_step(store: Store) -> None:
    store.configure(by="ops", policy=Policy(retry=AT_ONCE))
    pair = promoted(store)
    failed = store.artifacts.fail(pair, by="runner", reason="exit code 1")
    keys: list[tuple[str, int]] = []

    def flaky(args: Any, step: effectstore.Step) -> None:
        keys.append((step.idempotency_key, step.attempt))
        if len(keys) < 3:
            raise RuntimeError("again")

    assert failed.run is not None
    report = store.compensate({"script": flaky})
    assert (report.rollbacks, report.completed, report.clean) == ((failed.run.rollback,), (failed.run.id,), True)
    assert [attempt for _, attempt in keys] == [1, 2, 3]
    assert len({key for key, _ in keys}) == 1


def test_rule_4_a_lost_lease_is_claimed_again(open_store: OpenStore, clock: FakeClock) -> None:
    store = open_store(clock=clock)
    store.artifacts.fail(promoted(store), by="runner", reason="exit code 1")
    first = store.claim("one", lease=10)
    assert first is not None
    assert store.claim("two") is None
    clock.advance(11)
    second = store.claim("two")
    assert second is not None
    assert second.idempotency_key == first.idempotency_key
    with pytest.raises(effectstore.LeaseLostError):
        first.complete()
    second.complete()


@pytest.mark.parametrize("state", ["draft", "in_review"])
def test_rule_4_without_approval_an_alert_calls_for_a_person_and_nothing_runs(store: Store, state: str) -> None:
    pair = bring(store, state)
    failed = store.artifacts.fail(pair, by="runner", reason="exit code 1")
    assert (failed.state, failed.compensation.state, failed.run) == ("failed_uncompensated", state, None)
    (alert,) = store.alerts()
    assert (alert.severity, alert.ref) == ("critical", pair.id)
    assert "manual intervention is required" in alert.text
    assert store.claim("anybody") is None
    assert store.compensate({"script": run}).rollbacks == ()


def test_rule_5_the_run_has_its_own_execution_record_and_provenance(store: Store) -> None:
    pair = promoted(store)
    store.artifacts.fail(pair, by="runner", reason="exit code 1", run_id="run-7")
    store.compensate({"script": run}, agent="operator")
    told = store.artifacts.get(pair).run
    assert told is not None
    assert (told.artifact, told.compensating_for) == (pair.compensation.id, pair.id)
    assert (told.content_hash, told.approved_by) == (sha(UNDO), "ben")
    assert (told.completed, told.kind, told.attempts, told.by) == (True, None, 1, "operator")
    assert told.ended is not None
    kinds = [record.kind for record in store.log()]
    assert kinds.count("artifact_ran") == 1
    rollback = store.rollback(told.rollback)
    assert (rollback.initiated_by, rollback.trigger, rollback.effects) == ("runner", "automatic", (told.id,))
    assert rollback.report.clean
    assert "artifact_ran" in {record.kind for record in store.explain(pair.id).records}
    assert "artifact_ran" in {record.kind for record in store.explain(told.id).records}


def test_a_compensation_that_fails_needs_a_person_who_may_retry_or_resolve_it(store: Store) -> None:
    pair = bring(store, "failed_uncompensated")
    (alert,) = store.alerts()
    assert (alert.severity, alert.ref) == ("critical", pair.id)
    assert "manual intervention is required" in alert.text
    assert pair.run is not None
    assert (pair.run.completed, pair.run.kind) == (False, "permanent")
    rollback = store.rollback(pair.run.rollback)
    rollback.retry(pair.run.id, by="ops", reason="restored the column")
    assert store.artifacts.get(pair).state == "failed"
    store.compensate({"script": broken})
    assert store.artifacts.get(pair).state == "failed_uncompensated"
    rollback.resolve(pair.run.id, by="cleo", reason="dropped it by hand")
    ended = store.artifacts.get(pair)
    assert ended.run is not None
    assert (ended.state, ended.run.completed, ended.run.by) == ("failed_compensated", True, "cleo")


def test_the_approval_of_the_pair_covers_its_run(open_store: OpenStore) -> None:
    store = open_store(policy=Policy(auto_keys=0))
    compensation = ArtifactSpec("script", "undo-fix", content=UNDO, reversibility="partial")
    store.artifacts.fail(promoted(store, compensation), by="runner", reason="exit code 1")
    assert list(store.approvals()) == []
    assert store.compensate({"script": run}).clean


def test_an_irreversible_compensation_needs_an_approval_of_its_own(store: Store) -> None:
    compensation = ArtifactSpec("script", "undo-fix", content=UNDO, reversibility="irreversible")
    pair = promoted(store, compensation)
    failed = store.artifacts.fail(pair, by="runner", reason="exit code 1")
    report = store.compensate({"script": run})
    (approval,) = store.approvals()
    assert failed.run is not None
    assert (report.approvals, approval.subject) == ((approval.id,), failed.run.rollback)
    assert store.artifacts.get(pair).state == "failed"
    with pytest.raises(ReasonRequiredError):
        approval.approve(by="ben")
    approval.approve(by="ben", reason="there is no other way")
    assert store.compensate({"script": run}).clean
    assert store.artifacts.get(pair).state == "failed_compensated"


def test_a_denied_run_ends_uncompensated(store: Store) -> None:
    compensation = ArtifactSpec("script", "undo-fix", content=UNDO, reversibility="irreversible")
    pair = promoted(store, compensation)
    store.artifacts.fail(pair, by="runner", reason="exit code 1")
    next(store.approvals()).deny(by="ben", reason="not this way")
    ended = store.artifacts.get(pair)
    assert ended.run is not None
    assert (ended.state, ended.run.kind) == ("failed_uncompensated", "denied")


def test_duties_are_separated_where_the_policy_says_so(open_store: OpenStore) -> None:
    store = open_store(policy=Policy(separation_of_duties=True))
    pair = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    store.artifacts.submit(pair, by="cleo")
    for by in ("ana", "cleo"):
        with pytest.raises(SeparationOfDutiesError) as caught:
            store.artifacts.approve(pair, by=by)
        assert (caught.value.artifact, caught.value.by, caught.value.approval) == (pair.id, by, None)
    assert store.artifacts.approve(pair, by="ben").state == "approved"


def test_an_irreversible_pair_is_approved_with_a_written_reason(store: Store) -> None:
    irreversible = ArtifactSpec("script", "undo-fix", content=UNDO, reversibility="irreversible")
    pair = store.artifacts.create(FIX_SPEC, irreversible, by="ana")
    store.artifacts.submit(pair, by="ana")
    for reason in (None, " "):
        with pytest.raises(ReasonRequiredError, match=f"artifact {pair.id} needs a written reason"):
            store.artifacts.approve(pair, by="ben", reason=reason)
    moved = store.artifacts.approve(pair, by="ben", reason="no other way").moves[-1]
    assert (moved.state, moved.by, moved.reason) == ("approved", "ben", "no other way")


def test_verbs_that_a_state_does_not_allow_are_refused_and_store_nothing(store: Store) -> None:
    allowed = {
        "draft": {"submit", "reject"}, "in_review": {"approve", "reject"}, "approved": {"promote", "reject"},
        "promoted": {"start", "reject"}, "executing": {"complete"},
    }  # fmt: skip
    for state in STATES:
        pair = bring(store, state)
        before = list(store.log())[-1].seq
        for verb in ("submit", "approve", "reject", "promote", "start", "complete"):
            if verb in allowed.get(state, set()):
                continue
            more = {"reason": "why"} if verb in {"approve", "reject"} else {}
            with pytest.raises(ArtifactStateError) as caught:
                getattr(store.artifacts, verb)(pair, by="ben", **more)
            assert (caught.value.artifact, caught.value.state) == (pair.id, state)
        assert list(store.log())[-1].seq == before


def test_a_failure_is_taken_once_and_saying_it_again_changes_nothing(store: Store) -> None:
    for state in ("failed", "failed_compensated", "failed_uncompensated"):
        pair = bring(store, state)
        before = list(store.log())[-1].seq
        again = store.artifacts.fail(pair, by="other", reason="something else", run_id="other")
        assert again == pair
        assert list(store.log())[-1].seq == before
    for state in ("completed", "rejected"):
        with pytest.raises(ArtifactStateError):
            store.artifacts.fail(bring(store, state), by="runner", reason="late")


@pytest.mark.parametrize("state", STATES)
def test_every_state_survives_a_restart(open_store: OpenStore, state: str) -> None:
    store = open_store()
    pair = bring(store, state)
    store.close()
    store = open_store()
    assert store.artifacts.get(pair.id) == store.artifacts.get(pair.compensation.id) == pair
    store.verify()
    if state == "failed":
        assert store.compensate({"script": run}).clean
        assert store.artifacts.get(pair).state == "failed_compensated"


@pytest.mark.parametrize("state", ["draft", "in_review", "approved", "promoted", "executing", "failed"])
def test_every_state_survives_a_kill(child: Child, open_store: OpenStore, state: str) -> None:
    killed = child(
        """
        import os, sys
        sys.path.insert(0, sys.argv[4])
        import effectstore
        from test_artifacts import bring
        store = effectstore.open(sys.argv[1])
        print(bring(store, sys.argv[3]).id, flush=True)
        os.kill(os.getpid(), 9)
        """,
        state,
        Path(__file__).parent,
    )
    found = int(rest_of(killed))
    assert killed.returncode == -9
    store = open_store()
    assert store.artifacts.get(found).state == state
    store.verify()
    if state in {"approved", "promoted", "executing"}:
        store.artifacts.fail(found, by="runner", reason="killed")
    if state not in {"draft", "in_review"}:
        assert store.compensate({"script": run}).clean
        assert store.artifacts.get(found).state == "failed_compensated"


def test_a_worker_that_is_killed_in_the_run_leaves_it_to_be_claimed_again(child: Child, open_store: OpenStore) -> None:
    store = open_store()
    pair = store.artifacts.fail(promoted(store), by="runner", reason="exit code 1")
    store.close()
    killed = child(
        """
        import os, sys
        import effectstore
        effectstore.open(sys.argv[1]).compensate({"script": lambda args, step: os.kill(os.getpid(), 9)})
        """
    )
    rest_of(killed)
    assert killed.returncode == -9
    store = open_store()
    assert store.artifacts.get(pair).state == "failed"
    attempts = []
    assert store.compensate({"script": lambda args, step: attempts.append(step.attempt)}, timeout=5).clean
    assert attempts == [2]


def test_two_processes_that_fail_the_same_primary_make_one_run(child: Child, open_store: OpenStore) -> None:
    store = open_store()
    pair = promoted(store)
    code = """
        import sys
        import effectstore
        with effectstore.open(sys.argv[1]) as store:
            print("ready", flush=True)
            sys.stdin.readline()
            pair = store.artifacts.fail(int(sys.argv[3]), by=sys.argv[4], reason=sys.argv[4])
            print(pair.run.id, pair.failure.by, flush=True)
        """
    children = [child(code, pair.id, name, stdin=True) for name in ("one", "two", "three")]
    for process in children:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in children:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = {rest_of(process) for process in children}
    assert len(told) == 1, told
    assert len(list(store.rollbacks())) == 1
    ran = []
    assert store.compensate({"script": lambda args, step: ran.append(step.id)}).clean
    assert len(ran) == 1
    store.verify()


def test_content_held_here_is_handed_out_as_it_came(store: Store) -> None:
    large = bytes(range(256)) * 1_000
    pair = store.artifacts.create(ArtifactSpec("script", "fix", content=large), UNDO_SPEC, by="ana")
    assert (pair.primary.size, pair.primary.content_hash) == (len(large), sha(large))
    assert store.artifacts.content(pair) == large
    assert store.artifacts.content(pair.compensation) == UNDO
    assert store.artifacts.content(pair, fetch=lambda _: b"never asked") == large


def test_content_elsewhere_is_checked_when_it_is_handed_out(store: Store) -> None:
    pair = store.artifacts.create(FIX_SPEC, elsewhere(UNDO), by="ana")
    places = []

    def fetch(place: str) -> bytes:
        places.append(place)
        return UNDO

    assert store.artifacts.content(pair.compensation, fetch) == UNDO
    assert places == ["s3://bucket/undo.sql"]
    with pytest.raises(ContentMismatchError) as caught:
        store.artifacts.content(pair.compensation, lambda _: UNDO + b" cascade")
    assert caught.value.artifact == pair.compensation.id
    with pytest.raises(OptionsError):
        store.artifacts.content(pair.compensation)


def test_a_run_whose_content_does_not_match_fails_by_that_name_with_an_alert(store: Store) -> None:
    pair = promoted(store, elsewhere(UNDO))
    store.artifacts.fail(pair, by="runner", reason="exit code 1")
    ran = []

    def tampered(args: Any, step: effectstore.Step) -> None:
        ran.append(step.content(lambda _: b"rm -rf /"))

    report = store.compensate({"script": tampered})
    assert ran == []
    assert [(failure.kind, failure.error_type, failure.attempts) for failure in report.failed] == [
        ("content_mismatch", "ContentMismatchError", 1)
    ]
    (alert,) = store.alerts()
    assert (alert.severity, alert.ref) == ("critical", pair.id)
    ended = store.artifacts.get(pair)
    assert ended.run is not None
    assert (ended.state, ended.run.kind) == ("failed_uncompensated", "content_mismatch")


def test_a_claimed_step_that_reports_a_mismatch_fails_by_that_name(store: Store) -> None:
    pair = promoted(store, elsewhere(UNDO))
    store.artifacts.fail(pair, by="runner", reason="exit code 1")
    step = store.claim("anybody")
    assert step is not None
    with pytest.raises(ContentMismatchError) as caught:
        step.content(lambda _: b"other")
    step.fail(caught.value)
    told = store.artifacts.get(pair).run
    assert told is not None
    assert told.kind == "content_mismatch"


def test_an_inverse_may_name_an_approved_artifact(store: Store) -> None:
    branch = store.branch("work")
    draft = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    with pytest.raises(ArtifactStateError) as caught:
        branch.register("tool", inverse=Inverse("script", artifact=draft.compensation))
    assert (caught.value.artifact, caught.value.state) == (draft.compensation.id, "draft")
    for odd in (draft.id + 1_000, "no-such", branch.id):
        with pytest.raises(NotFoundError):
            branch.register("tool", inverse=Inverse("script", artifact=odd))
    assert list(branch.effects()) == []
    code = approved(store).compensation
    effect = branch.register("tool", inverse=Inverse("script", {"n": 1}, artifact=code))
    effect.done(None)
    found = store.effect(effect.id).inverse
    assert found == Inverse("script", {"n": 1}, artifact=code.id)
    store.reconcile(abort=branch, reason="contradicted")
    ran = []
    assert store.compensate({"script": lambda args, step: ran.append((args, step.content()))}).clean
    assert ran == [({"n": 1}, UNDO)]


def test_an_inverse_that_comes_with_the_outcome_is_checked_too(store: Store) -> None:
    branch = store.branch("work")
    effect = branch.register("tool", inverse=Inverse("script"))
    with pytest.raises(NotFoundError):
        effect.done(None, inverse=Inverse("script", artifact=999))
    effect.done(None, inverse=Inverse("script", artifact=approved(store).primary))


def test_an_inverse_whose_content_does_not_match_is_not_run(store: Store) -> None:
    code = approved(store, elsewhere(UNDO)).compensation
    branch = store.branch("work")
    branch.register("tool", inverse=Inverse("script", artifact=code)).done(None)
    store.reconcile(abort=branch, reason="contradicted")
    report = store.compensate({"script": lambda args, step: step.content(lambda _: b"other")})
    assert [failure.kind for failure in report.failed] == ["content_mismatch"]
    assert [alert.severity for alert in store.alerts()] == ["critical"]


def test_a_step_without_an_artifact_has_no_content(store: Store) -> None:
    branch = store.branch("work")
    branch.register("tool", inverse=Inverse("undo")).done(None)
    store.reconcile(abort=branch, reason="contradicted")
    step = store.claim("*")
    assert step is not None
    assert step.artifact is None
    with pytest.raises(OptionsError, match="names no artifact"):
        step.content()


BAD = {
    "no content": lambda: ArtifactSpec("script", "fix"),
    "both": lambda: ArtifactSpec("script", "fix", content=b"x", content_ref="here"),
    "both with hash": lambda: ArtifactSpec("script", "fix", content=b"x", content_ref="here", content_hash=sha(b"x")),
    "no hash": lambda: ArtifactSpec("script", "fix", content_ref="here"),
    "other hash": lambda: ArtifactSpec("script", "fix", content=b"x", content_hash=sha(b"y")),
    "short hash": lambda: ArtifactSpec("script", "fix", content_ref="here", content_hash="sha256:abcd"),
    "odd hash": lambda: ArtifactSpec("script", "fix", content_ref="here", content_hash="sha256:" + "g" * 64),
    "text content": lambda: ArtifactSpec("script", "fix", content="x"),  # type: ignore[arg-type]
    "no type": lambda: ArtifactSpec("", "fix", content=b"x"),
    "no name": lambda: ArtifactSpec("script", "  ", content=b"x"),
    "no place": lambda: ArtifactSpec("script", "fix", content_ref="", content_hash=sha(b"x")),
    "no agent": lambda: ArtifactSpec("script", "fix", content=b"x", agent=""),
    "odd class": lambda: ArtifactSpec("script", "fix", content=b"x", reversibility="maybe"),  # type: ignore[arg-type]
    "long name": lambda: ArtifactSpec("script", "x" * 1025, content=b"x"),
    "large": lambda: ArtifactSpec("script", "fix", content=bytes((1 << 20) + 1)),
    "number": lambda: ArtifactSpec(7, "fix", content=b"x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_used_is_refused_before_anything_is_stored(store: Store, what: str) -> None:
    before = list(store.log())[-1].seq
    spec = BAD[what]()
    for pair in ((spec, UNDO_SPEC), (FIX_SPEC, spec)):
        with pytest.raises((OptionsError, LimitExceededError, TypeError)):
            store.artifacts.create(*pair, by="ana")
    assert list(store.log())[-1].seq == before


def test_odd_references_and_names_are_refused(store: Store) -> None:
    pair = store.artifacts.create(FIX_SPEC, UNDO_SPEC, by="ana")
    before = list(store.log())[-1].seq
    for missing in (0, 1, 10**9):
        for call in (store.artifacts.get, store.artifacts.content):
            with pytest.raises(NotFoundError):
                call(missing)
        with pytest.raises(NotFoundError):
            store.artifacts.fail(missing, by="ana", reason="why")
    for odd in ("1", 1.5, True, None):
        with pytest.raises(TypeError):
            store.artifacts.get(odd)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not negative"):
        store.artifacts.get(-1)
    for by in ("", " ", "x" * 1025):
        with pytest.raises((OptionsError, LimitExceededError)):
            store.artifacts.submit(pair, by=by)
        with pytest.raises((OptionsError, LimitExceededError)):
            store.artifacts.create(FIX_SPEC, UNDO_SPEC, by=by)
    with pytest.raises(RefusedError):
        store.artifacts.fail(pair, by="ana", reason="why", run_id="")
    with pytest.raises(TypeError):
        store.artifacts.submit(pair, by=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.artifacts.reject(pair, by="ana")  # type: ignore[call-arg]
    assert list(store.log())[-1].seq == before


def test_pairs_are_listed_in_order_and_filtered(store: Store) -> None:
    pairs = [bring(store, state) for state in STATES]
    assert list(store.artifacts.list()) == pairs
    assert [pair.id for pair in store.artifacts.list(since=pairs[3].id, limit=2)] == [pairs[4].id, pairs[5].id]
    assert [pair.id for pair in store.artifacts.list(state="rejected")] == [pairs[-1].id]
    assert list(store.artifacts.list(limit=0)) == []


def test_a_huge_reason_is_shortened_and_content_stays_out_of_texts(store: Store) -> None:
    secret = b"password=hunter2"
    pair = promoted(store, ArtifactSpec("script", "undo-fix", content=secret))
    failed = store.artifacts.fail(pair, by="runner", reason="x" * 100_000)
    assert failed.failure is not None
    assert len(failed.failure.reason) < 600
    assert "hunter2" not in repr(failed) + json.dumps(failed.to_dict()) + str(store.explain(pair.id))
    assert "hunter2" not in repr(ArtifactSpec("script", "undo-fix", content=secret))


def test_export_and_import_keep_the_pairs(store: Store, tmp_path: Path) -> None:
    pairs = [bring(store, state) for state in STATES]
    store.export(tmp_path / "export")
    effectstore.import_store(tmp_path / "export", tmp_path / "again")
    with effectstore.open(tmp_path / "again") as again:
        assert list(again.artifacts.list()) == pairs
        assert again.artifacts.content(pairs[0]) == FIX
        again.verify()
        assert again.artifacts.submit(pairs[0].id, by="ana").state == "in_review"
