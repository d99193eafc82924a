"""I17: an inverse runs only while what it undoes is still there, its key is dirty, or it compares before it sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from effectstore import AlreadySettledError, Effect, Inverse, Step, Store
from support import OpenStore
from world import AT_ONCE, World, blocked_by


def overwritten(store: Store, world: World, **inverse: Any) -> tuple[Effect, Effect, int]:
    """X=0; E1[A] X=1; E2[B] X=2 blindly, live; abort(A). Answers E1, E2 and the rollback."""
    world["X"] = 0
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1, label="I1", inverse=world.inverse_of("X", "I1", **inverse))
    e2 = world.put(b, "X", 2, label="I2")
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    return e1, e2, rollback.id


def test_i17_later_writer_live_blocks_the_step(store: Store, world: World) -> None:
    """B may still be aborted or committed: restoring 0 now would wipe 2, so the undo of 1 waits."""
    e1, e2, rollback = overwritten(store, world)
    report = store.compensate(world.handlers())
    assert (blocked_by(report), report.failed, report.clean) == ({e1.id: {e2.id}}, (), False)
    assert (world.undone(), world["X"]) == ([], 2)
    assert store.claim("a") is None
    assert store.rollback(rollback).state != "closed"


def test_i17_later_writer_aborted_is_undone_first(store: Store, world: World) -> None:
    e1, e2, _ = overwritten(store, world)
    store.compensate(world.handlers())
    store.reconcile(abort=e2, reason="contradicted too")
    report = store.compensate(world.handlers())
    assert (world.undone(), world["X"]) == (["I2", "I1"], 0)
    assert (report.clean, set(report.completed)) == (True, {e1.id, e2.id})


def test_i17_later_writer_committed_is_a_conflict(store: Store, world: World) -> None:
    e1, e2, rollback = overwritten(store, world)
    store.compensate(world.handlers())
    store.reconcile(commit="B")
    report = store.compensate(world.handlers())
    assert [(failure.effect, failure.kind, failure.writer) for failure in report.failed] == [(e1.id, "conflict", e2.id)]
    assert (report.blocked, world.undone(), world["X"]) == ((), [], 2)
    assert not store.rollback(rollback).report.clean


@pytest.mark.parametrize("rounds", [["abort"], ["abort", "abort"], ["commit"], ["abort", "commit"]])
def test_i17_several_later_writers_each_count(store: Store, world: World, rounds: list[str]) -> None:
    """The guard looks at every later writer: the undo waits for the last of them."""
    world["X"] = 0
    a = store.branch("A")
    e1 = world.put(a, "X", 1, label="I1")
    later = [world.put(store.branch(f"B{place}"), "X", place + 2, label=f"L{place}") for place in range(len(rounds))]
    a.abort(reason="contradicted")
    for place, verdict in reversed(list(enumerate(rounds))):
        report = store.compensate(world.handlers())
        # Once a later writer is committed the step may fail at once or wait for the others: it never runs.
        decided = {failure.effect for failure in report.failed} if "commit" in rounds[place + 1 :] else set()
        assert e1.id in {*blocked_by(report), *decided}
        assert "I1" not in world.undone()
        if verdict == "abort":
            store.reconcile(abort=later[place], reason="contradicted")
        else:
            store.reconcile(commit=f"B{place}")
    report = store.compensate(world.handlers())
    if "commit" in rounds:
        kinds = {failure.effect: failure.kind for failure in report.failed}
        assert (kinds[e1.id], set(kinds.values())) == ("conflict", {"conflict"})
        assert "I1" not in world.undone()
    else:
        assert world.undone() == [f"L{place}" for place in reversed(range(len(rounds)))] + ["I1"]
        assert world["X"] == 0


def test_i17_compare_and_set_runs_in_any_case(store: Store, world: World) -> None:
    e1, _, _ = overwritten(store, world, compare_and_set=True)
    compared: list[Mapping[Any, int]] = []

    def put_back(args: Mapping[str, Any], step: Step) -> None:
        compared.append(dict(step.expected_versions))
        if world[args["key"]] == 1:  # The comparison that the declaration promises.
            world.put_back(args, step)

    report = store.compensate({"put_back": put_back})
    assert compared == [{"X": e1.id}]
    assert (world["X"], report.clean) == (2, True)


def test_i17_compare_and_set_whose_call_reported_late_waits_like_any_other(store: Store, world: World) -> None:
    """It knows what is there, not what was there before: its call may have landed after the later writer's."""
    world["X"] = 0
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    undo = world.inverse_of("X", "I1", compare_and_set=True)
    e1 = world.put(a, "X", 1, inverse=undo, report=False)
    a.abort(reason="time-out")
    store.compensate(world.handlers())
    store.effect(e1.id).close(by="ops", reason="host is gone")
    e2 = world.put(b, "X", 2, label="I2")
    with pytest.raises(AlreadySettledError):
        e1.done(None)
    assert e1.id in blocked_by(store.compensate(world.handlers()))
    store.reconcile(commit="B")
    report = store.compensate(world.handlers())
    assert [(failure.kind, failure.writer) for failure in report.failed] == [("conflict", e2.id)]


def test_i17_the_guard_holds_over_a_reopen(open_store: OpenStore, world: World) -> None:
    store = open_store()
    e1, e2, rollback = overwritten(store, world)
    store.close()
    store = open_store()
    assert blocked_by(store.compensate(world.handlers(), rollback=rollback)) == {e1.id: {e2.id}}
    store.reconcile(commit="B")
    store.close()
    store = open_store()
    report = store.compensate(world.handlers(), rollback=rollback)
    assert [failure.kind for failure in report.failed] == ["conflict"]
    assert (world.undone(), world["X"]) == ([], 2)


def test_i17_a_list_of_calls_is_guarded_as_one(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    calls = [Inverse("first", {}, retry=AT_ONCE), Inverse("second", {}, retry=AT_ONCE)]
    a.register("put", {}, writes=["X", "Y"], inverse=Inverse.steps(calls)).done(None)
    world.put(b, "Y", 2)
    store.commit(b)
    a.abort(reason="contradicted")
    ran: list[str] = []
    handlers = {name: lambda args, step, name=name: ran.append(name) for name in ("first", "second")}
    report = store.compensate(handlers)
    assert ([failure.kind for failure in report.failed], ran) == (["conflict"], [])
