"""Idempotency keys: unique in the store, kept for ever unless told otherwise, one winner among equal calls at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from effectstore import (
    Branch,
    IdempotencyConflictError,
    Inverse,
    Policy,
    Retry,
    StaleTokenError,
    Store,
)
from support import OpenStore
from world import STOPPED, FakeClock

UNDO = Inverse("undo", {})


def test_of_equal_calls_at_once_exactly_one_is_new(store: Store) -> None:
    branches = [store.branch(f"B{number}") for number in range(8)]
    barrier = Barrier(8)

    def call(branch: Branch, round_: int) -> tuple[int, bool]:
        barrier.wait()
        effect = branch.register("pay", {"n": round_}, inverse=UNDO, idempotency_key=f"pay-{round_}", after=())
        return effect.id, effect.created

    with ThreadPoolExecutor(8) as pool:
        for round_ in range(125):  # 8 callers a round: a thousand calls.
            answers = list(pool.map(call, branches, [round_] * 8))
            assert len({number for number, _ in answers}) == 1
            assert sum(created for _, created in answers) == 1


@pytest.mark.parametrize("reopened", [False, True])
def test_a_known_key_of_a_merged_child_answers_its_parent_with_the_token(open_store: OpenStore, reopened: bool) -> None:
    """From the merge on its effects are the parent's, also where memory has let the committed one go."""
    store = open_store()
    parent = store.branch("P")
    child = store.branch("P/1", parent=parent)
    grandchild = store.branch("P/1/1", parent=child)
    first = grandchild.register("put", {}, inverse=UNDO, idempotency_key="k").done(None)
    store.takeover("P/1/1").merge()
    child.merge()
    live = parent.register("put", {}, inverse=UNDO, idempotency_key="k")
    assert (live.id, live.created, live.state) == (first.id, False, "live")
    assert store.commit(parent).committed == (first.id,)
    if reopened:
        store.close()
        store = open_store()
        parent = store.join("P", parent.token)
    gone = parent.register("put", {}, inverse=UNDO, idempotency_key="k")
    assert (gone.id, gone.created, gone.state) == (first.id, False, "committed")
    assert gone.token == live.token
    stranger = store.branch("Q").register("put", {}, inverse=UNDO, idempotency_key="k")
    assert (stranger.id, stranger.token) == (first.id, None)


@pytest.mark.parametrize("state", ["live", "committed", "doomed", "compensated"])
def test_a_known_key_answers_with_the_present_state(store: Store, a: Branch, b: Branch, state: str) -> None:
    first = a.register("put", {}, inverse=UNDO, idempotency_key="k").done("secret result")
    if state == "committed":
        store.commit(a)
    elif state in ("doomed", "compensated"):
        a.abort(reason="contradicted")
    if state == "compensated":
        store.compensate({"undo": lambda args, step: None})
    again = b.register("put", {}, inverse=UNDO, idempotency_key="k")
    expected = "doomed" if state == "compensated" else state
    assert (again.id, again.created, again.state, again.compensated) == (
        first.id, False, expected, state == "compensated",
    )  # fmt: skip
    assert again.token is None, "another branch gets no token"
    if expected == "doomed":
        assert again.result is None
    else:
        assert again.result == "secret result"


def test_the_own_branch_gets_its_token_back(a: Branch) -> None:
    first = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    again = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    assert (again.id, again.token) == (first.id, first.token)
    assert again.done(1).result == 1


def test_the_look_up_of_a_known_key_passes_a_doomed_branch(a: Branch) -> None:
    """After a crash the agent asks what became of its call; it must learn that it was undone."""
    first = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    a.abort(reason="contradicted")
    again = a.register("put", {}, inverse=UNDO, idempotency_key="k")
    assert (again.id, again.created, again.state) == (first.id, False, "doomed")
    with pytest.raises(STOPPED):
        a.register("put", {}, inverse=UNDO, idempotency_key="new")


def test_checks_go_token_then_key_then_branch(store: Store, a: Branch) -> None:
    a.register("put", {"n": 1}, inverse=UNDO, idempotency_key="k")
    a.abort(reason="contradicted")
    with pytest.raises(IdempotencyConflictError):
        a.register("put", {"n": 2}, inverse=UNDO, idempotency_key="k")
    store.takeover("A")
    with pytest.raises(StaleTokenError):
        a.register("put", {"n": 2}, inverse=UNDO, idempotency_key="k")


def test_not_run_frees_the_key_for_a_new_attempt(store: Store, a: Branch) -> None:
    first = a.register("put", {"n": 1}, inverse=UNDO, idempotency_key="k")
    first.not_run("refused")
    second = a.register("put", {"n": 2}, inverse=UNDO, idempotency_key="k")
    assert (second.created, second.id != first.id) == (True, True)


def test_keys_are_kept_over_restarts_and_unique_in_the_store(open_store: OpenStore) -> None:
    store = open_store()
    first = store.branch("A").register("put", {}, inverse=UNDO, idempotency_key="k").done(None)
    store.commit(store.takeover("A"))
    for round_ in range(3):
        store.close()
        store = open_store()
        again = store.branch(f"B{round_}").register("put", {}, inverse=UNDO, idempotency_key="k")
        assert (again.id, again.created, again.state) == (first.id, False, "committed")


@pytest.mark.parametrize("retention_s", [None, 3600.0])
def test_a_key_is_forgotten_only_after_its_retention(
    open_store: OpenStore, clock: FakeClock, retention_s: float | None
) -> None:
    store = open_store(policy=Policy(key_retention=retention_s), clock=clock)
    branch = store.branch("A")
    first = branch.register("put", {}, inverse=UNDO, idempotency_key="k").done(None)
    store.commit(branch)
    clock.advance(3599)
    store.tick()
    assert branch.register("put", {}, inverse=UNDO, idempotency_key="k").id == first.id
    clock.advance(10_000_000)
    store.tick()
    late = branch.register("put", {}, inverse=UNDO, idempotency_key="k")
    assert late.created == (retention_s is not None)


def test_the_key_of_an_inverse_is_stable_and_differs_between_effects(store: Store, a: Branch) -> None:
    for number in range(3):
        a.register("put", {"n": number}, inverse=UNDO).done(None)
    a.abort(reason="contradicted")
    keys: list[str] = []

    def undo(args: object, step: object) -> None:
        keys.append(str(getattr(step, "idempotency_key", "")))
        if len(keys) == 1:
            raise RuntimeError("once")

    store.compensate({"undo": undo}, retry=Retry(delay=0, jitter=0))
    assert len(keys) == 4
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
