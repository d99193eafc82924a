"""C8: a group that ran in parallel is undone between what came after it and what came before it, errors and all."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from effectstore import Effect, PermanentError, Step, Store
from world import World, blocked_by, ids, members

SLOW_S = 2.0


def group(store: Store, world: World, names: list[str]) -> tuple[Effect, list[Effect], Effect]:
    """First "zz"; then the group in parallel; then "aa", which has no outcome yet."""
    branch = store.branch("A", agent="a")
    first = world.put(branch, "zz", 1)
    turn = branch.parallel()
    middle = [world.put(turn, name, 1) for name in names]
    last = world.put(branch, "aa", 1, report=False)
    return first, middle, last


class Undo:
    """A handler that is slow or fails by label and notes when each call began and ended."""

    def __init__(self, world: World, failing: Mapping[str, BaseException], slow: str | None) -> None:
        self.world, self.failing, self.slow = world, failing, slow
        self.began: list[str] = []
        self.ended: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.lock = threading.Lock()

    def __call__(self, args: Mapping[str, Any], step: Step) -> None:
        label = args["label"]
        with self.lock:
            self.began.append(label)
            self.started.setdefault(label, time.monotonic())
        if label == self.slow:
            time.sleep(SLOW_S)
        try:
            if label in self.failing:
                raise self.failing[label]
            self.world.put_back(args, step)
        finally:
            with self.lock:
                self.ended[label] = time.monotonic()


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("on_failure", ["halt", "continue"])
def test_c08_parallel_group_keeps_order_and_every_error(
    store: Store, world: World, workers: int, on_failure: Literal["halt", "continue"]
) -> None:
    first, (m1, m2, m3), last = group(store, world, ["m1", "m2", "m3"])
    last.not_run("refused before it did anything")
    store.reconcile(abort="A", reason="contradicted")
    undo = Undo(world, {"m2": RuntimeError("error of m2"), "m3": PermanentError("error of m3")}, slow="m1")
    report = store.compensate({"put_back": undo}, workers=workers, on_failure=on_failure)

    failures = {failure.effect: failure for failure in report.failed}
    assert set(failures) == ids(m2, m3)
    assert ("error of m2" in failures[m2.id].message, failures[m2.id].attempts) == (True, 3)
    assert ("error of m3" in failures[m3.id].message, failures[m3.id].attempts) == (True, 1)
    assert (failures[m2.id].kind, failures[m3.id].kind) == ("error", "permanent")
    assert "aa" not in undo.began
    if on_failure == "halt":
        assert "zz" not in undo.began
        assert set(report.completed) == ids(m1)
        assert set(blocked_by(report)) == {first.id}
        assert blocked_by(report)[first.id] <= ids(m2, m3)
    else:
        assert set(report.completed) == ids(m1, first)
        assert all(undo.started["zz"] >= undo.ended[name] for name in ("m1", "m2", "m3"))
    assert report.clean is False


@pytest.mark.parametrize("names", list(itertools.permutations(["b", "m", "z"]))[:4], ids="".join)
@pytest.mark.parametrize("workers", [1, 3])
def test_c08_group_is_undone_between_after_and_before(
    store: Store, world: World, names: tuple[str, ...], workers: int
) -> None:
    _, middle, last = group(store, world, list(names))
    last.done(None)
    store.reconcile(abort="A", reason="contradicted")
    undo = Undo(world, {}, slow=None)
    report = store.compensate({"put_back": undo}, workers=workers)
    assert (undo.began[0], undo.began[-1], sorted(undo.began[1:-1])) == ("aa", "zz", sorted(names))
    if workers == 1:  # One at a time means the highest id first.
        assert undo.began[1:-1] == list(reversed(names))
    assert (report.clean, len(report.completed)) == (True, 5)
    assert all(undo.started["zz"] >= undo.ended[name] for name in names)
    assert set(report.completed) >= ids(*middle)


def test_c08_the_last_call_is_undone_when_its_outcome_is_unknown(store: Store, world: World) -> None:
    _, _, last = group(store, world, ["m1", "m2", "m3"])
    store.reconcile(abort="A", reason="contradicted")
    report = store.compensate(world.handlers())
    assert world.undone()[0] == "aa"
    assert (report.unsettled, report.clean) == ((last.id,), False)
    assert len(set(members(report))) == len(members(report)) == 5


def test_c08_the_call_after_a_group_rests_on_all_of_it(store: Store, world: World) -> None:
    first, middle, last = group(store, world, ["m1", "m2", "m3"])
    assert set(store.decide(last).closure) >= ids(first, *middle)
    for effect in middle:
        assert set(store.decide(effect).closure) & ids(first, *middle) - {effect.id} == ids(first)


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_c08_aborting_one_of_a_group_spares_its_siblings(store: Store, world: World, dies: int) -> None:
    first, middle, last = group(store, world, ["m1", "m2", "m3"])
    last.done(None)
    answer = store.reconcile(abort=middle[dies], reason="contradicted")
    assert answer.doomed == (middle[dies].id,)
    assert answer.cascaded == (last.id,)
    spared = [first, *(effect for place, effect in enumerate(middle) if place != dies)]
    assert [store.effect(effect.id).state for effect in spared] == ["live"] * 3
