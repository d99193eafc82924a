"""Limits, policy and the operator's stop: each is said aloud, kept with the store, and a refusal changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import (
    Branch,
    CommitReservedError,
    FrozenError,
    Inverse,
    LimitExceededError,
    Limits,
    Policy,
    Registration,
    Retry,
    Store,
)
from support import OpenStore
from world import World, ids, states

UNDO = Inverse("undo", {})


def put(branch: Branch, **options: Any) -> Any:
    options.setdefault("inverse", UNDO)
    return branch.register("put", options.pop("args", {}), **options).done(None)


def live_effects(store: Store) -> None:
    for number in range(10):
        put(store.branch(f"L{number}"))


def dependencies(store: Store) -> None:
    effects = [put(store.branch(f"D{number}")) for number in range(9)]
    for count in range(1, 10):
        put(store.branch(f"E{count}"), after=effects[:count])


def live_writers(store: Store) -> None:
    for number in range(10):
        put(store.branch(f"W{number}"), writes="X")


def readers(store: Store) -> None:
    put(store.branch("W"), writes="X")
    for number in range(10):
        put(store.branch(f"R{number}"), reads="X")


def deep(store: Store) -> None:
    branch = store.branch("A")
    for _ in range(10):
        put(branch)


def wide(store: Store) -> None:
    root = put(store.branch("A"))
    for number in range(10):
        put(store.branch(f"B{number}"), after=root)


def batch(store: Store) -> None:
    branch = store.branch("A")
    for count in range(1, 10):
        store.register_many([Registration("put", {}, branch=branch, inverse=UNDO) for _ in range(count)])


# limit, the greatest value that still passes in the scenario, the scenario
SCENARIOS: dict[str, tuple[int, Any]] = {
    "payload_bytes": (
        2000,
        lambda store: [put(store.branch(f"P{n}"), args={"x": b"x" * n}) for n in (1000, 1900, 2100)],
    ),
    "live_effects": (5, live_effects),
    "dependencies": (5, dependencies),
    "keys": (5, lambda store: [put(store.branch(f"K{n}"), writes=[f"{n}/{k}" for k in range(n)]) for n in range(1, 9)]),
    "key_bytes": (600, lambda store: [put(store.branch(f"B{n}"), writes="k" * n) for n in (511, 512, 600, 601)]),
    "name_bytes": (600, lambda store: [store.branch("n" * n) for n in (511, 600, 601)]),
    "live_writers_per_key": (5, live_writers),
    "readers_per_version": (5, readers),
    "closure": (5, deep),
    "depth": (5, deep),
    "fan_out": (5, wide),
    "batch_records": (5, batch),
}


@pytest.mark.parametrize("limit", SCENARIOS)
def test_beyond_a_limit_a_call_is_refused_by_name_with_nothing_stored(open_store: OpenStore, limit: str) -> None:
    value, scenario = SCENARIOS[limit]
    store = open_store(limits=Limits(**{limit: value}))
    with pytest.raises(LimitExceededError) as refusal:
        scenario(store)
    assert (refusal.value.limit, refusal.value.allowed) == (limit, value)
    assert refusal.value.value > value, "what it would have been"
    assert set(refusal.value.wait_for) <= {effect.id for effect in store.effects()}
    before = [effect.id for effect in store.effects()]
    store.close()
    assert [effect.id for effect in open_store().effects()] == before
    open_store().verify()


@pytest.mark.parametrize("limit", SCENARIOS)
def test_within_the_defaults_the_same_work_passes(store: Store, limit: str) -> None:
    SCENARIOS[limit][1](store)
    store.verify()


def test_the_documented_defaults_hold() -> None:
    plain = Limits().to_dict()
    assert plain["payload_bytes"] == 1 << 20
    assert (plain["live_effects"], plain["dependencies"], plain["keys"]) == (1_000_000, 4096, 1024)
    assert (plain["key_bytes"], plain["name_bytes"], plain["live_writers_per_key"]) == (65_536, 1024, 64)
    assert (plain["readers_per_version"], plain["batch_records"]) == (100_000, 100_000)
    assert (plain["closure"], plain["depth"], plain["fan_out"]) == (None, None, None)


def test_a_register_waits_for_room_when_it_has_time(open_store: OpenStore, world: World) -> None:
    store = open_store(limits=Limits(live_effects=1))
    a, b = store.branch("A"), store.branch("B")
    first = world.put(a, "X", 1)
    with pytest.raises(LimitExceededError) as refusal:
        b.register("put", {}, inverse=UNDO, timeout=0.05)
    assert refusal.value.wait_for == (first.id,)
    store.commit(a)
    assert b.register("put", {}, inverse=UNDO, timeout=5).state == "live"


def test_limits_and_policy_live_in_the_store_and_open_counts_at_creation_only(open_store: OpenStore) -> None:
    store = open_store(limits=Limits(keys=2))
    store.close()
    store = open_store()
    with pytest.raises(LimitExceededError):
        put(store.branch("A"), writes=["1", "2", "3"])
    store.configure(by="ops", limits=Limits(keys=3))
    assert put(store.branch("B"), writes=["1", "2", "3"]).state == "live"
    store.close()
    store = open_store()
    assert put(store.branch("C"), writes=["1", "2", "3"]).state == "live"
    with pytest.raises(LimitExceededError):
        put(store.branch("D"), writes=["1", "2", "3", "4"])


def test_a_frozen_store_takes_no_new_work_and_ends_what_is_there(store: Store, world: World) -> None:
    """The operator stops a storm: nothing new, but outcomes, fences, aborts and undo go on."""
    a, b = store.branch("A"), store.branch("B")
    running = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Y", 1)
    store.freeze(by="ops", reason="storm")
    with pytest.raises(FrozenError) as refusal:
        world.put(b, "Z", 1)
    assert (refusal.value.by, refusal.value.reason) == ("ops", "storm")
    running.done(None)
    assert store.commit(a).status == "committed"
    b.abort(reason="contradicted")
    assert store.compensate(world.handlers()).clean
    assert states(store, running, e2) == ["committed", "doomed"]
    store.unfreeze(by="ops")
    assert world.put(store.branch("C"), "Z", 1).state == "live"


def test_a_freeze_survives_a_reopen(open_store: OpenStore) -> None:
    store = open_store()
    store.freeze(by="ops", reason="storm")
    store.close()
    store = open_store()
    with pytest.raises(FrozenError):
        put(store.branch("A"))


def test_authority_reconcile_reserves_the_commit(open_store: OpenStore, world: World) -> None:
    """Branches seal, the authority decides."""
    store = open_store(policy=Policy(authority="reconcile"))
    a = store.branch("A")
    e1 = world.put(a, "X", 1)
    for target in (a, e1):
        with pytest.raises(CommitReservedError) as refusal:
            store.commit(target)
        assert refusal.value.target in ("A", e1.id)
    assert states(store, e1) == ["live"]
    a.seal()
    answer = store.reconcile(commit="A", by="judge")
    assert (set(answer.committed), states(store, e1)) == (ids(e1), ["committed"])


def test_authority_reconcile_leaves_no_vote_or_intent_of_the_refused_commit(
    open_store: OpenStore, world: World
) -> None:
    store = open_store(policy=Policy(authority="reconcile"))
    a = store.branch("A")
    e1 = world.put(a, "X", 1)
    with pytest.raises(CommitReservedError):
        store.commit(a)
    assert (store.effect(e1.id).sealed, list(store.fences())) == (False, [])


def test_the_policy_gives_the_defaults_of_compensation(open_store: OpenStore, world: World) -> None:
    store = open_store(policy=Policy(on_failure="continue", retry=Retry(max_attempts=2, delay=0, jitter=0)))
    branch = store.branch("A")
    for number in range(2):
        undo = Inverse("put_back", {"key": f"K{number}", "value": None, "label": f"K{number}"})
        world.put(branch, f"K{number}", 1, inverse=undo)
    branch.abort(reason="contradicted")
    report = store.compensate(world.handlers({"K1": RuntimeError("down")}))
    assert world.undone() == ["K1", "K1", "K0"]
    assert [failure.attempts for failure in report.failed] == [2]


def test_metrics_measure_storms(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    world.put(b, "Y", 1, reads="X")
    a.abort(reason="contradicted")
    store.compensate(world.handlers())
    text = repr(store.metrics().to_dict())
    assert "rollback" in text
    assert "cascade" in text
