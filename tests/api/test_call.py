"""branch.call: register, run, report; what is known is not run again, and an exception is passed on unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from effectstore import (
    AlreadySettledError,
    Branch,
    Effect,
    IdempotencyConflictError,
    Inverse,
    NotRunError,
    OutcomeUnknownError,
    Store,
)
from world import STOPPED, World

UNDO = Inverse("undo", {})


def never() -> None:
    pytest.fail("the tool must not run")


def test_a_new_call_runs_once_and_is_done(store: Store, a: Branch) -> None:
    runs: list[str] = []

    def run() -> dict[str, int]:
        runs.append(next(iter(store.effects())).outcome)
        return {"id": 7}

    assert a.call("put", {"n": 1}, run, inverse=UNDO, writes="X") == {"id": 7}
    (effect,) = store.effects()
    assert (effect.tool, effect.args, effect.outcome, effect.result) == ("put", {"n": 1}, "done", {"id": 7})
    assert runs == ["unknown"], "the effect is recorded before the tool runs"


def test_a_known_done_call_returns_the_recorded_result(store: Store, a: Branch) -> None:
    assert a.call("put", {"n": 1}, lambda: (1, 2), inverse=UNDO, idempotency_key="k") == (1, 2)
    assert a.call("put", {"n": 1}, never, inverse=UNDO, idempotency_key="k") == [1, 2]
    assert len(list(store.effects())) == 1


def test_a_known_result_of_another_branch_is_an_observation(store: Store, a: Branch, b: Branch) -> None:
    a.call("put", {}, lambda: "first", inverse=UNDO, idempotency_key="k")
    assert b.call("put", {}, never, inverse=UNDO, idempotency_key="k") == "first"
    late = b.register("use", {}, inverse=UNDO).done(None)
    assert a.abort(reason="contradicted").cascaded == (late.id,)


def test_a_known_unknown_call_is_refused_or_run_again_under_the_same_key(store: Store, a: Branch) -> None:
    effect = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    with pytest.raises(OutcomeUnknownError) as refusal:
        a.call("put", {}, never, inverse=UNDO, idempotency_key="k")
    assert refusal.value.effect == effect.id
    assert a.call("put", {}, lambda: "again", inverse=UNDO, idempotency_key="k", if_unknown="run") == "again"
    assert [(found.id, found.outcome) for found in store.effects()] == [(effect.id, "done")]


def test_a_known_doomed_call_is_refused_even_on_a_fresh_branch(store: Store, a: Branch, b: Branch) -> None:
    a.call("put", {}, lambda: 1, inverse=UNDO, idempotency_key="k")
    a.abort(reason="contradicted")
    with pytest.raises(AlreadySettledError) as refusal:
        b.call("put", {}, never, inverse=UNDO, idempotency_key="k")
    assert refusal.value.state == "doomed"
    assert b.register("use", {}, inverse=UNDO).state == "live", "a doomed one dooms nobody"


def test_a_known_void_call_runs_anew(store: Store, a: Branch) -> None:
    first = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    first.not_run("refused")
    assert a.call("put", {}, lambda: "second", inverse=UNDO, idempotency_key="k") == "second"
    assert [(found.state, found.outcome) for found in store.effects()] == [("void", "not_run"), ("live", "done")]


def test_a_call_on_a_doomed_branch_does_not_run(store: Store, a: Branch) -> None:
    a.register("put", {}, inverse=UNDO)
    a.abort(reason="contradicted")
    with pytest.raises(STOPPED):
        a.call("put", {}, never, inverse=UNDO)


class VendorError(Exception):
    """An error of somebody else's library."""


class QuotaError(VendorError):
    """A subclass, which counts as its parent."""


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotRunError("dry run"), "not_run"),
        (VendorError("refused"), "not_run"),
        (QuotaError("refused"), "not_run"),
        (ValueError("half done"), "unknown"),
        (TimeoutError("no answer"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
        (SystemExit(3), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value,
)
def test_the_tools_own_exception_is_raised_unchanged_with_a_note(
    store: Store, a: Branch, error: BaseException, outcome: str
) -> None:
    def run() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        a.call("put", {}, run, inverse=UNDO, not_run_on=(VendorError,))
    assert raised.value is error
    (effect,) = store.effects()
    assert effect.outcome == outcome
    notes = " ".join(error.__notes__)
    assert str(effect.id) in notes
    assert outcome in notes


def test_an_error_that_is_a_value_is_reported_by_the_runtime_itself(store: Store, a: Branch) -> None:
    effect = a.register("put", {}, inverse=UNDO)
    assert effect.created
    answer = {"isError": True, "content": "refused"}
    voided = effect.not_run(str(answer["content"]))
    assert (voided.state, voided.outcome) == ("void", "not_run")


def test_inverse_after_completes_the_inverse_from_the_result(store: Store, a: Branch) -> None:
    a.call("create", {}, lambda: {"id": 9}, inverse=Inverse("delete"), inverse_after=lambda result: delete(result))
    a.abort(reason="contradicted")
    seen: list[Any] = []
    store.compensate({"delete": lambda args, step: seen.append(args)})
    assert seen == [{"id": 9}]


def delete(result: dict[str, int]) -> Inverse:
    return Inverse("delete", {"id": result["id"]})


def test_a_deferred_call_returns_its_effect_and_does_not_run(store: Store, a: Branch) -> None:
    effect = a.call("send", {}, never, reversibility="irreversible")
    assert isinstance(effect, Effect)
    assert (effect.mode, effect.outcome, effect.state) == ("deferred", "unknown", "live")


def test_the_same_key_with_other_arguments_is_refused_before_the_tool_runs(store: Store, a: Branch) -> None:
    a.call("put", {"n": 1}, lambda: 1, inverse=UNDO, idempotency_key="k")
    with pytest.raises(IdempotencyConflictError) as refusal:
        a.call("put", {"n": 1.0}, never, inverse=UNDO, idempotency_key="k")
    assert refusal.value.differs == "args"


FINGERPRINTS: list[tuple[Any, Any, bool]] = [("f", "f", True), ("f", "g", False), (b"\0", b"\0", True)]


@pytest.mark.parametrize(("one", "two", "same"), FINGERPRINTS)
def test_a_fingerprint_decides_instead_of_the_arguments(a: Branch, one: Any, two: Any, same: bool) -> None:
    first = a.register("put", {"at": 1}, inverse=UNDO, idempotency_key="k", fingerprint=one)
    again: Callable[[], Effect] = lambda: a.register(  # noqa: E731
        "put", {"at": 2}, inverse=UNDO, idempotency_key="k", fingerprint=two
    )
    if same:
        assert (again().id, again().created) == (first.id, False)
    else:
        with pytest.raises(IdempotencyConflictError):
            again()


def test_the_first_inverse_stays(store: Store, world: World, a: Branch) -> None:
    world["X"] = 0
    effect = world.put(a, "X", 1, label="first", idempotency_key="k", report=False)
    again = a.register(
        "put", {"key": "X", "value": 1}, writes="X", idempotency_key="k", inverse=world.inverse_of("X", "second")
    )
    assert (again.id, again.created) == (effect.id, False)
    again.done(None)
    a.abort(reason="contradicted")
    store.compensate(world.handlers())
    assert (world.undone(), world["X"]) == (["first"], 0)
