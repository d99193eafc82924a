"""C28: what was acknowledged is there after a kill, a decision is there whole, and a flush stands before each answer.

EFFECTSTORE_KILLS sets the number of kills: 40 by default, so that it can run every day; 500 are the case in full
(`EFFECTSTORE_KILLS=500 python -m pytest tests/cases/test_c28_durability.py -k random_kills`). EFFECTSTORE_SEED repeats
a run.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import effectstore
from support import TESTS, Child, OpenStore
from world import World

KILLS = int(os.environ.get("EFFECTSTORE_KILLS", "40"))
KILLS_OF_A_STORE = 20
SEED = int(os.environ.get("EFFECTSTORE_SEED", str(random.randrange(1 << 32))))

# What a killed process did: eight threads, closures of up to 50 effects, each acknowledgement printed once it is there.
WORK = """
    import json, os, random, sys
    from threading import Thread
    import effectstore
    from effectstore import Inverse

    def say(*words):
        sys.stdout.write(" ".join(map(str, words)) + "\\n")
        sys.stdout.flush()

    def work(store, run, chance, thread):
        for turn in range(10_000):
            name = f"{run}-{thread}-{turn}"
            branch = store.branch(name)
            ids = []
            for number in range(chance.randint(1, 50)):
                after = () if not ids else chance.sample(ids, min(len(ids), 3))
                effect = branch.register("put", {"name": name, "n": number}, after=after,
                                         writes=f"{name}/{number}",
                                         inverse=Inverse("put_back", {"name": name, "n": number}))
                tokens = "{}:{}/{}:{}".format(*branch.token, *effect.token)
                say("registered", effect.id, name, number, ",".join(map(str, after)) or "-", tokens)
                effect.done(number)
                ids.append(effect.id)
            fence = store.commit(branch)
            if fence.status == "committed":
                say("committed", fence.id, name, len(ids), ",".join(map(str, sorted(fence.committed))), "-")

    def all_threads(store, run, seed):
        threads = [Thread(target=work, args=(store, run, random.Random(seed * 8 + number), number), daemon=True)
                   for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""

WORKER = f"""{WORK}
    store = effectstore.open(sys.argv[1])
    say("ready")
    all_threads(store, sys.argv[3], int(sys.argv[4]))
"""

# A fork of a process that has loaded everything costs a fraction of a new interpreter, so many kills are affordable.
# The template itself never opens a store.
TEMPLATE = f"""{WORK}
    for line in sys.stdin:
        path, output, run, seed = json.loads(line)
        pid = os.fork()
        if pid == 0:
            told = os.dup(1)
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1)
            store = effectstore.open(path)
            os.write(told, b"ready\\n")
            all_threads(store, run, seed)
            os._exit(1)
        os.write(1, f"{{pid}}\\n".encode())
        os.waitpid(pid, 0)
        os.write(1, b"gone\\n")
"""


def whole_lines(output: str) -> Iterator[list[str]]:
    """The lines that were written whole; the kill may cut the last one."""
    for line in output.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) == 6:
            yield words


def check(store: effectstore.Store, lines: list[list[str]], seed: str) -> None:
    """Everything that was printed is there."""
    found = []
    for kind, number, name, place, others, tokens in lines:
        listed = set() if others == "-" else {int(other) for other in others.split(",")}
        if kind == "registered":
            effect = store.effect(int(number))
            assert effect.inverse is not None, seed
            assert (effect.branch, effect.args) == (name, {"name": name, "n": int(place)}), seed
            assert effect.inverse.args == {"name": name, "n": int(place)}, seed
            assert (set(effect.after), effect.writes) == (listed, (f"{name}/{place}",)), seed
            found.append(effect.id)
            if effect.state == "live":
                of_branch, of_effect = (tuple(map(int, token.split(":"))) for token in tokens.split("/"))
                assert store.join(name, (of_branch[0], of_branch[1])).effect(effect.id).token == of_effect, seed
        else:
            assert len(listed) == int(place), seed
            assert set(store.fence(int(number)).committed) == listed, seed
            assert {store.effect(other).state for other in listed} == {"committed"}, seed
    assert len(set(found)) == len(found), f"an id was given twice, {seed}"


def no_part_of_a_closure(store: effectstore.Store, effects: list[int]) -> None:
    """Once one member is seen committed, every later look at any member says the same."""
    looks = [store.effect(effect).state for effect in effects * 2]
    if "committed" in looks:
        assert set(looks[looks.index("committed") :]) == {"committed"}, f"part of a closure, EFFECTSTORE_SEED={SEED}"


def killed(template: subprocess.Popen[str], store: Path, output: Path, run: str, seed: int, delay: float) -> list[Any]:
    """Let a process work on the store, kill it after the delay, and answer what it had printed by then."""
    assert template.stdin is not None
    assert template.stdout is not None
    print(json.dumps([str(store), str(output), run, seed]), file=template.stdin, flush=True)
    process = int(template.stdout.readline() or "0")
    assert process > 0, template.communicate()[1]
    assert template.stdout.readline() == "ready\n"
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    assert template.stdout.readline() == "gone\n"
    lines = list(whole_lines(output.read_text()))
    output.unlink()
    return lines


def test_c28_acknowledged_is_durable_and_whole_after_random_kills(
    open_store: OpenStore, child: Child, tmp_path: Path
) -> None:
    chance, seed = random.Random(SEED), f"EFFECTSTORE_SEED={SEED}"
    acknowledged = 0
    template = child(TEMPLATE, stdin=True)
    for kill in range(KILLS):
        # What killed workers leave is live for ever and held by whoever opens: a fresh store now and then.
        name = f"store-{kill // KILLS_OF_A_STORE}"
        delay = chance.uniform(0.002, 0.15)
        lines = killed(template, tmp_path / name, tmp_path / "printed", str(kill), SEED + kill, delay)
        acknowledged += len(lines)
        store = open_store(name)
        check(store, lines, seed)
        by_branch: dict[str, set[str]] = {}
        for words in lines:
            if words[0] == "registered":
                by_branch.setdefault(words[2], set()).add(store.effect(int(words[1])).state)
        assert [name for name, states in by_branch.items() if len(states) > 1] == [], f"half committed, {seed}"
        for name in list(by_branch)[-1:]:  # A takeover hands out a new token, and it opens the same work.
            assert {effect.state for effect in store.takeover(name).effects()} >= by_branch[name], seed
        if kill % KILLS_OF_A_STORE == KILLS_OF_A_STORE - 1 or kill == KILLS - 1:
            store.verify()
        store.close()
    assert acknowledged > KILLS, f"the workers did almost nothing, {seed}"


def test_c28_a_second_process_never_sees_part_of_a_closure(open_store: OpenStore, child: Child) -> None:
    writer = child(WORKER, "run", SEED)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n", writer.communicate()[1]
    drain = threading.Thread(target=lambda: list(writer.stdout or ()), daemon=True)
    drain.start()  # A full pipe would stop the writer.
    store = open_store()
    followed: dict[str, list[int]] = {}
    last, until = 0, time.monotonic() + 5
    while time.monotonic() < until:
        for effect in store.effects(since=last, limit=1000):
            last = effect.id
            followed.setdefault(effect.branch, []).append(effect.id)
        for name in list(followed)[-12:]:  # The newest branches are those that are about to be committed.
            no_part_of_a_closure(store, followed[name])
        for fence in list(store.fences())[-5:]:
            assert {store.effect(effect).state for effect in fence.committed} == {"committed"}
    writer.kill()
    drain.join(timeout=30)
    assert len(followed) > 8


FLUSHES = """
    import ctypes, os, sys
    import effectstore
    from effectstore import Inverse

    store = effectstore.open(sys.argv[1])
    branch = store.branch("A")
    mark = getattr(ctypes.CDLL(None), "effectstore_flushes", None) if "shim" in sys.argv else None

    def between(name, call):
        before = mark() if mark else 0
        os.write(1, f"begin {name}\\n".encode())
        answer = call()
        os.write(1, f"end {name} {mark() - before if mark else 0}\\n".encode())
        return answer

    undo = Inverse("put_back", {})
    for number in range(20):
        effect = between(f"register-{number}", lambda: branch.register("put", {}, inverse=undo))
        between(f"done-{number}", lambda: effect.done(None, durable=True))
    between("branch", lambda: store.branch("B").name)
    between("commit", lambda: store.commit(branch))
    doomed = store.branch("C")
    doomed.register("put", {}, inverse=undo, after=()).done(None)
    between("abort", lambda: doomed.abort(reason="contradicted"))
    between("claim", lambda: store.claim("C"))
"""

# Counts what reaches the disk: explicit flushes, and writes through a descriptor that flushes by itself.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

static atomic_int flushes;
int effectstore_flushes(void) { return atomic_load(&flushes); }

static void after_write(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags != -1 && (flags & O_DSYNC)) atomic_fetch_add(&flushes, 1);
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

int fsync(int fd) { REAL(fsync); atomic_fetch_add(&flushes, 1); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); atomic_fetch_add(&flushes, 1); return real(fd); }
int msync(void *at, size_t n, int flags) { REAL(msync); atomic_fetch_add(&flushes, 1); return real(at, n, flags); }
ssize_t write(int fd, const void *from, size_t n) {
    REAL(write); ssize_t r = real(fd, from, n); after_write(fd); return r;
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
    REAL(pwrite); ssize_t r = real(fd, from, n, at); after_write(fd); return r;
}
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) {
    REAL(pwrite64); ssize_t r = real(fd, from, n, at); after_write(fd); return r;
}
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) {
    REAL(pwritev); ssize_t r = real(fd, v, n, at); after_write(fd); return r;
}
"""


def environment() -> dict[str, str]:
    path = os.pathsep.join(part for part in (str(TESTS), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, "PYTHONPATH": path}


def counted_by_strace(tmp_path: Path, script: Path) -> dict[str, int] | None:
    """Flushes between the two marks of each call, seen from outside; None where tracing is not allowed."""
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-qq",
        "-e",
        "trace=fsync,fdatasync,msync,write,openat,pwrite64,pwritev",
        "-o",
        str(trace),
    ]
    if not shutil.which("strace") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        return None
    run = [*command, sys.executable, str(script), str(tmp_path / "store"), "-"]
    subprocess.run(run, env=environment(), check=True, capture_output=True, timeout=120)
    counts: dict[str, int] = {}
    current, flushing = "", set()
    for line in trace.read_text(errors="replace").splitlines():
        if opened := re.search(r"openat\(.*O_D?SYNC.*\) = (\d+)", line):
            flushing.add(opened[1])
        if begun := re.search(r'write\(1, "begin ([\w-]+)', line):
            current = begun[1]
            counts[current] = 0
        elif re.search(r'write\(1, "end ', line):
            current = ""
        elif current and (re.search(r"\b(fsync|fdatasync|msync)\(", line) or written_through(line, flushing)):
            counts[current] += 1
    return counts


def written_through(line: str, flushing: set[Any]) -> bool:
    written = re.search(r"\b(?:write|pwrite64|pwritev)\((\d+)", line)
    return written is not None and written[1] in flushing


def counted_by_shim(tmp_path: Path, script: Path) -> dict[str, int] | None:
    """The same count by a library that stands in front of the C library; None where no compiler is at hand."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    run = [sys.executable, str(script), str(tmp_path / "store"), "-", "shim"]
    done = subprocess.run(
        run, env={**environment(), "LD_PRELOAD": str(library)}, check=True, capture_output=True, text=True, timeout=120
    )
    return {name: int(count) for name, count in re.findall(r"^end ([\w-]+) (\d+)$", done.stdout, re.MULTILINE)}


@pytest.mark.parametrize("way", ["strace", "shim"])
def test_c28_at_least_one_flush_before_each_acknowledgement(tmp_path: Path, way: str) -> None:
    script = tmp_path / "flushes.py"
    script.write_text("\n".join(line[4:] for line in FLUSHES.splitlines()))
    counts = counted_by_strace(tmp_path, script) if way == "strace" else counted_by_shim(tmp_path, script)
    if counts is None:
        pytest.skip("tracing is not allowed here" if way == "strace" else "no C compiler")
    assert len(counts) == 44
    assert {name: count for name, count in counts.items() if count < 1} == {}


def test_c28_registering_from_many_threads_shares_flushes_and_loses_none(open_store: OpenStore, world: World) -> None:
    store = open_store()
    given: list[int] = []

    def work(number: int) -> None:
        branch = store.branch(f"B{number}")
        for turn in range(25):
            given.append(branch.register("put", {"n": turn}, inverse=world.inverse_of("X")).id)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    found = [effect.id for effect in open_store().effects()]
    assert sorted(given) == found
    assert len(set(found)) == 200
