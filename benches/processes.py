"""What several processes on one store cost each other, as JSON and as a Markdown table.

    python benches/processes.py --dir DIR [--long] [--json FILE] [join] [writers]

`join`: processes that were idle while others wrote many records register, one after the other, while another process
writes in a loop. Asked: its worst wait during a join is a few milliseconds (no more than its ordinary worst plus 5 ms).
`writers`: two processes against two threads of one process, and one thread alone, in interleaved rounds. Asked: at
least 0.9 of the threads' throughput, and of two looping processes none waits longer than 20 times the mean.

DIR must not be a tmpfs: a flush costs nothing there. `--long` is a million records and 20 rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import effectstore
from effectstore import Effect, Inverse, Limits, Registration, Store

Waits = list[tuple[float, float]]
"""When a call began, by the clock that all processes share, and how long it took; in seconds."""

INVERSE = Inverse("unset", {})
WAYS = ("alone", "threads", "processes")

LEAVE_OUT_S = 0.3
"""A loop's first calls are left out: whoever was idle catches up then."""


def register(store: Store, name: str, until: float) -> Waits:
    """Register in a loop; every thousandth call settles what went before, so that memory stays as it is."""
    branch = store.branch(f"{name} {time.monotonic_ns()}")
    waits: Waits = []
    while (began := time.monotonic()) < until:
        branch.register("set", {"n": len(waits)}, after=(), inverse=INVERSE)
        waits.append((began, time.monotonic() - began))
    branch.abort(reason="measured")
    return waits


def serve(path: str) -> None:
    """Do what the lines of the standard input say, and answer each with a line of JSON."""
    with effectstore.open(path) as store:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            verb, number, *times = json.loads(line)
            answer: Any = None
            if verb == "fill":
                fill(store, number)
            elif verb == "loop":
                start, end = times
                time.sleep(max(0.0, start - time.monotonic()))
                lists: list[Waits] = [[] for _ in range(number)]

                def loop(place: int, lists: list[Waits] = lists, end: float = end) -> None:
                    lists[place] = register(store, f"loop {place}", end)

                threads = [threading.Thread(target=loop, args=(place,)) for place in range(1, number)]
                for thread in threads:
                    thread.start()
                loop(0)
                for thread in threads:
                    thread.join()
                answer = lists
            else:
                began = time.monotonic()
                store.branch(f"idle {began}").register("set", after=(), inverse=INVERSE)
                answer = [began, time.monotonic()]
            print(json.dumps(answer), flush=True)


def fill(store: Store, records: int) -> None:
    """At least so many records of settled work: half of it is committed, half never ran."""
    batch = 5_000
    with ThreadPoolExecutor(64) as pool:  # They share flushes.
        for number in range(max(1, round(records / (2 * batch)))):
            branch = store.branch(f"fill {time.monotonic_ns()}")
            calls = [Registration("set", {}, branch=branch, after=(), inverse=INVERSE) for _ in range(batch)]
            settle = Effect.not_run if number % 2 else Effect.done
            list(pool.map(lambda effect, settle=settle: settle(effect, "history"), store.register_many(calls)))
            store.commit(branch)


class Process:
    """A process that serves."""

    def __init__(self, store: Path) -> None:
        command = [sys.executable, __file__, "--serve", str(store)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hear()

    def tell(self, *words: Any) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(words) + "\n")
        self.child.stdin.flush()

    def hear(self) -> Any:
        assert self.child.stdout is not None
        return json.loads(self.child.stdout.readline())

    def end(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait()


def new_store(at: Path, name: str) -> Path:
    with effectstore.open(at / name, limits=Limits(live_effects=10_000_000)):
        return at / name


def measure_join(at: Path, records: int, joins: int) -> dict[str, Any]:
    """The writer's worst waits while processes join, and otherwise."""
    path = new_store(at, "join")
    with contextlib.ExitStack() as stack:
        idle = [Process(path) for _ in range(joins)]
        writer = Process(path)
        for process in [*idle, writer]:
            stack.callback(process.end)
        writer.tell("fill", records)
        writer.hear()
        with effectstore.open(path, read_only=True) as look:
            made = look.metrics().storage.records
        rows = []
        for process in idle:
            start = time.monotonic() + 0.1
            # It goes on for as long as a join may take, and is measured alone before and after.
            writer.tell("loop", 1, start, start + 4 + records / 40_000)
            time.sleep(2)
            process.tell("join", 0)
            began, ended = process.hear()
            (waits,) = writer.hear()
            waits = [(at, took) for at, took in waits if at > start + LEAVE_OUT_S]
            during = [took for at, took in waits if at + took > began and at < ended]
            other = [took for at, took in waits if at + took <= began or at >= ended]
            rows.append({"join_s": ended - began, "during_s": max(during), "ordinary_s": max(other), "n": len(during)})
    return {
        "records": made,
        "joins": rows,
        "worst_during_join_ms": 1e3 * max(row["during_s"] for row in rows),
        "worst_otherwise_ms": 1e3 * max(row["ordinary_s"] for row in rows),
        "longest_join_s": max(row["join_s"] for row in rows),
    }


def measure_writers(at: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """One thread, two threads of its process, and two processes on a store of their own, in turn."""
    shared, own = new_store(at, "threads"), new_store(at, "processes")
    with contextlib.ExitStack() as stack:
        threads, first, second = Process(shared), Process(own), Process(own)
        for process in (threads, first, second):
            stack.callback(process.end)
        rows = []
        for number in range(rounds):
            row: dict[str, Any] = {}
            for way in WAYS if number % 2 else WAYS[::-1]:
                start = time.monotonic() + 0.05
                told = {"threads": [(threads, 2)], "alone": [(threads, 1)], "processes": [(first, 1), (second, 1)]}[way]
                for process, count in told:
                    process.tell("loop", count, start, start + LEAVE_OUT_S + seconds)
                lists = [waits for process, _ in told for waits in process.hear()]
                took = [[one for began, one in waits if began > start + LEAVE_OUT_S] for waits in lists]
                row[way] = sum(map(len, took)) / seconds
                row[f"{way}_mean_s"] = statistics.fmean(one for waits in took for one in waits)
                row[f"{way}_worst_s"] = max(one for waits in took for one in waits)
                row[f"{way}_share"] = min(map(len, took)) / max(map(len, took))
            rows.append(row)
    mean = statistics.fmean(row["processes_mean_s"] for row in rows)
    return {
        "rounds": rows,
        "threads_per_s": statistics.median(row["threads"] for row in rows),
        "alone_per_s": statistics.median(row["alone"] for row in rows),
        "processes_per_s": statistics.median(row["processes"] for row in rows),
        "ratio_to_alone": statistics.median(row["processes"] / row["alone"] for row in rows),
        "ratio": statistics.median(row["processes"] / row["threads"] for row in rows),
        "mean_wait_ms": 1e3 * mean,
        "worst_wait_ms": 1e3 * max(row["processes_worst_s"] for row in rows),
        "worst_by_mean": max(row["processes_worst_s"] for row in rows) / mean,
        "worst_by_mean_of_threads": max(row["threads_worst_s"] / row["threads_mean_s"] for row in rows),
        "smallest_share": min(row["processes_share"] for row in rows),
    }


def table(found: dict[str, Any]) -> str:
    rows = ["| measure | found | asked |", "|---|---:|---|"]
    if join := found.get("join"):
        count = f"{join['records']:,} records"
        rows += [
            f"| worst wait while one joins, idle for {count} | {join['worst_during_join_ms']:.1f} ms | a few ms |",
            f"| its worst wait otherwise | {join['worst_otherwise_ms']:.1f} ms | |",
            f"| longest such join | {join['longest_join_s']:.2f} s | |",
        ]
    if writers := found.get("writers"):
        rows += [
            f"| registers a second, one thread alone | {writers['alone_per_s']:.0f} | |",
            f"| registers a second, two threads | {writers['threads_per_s']:.0f} | |",
            f"| registers a second, two processes | {writers['processes_per_s']:.0f} | |",
            f"| processes against threads | {writers['ratio']:.2f} | >= 0.9 |",
            f"| processes against one thread alone | {writers['ratio_to_alone']:.2f} | |",
            f"| worst wait against the mean, two processes | {writers['worst_by_mean']:.1f} | <= 20 |",
            f"| the same, two threads | {writers['worst_by_mean_of_threads']:.1f} | |",
        ]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["join", "writers", []], help="default: both")
    parser.add_argument("--dir", default=None, help="where the stores go (default: the temporary directory)")
    parser.add_argument("--long", action="store_true", help="a million records, 20 rounds")
    parser.add_argument("--records", type=int, default=None, help="records that a joining process has not seen")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one way's turn in a round")
    parser.add_argument("--json", default=None, help="write everything to this file")
    parser.add_argument("--serve", default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
        return
    what = given.what or ["join", "writers"]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="processes-", dir=given.dir) as at:
        if "join" in what:
            records = given.records or (1_000_000 if given.long else 50_000)
            found["join"] = measure_join(Path(at), records, 3)
        if "writers" in what:
            rounds = given.rounds or (20 if given.long else 4)
            found["writers"] = measure_writers(Path(at), rounds, given.seconds)
    if given.json is not None:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
