"""C14: whoever lost its place is refused by attempt, not by name, at every call and after every reopen."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from effectstore import Branch, Effect, LeaseLostError, StaleTokenError, Step, Store
from support import Child, OpenStore
from world import FakeClock, World, states

BRANCH_CALLS: dict[str, Callable[[Store, Branch, Effect], Any]] = {
    "heartbeat": lambda store, branch, effect: branch.heartbeat(),
    "done": lambda store, branch, effect: effect.done("stale"),
    "not_run": lambda store, branch, effect: effect.not_run("stale"),
    "observe of the effect": lambda store, branch, effect: effect.observe("K"),
    "commit": lambda store, branch, effect: store.commit(branch),
    "commit of the effect": lambda store, branch, effect: store.commit(effect),
    "seal": lambda store, branch, effect: branch.seal(),
    "abort": lambda store, branch, effect: branch.abort(reason="stale"),
    "register": lambda store, branch, effect: branch.register("put", writes="N", reversibility="irreversible"),
    "observe": lambda store, branch, effect: branch.observe("K"),
    "resume": lambda store, branch, effect: branch.resume(),
}
STEP_CALLS: dict[str, Callable[[Step], Any]] = {
    "complete": lambda step: step.complete("stale"),
    "fail": lambda step: step.fail("stale"),
    "fail for good": lambda step: step.fail("stale", permanent=True),
    "renew": lambda step: step.renew(600),
    "release": lambda step: step.release(),
}


def picture(store: Store, effect: int) -> tuple[Any, ...]:
    """What a stale call could spoil."""
    now = store.effect(effect)
    return now.state, now.outcome, now.result, now.sealed, now.rollback


@pytest.mark.parametrize("call", BRANCH_CALLS.values(), ids=BRANCH_CALLS.keys())
def test_c14_stale_branch_token_is_refused_everywhere(
    store: Store, world: World, call: Callable[[Store, Branch, Effect], Any]
) -> None:
    old = store.branch("w-0", lease=600)
    e1 = world.put(old, "X", 1, report=False)
    new = store.takeover("w-0")
    before = picture(store, e1.id)
    with pytest.raises(StaleTokenError) as refusal:
        call(store, old, e1)
    assert refusal.value.branch == "w-0"
    assert picture(store, e1.id) == before
    new.effect(e1.id).done("right")
    fence = store.commit(new.heartbeat())
    assert (fence.status, store.effect(e1.id).result) == ("committed", "right")


def test_c14_a_stale_token_stays_stale_over_a_reopen(open_store: OpenStore, world: World) -> None:
    store = open_store()
    old = store.branch("w-0")
    e1 = world.put(old, "X", 1, report=False)
    t1, t2 = old.token, store.takeover("w-0").token
    assert t1 is not None
    assert t2 is not None
    store.close()
    store = open_store()
    with pytest.raises(StaleTokenError):
        store.join("w-0", t1).heartbeat()
    store.join("w-0", t2).effect(e1.id).done("right")
    new = store.takeover("w-0")
    for stale in (t1, t2):
        with pytest.raises(StaleTokenError):
            store.commit(store.join("w-0", stale))
    assert store.commit(new).committed == (e1.id,)
    assert store.effect(e1.id).result == "right"


def test_c14_every_refusal_is_audited(open_store: OpenStore, world: World) -> None:
    store = open_store()
    old = store.branch("w-0", lease=600)
    e1 = world.put(old, "X", 1, report=False)
    store.takeover("w-0")
    mark = max(record.seq for record in store.log())
    five = ["heartbeat", "done", "commit", "seal", "abort"]
    for call in five:
        with pytest.raises(StaleTokenError):
            BRANCH_CALLS[call](store, old, e1)
    store.close()
    store = open_store()
    refused = [record for record in store.log(since=mark) if record.kind == "refused"]
    assert [record.body[4][1][0] for record in refused] == five
    assert states(store, e1) == ["live"]


NEW_ATTEMPT = """
    import os, signal, sys
    import effectstore

    store = effectstore.open(sys.argv[1])
    branch = store.takeover("w-0")
    step = store.claim("w", lease=600)
    print(*branch.token, *step.token, step.attempt, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_c14_a_worker_of_the_same_name_is_refused_by_attempt_and_over_a_kill(
    open_store: OpenStore, world: World, child: Child
) -> None:
    """The case as a whole: w-0 stalls with t1, an attempt of that name with t2 is killed, a third takes t3."""
    store = open_store()
    first = store.branch("w-0", agent="w")
    fallen, kept = world.put(first, "X", 1), world.put(first, "Y", 1, after=(), report=False)
    store.reconcile(abort=fallen, reason="contradicted")
    first = first.resume()
    old = store.claim("w", lease=0.05)
    assert old is not None
    time.sleep(0.1)
    other = child(NEW_ATTEMPT, stdin=True)
    assert other.stdout is not None
    printed = other.stdout.readline().split()
    assert len(printed) == 5, other.communicate()[1]
    *second, attempt = map(int, printed)
    mark = max(record.seq for record in store.log())
    calls: dict[str, Callable[[], object]] = {
        "heartbeat": first.heartbeat,
        "done": lambda: kept.done("stale"),
        "commit": lambda: store.commit(first),
        "release": old.release,
        "complete": lambda: old.complete("stale"),
    }
    for call in calls.values():
        with pytest.raises((StaleTokenError, LeaseLostError)):
            call()
    refused = [record for record in store.log(since=mark) if record.kind == "refused"]
    said = [record.body[4][1][0] for record in refused]
    assert said == ["heartbeat", "done", "commit", "end_step", "end_step"]
    assert (store.effect(kept.id).outcome, store.effect(fallen.id).compensated) == ("unknown", False)
    assert store.claim("w") is None, "the lease of t2 stands"
    other.communicate("die\n", timeout=60)
    assert other.returncode == -signal.SIGKILL
    store.close()
    store = open_store()
    third = store.takeover("w-0")
    step = store.claim("w", lease=600)
    assert step is not None
    assert (old.attempt, attempt, step.attempt) == (1, 2, 3)
    assert first.token is not None
    assert third.token is not None
    assert first.token < (second[0], second[1]) < third.token
    assert old.token < (second[2], second[3]) < step.token
    for stale in (first.token, (second[0], second[1])):
        with pytest.raises(StaleTokenError):
            store.join("w-0", stale)
    world.put_back(step.args, step)
    step.complete()
    third.effect(kept.id).done("right")
    assert store.commit(third).committed == (kept.id,)
    assert (store.effect(kept.id).result, store.effect(fallen.id).compensated) == ("right", True)


def test_c14_tokens_rise_over_takeover_and_reopen(open_store: OpenStore) -> None:
    store = open_store()
    tokens = [store.branch("w-0").token]
    for round_ in range(6):
        tokens.append(store.takeover("w-0").token)
        if round_ % 2:
            store.close()
            store = open_store()
    tokens.append(store.branch("w-1").token)
    assert all(token is not None for token in tokens)
    given = [token for token in tokens if token is not None]
    assert all(early < late for early, late in itertools.pairwise(given))
    assert len(set(given)) == len(given)


def test_c14_a_call_without_a_token_is_refused(store: Store, world: World) -> None:
    branch = store.branch("w-0")
    e1 = world.put(branch, "X", 1, report=False)
    read = store.effect(e1.id)
    assert read.token is None
    for verb in (lambda: read.done(None), lambda: read.not_run("x"), lambda: read.observe("K")):
        with pytest.raises(StaleTokenError):
            verb()
    (found,) = store.branches()
    with pytest.raises(StaleTokenError):
        found.seal()
    assert states(store, e1) == ["live"]


@pytest.mark.parametrize("call", STEP_CALLS.values(), ids=STEP_CALLS.keys())
@pytest.mark.parametrize("lost", ["to a newer claim", "to nobody yet"])
def test_c14_stale_step_lease_is_refused_and_leaves_the_newer_claim(
    timed: Store, clock: FakeClock, world: World, call: Callable[[Step], Any], lost: str
) -> None:
    branch = timed.branch("w-0", agent="w")
    e1 = world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    old = timed.claim("w", lease=60)
    assert old is not None
    clock.advance(61)
    new = timed.claim("w", lease=60) if lost == "to a newer claim" else None
    with pytest.raises((LeaseLostError, StaleTokenError)):
        call(old)
    if new is None:
        new = timed.claim("w", lease=60)
    assert new is not None
    assert (new.effect.id, new.attempt, new.idempotency_key) == (e1.id, 2, old.idempotency_key)
    assert (old.token < new.token, old.lease_until < new.lease_until) == (True, True)
    clock.advance(59)  # The old call neither prolonged nor ended the new lease.
    assert timed.claim("w") is None
    world.put_back(new.args, new)
    new.complete()
    report = timed.compensate(world.handlers())
    assert (timed.effect(e1.id).compensated, report.failed) == (True, ())
    assert world.undone() == ["X"]


def test_c14_the_lease_of_a_branch_dooms_what_it_left_unsealed(timed: Store, clock: FakeClock, world: World) -> None:
    branch = timed.branch("w-0", lease=60)
    early = world.put(branch, "X", 1)
    branch = branch.seal()
    late = world.put(branch, "Y", 1)
    clock.advance(59)
    branch = branch.heartbeat()
    clock.advance(59)
    timed.tick()
    assert states(timed, early, late) == ["live", "live"]
    clock.advance(2)
    timed.tick()
    assert states(timed, early, late) == ["live", "doomed"]
