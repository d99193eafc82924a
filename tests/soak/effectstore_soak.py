"""effectstore-soak: several processes write at random to one store and are killed; nothing acknowledged may be lost.

    python tests/soak/effectstore_soak.py --kills 500 --acks 50000 --json soak.json --markdown benches/SOAK.md

An oracle outside of the store knows what was acknowledged (see `workers.py`). At the end the log is read from its
first record to the last and must hold all of it: every acknowledged registration under its number and key, no number
twice, every outcome, every decision whole; effects that are committed rest on committed ones only, what rests on
doomed ones is doomed. Then `verify` replays it. The seed is printed; the exit code is 0 if nothing was found.

The processes are forked from this one, which has loaded everything and has no store open: a kill costs a fork and an
opening, not a start of the interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "format"))

import workers  # noqa: E402
from read_store import member_set  # noqa: E402

import effectstore  # noqa: E402

SAY_EVERY_S = 20
"""How often a long run says how far it is."""


@dataclass
class Worker:
    """A process, and what it told so far."""

    role: str
    seed: int
    pid: int
    told: Path
    read: int = 0
    stopped_until: float | None = None

    def has_ended(self) -> bool:
        return os.waitpid(self.pid, os.WNOHANG) != (0, 0)

    def error(self) -> str:
        """What it wrote to its standard error."""
        return self.told.with_suffix(".error").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@dataclass
class Oracle:
    """What was acknowledged."""

    acks: int = 0
    effects: dict[int, tuple[str, str]] = field(default_factory=dict)
    branches: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    not_run: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    doomed: set[int] = field(default_factory=set)
    completed: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    longest: dict[str, float] = field(default_factory=dict)
    """The longest call of each verb, in seconds."""

    def hear(self, what: list[Any]) -> None:
        kind, *rest = what
        if kind == "took":
            verb, seconds = rest
            self.longest[verb] = max(self.longest.get(verb, 0.0), seconds)
            return
        self.kinds[kind] += 1
        self.acks += kind not in ("busy", "refused")
        if kind == "effect":
            number, key, branch = rest
            if number in self.effects or number in self.branches:
                self.faults.append(f"number {number} was given twice")
            self.effects[number] = (key, branch)
        elif kind == "branch":
            if rest[0] in self.effects or rest[0] in self.branches:
                self.faults.append(f"number {rest[0]} was given twice")
            self.branches[rest[0]] = rest[1]
        elif kind in ("done", "not_run"):
            getattr(self, kind).add(rest[0])
        elif kind == "fence" and rest[1] == "committed":
            self.committed.update(rest[2])
        elif kind == "doomed":
            self.doomed.update(rest[0])
        elif kind in ("completed", "resolved"):
            self.completed[rest[0]] += 1


class Soak:
    """The run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.oracle = Oracle()
        self.path = Path(options.store)
        self.started = self.kills = self.stops = 0
        # Attempts are used up by kills, and nobody is there to approve.
        retry = effectstore.Retry(max_attempts=1_000_000, delay=0.0)
        policy = effectstore.Policy(auto_keys=1_000_000, retry=retry)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        effectstore.open(self.path, policy=policy).close()
        self.workers = [self.start("write", "none") for _ in range(options.writers)]
        self.workers += [self.start("read", "none") for _ in range(options.readers)]

    def start(self, role: str, earlier: str) -> Worker:
        self.started += 1
        seed = self.options.seed * 100_000 + self.started
        told = self.path.parent / f"told.{self.started}"
        told.touch()
        pid = os.fork()
        if pid == 0:
            self.work(role, told, seed, earlier)
        return Worker(role, seed, pid, told)

    def work(self, role: str, told: Path, seed: int, earlier: str) -> NoReturn:
        """Be the child; it must leave without the parent's clean-up."""
        try:
            error = os.open(told.with_suffix(".error"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(error, 2)
            workers.run(role, self.path, told, seed, earlier)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def hear(self, worker: Worker) -> None:
        with worker.told.open("rb") as file:
            file.seek(worker.read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        worker.read += len(whole)
        for line in whole.splitlines():
            self.oracle.hear(json.loads(line))

    def run(self) -> None:
        options, next_kill, began = self.options, 0, time.monotonic()
        said = began
        while self.kills < options.kills or self.oracle.acks < options.acks:
            time.sleep(0.01)
            now = time.monotonic()
            for place, worker in enumerate(self.workers):
                self.hear(worker)
                if worker.stopped_until is not None and now >= worker.stopped_until:
                    os.kill(worker.pid, signal.SIGCONT)
                    worker.stopped_until = None
                if worker.has_ended():
                    self.oracle.faults.append(f"{worker.role} {worker.seed} ended by itself: {worker.error()[-2000:]}")
                    self.workers[place] = self.start(worker.role, f"w{worker.seed}")
            if len(self.oracle.faults) > 5 or now - began > options.seconds:
                break
            if self.oracle.acks >= next_kill and self.kills < options.kills:
                self.hit()
                share = max(options.acks, 1) / max(options.kills, 1)
                next_kill = self.oracle.acks + self.chance.uniform(0.2, 1.8) * share
            if now - said > SAY_EVERY_S:
                said = now
                print(f"{now - began:.0f} s: {self.oracle.acks} acknowledged, {self.kills} kills", flush=True)
        self.seconds = time.monotonic() - began
        while self.workers:
            self.end(self.workers.pop())

    def hit(self) -> None:
        """Kill a process, or stop it for a while, which the others must survive as well."""
        place = self.chance.randrange(len(self.workers) if self.chance.random() < 0.05 else self.options.writers)
        worker = self.workers[place]
        if self.chance.random() < self.options.stops and worker.stopped_until is None:
            os.kill(worker.pid, signal.SIGSTOP)
            worker.stopped_until = time.monotonic() + self.chance.uniform(0.05, 1.5)
            self.stops += 1
            return
        self.end(worker)
        self.kills += 1
        self.workers[place] = self.start(worker.role, f"w{worker.seed}")

    def end(self, worker: Worker) -> None:
        worker.kill()
        self.hear(worker)

    def check(self) -> dict[str, int]:
        """Read the log from its first record on and compare."""
        oracle, faults = self.oracle, self.oracle.faults
        edges: dict[int, set[int]] = {}
        keys: dict[int, str] = {}
        state: dict[int, str] = {}
        done: set[int] = set()
        completed: Counter[int] = Counter()
        names: dict[int, str] = {}
        seen = 0
        with effectstore.open(self.path) as store:
            for record in store.log():
                if record.seq != seen + 1:
                    faults.append(f"record {record.seq} follows {seen}")
                seen = record.seq
                index, fields = record.body[4]
                if index == 9:
                    told = fields[0]
                    gaps, last = told.get(3, []), 0
                    below = set()
                    for gap in gaps:
                        last += gap
                        below.add(last)
                    edges[seen], state[seen] = below, "live"
                    keys[seen] = told[2].get(8, b"").decode()
                elif index == 4:
                    names[seen] = fields[0]
                elif index == 12:
                    edges[fields[0]].update(listed(fields[2]))
                elif index == 13:
                    done.add(fields[0])
                    edges[fields[0]].update(listed(fields[3]) if len(fields) > 3 else ())
                elif index == 14 and state[fields[0]] == "live":
                    state[fields[0]] = "void"
                elif index == 20:
                    self.settle(state, member_set(fields[1], f"record {seen}"), "committed")
                elif index == 22:
                    self.settle(state, member_set(fields[0][0], f"record {seen}"), "doomed")
                elif index in (24, 30):
                    completed[fields[0]] += 1
            verified = store.verify()
        for effect, below in edges.items():
            wrong = {"committed": ("live", "doomed"), "live": ("doomed",)}.get(state[effect], ())
            faults += [f"{effect} is {state[effect]} on {one}, {state[one]}" for one in below if state[one] in wrong]
        faults += [f"effect {one} is lost" for one, (key, _) in oracle.effects.items() if keys.get(one) != key]
        faults += [f"branch {one} is lost" for one, name in oracle.branches.items() if names.get(one) != name]
        faults += [f"the outcome of {one} is lost" for one in oracle.done - done]
        faults += [f"{one} is not committed" for one in oracle.committed if state[one] != "committed"]
        faults += [f"{one} is not doomed" for one in oracle.doomed if state[one] != "doomed"]
        faults += [f"{one} is {state[one]}" for one in oracle.not_run if state[one] == "committed"]
        faults += [f"the undo of {one} is lost" for one, n in oracle.completed.items() if completed[one] < n]
        doubled = [key for key, count in Counter(key for key in keys.values() if key).items() if count > 1]
        faults += [f"key {key} was registered twice" for key in doubled if not self.freed(key, keys, state)]
        return {"records": verified.records, **Counter(state.values())}

    @staticmethod
    def freed(key: str, keys: dict[int, str], state: dict[int, str]) -> bool:
        return sum(state[effect] != "void" for effect, known in keys.items() if known == key) <= 1

    def settle(self, state: dict[int, str], members: list[int], to: str) -> None:
        for member in members:
            if state[member] not in ("live", to):
                self.oracle.faults.append(f"{member} went from {state[member]} to {to}")
            state[member] = to


def listed(gaps: list[int]) -> set[int]:
    """Ascending ids, written as gaps."""
    last, ids = 0, set()
    for gap in gaps:
        last += gap
        ids.add(last)
    return ids


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10, help="kill so many (default 10; the long form: 500)")
    parser.add_argument("--acks", type=int, default=1_000, help="go on for so many acknowledgements (long: 50000)")
    parser.add_argument("--stops", type=float, default=0.1, help="share of hits that stop for a while instead")
    parser.add_argument("--seconds", type=float, default=3_600, help="give up after so long")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", default=None, help="write the results to this file")
    parser.add_argument("--markdown", default=None, help="write them there as a table")
    parser.add_argument("--store", default=None, help="a directory that is not there yet; a temporary one by default")
    given = parser.parse_args()
    if given.seed is None:
        given.seed = random.SystemRandom().randrange(1_000_000)
    if given.store is None:
        given.store = str(Path(tempfile.mkdtemp(prefix="soak-")) / "store")
    return given


def main() -> int:
    options = arguments()
    print(f"seed {options.seed}, store {options.store}", flush=True)
    soak = Soak(options)
    try:
        soak.run()
    finally:
        for worker in soak.workers:
            with contextlib.suppress(OSError):  # It may have ended by itself.
                worker.kill()
    found = soak.check()
    oracle = soak.oracle
    print(
        f"{oracle.acks} acknowledgements, {soak.kills} kills, {soak.stops} stops, {soak.started} processes,"
        f" {soak.seconds:.0f} s, {oracle.kinds['busy']} times busy"
    )
    print("told: " + ", ".join(f"{kind} {count}" for kind, count in sorted(oracle.kinds.items())))
    print("found: " + ", ".join(f"{kind} {count}" for kind, count in sorted(found.items())))
    for fault in oracle.faults[:20]:
        print(f"FAULT: {fault}")
    print("nothing lost, nothing twice, nothing half" if not oracle.faults else f"{len(oracle.faults)} faults")
    told = results(soak, found)
    if options.json is not None:
        Path(options.json).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    if options.markdown is not None:
        Path(options.markdown).write_text(page(told), encoding="utf-8")
    return 1 if oracle.faults else 0


def results(soak: Soak, found: dict[str, int]) -> dict[str, Any]:
    """What a run comes to, for a file."""
    oracle, options = soak.oracle, soak.options
    return {
        "seed": options.seed,
        "writers": options.writers,
        "readers": options.readers,
        "seconds": round(soak.seconds, 1),
        "kills": soak.kills,
        "stops": soak.stops,
        "openings": soak.started,
        "acknowledgements": oracle.acks,
        "busy": oracle.kinds["busy"],
        "told": dict(sorted(oracle.kinds.items())),
        "found": dict(sorted(found.items())),
        "longest_s": {verb: round(took, 4) for verb, took in sorted(oracle.longest.items())},
        "faults": oracle.faults,
        "verdict": "faults" if oracle.faults else "nothing lost, nothing twice, nothing half",
    }


def page(told: dict[str, Any]) -> str:
    """The same for people."""
    names = (
        "verdict",
        "seed",
        "writers",
        "readers",
        "seconds",
        "kills",
        "stops",
        "openings",
        "acknowledgements",
        "busy",
    )
    rows = [f"| {name} | {told[name]} |" for name in names]
    rows += [f"| records in the log | {told['found']['records']} |"]
    rows += [f"| longest {verb} | {1e3 * took:.0f} ms |" for verb, took in told["longest_s"].items()]
    faults = "".join(f"- {fault}\n" for fault in told["faults"][:20])
    return "\n".join(
        [
            "# Writers killed at random",
            "",
            "Written by `tests/soak/effectstore_soak.py`. A process stopped in its turn holds the others up for",
            "as long as it is stopped, up to 1.5 s.",
            "",
            "| | |",
            "|---|---|",
            *rows,
            faults,
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
