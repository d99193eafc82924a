"""C7: an inverse that fails in the middle of the order stops what it must stop, and nothing else."""

from __future__ import annotations

from typing import Literal

import pytest

from effectstore import PermanentError, Policy, Store
from support import OpenStore
from world import AT_ONCE, World, blocked_by, ids, members

OnFailure = Literal["halt", "continue"]


def plan(store: Store, world: World) -> tuple[int, dict[str, int]]:
    """One branch: unrelated E0, chain E1 <- E2 <- E3, unrelated E4; aborted. Answers the rollback and ids by name."""
    branch = store.branch("A", agent="a")
    e0 = world.put(branch, "K0", 0, after=(), label="I0")
    e1 = world.put(branch, "K1", 1, after=(), label="I1")
    e2 = world.put(branch, "K2", 2, after=e1, label="I2")
    e3 = world.put(branch, "K3", 3, after=e2, label="I3")
    e4 = world.put(branch, "K4", 4, after=(), label="I4")
    answer = branch.abort(reason="contradicted")
    assert answer.rollback is not None
    assert set(answer.rollback.effects) == ids(e0, e1, e2, e3, e4)
    return answer.rollback.id, {"E0": e0.id, "E1": e1.id, "E2": e2.id, "E3": e3.id, "E4": e4.id}


@pytest.mark.parametrize("chosen", ["by the call", "by the policy"])
@pytest.mark.parametrize("on_failure", ["halt", "continue"])
def test_c07_failing_inverse_then_repaired_and_resumed(
    open_store: OpenStore, world: World, on_failure: OnFailure, chosen: str
) -> None:
    policy = Policy(on_failure=on_failure) if chosen == "by the policy" else None
    by_call: OnFailure | None = on_failure if chosen == "by the call" else None
    store = open_store(policy=policy)
    rollback, at = plan(store, world)
    report = store.compensate(world.handlers({"I2": RuntimeError("locked")}), on_failure=by_call)

    undone = world.undone()
    assert undone.count("I2") == 3
    assert [undone.count(label) for label in ("I4", "I3", "I0")] == [1, 1, 1]
    assert undone.index("I4") < undone.index("I3") < undone.index("I2")
    assert report.clean is False
    (failure,) = report.failed
    assert (failure.effect, failure.attempts, failure.kind) == (at["E2"], AT_ONCE.max_attempts, "error")
    assert (failure.error_type, "locked" in failure.message) == ("RuntimeError", True)
    if on_failure == "halt":
        assert "I1" not in undone
        assert set(report.completed) == {at["E0"], at["E3"], at["E4"]}
        assert blocked_by(report) == {at["E1"]: {at["E2"]}}
    else:
        assert undone.count("I1") == 1
        assert set(report.completed) == {at["E0"], at["E1"], at["E3"], at["E4"]}
        assert report.blocked == ()
    assert members(report) == sorted(at.values())

    told = [(record.seq, record.hash) for record in store.explain(at["E2"]).records]
    store.close()
    store = open_store()
    store.rollback(rollback).retry(at["E2"], by="ops", reason="the lock is gone")
    report = store.compensate(world.handlers(), on_failure=by_call)
    assert world.undone()[len(undone) :] == (["I2", "I1"] if on_failure == "halt" else ["I2"])
    assert (report.clean, set(report.completed), report.failed) == (True, set(at.values()), ())
    assert world.facts() == {}
    retold = [(record.seq, record.hash) for record in store.explain(at["E2"]).records]
    assert retold[: len(told)] == told
    assert len(retold) > len(told)


def test_c07_failing_inverse_is_not_retried_for_ever(open_store: OpenStore, world: World) -> None:
    store = open_store()
    rollback, at = plan(store, world)
    for _ in range(4):
        report = store.compensate(world.handlers({"I2": RuntimeError("locked")}), rollback=rollback)
        assert [failure.attempts for failure in report.failed] == [3]
        store.close()
        store = open_store()
    assert world.undone().count("I2") == 3
    assert blocked_by(store.rollback(rollback).report) == {at["E1"]: {at["E2"]}}


def test_c07_a_permanent_failure_ends_after_one_attempt(store: Store, world: World) -> None:
    _, at = plan(store, world)
    report = store.compensate(world.handlers({"I2": PermanentError("no such ticket")}))
    assert [(failure.effect, failure.kind, failure.attempts) for failure in report.failed] == [
        (at["E2"], "permanent", 1)
    ]
    assert world.undone().count("I2") == 1


@pytest.mark.parametrize("failing", ["I0", "I1", "I3", "I4"])
def test_c07_halt_blocks_only_what_the_failed_effect_rested_on(store: Store, world: World, failing: str) -> None:
    _, at = plan(store, world)
    report = store.compensate(world.handlers({failing: RuntimeError("locked")}))
    rests_on = {"I0": set(), "I1": set(), "I3": {"E1", "E2"}, "I4": set()}[failing]
    assert set(blocked_by(report)) == {at[name] for name in rests_on}
    assert {failure.effect for failure in report.failed} == {at["E" + failing[1:]]}
    untouched = {name for name in at if name not in rests_on and name[1:] != failing[1:]}
    assert set(report.completed) == {at[name] for name in untouched}


def test_c07_a_critical_alert_names_the_failure(store: Store, world: World) -> None:
    _, at = plan(store, world)
    store.compensate(world.handlers({"I2": RuntimeError("locked")}))
    critical = [alert for alert in store.alerts() if alert.severity.lower() == "critical"]
    assert critical
    assert any(str(at["E2"]) in alert.text or alert.ref == at["E2"] for alert in critical)


def test_c07_resolved_by_hand_releases_what_was_blocked(store: Store, world: World) -> None:
    rollback, at = plan(store, world)
    store.compensate(world.handlers({"I2": RuntimeError("locked")}))
    world["K2"] = None
    store.rollback(rollback).resolve(at["E2"], by="ops", reason="removed in the console")
    report = store.compensate(world.handlers({"I2": RuntimeError("must not be called again")}))
    assert (report.clean, set(report.completed)) == (True, set(at.values()))
    assert world.undone().count("I1") == 1
    assert world.facts() == {}
