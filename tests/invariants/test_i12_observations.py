"""I12: a reader rests on every writer that it may have seen; a read that could not be admitted stops its branch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import pytest

from effectstore import (
    CompensationScopeError,
    DirtyKeyError,
    DoomedBranchError,
    DoomedDependencyError,
    KeyBusyError,
    RefusedError,
    Store,
    UncommittedKeyError,
)
from world import World, ids, states


@pytest.mark.parametrize("how", ["reads=", "branch.observe", "effect.observe"])
@pytest.mark.parametrize("fallen", ["A", "B"])
def test_i12_a_blind_writer_between_writer_and_reader_hides_neither(
    store: Store, world: World, fallen: str, how: str
) -> None:
    """A writes X, B overwrites it blindly, C reads: which value the world showed is not known, so C rests on both."""
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1, e2 = world.put(a, "X", 1), world.put(b, "X", 2)
    if how == "reads=":
        e3 = world.put(c, "Y", 1, reads="X")
    elif how == "branch.observe":
        (observation,) = c.observe("X")
        assert set(observation.writers) == ids(e1, e2)
        e3 = world.put(c, "Y", 1)
    else:
        e3 = world.put(c, "Y", 1, report=False)
        (observation,) = e3.observe("X")
        assert set(observation.writers) == ids(e1, e2)
        e3.done(None)
    answer = store.reconcile(abort=fallen, reason="contradicted")
    assert answer.cascaded == (e3.id,)
    assert states(store, e1, e2) == (["doomed", "live"] if fallen == "A" else ["live", "doomed"])


def test_i12_a_writer_that_read_covers_the_one_before(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1, e2 = world.put(a, "X", 1), world.put(b, "X", 2, reads="X")
    (observation,) = c.observe("X")
    assert observation.writers == (e2.id,)
    e3 = world.put(c, "Y", 1)
    assert set(store.reconcile(abort="A", reason="contradicted").cascaded) == ids(e2, e3)
    assert states(store, e1) == ["doomed"]


@pytest.mark.parametrize("how", ["reads=", "branch.observe", "write"])
def test_i12_a_dirty_key_is_refused_until_it_is_undone(store: Store, world: World, how: str) -> None:
    """The world still shows the doomed value; nobody may build on it, and a write would lose the undo."""
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1)
    answer = a.abort(reason="contradicted")
    ways: dict[str, Callable[[], object]] = {
        "reads=": lambda: world.put(b, "Y", 1, reads="X"),
        "branch.observe": lambda: b.observe("X"),
        "write": lambda: b.register("put", {}, writes="X", inverse=world.inverse_of("X")),
    }
    with pytest.raises(DirtyKeyError) as refusal:
        ways[how]()
    assert answer.rollback is not None
    assert (refusal.value.key, refusal.value.writers) == ("X", (e1.id,))
    assert refusal.value.rollback == answer.rollback.id
    store.compensate(world.handlers())
    fresh = store.branch("C")
    assert fresh.observe("X")[0].writers == ()
    assert world.put(fresh, "X", 2).state == "live"


def test_i12_a_running_effect_that_saw_a_dirty_key_falls_with_its_cascade(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    world.put(a, "X", 1)
    running = world.put(b, "Y", 1, report=False)
    after = world.put(c, "Z", 1, reads="Y")
    a.abort(reason="contradicted")
    with suppress(RefusedError):  # Whether the answer is a refusal or an edge, the effect has seen what must not stand.
        running.observe("X")
    assert states(store, running, after) == ["doomed", "doomed"]


RULES: list[tuple[Literal["speculative", "sealed", "committed"], str, bool]] = [
    ("speculative", "done", True),
    ("speculative", "sealed", True),
    ("speculative", "committed", True),
    ("sealed", "done", False),
    ("sealed", "sealed", True),
    ("sealed", "committed", True),
    ("committed", "done", False),
    ("committed", "sealed", False),
    ("committed", "committed", True),
]


@pytest.mark.parametrize("how", ["reads=", "branch.observe"])
@pytest.mark.parametrize(("rule", "writer", "admitted"), RULES)
def test_i12_each_read_rule_admits_what_it_says(
    store: Store,
    world: World,
    rule: Literal["speculative", "sealed", "committed"],
    writer: str,
    admitted: bool,
    how: str,
) -> None:
    a, b = store.branch("A"), store.branch("B", reads=rule)
    e1 = world.put(a, "X", 1)
    if writer == "sealed":
        a.seal()
    elif writer == "committed":
        store.commit(a)

    def read() -> None:
        if how == "reads=":
            world.put(b, "Y", 1, reads="X")
        else:
            b.observe("X")

    if admitted:
        read()
        return
    with pytest.raises(UncommittedKeyError) as refusal:
        read()
    assert (refusal.value.key, refusal.value.writers) == ("X", (e1.id,))


def test_i12_the_read_rule_does_not_hold_for_the_own_branch(store: Store, world: World) -> None:
    parent = store.branch("A", reads="committed")
    world.put(parent, "X", 1)
    assert world.put(parent, "Y", 1, reads="X").state == "live"
    child = store.branch("A/1", parent=parent, reads="committed")
    assert world.put(child, "Z", 1, reads="X").state == "live"


@pytest.mark.parametrize("then", ["nothing", "committed", "doomed"])
def test_i12_a_refused_observation_holds_the_next_register(store: Store, world: World, then: str) -> None:
    """The agent has looked already, whatever the store answered: what it does next may rest on what it saw."""
    a, b = store.branch("A"), store.branch("B", reads="committed")
    e1 = world.put(a, "X", 1)
    with pytest.raises(UncommittedKeyError):
        b.observe("X")
    if then == "nothing":
        with pytest.raises(UncommittedKeyError) as refusal:
            world.put(b, "Y", 1)
        assert refusal.value.writers == (e1.id,)
        resumed = b.resume()  # To read anew it resumes, and what it had seen no longer counts.
        assert world.put(resumed, "Y", 1).state == "live"
    elif then == "committed":
        store.commit(a)
        assert world.put(b, "Y", 1).state == "live"
    else:
        a.abort(reason="contradicted")
        with pytest.raises(DoomedBranchError) as doomed:
            world.put(b, "Y", 1)
        assert doomed.value.cause == e1.id
        assert b.refresh().state == "doomed"


def test_i12_reads_are_resolved_again_when_the_call_reports(store: Store, world: World) -> None:
    """The tool reads some time after it was registered; a writer that came in between counts."""
    a, b = store.branch("A"), store.branch("B")
    running = world.put(b, "Y", 1, reads="X", report=False)
    e1 = world.put(a, "X", 1)
    running.done(None)
    assert a.abort(reason="contradicted").cascaded == (running.id,)
    assert states(store, e1, running) == ["doomed", "doomed"]


@pytest.mark.parametrize("undone", [False, True])
def test_i12_a_writer_that_came_and_fell_during_the_call_dooms_it(store: Store, world: World, undone: bool) -> None:
    a, b = store.branch("A"), store.branch("B")
    running = world.put(b, "Y", 1, reads="X", report=False)
    world.put(a, "X", 1)
    a.abort(reason="contradicted")
    if undone:
        store.compensate(world.handlers(), rollback="due")
    with suppress(RefusedError):
        running.done(None)
    assert states(store, running) == ["doomed"]


def test_i12_a_read_that_takes_time_is_bracketed(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    before = b.observe("X")
    e1 = world.put(a, "X", 1)
    (after,) = b.observe("X", since=before)
    assert after.writers == (e1.id,)
    opening = c.observe("Z")
    world.put(a, "Z", 1)
    a.abort(reason="contradicted")
    store.compensate(world.handlers())
    with pytest.raises(RefusedError):
        c.observe("Z", since=opening)


def test_i12_a_given_version_is_the_only_edge_and_a_doomed_one_is_refused(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1, e2 = world.put(a, "X", 1), world.put(b, "X", 1)
    e3 = world.put(c, "Y", 1, reads={"X": e2.id})
    assert a.abort(reason="contradicted").cascaded == ()
    assert states(store, e3) == ["live"]
    with pytest.raises(DoomedDependencyError) as refusal:  # However alike the value looks.
        world.put(c, "Z", 1, reads={"X": e1.id})
    assert (refusal.value.dependency, refusal.value.key) == (e1.id, "X")


def test_i12_a_version_of_a_key_that_is_written_must_be_the_newest(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1 = world.put(a, "X", 1)
    e2 = world.put(b, "X", 2, reads={"X": e1.id})
    with pytest.raises(RefusedError):
        world.put(c, "X", 3, reads={"X": e1.id})
    assert world.put(c, "X", 3, reads={"X": e2.id}).state == "live"


def test_i12_one_writer_in_flight_per_key(store: Store, world: World) -> None:
    """Two overlapping calls on one key cannot be undone in an order that is sure."""
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    with pytest.raises(KeyBusyError) as refusal:
        b.register("put", {}, writes=["W", "X"], inverse=world.inverse_of("X"))
    assert (refusal.value.key, refusal.value.writers) == ("X", (e1.id,))
    e1.done(None)
    assert world.put(b, "X", 2).state == "live"


def test_i12_a_branch_that_observed_a_doomed_version_stops_and_resumes(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1)
    own = world.put(b, "Y", 1)
    b.observe("X")
    a.abort(reason="contradicted")
    with pytest.raises(DoomedBranchError) as stopped:
        world.put(b, "Z", 1)
    assert stopped.value.cause == e1.id
    resumed = b.resume()
    assert (states(store, own), resumed.tip) == (["live"], (own.id,))
    assert world.put(resumed, "Z", 1).state == "live"


def test_i12_a_branch_in_compensation_that_read_a_dirty_key_stops(store: Store, world: World) -> None:
    """The doomed value may have been seen; that the key has a live writer as well takes nothing away from it."""
    b = store.branch("B", agent="b")
    e1 = world.put(b, "X", 1)
    e2 = world.put(b, "X", 2, reads="X")
    e3 = world.put(b, "Y", 1)
    store.reconcile(abort=e2, reason="contradicted")
    b = b.resume()
    step = store.claim("b")
    assert step is not None
    assert step.effect.id == e3.id
    with pytest.raises(DirtyKeyError) as refusal:
        b.observe("X")
    assert refusal.value.writers == (e2.id,)
    assert (b.refresh().state, *states(store, e1, e2)) == ("doomed", "live", "doomed")


@pytest.mark.parametrize("version", ["committed", "live"])
def test_i16_a_branch_in_compensation_reads_what_is_committed_and_nothing_else(
    store: Store, world: World, version: str
) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    first = world.put(a, "X", 1)
    store.commit(a)
    second = world.put(a, "X", 2, after=())
    fallen = world.put(b, "Y", 1)
    store.reconcile(abort=fallen, reason="contradicted")
    b = b.resume()
    assert store.claim("b") is not None
    if version == "committed":
        assert b.observe({"X": first.id})[0].writers in ((), (first.id,))
    else:
        with pytest.raises(CompensationScopeError):
            b.observe({"X": second.id})
