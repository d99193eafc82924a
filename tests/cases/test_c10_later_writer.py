"""C10: an undo never wipes the newer work of somebody who wrote the same key later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from effectstore import Effect, Inverse, Step, Store
from world import AT_ONCE, World, ids

KEYS: list[str | bytes] = ["X", b"X", "config/é", b"\xff\x00\xfe", "k" * 2000]


def dirty_write(store: Store, world: World, key: str | bytes, **inverse: Any) -> tuple[int, Effect, Effect, Effect]:
    """E1[A] w{X}=1 over 0; E2[B] writes X=2 blindly and commits; E3[A] w{Y}=1; abort(A)."""
    world["X"] = 0
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1, label="I1", writes=key, inverse=world.inverse_of("X", "I1", **inverse))
    e2 = world.put(b, "X", 2, label="I2", writes=key)
    assert store.commit(b).committed == (e2.id,)
    e3 = world.put(a, "Y", 1, label="I3")
    answer = a.abort(reason="contradicted")
    assert answer.rollback is not None
    assert set(answer.rollback.effects) == ids(e1, e3)
    return answer.rollback.id, e1, e2, e3


@pytest.mark.parametrize("key", KEYS, ids=["str", "bytes", "accent", "not-utf8", "long"])
def test_c10_later_writer_keeps_its_value_and_is_named(store: Store, world: World, key: str | bytes) -> None:
    rollback, e1, e2, e3 = dirty_write(store, world, key)
    report = store.compensate(world.handlers())
    assert (world["X"], world["Y"]) == (2, None)
    assert world.undone() == ["I3"]
    assert report.completed == (e3.id,)
    (failure,) = report.failed
    assert (failure.effect, failure.kind, failure.writer, failure.attempts) == (e1.id, "conflict", e2.id, 0)
    assert key != "X" or "X" in failure.message
    assert (report.clean, store.effect(e2.id).state) == (False, "committed")
    assert store.rollback(rollback).state != "closed"


def test_c10_a_conflict_goes_to_a_person_and_is_not_retried_in_a_loop(store: Store, world: World) -> None:
    rollback, e1, e2, _ = dirty_write(store, world, "X")
    for _ in range(3):
        assert [failure.kind for failure in store.compensate(world.handlers()).failed] == ["conflict"]
    assert world.undone() == ["I3"]
    assert any(alert.severity.lower() == "critical" for alert in store.alerts())
    store.rollback(rollback).resolve(e1, by="ops", reason="2 is right", versions={"X": e2.id})
    report = store.compensate(world.handlers())
    assert (report.clean, world["X"], world.undone()) == (True, 2, ["I3"])


@pytest.mark.parametrize("still_ours", [True, False], ids=["value is ours", "value is newer"])
def test_c10_compare_and_set_inverse_runs_and_decides_by_the_version(
    store: Store, world: World, still_ours: bool
) -> None:
    seen: list[dict[Any, int]] = []
    versions: dict[str, int] = {}

    def put_back(args: Mapping[str, Any], step: Step) -> None:
        if args["key"] == "X":
            seen.append(dict(step.expected_versions))
            if step.expected_versions["X"] != versions["X"]:
                return
        world.put_back(args, step)

    if still_ours:
        a = store.branch("A", agent="a")
        e1 = world.put(a, "X", 1, label="I1", inverse=world.inverse_of("X", "I1", compare_and_set=True))
        versions["X"] = e1.id
        a.abort(reason="contradicted")
        expected_world: dict[str, int] = {}
    else:
        _, e1, e2, _ = dirty_write(store, world, "X", compare_and_set=True)
        versions["X"] = e2.id
        expected_world = {"X": 2}
    report = store.compensate({"put_back": put_back})
    assert seen == [{"X": e1.id}]
    assert (report.clean, world.facts()) == (True, expected_world)


@pytest.mark.parametrize("first", ["abort", "commit"])
def test_c10_a_later_writer_that_read_is_no_conflict_but_a_dependent(store: Store, world: World, first: str) -> None:
    world["X"] = 0
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1, label="I1")
    e2 = world.put(b, "X", 2, label="I2", reads="X")
    if first == "abort":
        answer = a.abort(reason="contradicted")
        assert {*answer.doomed, *answer.cascaded} == ids(e1, e2)
        report = store.compensate(world.handlers())
        assert (world.undone(), world["X"], report.clean) == (["I2", "I1"], 0, True)
    else:
        a = a.seal()
        assert set(store.commit(b).committed) == ids(e1, e2)
        assert set(a.abort(reason="contradicted").kept) == ids(e1)
        assert store.compensate(world.handlers()).completed == ()
        assert (world.undone(), world["X"]) == ([], 2)


def test_c10_a_blind_write_makes_no_edge(store: Store, world: World) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1)
    e2 = world.put(b, "X", 2)
    assert e1.id not in store.decide(e2).closure
    assert a.abort(reason="contradicted").cascaded == ()


def test_c10_overwrite_depend_makes_the_edge(store: Store, world: World) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b", overwrite="depend")
    world.put(a, "X", 1)
    e2 = world.put(b, "X", 2)
    assert a.abort(reason="contradicted").cascaded == (e2.id,)


@pytest.mark.parametrize("overwritten", ["X", "Z"])
def test_c10_an_effect_of_several_keys_conflicts_by_any_of_them(store: Store, world: World, overwritten: str) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = a.register("put_two", {}, writes=["X", "Y", "Z"], inverse=Inverse("put_two_back", {}, retry=AT_ONCE))
    e1.done(None)
    e2 = world.put(b, overwritten, 2)
    store.commit(b)
    a.abort(reason="contradicted")
    report = store.compensate({"put_two_back": lambda args, step: pytest.fail("must not run")})
    assert [(failure.kind, failure.writer) for failure in report.failed] == [("conflict", e2.id)]


def test_c10_the_newer_writer_of_the_same_branch_is_no_conflict(store: Store, world: World) -> None:
    world["X"] = 0
    a = store.branch("A", agent="a")
    for value in (1, 2, 3):
        world.put(a, "X", value, label=f"I{value}")
    a.abort(reason="contradicted")
    report = store.compensate(world.handlers())
    assert (world.undone(), world["X"], report.clean) == (["I3", "I2", "I1"], 0, True)
