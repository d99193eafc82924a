"""C18: a kill around the tool call loses no undo, runs nothing twice, and the inverse holds what was true then."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from effectstore import (
    EffectStoreError,
    Inverse,
    InverseRequiredError,
    LimitExceededError,
    Limits,
    OutcomeUnknownError,
    PayloadError,
    Store,
)
from support import Child, OpenStore
from world import World

POINTS = ["before register", "after register", "inside the tool", "before done", "after done"]

LOOP = """
    import os, signal, sys
    import effectstore
    from effectstore import Inverse
    from world import World

    store, world, point = effectstore.open(sys.argv[1]), World(sys.argv[2]), sys.argv[3]
    branch = store.branch("loop", agent="a")

    def die(here):
        if here == point and item["key"] == "K2":
            os.kill(os.getpid(), signal.SIGKILL)

    item = {"key": None, "value": None, "tags": []}
    undo = {"key": None, "value": None, "label": None, "seen": []}
    for number in range(3):
        item["key"], item["value"] = f"K{number}", number
        item["tags"].append(number)
        undo["key"], undo["label"] = f"K{number}", f"I{number}"
        undo["seen"].append(number)
        die("before register")
        effect = branch.register("put", item, writes=item["key"], inverse=Inverse("put_back", undo),
                                 idempotency_key=f"call-{number}")
        die("after register")
        world.note("tool", "put", item)
        world[item["key"]] = item["value"]
        die("inside the tool")
        die("before done")
        effect.done(item, durable=True)
        die("after done")
        undo["key"] = item["key"] = "overwritten by the loop"
"""


@pytest.mark.parametrize("point", POINTS)
def test_c18_killed_around_the_call_is_undone_with_the_values_of_registration(
    open_store: OpenStore, world: World, child: Child, point: str
) -> None:
    process = child(LOOP, point)
    output = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output

    store = open_store()
    effects = list(store.effects(branch="loop"))
    registered = 2 if point == "before register" else 3
    ran = registered if point != "after register" else 2
    assert len(effects) == registered
    assert [call.label for call in world.calls("tool")] == [f"K{number}" for number in range(ran)]
    unknown = [effect.id for effect in effects if effect.outcome == "unknown"]
    assert unknown == ([] if point in ("before register", "after done") else [effects[2].id])
    for number, effect in enumerate(effects):
        assert effect.args == {"key": f"K{number}", "value": number, "tags": list(range(number + 1))}

    branch = store.takeover("loop", worker_gone=True, by="supervisor")
    if unknown:
        fence = store.commit(branch)
        assert (fence.status, [blocker.reason for blocker in fence.blockers]) == ("waiting", ["unknown"])
        assert {effect.state for effect in store.effects(branch="loop")} == {"live"}
    store.reconcile(abort="loop", reason="crashed")
    store.compensate(world.handlers())
    inverses = world.calls("inverse")
    assert [call.label for call in inverses] == [f"I{number}" for number in reversed(range(registered))]
    for call in inverses:
        number = int(call.label[1:])
        assert call.args["key"] == f"K{number}"
        assert call.args["seen"] == list(range(number + 1))
    assert world.facts() == {}
    assert len(world.calls("tool")) == ran, "the store ran a tool again"


REGISTER_AND_RUN = """
    import sys
    import effectstore
    from effectstore import Inverse
    from world import World

    store, world, run = effectstore.open(sys.argv[1]), World(sys.argv[2]), sys.argv[3]
    branch = store.branch(f"run-{run}")
    print("ready", flush=True)
    for number in range(100_000):
        effect = branch.register("put", {"key": f"{run}/{number}"}, after=(), inverse=Inverse("put_back", {}))
        world.note("tool", "put", {"key": f"{run}/{number}"})
"""


def test_c18_killed_before_register_returns_the_tool_was_never_called(
    open_store: OpenStore, world: World, child: Child
) -> None:
    """The kill comes at a random moment, mostly within register: whatever ran has its effect with its inverse."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for run in range(8):
        process = child(REGISTER_AND_RUN, run)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.communicate()
    store = open_store()
    effects = list(store.effects())
    registered = {effect.args["key"] for effect in effects}
    ran = [call.label for call in world.calls("tool")]
    assert len(ran) > 8, f"seed {seed}"
    assert set(ran) <= registered, f"seed {seed}"
    assert len(registered) - len(ran) <= 8, f"more than the one call that each kill met, seed {seed}"
    assert all(effect.inverse is not None and effect.outcome == "unknown" for effect in effects)


@pytest.mark.parametrize("known_gone", [True, False])
def test_c18_an_unknown_outcome_stays_unsettled_until_somebody_knows(
    store: Store, world: World, known_gone: bool
) -> None:
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1, report=False)
    branch.abort(reason="crashed")
    report = store.compensate(world.handlers())
    assert (report.unsettled, report.completed, report.clean) == ((effect.id,), (), False)
    if known_gone:
        store.effect(effect.id).close(by="ops", reason="its host was switched off")
    else:
        effect.not_run("it never left the queue")
    report = store.compensate(world.handlers(), rollback=report.rollbacks[0])
    assert (report.unsettled, report.completed, report.clean) == ((), (effect.id,), True)
    assert world.undone() == ["X"]


@pytest.mark.parametrize("happened", [True, False, None])
def test_c18_a_probe_asks_the_world_before_an_unknown_call_is_undone(
    store: Store, world: World, happened: bool | None
) -> None:
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1, report=False)
    branch.abort(reason="crashed")
    asked: list[int] = []

    def probe(args: Any, step: Any) -> bool | None:
        asked.append(step.effect.id)
        return happened

    store.compensate(world.handlers(), probes={"put": probe, "put_back": probe})
    assert set(asked) == {effect.id}
    assert world.undone() == ([] if happened is False else ["X"])


REFUSALS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "unknown type in the arguments": ({"args": {"x": object()}}, PayloadError),
    "unknown type deep in the arguments": ({"args": {"x": [{"y": {1, 2}}]}}, PayloadError),
    "arguments too large": ({"args": {"x": b"\0" * (1 << 21)}}, EffectStoreError),
    "no inverse": ({"inverse": None}, InverseRequiredError),
    "too many keys": ({"writes": [f"k{number}" for number in range(20)]}, LimitExceededError),
    "key too long": ({"writes": "k" * 2000}, LimitExceededError),
}


@pytest.mark.parametrize(("change", "error"), REFUSALS.values(), ids=REFUSALS.keys())
def test_c18_a_refused_register_never_runs_the_tool(
    open_store: OpenStore, world: World, change: dict[str, Any], error: type[Exception]
) -> None:
    store = open_store(limits=Limits(keys=10, key_bytes=1000))
    branch = store.branch("A")
    call = {"args": {"x": 1}, "writes": "X", "inverse": Inverse("put_back", {}), **change}
    run: Callable[[], None] = lambda: world.note("tool", "put", {"key": "X"})  # noqa: E731
    with pytest.raises(error):
        branch.call("put", call.pop("args"), run, **call)
    assert world.calls() == []
    assert list(store.effects()) == []


@pytest.mark.parametrize("if_unknown", ["raise", "run"])
def test_c18_a_started_call_is_not_run_again_unless_told_so(store: Store, world: World, if_unknown: Any) -> None:
    branch = store.branch("A")
    runs: list[int] = []

    def run() -> str:
        runs.append(1)
        if len(runs) == 1:
            raise TimeoutError("no answer")
        return "second"

    def call() -> Any:
        return branch.call(
            "put", {}, run, writes="X", inverse=world.inverse_of("X"), idempotency_key="k", if_unknown=if_unknown
        )

    with pytest.raises(TimeoutError, match="no answer"):
        call()
    (effect,) = store.effects()
    assert effect.outcome == "unknown"
    if if_unknown == "raise":
        with pytest.raises(OutcomeUnknownError) as refusal:
            call()
        assert (refusal.value.effect, len(runs)) == (effect.id, 1)
    else:
        assert (call(), len(runs)) == ("second", 2)
        assert [found.id for found in store.effects()] == [effect.id]


def test_c18_done_may_complete_the_inverse_and_a_lost_done_leaves_none(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    known = branch.register("create", {}, writes="T1", inverse=Inverse("delete"))
    known.done({"id": 7}, inverse=Inverse("delete", {"id": 7}))
    lost = branch.register("create", {"n": 2}, writes="T2", inverse=Inverse("delete"))
    branch.abort(reason="contradicted")
    seen: list[tuple[int, Any, Any]] = []
    store.compensate({"delete": lambda args, step: seen.append((step.effect.id, args, step.effect.args))})
    assert seen == [(lost.id, None, {"n": 2}), (known.id, {"id": 7}, {})]
