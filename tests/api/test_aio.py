"""The asyncio interface: the same names and errors, one shared store, and a loop that is never blocked."""

from __future__ import annotations

import asyncio
import inspect
import time
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import DoomedBranchError, FenceClosureError, Inverse

pytestmark = pytest.mark.timeout(120)
UNDO = Inverse("undo", {})


@pytest.mark.parametrize("way", ["async with", "await"])
def test_a_store_opens_both_ways_and_lists_are_async(tmp_path: Path, way: str) -> None:
    async def main() -> list[str]:
        opening = effectstore.aio.open(tmp_path / "store")
        if way == "await":
            store = await opening
        else:
            store = await opening.__aenter__()
        branch = await store.branch("A")
        for number in range(3):
            effect = await branch.register("put", {"n": number}, inverse=UNDO)
            await effect.done(number)
        fence = await store.commit(branch, timeout=10)
        found = [effect.state async for effect in store.effects()]
        await store.close()
        return [fence.status, *found]

    assert asyncio.run(main()) == ["committed"] * 4


def test_sync_and_async_handles_of_one_path_share_one_store(tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        store.branch("A").register("put", {}, inverse=UNDO).done(None)

        async def main() -> int:
            async with effectstore.aio.open(tmp_path / "store") as other:
                branch = await other.branch("B")
                await branch.register("put", {}, inverse=UNDO)
                return len([effect async for effect in other.effects()])

        assert asyncio.run(main()) == 2
        assert [effect.branch for effect in store.effects()] == ["A", "B"]


def test_the_names_are_those_of_the_sync_interface() -> None:
    for sync, name in ((effectstore.Store, "AsyncStore"), (effectstore.Branch, "AsyncBranch")):
        other = getattr(effectstore.aio, name)
        public = {verb for verb, _ in inspect.getmembers(sync, callable) if not verb.startswith("_")}
        missing = {verb for verb in public if not hasattr(other, verb)}
        assert missing == set()
        for verb in ("commit", "reconcile", "compensate") if name == "AsyncStore" else ("register", "observe", "abort"):
            ours, theirs = (inspect.signature(getattr(owner, verb)).parameters for owner in (sync, other))
            assert list(ours) == list(theirs)


def test_a_wait_does_not_block_the_loop(tmp_path: Path) -> None:
    async def main() -> float:
        async with effectstore.aio.open(tmp_path / "store") as store:
            a, b = await store.branch("A"), await store.branch("B")
            first = await a.register("put", {}, writes="X", inverse=UNDO)
            waiting = asyncio.create_task(b.register("put", {}, writes="X", inverse=UNDO, timeout=30))
            worst = 0.0
            for _ in range(50):
                start = time.monotonic()
                await asyncio.sleep(0.01)
                worst = max(worst, time.monotonic() - start)
            await first.done(None)
            assert (await waiting).state == "live"
            return worst

    assert asyncio.run(main()) < 0.5


def test_a_thousand_waiting_calls_cost_no_thread_each(tmp_path: Path) -> None:
    async def main() -> int:
        async with effectstore.aio.open(tmp_path / "store") as store:
            branch = await store.branch("A")
            turn = branch.parallel()
            calls = [turn.register("put", {"n": number}, inverse=UNDO) for number in range(1000)]
            before = len(list(Path("/proc/self/task").iterdir()))
            effects = asyncio.gather(*calls)
            await asyncio.sleep(0)
            grown = len(list(Path("/proc/self/task").iterdir())) - before
            assert len({effect.id for effect in await effects}) == 1000
            return grown

    assert asyncio.run(main()) < 64


def test_refusals_are_the_same_classes(tmp_path: Path) -> None:
    async def main() -> None:
        async with effectstore.aio.open(tmp_path / "store") as store:
            branch = await store.branch("A")
            effect = await branch.register("put", {}, inverse=UNDO)
            with pytest.raises(FenceClosureError):
                await store.commit(branch, escalate="never")
            await store.reconcile(abort=effect, reason="contradicted")
            with pytest.raises(DoomedBranchError):
                await branch.register("put", {}, inverse=UNDO)

    asyncio.run(main())


def test_plain_handlers_run_in_a_thread_and_async_ones_on_the_loop(tmp_path: Path) -> None:
    async def main() -> tuple[list[str], bool]:
        order: list[str] = []
        async with effectstore.aio.open(tmp_path / "store") as store:
            branch = await store.branch("A")
            for tool in ("plain", "later"):
                effect = await branch.register("put", {}, inverse=Inverse(tool, {}))
                await effect.done(None)
            await branch.abort(reason="contradicted")

            def plain(args: Any, step: Any) -> None:
                with pytest.raises(RuntimeError):
                    asyncio.get_running_loop()
                order.append("plain")

            async def later(args: Any, step: Any) -> None:
                asyncio.get_running_loop()
                order.append("later")

            report = await store.compensate({"plain": plain, "later": later})
            return order, report.clean

    assert asyncio.run(main()) == (["later", "plain"], True)
