"""C20: fork, second open, many readers, re-entry and the interpreter lock; the rules of the storage stay inside."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import (
    CompensationScopeError,
    ForkedError,
    Limits,
    OptionsError,
    Store,
    StoreBusyError,
)
from support import Child, OpenStore
from world import World, states

pytestmark = pytest.mark.timeout(180)  # A hang is what these tests look for.


@pytest.mark.parametrize("way", ["same path", "symlink", "relative", "dots"])
def test_c20a_a_second_open_shares_the_store(
    open_store: OpenStore, world: World, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_store()
    e1 = world.put(first.branch("A"), "X", 1)
    path = tmp_path / "store"
    if way == "symlink":
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    elif way == "relative":
        monkeypatch.chdir(tmp_path)
        path = Path("store")
    elif way == "dots":
        path = tmp_path / "store" / ".." / "store"
    second = effectstore.open(path)
    e2 = world.put(second.branch("B"), "Y", 1, reads="X")
    assert [effect.id for effect in first.effects()] == [e1.id, e2.id]
    second.close()
    e3 = world.put(first.branch("C"), "Z", 1)
    assert states(first, e1, e2, e3) == ["live"] * 3
    first.verify()


def test_c20a_a_second_open_with_other_options_is_refused_and_the_first_goes_on(
    open_store: OpenStore, world: World, tmp_path: Path
) -> None:
    first = open_store(map_size=1 << 30)
    with pytest.raises(OptionsError):
        effectstore.open(tmp_path / "store", map_size=1 << 31)
    assert world.put(first.branch("A"), "X", 1).state == "live"


def in_fork(work: Callable[[], bool]) -> bool:
    """Run `work` in a forked child and answer whether it was content."""
    child = os.fork()
    if child == 0:  # The child must leave by _exit: it shares pytest's files and fixtures.
        code = 1
        try:
            code = 0 if work() else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


FORKED: dict[str, Callable[[Store, Any, Any], Any]] = {
    "register": lambda store, branch, effect: branch.register("put", reversibility="irreversible"),
    "read": lambda store, branch, effect: store.effect(effect.id),
    "list": lambda store, branch, effect: list(store.effects()),
    "done": lambda store, branch, effect: effect.done(None),
    "commit": lambda store, branch, effect: store.commit(branch),
    "decide": lambda store, branch, effect: store.decide(branch),
    "compensate": lambda store, branch, effect: store.compensate({}),
    "log": lambda store, branch, effect: list(store.log()),
    "verify": lambda store, branch, effect: store.verify(),
}


@pytest.mark.parametrize("call", FORKED.values(), ids=FORKED.keys())
def test_c20b_a_forked_child_is_refused_and_the_parent_unaffected(
    store: Store, world: World, call: Callable[[Store, Any, Any], Any]
) -> None:
    branch = store.branch("A")
    effect = world.put(branch, "X", 1, report=False)

    def work() -> bool:
        try:
            call(store, branch, effect)
        except ForkedError:
            return True
        return False

    assert in_fork(work)
    effect.done(None)
    assert store.commit(branch).committed == (effect.id,)
    store.verify()


def test_c20b_a_forked_child_may_open_the_store_anew(store: Store, world: World, tmp_path: Path) -> None:
    world.put(store.branch("A"), "X", 1)

    def work() -> bool:
        with effectstore.open(tmp_path / "store") as own:
            own.branch("child")
            return len(list(own.effects())) == 1

    assert in_fork(work)
    assert {branch.name for branch in store.branches()} == {"A", "child"}


def test_c20c_a_handler_may_read_but_creates_no_work(store: Store, world: World) -> None:
    branch, other = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    refused: list[str] = []
    read: list[int] = []

    def put_back(args: Any, step: Any) -> None:
        read.append(len(list(store.log())))
        read.append(len(store.explain(e1.id).records))
        attempts: dict[str, Callable[[], Any]] = {
            "own branch": lambda: branch.register("put", reversibility="irreversible"),
            "other branch": lambda: other.register("put", writes="N", inverse=world.inverse_of("N")),
            "decorated call": lambda: other.call("put", {}, lambda: None, inverse=world.inverse_of("N")),
            "observe": lambda: other.observe("X"),
            "compensate": lambda: store.compensate(world.handlers()),
        }
        for name, attempt in attempts.items():
            try:
                attempt()
            except effectstore.RefusedError as error:
                if isinstance(error, CompensationScopeError) or name in ("own branch", "observe", "compensate"):
                    refused.append(name)
        world.put_back(args, step)

    report = store.compensate({"put_back": put_back})
    # A nested compensate may be refused or find nothing to do; it must neither hang nor call the handler again.
    assert {*refused} - {"compensate"} == {"decorated call", "observe", "other branch", "own branch"}
    assert all(count > 0 for count in read)
    assert (report.clean, world.undone(), len(list(store.effects()))) == (True, ["X"], 1)


READER = """
    import sys, time
    import effectstore
    store = effectstore.open(sys.argv[1])
    iterator = store.effects()
    next(iterator)
    print("reading", flush=True)
    while True:
        list(store.effects())
"""


def test_c20d_many_readers_and_killed_readers_use_up_nothing(open_store: OpenStore, world: World, child: Child) -> None:
    store = open_store()
    branch = store.branch("A")
    for number in range(20):
        world.put(branch, f"K{number}", number)
    gate = threading.Barrier(300)

    def read(_: int) -> int:
        iterator = store.effects()
        next(iterator)
        gate.wait(timeout=120)  # All 300 threads are alive in the middle of a read at once.
        return 1 + sum(1 for _ in iterator)

    with ThreadPoolExecutor(300) as pool:
        assert list(pool.map(read, range(300))) == [20] * 300
    for batch in range(5):
        readers = [child(READER) for _ in range(10)]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n", (batch, reader.communicate()[1])
            reader.kill()
            reader.communicate()
    store.close()
    store = open_store()
    with ThreadPoolExecutor(300) as pool:
        gate.reset()
        assert list(pool.map(read, range(300))) == [20] * 300
    world.put(store.takeover("A"), "last", 1)
    store.verify()


WRITER = """
    import sys
    import effectstore
    from effectstore import Inverse
    store = effectstore.open(sys.argv[1])
    branch = store.branch("writer")
    print("writing", flush=True)
    while True:
        branch.register("put", after=(), inverse=Inverse("put_back", {})).done(None, durable=True)
"""


def test_c20e_python_goes_on_while_another_process_holds_the_writer(open_store: OpenStore, child: Child) -> None:
    store = open_store(limits=Limits(live_effects=10_000_000))
    writer = child(WRITER)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n", writer.communicate()[1]
    branch = store.branch("mine")
    stop = threading.Event()
    beats: list[list[float]] = [[] for _ in range(4)]
    holders: set[int] = set()

    def count(beat: list[float]) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            if number % 1000 == 0:
                beat.append(time.monotonic())

    def write() -> None:
        while not stop.is_set():
            try:
                branch.register("put", after=(), reversibility="irreversible", timeout=0.2)
            except StoreBusyError as busy:
                holders.add(busy.pid)

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(count, beat) for beat in beats] + [pool.submit(write)]
        for _ in range(5):  # A stopped writer is often, not always, stopped while it holds the lock.
            writer.send_signal(signal.SIGSTOP)
            time.sleep(1.0)
            writer.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        stop.set()
        for job in jobs:
            job.result(timeout=60)
    assert holders <= {writer.pid}
    for beat in beats:
        assert len(beat) > 10
        gaps = [late - early for early, late in itertools.pairwise(beat)]
        assert max(gaps) < 0.9, "a waiting writer held the interpreter"


FILLER = """
    import sys
    import effectstore
    from effectstore import Inverse, NotCommittedError, StoreFullError

    store = effectstore.open(sys.argv[1])
    branch = store.branch(sys.argv[3])
    print("ready", flush=True)
    for line in sys.stdin:
        number, size = map(int, line.split())
        try:
            blob = bytes([number % 251]) * size
            effect = branch.register("put", {"blob": blob}, after=(), inverse=Inverse("put_back", {"n": number}))
            print("kept", effect.id, flush=True)
        except (StoreFullError, NotCommittedError) as full:
            print(full.code, 0, flush=True)
"""


def fillers(child: Child) -> list[Any]:
    processes = [child(FILLER, name, stdin=True) for name in ("one", "other")]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return processes


def fill(process: Any, number: int, size: int) -> tuple[str, int]:
    process.stdin.write(f"{number} {size}\n")
    process.stdin.flush()
    answer, effect = process.stdout.readline().split()
    return answer, int(effect)


def assert_kept(store: Store, kept: dict[int, tuple[int, int]]) -> None:
    """Every acknowledged effect is there with its payload, and no other."""
    assert {effect.id for effect in store.effects()} == kept.keys()
    for effect, (number, size) in kept.items():
        assert store.effect(effect).args == {"blob": bytes([number % 251]) * size}
    store.verify()


def test_c20f_two_processes_make_the_file_grow_in_turn(open_store: OpenStore, child: Child, tmp_path: Path) -> None:
    """Each write of one process outgrows what the other has seen of the file, over segments as well."""
    store = open_store()
    data = tmp_path / "store" / "data.mdb"
    began = data.stat().st_size
    processes = fillers(child)
    kept: dict[int, tuple[int, int]] = {}
    for number in range(40):
        size = (1 << 20) - 4096 - number if number % 3 else 100
        answer, effect = fill(processes[number % 2], number, size)
        assert answer == "kept"
        kept[effect] = (number, size)
    assert data.stat().st_size > began + (20 << 20)
    assert_kept(store, kept)
    store.close()
    assert_kept(open_store(), kept)


def test_c20f_two_processes_outgrow_the_map_in_turn(
    open_store: OpenStore, world: World, child: Child, tmp_path: Path
) -> None:
    """Beyond the map both are refused; nothing is torn or lost, and the log can be moved whole into a larger store."""
    open_store(map_size=4 << 20).close()
    processes = fillers(child)
    kept: dict[int, tuple[int, int]] = {}
    refused, number, size = [0, 0], 0, 300_000
    while min(refused) < 5 or size > 1_000:
        turn = number % 2
        answer, effect = fill(processes[turn], number, size)
        if answer == "kept":
            kept[effect] = (number, size)
        else:
            assert answer in ("store_full", "not_committed")
            refused[turn] += 1
            size = max(size // 2, 1_000)
        number += 1
        assert number < 10_000, "the map has no end"
    store = open_store()
    assert_kept(store, kept)
    store.export(tmp_path / "moved.cbor")
    store.close()
    for process in processes:
        process.kill()
        process.communicate()
    assert_kept(open_store(), kept)
    effectstore.import_store(tmp_path / "moved.cbor", tmp_path / "larger")
    larger = open_store("larger")
    assert_kept(larger, kept)
    world.put(larger.branch("more"), "X", 1)
