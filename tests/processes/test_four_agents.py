"""Four agents in processes of their own undo one rollback: one is slow, one dies, one fails, one never confirms.

A person repairs with the command line until the report is clean, and the story of the rollback tells all of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effectstore import Policy, Store
from support import Child, OpenStore
from world import World, members

STORY = Path(__file__).with_name("four_agents.txt")
AGENTS = ["planner", "deployer", "notifier", "biller"]
"""Slow, dying, failing for good, silent; each reads what the one before wrote."""

AGENT = """
    import os, signal, sys, time, effectstore
    from effectstore import Inverse, PermanentError
    from world import World

    world = World(sys.argv[2])
    name, before, role = sys.argv[3:6]
    with effectstore.open(sys.argv[1]) as store:
        if role != "again":
            branch = store.branch(name, agent=name)
            limitation = "the mail is out" if name == "notifier" else None
            inverse = Inverse("put_back", {"key": name, "value": None, "label": name}, limitation=limitation)
            reads = [before] if before != "-" else []
            # The one that dies has never said how its call ended.
            world.put(branch, name, 1, reads=reads, inverse=inverse, report=name != "deployer")
        print("worked", flush=True)
        sys.stdin.readline()

        def put_back(args, step):
            if name == "planner":
                time.sleep(1)
            elif role == "dies":
                world.put_back(args, step)
                os.kill(os.getpid(), signal.SIGKILL)
            elif name == "notifier" and world["the mail server"] != "mended":
                raise PermanentError("the mail server refuses")
            world.put_back(args, step)

        while role != "silent":
            store.compensate({"put_back": put_back}, agent=name, timeout=1)
            (rollback,) = store.rollbacks()
            if rollback.state in ("in_review", "closed"):
                break
            time.sleep(0.02)
        print("over", flush=True)
        sys.stdin.readline()
"""


class Scene:
    def __init__(self, open_store: OpenStore, world: World, child: Child, path: Path) -> None:
        self.world, self.child, self.path = world, child, path
        open_store(policy=Policy(confirm_within=2.0)).close()
        self.agents: dict[str, Any] = {}
        roles = dict(zip(AGENTS, ["slow", "dies", "fails", "silent"], strict=True))
        for before, name in zip(["-", *AGENTS], AGENTS, strict=False):
            self.start(name, before, roles[name])
        self.effects = {found["branch"]: found["id"] for found in self.cli("graph", code=0)["nodes"]}

    def start(self, name: str, before: str, role: str) -> None:
        agent = self.child(AGENT, name, before, role, stdin=True)
        assert agent.stdout.readline() == "worked\n", agent.communicate()[1]
        self.agents[name] = agent

    def go(self, name: str) -> None:
        self.agents[name].stdin.write("go\n")
        self.agents[name].stdin.flush()

    def cli(self, *words: object, code: int | None = None, text: bool = False) -> Any:
        command = [sys.executable, "-m", "effectstore.cli", *map(str, words), *([] if text else ["--json"])]
        env = {**os.environ, "EFFECTSTORE_PATH": str(self.path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        if text:
            return done.stdout
        found = [json.loads(line) for line in done.stdout.splitlines()]
        listing = words[0] in ("alerts", "rollbacks", "approvals", "review", "log")
        return found if listing else found[0]

    def person(self, *words: object) -> Any:
        """What a person does; it must be possible."""
        return self.cli(*words, "--by", "ops", code=0)

    def report(self) -> dict[str, Any]:
        (rollback,) = self.cli("rollbacks", code=0)
        found: dict[str, Any] = rollback["report"]
        return found

    def until(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not what(report := self.report()):
            assert time.monotonic() < deadline, report
            time.sleep(0.05)
        return report

    def failed(self) -> dict[str, str]:
        names = {effect: name for name, effect in self.effects.items()}
        return {names[failure["effect"]]: failure["kind"] for failure in self.report()["failed"]}


@pytest.mark.timeout(180)
def test_four_agents_end_with_a_clean_report_after_a_persons_repairs(
    open_store: OpenStore, world: World, child: Child, tmp_path: Path
) -> None:
    scene = Scene(open_store, world, child, tmp_path / "store")
    store = open_store()
    answer = store.reconcile(abort="planner", by="judge", reason="the plan was contradicted")
    assert answer.rollback is not None
    rollback = answer.rollback.id
    store.close()

    # What stays behind of the mail makes a person necessary.
    (waiting,) = scene.cli("approvals", code=0)
    scene.person("approve", waiting["id"], "--reason", "undo it all")
    for name in AGENTS:
        scene.go(name)
    dying = scene.agents["deployer"]
    scene.start("deployer", "planner", "again")

    # The one that never confirms: nothing above it is undone, and a person does it by hand.
    scene.until(lambda report: bool(report["failed"]))
    assert (scene.failed(), world.undone()) == ({"biller": "unconfirmed"}, [])
    world["biller"] = None
    scene.person("resolve", scene.effects["biller"], "--reason", "refunded by hand")

    # The one whose inverse fails for good: it is mended, and a person lets it try again.
    scene.until(lambda report: bool(report["failed"]))
    assert scene.failed() == {"notifier": "permanent"}
    world["the mail server"] = "mended"
    scene.person("retry", scene.effects["notifier"], "--reason", "the mail server is mended")

    # The one that dies in the middle of its inverse comes back, and the inverse runs again under its key.
    assert dying.wait(timeout=60) == -signal.SIGKILL
    scene.go("deployer")

    # The slow one ends; what is left is a call of which nobody has said how it ended.
    report = scene.until(lambda report: len(report["completed"]) == 3 and not report["pending"])
    assert (report["unsettled"], report["clean"]) == ([scene.effects["deployer"]], False)
    scene.person("close", scene.effects["deployer"], "--reason", "its machine is gone")

    for alert in scene.cli("alerts", code=0):
        scene.person("ack", alert["id"])
    cause = ["--note", "the advice was out of date", "--remedy", "prompts/42"]
    scene.person("root-cause", rollback, "prompt", *cause)
    for agent in scene.agents.values():
        agent.kill()
        agent.communicate()

    found = check(open_store(), rollback, scene)
    assert found == STORY.read_text(encoding="utf-8")


def check(store: Store, rollback: int, scene: Scene) -> str:
    report = store.rollback(rollback).report
    assert (report.clean, report.downstream_confirmed, store.rollback(rollback).state) == (True, True, "closed")
    assert members(report) == sorted(scene.effects.values())
    assert [alert for alert in store.alerts() if alert.acknowledged_by is None] == []
    assert {name for name in AGENTS if scene.world[name] is not None} == set()
    assert [call.label for call in scene.world.calls("inverse")] == ["notifier", "deployer", "deployer", "planner"]
    store.verify()
    return story(scene.cli("explain", rollback, code=0, text=True), scene)


def story(told: str, scene: Scene) -> str:
    """The tale without moments and numbers of records: alerts, claims and the ends of leases may come in between."""
    names = {str(effect): name for name, effect in scene.effects.items()}
    told = re.sub(r"(?m)^ +\d+  [-\d]+ [:\d]+  ", "- ", told)
    told = re.sub(r"\balert \d+", "alert", told)
    return re.sub(r"\b\d+\b", lambda found: names.get(found[0], found[0]), told)
