"""C5: a compensation that is killed goes on where it stood: same order, same keys, one report."""

from __future__ import annotations

import random
import signal
import time

import pytest

from effectstore import Policy, Retry, Store
from support import Child, OpenStore, rest_of
from world import World, ids

# Attempts are counted over restarts, and a killed one counts: more are allowed than a test kills.
PATIENT = Retry(max_attempts=100, delay=0.0, backoff=1.0, max_delay=0.0, jitter=0.0)

COMPENSATE = """
    import os, signal, sys
    import effectstore
    from world import World

    store, world = effectstore.open(sys.argv[1]), World(sys.argv[2])
    rollback, point = int(sys.argv[3]), sys.argv[4]

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def put_back(args, step):
        if point == "before I2" and args["label"] == "I2":
            die()
        world.put_back(args, step)
        if point == f"after {args['label']} changed the world":
            die()

    if point == "after the last outcome":
        while (step := store.claim("a")) is not None:
            world.put_back(step.args, step)
            step.complete()
        die()
    print("ready", flush=True)
    store.compensate({"put_back": put_back}, rollback=rollback)
    print("done", flush=True)
"""


def chain(store: Store, world: World, length: int = 3) -> tuple[int, set[int]]:
    """A chain in one branch, aborted; answers the rollback and its members."""
    branch = store.branch("A", agent="a")
    effects = []
    for number in range(1, length + 1):
        undo = world.inverse_of(f"K{number}", f"I{number}", retry=PATIENT)
        effects.append(world.put(branch, f"K{number}", number, inverse=undo))
    answer = branch.abort(reason="contradicted")
    assert answer.rollback is not None
    return answer.rollback.id, ids(*effects)


@pytest.mark.parametrize(
    ("point", "repeated"),
    [
        ("after I3 changed the world", "I3"),
        ("after I2 changed the world", "I2"),
        ("after I1 changed the world", "I1"),
        ("before I2", None),
        ("after the last outcome", None),
    ],
)
@pytest.mark.parametrize("kills", [1, 3])
def test_c05_killed_compensation_resumes_at_the_cursor(
    open_store: OpenStore, world: World, child: Child, point: str, repeated: str | None, kills: int
) -> None:
    store = open_store()
    rollback, effects = chain(store, world)
    store.close()
    for _ in range(kills):
        process = child(COMPENSATE, rollback, point)
        output = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, output

    store = open_store()
    report = store.compensate(world.handlers(), rollback=rollback)
    assert (report.rollbacks, set(report.completed), report.clean) == ((rollback,), effects, True)
    undone = world.undone()
    assert list(dict.fromkeys(undone)) == ["I3", "I2", "I1"]
    assert undone == sorted(undone, reverse=True)
    calls = world.calls("inverse")
    for label in ("I1", "I2", "I3"):
        attempts = [call for call in calls if call.label == label]
        assert len({call.idempotency_key for call in attempts}) == 1
        assert len(attempts) == (kills + 1 if label == repeated else 1)
        if label == repeated:
            assert [call.attempt for call in attempts] == list(range(1, kills + 2))
    assert world.facts() == {}


def test_c05_an_extra_call_returns_the_report_and_invokes_nothing(open_store: OpenStore, world: World) -> None:
    store = open_store()
    rollback, effects = chain(store, world)
    first = store.compensate(world.handlers(), rollback=rollback)
    store.close()
    for _ in range(3):
        store = open_store()
        again = store.compensate(world.handlers(), rollback=rollback)
        assert (set(again.completed), again.clean, again.rollbacks) == (effects, True, first.rollbacks)
        assert store.compensate(world.handlers()).failed == ()
        store.close()
    assert world.undone() == ["I3", "I2", "I1"]


def test_c05_killed_compensation_at_random_points_ends_with_one_report(
    open_store: OpenStore, world: World, child: Child
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    store = open_store(policy=Policy(auto_keys=1000))
    rollback, effects = chain(store, world, length=60)
    store.close()
    kills = 0
    for _ in range(30):
        process = child(COMPENSATE, rollback, "never")
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(chance.uniform(0.0, 0.03))
        process.kill()
        kills += rest_of(process) == ""
    store = open_store()
    report = store.compensate(world.handlers(), rollback=rollback)
    assert (set(report.completed), report.clean) == (effects, True), f"seed {seed}"
    undone = [int(label[1:]) for label in world.undone()]
    assert undone == sorted(undone, reverse=True), f"seed {seed}"
    assert len(undone) <= len(effects) + kills, f"more repeats than kills, seed {seed}"
    assert world.facts() == {}
    assert [found.id for found in store.rollbacks()] == [rollback]
