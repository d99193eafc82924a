"""C11: the downstream agent never confirms. Silence is no consent, and no wait is for ever; a late answer resumes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import Any

import pytest

from effectstore import Policy, Store
from support import Child, OpenStore
from world import SharedClock, World, blocked_by, members

CONFIRM_WITHIN_S = 2
LEASE_S = 30

AGENT_A = """
    import json, sys, effectstore
    from world import SharedClock, World

    world = World(sys.argv[2])
    with effectstore.open(sys.argv[1], clock=SharedClock(world)) as store:
        print("waits", flush=True)
        report = store.compensate(world.handlers(), agent="a", timeout=300)
        print(json.dumps(report.to_dict()), flush=True)
"""

AGENT_B = """
    import sys, effectstore
    from effectstore import RefusedError
    from world import SharedClock, World

    world = World(sys.argv[2])
    store = effectstore.open(sys.argv[1], clock=SharedClock(world))
    steps = []
    print("ready", flush=True)
    for line in sys.stdin:
        verb, place = line.split()
        try:
            if verb == "work":
                world.put(store.branch("B", agent="b"), "Y", 1, reads="X", label="I2")
            elif verb == "claim":
                steps.append(store.claim("b", lease=30))
                assert steps[-1] is not None
            else:
                step = steps[int(place)]
                if verb == "done":
                    world.put_back(step.args, step)
                    step.complete()
                elif verb == "say-done":
                    step.complete()
                else:
                    step.fail("no way", permanent=verb == "fail-for-good")
            print("ok", flush=True)
        except RefusedError as refused:
            print(refused.code, flush=True)
"""


class Agent:
    """Agent b, in a process of its own, which acts when it is told to."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.start()

    def start(self) -> None:
        self.process = self.child(AGENT_B, stdin=True)
        assert self.hear() == "ready"

    def tell(self, verb: str, place: int = 0) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{verb} {place}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return str(self.process.stdout.readline()).strip() or f"ended: {self.process.communicate()[1]}"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


class Scene:
    """E1[A] w{X} of agent a, E2[B] r{X} of agent b, whose process registers it; then A is aborted."""

    def __init__(self, open_store: OpenStore, world: World, child: Child) -> None:
        self.open_store, self.world, self.child = open_store, world, child
        self.clock = SharedClock(world)
        self.store = self.open()
        a = self.store.branch("A", agent="a")
        self.e1 = world.put(a, "X", 1, label="I1").id
        self.b = Agent(child)
        assert self.b.tell("work") == "ok"
        (e2,) = self.store.effects(branch="B")
        self.e2 = e2.id
        rollback = a.abort(reason="contradicted").rollback
        assert rollback is not None
        self.rollback = rollback.id

    def open(self) -> Store:
        return self.open_store(clock=self.clock, policy=Policy(confirm_within=CONFIRM_WITHIN_S))

    def reopen(self) -> None:
        self.store.close()
        self.store = self.open()

    def compensate(self) -> Any:
        """What agent a may do now; it runs I1 and nothing else."""
        report = self.store.compensate(self.world.handlers(), rollback=self.rollback, agent="a")
        assert members(report) == sorted([self.e1, self.e2])
        return report

    def assert_unconfirmed(self) -> None:
        report = self.compensate()
        assert [(failure.effect, failure.kind, failure.agent) for failure in report.failed] == [
            (self.e2, "unconfirmed", "b")
        ]
        assert (blocked_by(report), report.clean, report.downstream_confirmed) == ({self.e1: {self.e2}}, False, False)
        assert self.world.undone() == [], "a time-out is taken as consent"

    def assert_confirmed(self) -> None:
        report = self.compensate()
        assert (report.completed, report.clean, report.downstream_confirmed) == ((self.e1, self.e2), True, True)
        assert (self.world.undone(), self.world["X"], self.world["Y"]) == (["I2", "I1"], None, None)


@pytest.fixture
def scene(open_store: OpenStore, world: World, child: Child) -> Scene:
    return Scene(open_store, world, child)


def waiting_agent(scene: Scene) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = scene.child(AGENT_A)
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


def test_c11_compensate_waits_for_the_limit_and_returns_at_it(scene: Scene) -> None:
    waits = waiting_agent(scene)
    scene.clock.advance(CONFIRM_WITHIN_S - 0.5)
    time.sleep(0.3)
    assert waits.poll() is None, "it has given up before the limit"
    assert scene.world.undone() == []
    scene.clock.advance(0.5)
    output, error = waits.communicate(timeout=30)
    assert output, error
    report = json.loads(output)
    assert [(failure["effect"], failure["kind"]) for failure in report["failed"]] == [(scene.e2, "unconfirmed")]
    assert [item["effect"] for item in report["blocked"]] == [scene.e1]
    assert (report["clean"], report["downstream_confirmed"]) == (False, False)
    assert scene.world.undone() == []


def test_c11_who_waits_is_killed_and_the_limit_runs_on(scene: Scene) -> None:
    waits = waiting_agent(scene)
    scene.clock.advance(1)
    waits.kill()
    waits.communicate()
    scene.reopen()
    report = scene.compensate()
    assert (report.failed, set(report.pending), scene.world.undone()) == ((), {scene.e1, scene.e2}, [])
    scene.clock.advance(1)
    scene.assert_unconfirmed()
    (alert,) = scene.store.alerts()
    assert (alert.severity, alert.ref) == ("critical", scene.rollback)


@pytest.mark.parametrize("answer", ["fail", "fail-for-good"])
@pytest.mark.parametrize("killed", ["whoever waits", "the silent agent", "both"])
def test_c11_stale_failed_done_and_done_again(scene: Scene, killed: str, answer: str) -> None:
    b = scene.b
    assert b.tell("claim") == "ok"
    if killed == "the silent agent":
        b.kill()  # Its claim ends with it, and its answer never comes.
    else:
        scene.clock.advance(LEASE_S)  # It holds a claim whose lease is over.
    scene.store.tick()
    scene.clock.advance(CONFIRM_WITHIN_S)
    scene.assert_unconfirmed()
    if killed != "the silent agent":
        waits = waiting_agent(scene)
        waits.kill()
        waits.communicate()
        scene.reopen()
        scene.assert_unconfirmed()

        # (i) A stale token is refused, and on record.
        before = max(record.seq for record in scene.store.log())
        assert b.tell("say-done", 0) == "lease_lost"
        assert [record.kind for record in scene.store.log(since=before)].count("refused") == 1
        scene.assert_unconfirmed()
    if killed == "both":
        b.kill()
    if killed != "whoever waits":
        b.start()
        scene.reopen()
    held = 1 if killed == "whoever waits" else 0

    # (ii) A failure is an answer, and no confirmation.
    assert b.tell("claim") == "ok"
    assert b.tell(answer, held) == "ok"
    report = scene.compensate()
    assert (report.clean, report.downstream_confirmed, scene.world.undone()) == (False, False, [])
    rollback = scene.store.rollback(scene.rollback)
    if answer == "fail-for-good":
        assert [(failure.effect, failure.kind) for failure in report.failed] == [(scene.e2, "permanent")]
        assert blocked_by(report) == {scene.e1: {scene.e2}}
        rollback.retry(scene.e2, by="ops", reason="the tool is mended")

    # (iii) Done resumes what waited.
    assert b.tell("claim") == "ok"
    assert b.tell("done", held + 1) == "ok"
    scene.assert_confirmed()

    # (iv) Done again changes nothing.
    assert b.tell("say-done", held + 1) != "ok"
    scene.reopen()
    scene.assert_confirmed()
    assert scene.store.rollback(scene.rollback).state == "in_review"
    scene.store.verify()
