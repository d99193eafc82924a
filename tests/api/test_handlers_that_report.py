"""Handlers that end their step or delivery themselves, and results that cannot be recorded."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import Inverse, PayloadError, Step, Store
from effectstore._outbox import Delivery
from world import World


def aborted(store: Store, world: World, count: int = 2) -> list[int]:
    branch = store.branch("A", agent="a")
    effects = [world.put(branch, f"K{number}", number).id for number in range(count)]
    branch.abort(reason="contradicted")
    return effects


def test_a_handler_that_completes_its_step_itself_is_called_once(store: Store, world: World) -> None:
    effects = aborted(store, world)
    seen: list[int] = []

    def undo(args: Any, step: Step) -> None:
        seen.append(step.id)
        step.complete()

    report = store.compensate(dict.fromkeys(world.handlers(), undo))
    assert (seen, report.clean) == (effects[::-1], True)


def test_a_handler_that_fails_its_step_itself_is_not_asked_again(store: Store, world: World) -> None:
    (effect,) = aborted(store, world, 1)
    seen: list[int] = []

    def undo(args: Any, step: Step) -> None:
        seen.append(step.id)
        step.fail("impossible", permanent=True)

    report = store.compensate(dict.fromkeys(world.handlers(), undo))
    assert seen == [effect]
    assert [(failure.effect, failure.kind) for failure in report.failed] == [(effect, "permanent")]


@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_that_gives_its_step_back_leaves_it_to_another_pass(
    store: Store, world: World, *, raises: bool
) -> None:
    (effect,) = aborted(store, world, 1)
    seen: list[int] = []

    def undo(args: Any, step: Step) -> None:
        seen.append(step.id)
        step.release()
        if raises:
            raise RuntimeError("too late")

    report = store.compensate(dict.fromkeys(world.handlers(), undo))
    assert (seen, report.pending) == ([effect], (effect,))
    assert store.compensate(world.handlers()).clean


def test_a_handler_may_renew_its_step(store: Store, world: World) -> None:
    (effect,) = aborted(store, world, 1)
    seen: list[int] = []

    def undo(args: Any, step: Step) -> None:
        seen.append(step.renew(lease=600).id)

    assert store.compensate(dict.fromkeys(world.handlers(), undo)).clean
    assert seen == [effect]


def deferred(store: Store) -> int:
    branch = store.branch("D", agent="d")
    effect = branch.register("send", {}, inverse=Inverse("unsend", {}), mode="deferred")
    store.commit(branch)
    return effect.id


def test_a_result_that_is_no_payload_gives_the_delivery_back_with_a_note(store: Store) -> None:
    effect = deferred(store)
    with pytest.raises(PayloadError) as refused:
        store.outbox.run({"send": lambda args, delivery: object()})
    (note,) = refused.value.__notes__
    assert f"deferred effect {effect} ran" in note
    assert "given back" in note
    assert store.effect(effect).outcome == "unknown"
    again = store.outbox.claim("d")
    assert again is not None
    assert again.attempt == 2


@pytest.mark.parametrize("outcome", ["done", "not_run"])
def test_a_handler_that_reports_its_delivery_itself_has_the_last_word(store: Store, outcome: str) -> None:
    effect = deferred(store)

    def send(args: Any, delivery: Delivery) -> str:
        if outcome == "done":
            delivery.effect.done("mine")
        else:
            delivery.effect.not_run("refused")
        return "ignored"

    (reported,) = store.outbox.run({"send": send})
    assert (reported.id, reported.outcome) == (effect, outcome)


def test_what_a_handler_raises_is_not_hidden_by_a_delivery_that_it_gave_back(store: Store) -> None:
    deferred(store)

    def send(args: Any, delivery: Delivery) -> None:
        delivery.release()
        raise RuntimeError("down")

    with pytest.raises(RuntimeError, match="down") as raised:
        store.outbox.run({"send": send})
    assert "could not be given back" in raised.value.__notes__[0]
