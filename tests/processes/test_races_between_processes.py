"""Reliability case 12: commit racing abort and reconcile racing reconcile, from processes. One decision each time.

`EFFECTSTORE_RACES=10000` plays the long form.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from effectstore import Branch, Inverse, Store
from support import OpenStore

RACES = int(os.environ.get("EFFECTSTORE_RACES", "40"))

RACER = textwrap.dedent("""
    import sys
    import effectstore

    with effectstore.open(sys.argv[1]) as store:
        print("ready", flush=True)
        for line in sys.stdin:
            verb, winner, loser = line.split()
            try:
                if verb == "commit":
                    done = store.reconcile(commit=winner, closure=True, by="racer")
                elif verb == "abort":
                    done = store.reconcile(abort=loser, reason="racer")
                else:
                    done = store.reconcile(commit=winner, abort=loser, closure=True, by="racer", reason="racer")
                print("decided", len(done.committed), len(done.doomed) + len(done.cascaded), flush=True)
            except effectstore.RefusedError as refused:
                print("refused", refused.code, 0, flush=True)
""")


class Racer:
    """A process that decides when it is told to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", RACER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear() == ["ready"]

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()


@pytest.fixture
def pair(open_store: OpenStore, tmp_path: Path) -> tuple[Store, list[Racer]]:
    store = open_store("store")
    return store, [Racer(tmp_path / "store") for _ in range(2)]


def work(store: Store, name: str) -> Branch:
    branch = store.branch(name)
    for number in range(2):
        key = f"{name}/{number}"
        branch.register("set", {}, writes=key, inverse=Inverse("unset", {})).done(None)
    return branch


def states(store: Store, branch: Branch) -> set[str]:
    return {effect.state for effect in store.effects(since=branch.id, branch=branch, limit=2)}


def test_commit_racing_abort_from_processes_makes_one_decision(pair: tuple[Store, list[Racer]]) -> None:
    store, racers = pair
    ends = set()
    for turn in range(RACES):
        branch = work(store, f"B{turn}")
        for racer, verb in zip(racers if turn % 2 else racers[::-1], ["commit", "abort"], strict=True):
            racer.tell(verb, branch.name, branch.name)
        answers = [racer.hear() for racer in racers]
        found = states(store, branch)
        assert found in ({"committed"}, {"doomed"}), f"{found} after {answers}"
        ends |= found
        said = {kind for kind, committed, doomed in answers if kind == "decided" and (committed, doomed) != ("0", "0")}
        assert said == {"decided"}, answers
        winners = [answer for answer in answers if answer[0] == "decided" and answer[1:] != ["0", "0"]]
        assert len(winners) == 1, answers
    store.verify()
    assert ends <= {"committed", "doomed"}


def test_reconcile_racing_reconcile_from_processes_makes_one_decision(pair: tuple[Store, list[Racer]]) -> None:
    store, racers = pair
    for turn in range(RACES):
        one, other = work(store, f"L{turn}"), work(store, f"R{turn}")
        racers[0].tell("settle", one.name, other.name)
        racers[1].tell("settle", other.name, one.name)
        answers = [racer.hear() for racer in racers]
        found = states(store, one), states(store, other)
        assert found in (({"committed"}, {"doomed"}), ({"doomed"}, {"committed"})), f"{found} after {answers}"
        assert sorted(answer[0] for answer in answers) == ["decided", "refused"], answers
    store.verify()
