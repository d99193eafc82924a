"""C26: a batch is registered whole or not at all, and undone with one outcome per item."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import (
    Branch,
    DoomedDependencyError,
    IdempotencyConflictError,
    Inverse,
    InverseRequiredError,
    LimitExceededError,
    Limits,
    PayloadError,
    Policy,
    Registration,
    Step,
    Store,
)
from support import OpenStore
from world import AT_ONCE, World, ids


def batch(branch: Branch, count: int = 100, **bad: Any) -> list[Registration]:
    """`count` calls with keys of their own; item 57 is changed as `bad` says."""
    calls = []
    for number in range(count):
        fields: dict[str, Any] = {
            "args": {"n": number},
            "writes": f"K{number}",
            "idempotency_key": f"call-{number}",
            "inverse": Inverse("undo", {"n": number, "label": str(number)}, retry=AT_ONCE),
        }
        if number == 57:
            fields |= bad
        calls.append(Registration("put", branch=branch, **fields))
    return calls


BAD_ITEMS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "key of an earlier item": ({"idempotency_key": "call-12"}, IdempotencyConflictError),
    "key of an earlier effect": ({"idempotency_key": "first"}, IdempotencyConflictError),
    "no inverse": ({"inverse": None}, InverseRequiredError),
    "arguments that cannot be stored": ({"args": {"n": object()}}, PayloadError),
    "rests on what is doomed": ({"after": "doomed"}, DoomedDependencyError),
    "too many keys": ({"writes": [f"w{number}" for number in range(200)]}, LimitExceededError),
}


@pytest.mark.parametrize(("bad", "error"), BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_c26_a_bad_item_leaves_nothing_of_the_batch_then_the_same_ids(
    open_store: OpenStore, bad: dict[str, Any], error: type[Exception]
) -> None:
    store = open_store(limits=Limits(keys=100))
    other = store.branch("other")
    first = other.register("put", {"n": -1}, idempotency_key="first", inverse=Inverse("undo", {}), after=())
    doomed = store.branch("gone").register("put", {}, inverse=Inverse("undo", {}))
    store.reconcile(abort=doomed, reason="contradicted")
    if bad.get("after") == "doomed":
        bad = {"after": doomed.id}
    branch = store.branch("A", agent="a")
    with pytest.raises(error) as refusal:
        store.register_many(batch(branch, **bad))
    assert getattr(refusal.value, "index", None) == 57
    assert [effect.id for effect in store.effects()] == [first.id, doomed.id]

    effects = store.register_many(batch(branch))
    assert [effect.args["n"] for effect in effects] == list(range(100))
    found = [effect.id for effect in effects]
    assert found == sorted(set(found))
    assert all(effect.created for effect in effects)
    again = store.register_many(batch(branch))
    assert [effect.id for effect in again] == found
    assert not any(effect.created for effect in again)
    store.close()
    assert len(list(open_store().effects(branch="A"))) == 100


def test_c26_a_conflict_names_the_effect_and_what_differs(store: Store) -> None:
    branch = store.branch("A")
    known = branch.register("put", {"n": 1}, idempotency_key="k", inverse=Inverse("undo", {}))
    for tool, args, differs in (("put", {"n": 2}, "args"), ("get", {"n": 1}, "tool")):
        with pytest.raises(IdempotencyConflictError) as refusal:
            store.register_many(
                [
                    Registration("put", {"n": 0}, branch=branch, inverse=Inverse("undo", {})),
                    Registration(tool, args, branch=branch, idempotency_key="k", inverse=Inverse("undo", {})),
                ]
            )
        assert (refusal.value.index, refusal.value.effect, refusal.value.differs) == (1, known.id, differs)


def test_c26_items_are_siblings_and_after_names_earlier_items(store: Store) -> None:
    branch = store.branch("A")
    before = branch.register("put", {}, inverse=Inverse("undo", {})).done(None)
    one = Registration("put", {"n": 1}, branch=branch, inverse=Inverse("undo", {}))
    two = Registration("put", {"n": 2}, branch=branch, inverse=Inverse("undo", {}))
    three = Registration("put", {"n": 3}, branch=branch, inverse=Inverse("undo", {}), after=[one])
    e1, e2, e3 = store.register_many([one, two, three])
    assert (e1.after, e2.after, e3.after) == ((before.id,), (before.id,), (e1.id,))


def undone_batch(store: Store) -> tuple[int, list[int], list[Step]]:
    """Ten siblings, aborted, all their steps claimed by one worker that undoes them in one call of the vendor."""
    branch = store.branch("A", agent="a")
    effects = [effect.done(None) for effect in store.register_many(batch(branch, 10))]
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    return rollback.id, [effect.id for effect in effects], claim_all(store)


def claim_all(store: Store) -> list[Step]:
    steps: list[Step] = []
    while (step := store.claim("a")) is not None:
        steps.append(step)
    return steps


@pytest.mark.parametrize("bad", [0, 4, 9])
def test_c26_a_batch_inverse_with_one_error_retries_that_one_alone(open_store: OpenStore, bad: int) -> None:
    store = open_store(policy=Policy(auto_keys=100))
    rollback, effects, steps = undone_batch(store)
    assert sorted(step.id for step in steps) == effects
    for place, step in enumerate(steps):
        if place == bad:
            step.fail("quota")
        else:
            step.complete()
    assert claim_all_again(store, [steps[bad]], attempt=2)
    report = store.compensate({}, rollback=rollback)
    assert (set(report.completed), report.failed, report.clean) == (set(effects), (), True)


def claim_all_again(store: Store, expected: list[Step], attempt: int) -> bool:
    """What is due again are the expected steps, under the same keys; they are completed."""
    again = claim_all(store)
    assert sorted(step.id for step in again) == sorted(step.id for step in expected)
    assert {step.idempotency_key for step in again} == {step.idempotency_key for step in expected}
    assert {step.attempt for step in again} == {attempt}
    for step in again:
        step.complete()
    return True


@pytest.mark.parametrize("ending", ["released", "failed", "lease ran out"])
def test_c26_a_batch_inverse_that_raises_keeps_what_it_reported(open_store: OpenStore, clock: Any, ending: str) -> None:
    store = open_store(policy=Policy(auto_keys=100), clock=clock)
    rollback, effects, steps = undone_batch(store)
    for step in steps[:4]:
        step.complete()
    for step in steps[4:]:
        if ending == "released":
            step.release()
        elif ending == "failed":
            step.fail(RuntimeError("connection lost"))
    if ending == "lease ran out":
        clock.advance(61)
        store.tick()
    assert claim_all_again(store, steps[4:], attempt=2)
    report = store.compensate({}, rollback=rollback)
    assert (set(report.completed), report.clean) == (set(effects), True)


@pytest.mark.parametrize("reports", [0, 4, 9])
def test_c26_a_handler_that_raises_in_the_middle_of_a_batch_keeps_what_it_reported(
    open_store: OpenStore, reports: int
) -> None:
    """One call of the vendor undoes the whole batch; it dies after it has reported some of the items."""
    store = open_store(policy=Policy(auto_keys=100))
    branch = store.branch("A", agent="a")
    effects = [effect.done(None) for effect in store.register_many(batch(branch, 10))]
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    undone: list[int] = []
    broken = [True]

    def undo(args: Any, step: Step) -> None:
        rest = claim_all(store) if broken[0] else []
        for place, item in enumerate([step, *rest]):
            if broken[0] and place == reports:
                broken[0] = False
                for left in rest[max(place - 1, 0) :]:
                    left.release()
                raise ConnectionError("the vendor hung up")
            undone.append(item.args["n"])
            item.complete()

    report = store.compensate({"undo": undo}, rollback=rollback.id)
    report = store.compensate({"undo": undo}, rollback=rollback.id)
    assert (set(report.completed), report.failed, report.clean) == (ids(*effects), (), True)
    assert sorted(undone) == list(range(10)), "an item that was reported was undone again, or one was forgotten"
    assert sum(record.kind == "step_completed" for record in store.log()) == 10


def test_c26_a_batch_inverse_with_a_final_error_says_which(open_store: OpenStore, world: World) -> None:
    store = open_store(policy=Policy(auto_keys=100))
    rollback, effects, steps = undone_batch(store)
    for step in steps[1:]:
        step.complete()
    steps[0].fail("no such order", permanent=True)
    report = store.compensate({}, rollback=rollback)
    assert [(failure.effect, failure.kind, failure.attempts) for failure in report.failed] == [
        (steps[0].effect.id, "permanent", 1)
    ]
    assert set(report.completed) == set(effects) - ids(steps[0].effect)
    assert report.clean is False
