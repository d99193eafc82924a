"""An interrupt leaves by exception and tears nothing: waits end, attempts are recorded, rollbacks stay resumable."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

import effectstore
from effectstore import Inverse, Store
from support import Child, OpenStore, rest_of
from world import World, states

pytestmark = pytest.mark.timeout(120)

WAITER = """
    import signal, sys, time
    import effectstore
    from effectstore import Inverse
    from world import World

    signal.signal(signal.SIGINT, signal.default_int_handler)
    store, world, what = effectstore.open(sys.argv[1]), World(sys.argv[2]), sys.argv[3]
    a, b = store.branch("A"), store.branch("B", reads="committed" if what == "observe" else "speculative")
    world.put(a, "X", 1, report=what != "register")
    waits = {
        "register": lambda: b.register("put", {}, writes="X", inverse=Inverse("undo", {}), timeout=60),
        "observe": lambda: b.observe("X", timeout=60),
        "commit": lambda: store.commit(world.put(b, "Y", 1, reads="X"), timeout=60),
        "claim": lambda: store.claim("nobody", timeout=60),
        "outbox": lambda: store.outbox.claim("nobody", timeout=60),
        "log": lambda: list(store.log(since=10**6, timeout=60)),
    }
    print("waiting", flush=True)
    try:
        waits[what]()
    except KeyboardInterrupt:
        print("interrupted", len(list(store.effects())), flush=True)
    else:
        print("came back", flush=True)
    store.verify()
    store.close()
"""


@pytest.mark.parametrize("what", ["register", "observe", "commit", "claim", "outbox", "log"])
def test_an_interrupt_ends_a_wait_and_the_store_goes_on(
    open_store: OpenStore, world: World, child: Child, what: str
) -> None:
    process = child(WAITER, what)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.communicate()[1]
    time.sleep(0.3)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    output = rest_of(process)
    assert time.monotonic() - start < 10
    effects = 2 if what == "commit" else 1
    assert (output, process.returncode) == (f"interrupted {effects}\n", 0)
    store = open_store()
    assert {effect.state for effect in store.effects()} == {"live"}
    if what == "commit":
        (fence,) = store.fences()
        assert fence.status == "waiting", "when a wait ends the intent stays"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_handler_leaves_the_rollback_resumable(
    store: Store, world: World, interrupt: type[BaseException]
) -> None:
    branch = store.branch("A", agent="a")
    for number in range(3):
        world.put(branch, f"K{number}", number)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    attempts: list[tuple[str, int]] = []

    def put_back(args: Any, step: Any) -> None:
        attempts.append((args["label"], step.attempt))
        if attempts == [("K2", 1), ("K1", 1)]:
            raise interrupt
        world.put_back(args, step)

    with pytest.raises(interrupt):
        store.compensate({"put_back": put_back})
    report = rollback.refresh().report
    assert (len(report.completed), report.failed, report.clean) == (1, (), False)
    assert store.compensate({"put_back": put_back}, rollback=rollback).clean  # At once: the lease was released.
    assert [label for label, _ in attempts] == ["K2", "K1", "K1", "K0"]
    assert world.facts() == {}


def test_an_interrupt_does_not_count_against_another_step(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1)
    branch.abort(reason="contradicted")

    def interrupted(args: Any, step: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.compensate({"put_back": interrupted})
    step = store.claim("a")
    assert step is not None
    assert (step.effect.id, step.attempt) == (effect.id, 2), "the interrupted attempt is in the record"


def test_a_cancelled_async_register_is_recorded_not_run_or_was_never_there(tmp_path: Any) -> None:
    async def main() -> None:
        async with effectstore.aio.open(tmp_path / "store") as store:
            branch = await store.branch("A")
            for number in range(50):
                task = asyncio.create_task(branch.register("put", {"n": number}, inverse=Inverse("undo", {})))
                await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    continue
            handed_out = [effect async for effect in branch.effects()]
            assert all(effect.state in ("void", "live") for effect in handed_out)
            assert [effect.args["n"] for effect in handed_out if effect.outcome == "not_run"] == [
                effect.args["n"] for effect in handed_out if effect.state == "void"
            ]

    asyncio.run(main())
    with effectstore.open(tmp_path / "store") as store:
        store.verify()


def test_a_cancelled_async_handler_releases_its_step(tmp_path: Any, world: World) -> None:
    async def main() -> None:
        async with effectstore.aio.open(tmp_path / "store") as store:
            branch = await store.branch("A")
            effect = await branch.register("put", {}, inverse=Inverse("undo", {}))
            await effect.done(None)
            await branch.abort(reason="contradicted")
            started = asyncio.Event()

            async def undo(args: Any, step: Any) -> None:
                started.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(store.compensate({"undo": undo}))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            report = await store.compensate({"undo": lambda args, step: None})
            assert report.clean

    asyncio.run(main())


def test_a_thread_that_waits_does_not_stop_another(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1 = world.put(a, "X", 1, report=False)
    waiting = threading.Thread(
        target=lambda: b.register("put", {}, writes="X", inverse=Inverse("undo", {}), timeout=60)
    )
    waiting.start()
    start = time.monotonic()
    e2 = world.put(c, "Y", 1)
    assert time.monotonic() - start < 5
    e1.done(None)
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert states(store, e1, e2) == ["live", "live"]
