"""Reliability case 12: commit racing abort and reconcile racing reconcile, from processes. One decision each time.

`EFFECTSTORE_RACES=10000` plays the long form. The racers are two processes that live as long as the test; they meet at
a barrier in a shared page, so that a try costs little more than its decisions.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effectstore import Branch, Inverse, Registration, Store
from support import OpenStore

RACES = int(os.environ.get("EFFECTSTORE_RACES", "300"))
AT_ONCE = 50
"""Races that are prepared together: their registrations and reports share flushes."""

Answer = tuple[str, int, int]
"""What a racer was told: "decided" with the numbers of committed and doomed effects, or the refusal."""

RACER = textwrap.dedent("""
    import json, mmap, os, random, sys
    import effectstore

    own = int(sys.argv[3])
    chance = random.Random(own)
    with open(sys.argv[2], "r+b") as file:
        # A count of turns for each racer, on cache lines of their own.
        turns = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")

    def meet(turn):
        turns[own * 8] = turn
        while turns[(1 - own) * 8] < turn:
            os.sched_yield()
        for _ in range(chance.randrange(2000)):  # Neither is always first.
            pass

    with effectstore.open(sys.argv[1]) as store:
        print("ready", flush=True)
        turn = 0
        for line in sys.stdin:
            answers = []
            for verb, winner, loser in json.loads(line):
                turn += 1
                meet(turn)
                try:
                    if verb == "commit":
                        done = store.reconcile(commit=winner, closure=True, by="racer")
                    elif verb == "abort":
                        done = store.reconcile(abort=loser, reason="racer")
                    else:
                        done = store.reconcile(commit=winner, abort=loser, closure=True, by="racer", reason="racer")
                    answers.append(["decided", len(done.committed), len(done.doomed) + len(done.cascaded)])
                except effectstore.RefusedError as refused:
                    answers.append([refused.code, 0, 0])
            print(json.dumps(answers), flush=True)
""")


class Racer:
    """A process that decides what it is told to, each time at once with the other one."""

    def __init__(self, path: Path, page: Path, own: int) -> None:
        command = [sys.executable, "-c", RACER, str(path), str(page), str(own)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.hear() == "ready"

    def tell(self, races: list[tuple[str, str, str]]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(races) + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answers(self) -> list[Answer]:
        return [(kind, committed, doomed) for kind, committed, doomed in json.loads(self.hear())]


@pytest.fixture
def racers(open_store: OpenStore, tmp_path: Path) -> Iterator[tuple[Racer, Racer]]:
    open_store("store")
    page = tmp_path / "barrier"
    page.write_bytes(bytes(mmap.PAGESIZE))
    pair = Racer(tmp_path / "store", page, 0), Racer(tmp_path / "store", page, 1)
    yield pair
    for racer in pair:
        racer.process.kill()
        racer.process.communicate()


def prepared(store: Store, pool: ThreadPoolExecutor, names: list[str]) -> list[Branch]:
    """A branch of two finished calls for each name."""
    branches = list(pool.map(store.branch, names))
    inverse = Inverse("unset", {})
    calls = [
        Registration("set", {}, branch=branch, writes=f"{branch.name}/{number}", inverse=inverse)
        for branch in branches
        for number in range(2)
    ]
    list(pool.map(lambda effect: effect.done(None), store.register_many(calls)))
    return branches


def states(store: Store, branch: Branch) -> set[str]:
    found = {effect.state for effect in store.effects(branch=branch.name, since=branch.id, limit=2)}
    assert found
    return found


def turns() -> Iterator[range]:
    for first in range(0, RACES, AT_ONCE):
        yield range(first, min(first + AT_ONCE, RACES))


def won(answer: Answer) -> bool:
    return answer[0] == "decided" and answer[1:] != (0, 0)


def test_commit_racing_abort_from_processes_makes_one_decision(
    open_store: OpenStore, racers: tuple[Racer, Racer]
) -> None:
    store, ends = open_store("store"), set()
    with ThreadPoolExecutor(16) as pool:
        for some in turns():
            branches = prepared(store, pool, [f"B{turn}" for turn in some])
            for place, racer in enumerate(racers):
                verbs = ["commit" if (turn + place) % 2 else "abort" for turn in some]
                racer.tell([(verb, one.name, one.name) for verb, one in zip(verbs, branches, strict=True)])
            for branch, *answers in zip(branches, *[racer.answers() for racer in racers], strict=True):
                found = states(store, branch)
                assert found in ({"committed"}, {"doomed"}), f"{found} after {answers}"
                assert sum(map(won, answers)) == 1, answers
                ends |= found
    store.verify()
    assert ends <= {"committed", "doomed"}


def test_reconcile_racing_reconcile_from_processes_makes_one_decision(
    open_store: OpenStore, racers: tuple[Racer, Racer]
) -> None:
    store = open_store("store")
    with ThreadPoolExecutor(16) as pool:
        for some in turns():
            left = prepared(store, pool, [f"L{turn}" for turn in some])
            right = prepared(store, pool, [f"R{turn}" for turn in some])
            pairs = [(one.name, other.name) for one, other in zip(left, right, strict=True)]
            racers[0].tell([("settle", one, other) for one, other in pairs])
            racers[1].tell([("settle", other, one) for one, other in pairs])
            told = [racer.answers() for racer in racers]
            for one, other, *answers in zip(left, right, *told, strict=True):
                found = states(store, one), states(store, other)
                assert found in (({"committed"}, {"doomed"}), ({"doomed"}, {"committed"})), f"{found} after {answers}"
                assert sorted(won(answer) for answer in answers) == [False, True], answers
    store.verify()
