"""I13 to I16: undo runs in a sure order, is never forgotten or doubled, comes to an end, and makes no new work."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

import effectstore
from effectstore import (
    AlreadySettledError,
    CompensationScopeError,
    Inverse,
    Policy,
    RefusedError,
    Step,
    Store,
)
from support import Child, OpenStore
from world import AT_ONCE, World, blocked_by, ids, states


def test_i13_key_order_holds_across_unfinished_rollbacks(store: Store, world: World) -> None:
    """Two rollbacks, decided in the wrong order: the later writer of X is undone first all the same."""
    a, b = store.branch("A"), store.branch("B")
    world["X"] = 0
    world.put(a, "X", 1, label="I1")
    world.put(b, "X", 2, label="I2")
    first = a.abort(reason="contradicted").rollback
    b.abort(reason="contradicted")
    assert first is not None
    report = store.compensate(world.handlers(), rollback=first)
    assert (world.undone(), report.clean) == ([], False)
    store.compensate(world.handlers())
    assert (world.undone(), world["X"]) == (["I2", "I1"], 0)


def test_i13_a_late_edge_to_a_newer_effect_turns_the_order(store: Store, world: World) -> None:
    """E1 is older, but it read what E2 wrote while it ran: E1 is undone first."""
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, label="I1", report=False)
    e2 = world.put(b, "Y", 1, label="I2")
    e1.observe("Y")
    e1.done(None)
    assert b.abort(reason="contradicted").cascaded == (e1.id,)
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), states(store, e1, e2)) == (["I1", "I2"], ["doomed", "doomed"])


def test_i13_a_ring_falls_and_is_undone_as_one(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, label="I1", report=False)
    e2 = world.put(b, "Y", 1, label="I2", reads="X", report=False)
    e1.observe("Y")
    e1.done(None)
    e2.done(None)
    answer = a.abort(reason="contradicted")
    assert {*answer.doomed, *answer.cascaded} == ids(e1, e2)
    assert store.compensate(world.handlers()).clean
    assert world.undone() == ["I2", "I1"]


def test_i13_a_stuck_inverse_blocks_only_what_lies_below_it(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, label="I1")
    e2 = world.put(a, "Y", 1, label="I2")
    other = world.put(b, "Z", 1, label="I3")
    store.reconcile(abort=[a, b], reason="contradicted")
    report = store.compensate(world.handlers({"I2": RuntimeError("locked")}))
    assert blocked_by(report) == {e1.id: {e2.id}}
    assert report.completed == (other.id,)


CLAIM_AND_DIE = """
    import os, signal, sys
    import effectstore
    store = effectstore.open(sys.argv[1])
    step = store.claim("a")
    os.write(1, f"{step.attempt} {step.idempotency_key}".encode())
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_i14_begin_is_durable_and_the_key_is_stable(open_store: OpenStore, world: World, child: Child) -> None:
    """Each worker dies with the claim in its hand, perhaps with half of the refund made."""
    store = open_store()
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    store.close()
    begun = [child(CLAIM_AND_DIE).communicate(timeout=60)[0].split(" ", 1) for _ in range(2)]
    assert [attempt for attempt, _ in begun] == ["1", "2"]
    store = open_store()
    step = store.claim("a")
    assert step is not None
    assert (step.effect.id, step.attempt) == (effect.id, 3)
    assert {key for _, key in begun} == {step.idempotency_key}


@pytest.mark.parametrize("finished", ["closed and clean", "still unsettled"])
def test_i14_late_done_new_generation(store: Store, world: World, finished: str) -> None:
    """The call was given up and undone; then its answer arrives: it ran after the undo, so the undo is due again."""
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1, report=False)
    branch.abort(reason="time-out")
    store.compensate(world.handlers())
    if finished == "closed and clean":
        store.effect(effect.id).close(by="ops", reason="host is gone")
    (rollback,) = store.rollbacks()
    assert rollback.report.clean == (finished == "closed and clean")
    alerts = len(list(store.alerts()))

    world["X"] = 1  # It landed after all.
    new_inverse = Inverse("put_back", {"key": "X", "value": None, "label": "late"}, retry=AT_ONCE)
    with pytest.raises(AlreadySettledError) as refusal:
        effect.done({"id": 7}, inverse=new_inverse)
    assert (refusal.value.ref, refusal.value.state) == (effect.id, "doomed")
    reopened = rollback.refresh()
    assert (reopened.state != "closed", reopened.report.clean) == (True, False)
    assert len(list(store.alerts())) > alerts

    with pytest.raises(AlreadySettledError):
        effect.done({"id": 7}, inverse=new_inverse)  # Once per late effect, however often it is said.
    report = store.compensate(world.handlers())
    assert (report.clean, report.completed, world.facts()) == (True, (effect.id,), {})
    calls = world.calls("inverse")
    assert [call.label for call in calls] == ["X", "late"]
    assert calls[0].idempotency_key != calls[1].idempotency_key


def test_i14_late_done_makes_the_earlier_writers_of_its_key_due_again(store: Store, world: World) -> None:
    """E1 and then E2 wrote X, both were undone; E2's call lands late and overwrites what the undo had restored."""
    world["X"] = 0
    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1, label="I1")
    e2 = world.put(b, "X", 2, label="I2", report=False)
    store.reconcile(abort=[a, b], reason="contradicted")
    store.compensate(world.handlers())
    assert (world.undone(), world["X"]) == (["I2", "I1"], 0)
    world["X"] = 2
    with pytest.raises(AlreadySettledError):
        e2.done(None)
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), world["X"]) == (["I2", "I1", "I2", "I1"], 0)


def test_i14_late_not_run_settles(store: Store, world: World) -> None:
    branch = store.branch("A")
    effect = world.put(branch, "X", 1, report=False)
    branch.abort(reason="time-out")
    with suppress(AlreadySettledError):
        effect.not_run("it never left the queue")
    report = store.compensate(world.handlers())
    assert (report.unsettled, world.undone()) == ((), []), "a step that has not begun is discarded"


def test_i14_an_undo_that_put_a_doomed_value_back_makes_the_earlier_undo_due_again(store: Store, world: World) -> None:
    """I1 ran by hand while B's value stood; then B is undone and restores 1, which nobody wanted any more."""
    world["X"] = 0
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, label="I1")
    world.put(b, "X", 2, label="I2")
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    assert blocked_by(store.compensate(world.handlers()))[e1.id]
    rollback.resolve(e1, by="ops", reason="B's value is right")
    b.abort(reason="contradicted")
    store.compensate(world.handlers())
    assert (world.undone(), world["X"]) == (["I2", "I1"], 0)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_i15_recovery_ends_however_often_it_is_interrupted(open_store: OpenStore, world: World, size: int) -> None:
    """Every restart meets a failing handler; the number of calls stays below set size times attempts."""
    store = open_store(policy=Policy(auto_keys=1000))
    branch = store.branch("A")
    for number in range(size):
        world.put(branch, f"K{number}", number)
    branch.abort(reason="contradicted")
    failing = {f"K{number}": RuntimeError("down") for number in range(0, size, 2)}
    for _ in range(2 * size + 3):
        store.compensate(world.handlers(failing), on_failure="continue")
        store.close()
        store = open_store()
    assert len(world.undone()) <= size * AT_ONCE.max_attempts
    last = len(world.undone())
    store.compensate(world.handlers(failing), on_failure="continue")
    assert len(world.undone()) == last


def test_i15_undo_is_never_undone_and_the_plan_stands(store: Store, world: World) -> None:
    a = store.branch("A", agent="a")
    e1, e2 = world.put(a, "X", 1), world.put(a, "Y", 1)
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    step = store.claim("a")
    assert step is not None
    assert step.effect.id == e2.id
    plan = rollback.plan().digest
    for again in (a.name, e1.id, e2.id):
        assert store.reconcile(abort=again, reason="undo the undo").rollback is None
    with pytest.raises(RefusedError):
        store.reconcile(commit=e1.id, by="judge", closure=True)
    assert rollback.refresh().plan().digest == plan
    world.put_back(step.args, step)
    step.complete()
    assert store.compensate(world.handlers()).clean
    assert world.undone() == ["Y", "X"]


def test_i16_code_that_runs_an_inverse_creates_no_work(store: Store, world: World) -> None:
    """A handler calls a decorated tool and reads a speculative value, as a careless refactoring would."""
    other = store.branch("B", agent="b")
    world.put(other, "live", 1)

    @effectstore.tool(name="i16_notify", writes="N", inverse=lambda: Inverse("put_back", {}))
    def notify() -> None:
        world["N"] = 1

    def put_back(args: Mapping[str, Any], step: Step) -> None:
        with pytest.raises(CompensationScopeError) as refusal, other.active():
            notify()
        assert refusal.value.rollback == step.rollback
        with pytest.raises(RefusedError):
            other.observe("live")
        notify.untracked()  # Cleanup and notices go past the store.
        world.put_back(args, step)

    branch = store.branch("A", agent="a")
    world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    report = store.compensate({"put_back": put_back})
    assert (report.clean, world["N"], len(list(store.effects()))) == (True, 1, 2)


def test_i16_a_branch_with_a_claimed_step_registers_nothing(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    kept = world.put(branch, "X", 1)
    fallen = world.put(branch, "Y", 1)
    store.reconcile(abort=fallen, reason="contradicted")
    branch = branch.resume()
    step = store.claim("a")
    assert step is not None
    with pytest.raises(CompensationScopeError) as refusal:
        world.put(branch, "Z", 1)
    assert (refusal.value.branch, refusal.value.rollback) == ("A", step.rollback)
    world.put_back(step.args, step)
    step.complete()
    assert world.put(branch, "Z", 1).after == (kept.id,)
