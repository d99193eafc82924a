"""Decorated tools keep their parameters and results for the type checker."""

from __future__ import annotations

import asyncio
from typing import assert_type

import effectstore
from effectstore import Branch, Effect, Inverse, Tool


@effectstore.tool(inverse=Inverse("release"), not_run_on=(ConnectionRefusedError,), if_unknown="run")
def reserve(seat: int, *, note: str = "") -> dict[str, int]:
    """Reserve a seat."""
    return {"seat": seat}


@effectstore.tool(inverse=Inverse("release"))
async def reserve_later(seat: int) -> str:
    """Reserve a seat without blocking."""
    await asyncio.sleep(0)
    return str(seat)


@effectstore.tool(mode="deferred", reversibility="irreversible")
def send(to: str) -> None:
    """Send a mail after its fence."""


@effectstore.tool(read_only=True, reads=lambda key: key)
def look(key: str) -> bytes:
    """Look at a key."""
    return key.encode()


def plain(branch: Branch) -> None:
    assert_type(reserve(1, note="window"), dict[str, int])
    assert_type(look("X"), bytes)
    assert_type(send("all"), Effect)
    assert_type(reserve.options(branch=branch, idempotency_key="k", cost=1.5)(3), dict[str, int])
    name: str = reserve.name
    print(name, reserve.untracked(4))


async def with_tasks(branch: Branch) -> None:
    with branch.active():
        assert_type(await reserve_later(1), str)
        found = await asyncio.gather(*(reserve_later.options(branch=branch)(seat) for seat in range(3)))
        assert_type(found, list[str])


def takes_any_tool(tool: Tool[[int], str]) -> str:
    return tool(1)
