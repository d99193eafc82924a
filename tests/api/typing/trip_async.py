"""The asyncio example as a program for the type checker."""

from __future__ import annotations

import asyncio
from typing import Any

import effectstore
from effectstore import Fence, Inverse


@effectstore.tool(inverse=lambda seat: Inverse("release", {"seat": seat}), idempotency_key=lambda seat: f"seat-{seat}")
async def reserve(seat: int) -> bool:
    """Reserve a seat."""
    await asyncio.sleep(0)
    return True


async def main(holds: set[int]) -> Fence:
    async with effectstore.aio.open("trip.effects") as store:
        branch = await store.branch("booking", agent="booker")
        turn = branch.parallel()
        calls = [asyncio.wait_for(reserve.options(branch=turn)(seat), 5) for seat in range(50)]
        results: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        print(len(results))
        async for effect in branch.effects(outcome="unknown"):
            if effect.args["seat"] in holds:
                await effect.done(None)
            else:
                await effect.not_run("no such hold")
        fence: Fence = await store.commit(branch, timeout=10)
        return fence
