"""Help for tests of your own tools."""

import asyncio
import copy
import inspect
from collections.abc import Callable
from typing import Any

from effectstore._handlers import Handler
from effectstore._payload import Codec, load


def check_inverse(inverse: Handler, args: Any, world: Callable[[], Any]) -> None:
    """Run an inverse twice and compare what the world shows after each run.

    `inverse` is a handler, `handler(args, step)`, or a function that `effectstore.tool` decorated; plain or async.
    `args` go through the store's encoding, as they would in a store; `step` is `None`. `world` returns what the
    inverse changes, in a form that compares by value. Raises `AssertionError` if the second run changes something:
    after a crash the same inverse is called again, so it must be idempotent.
    """
    spec = getattr(inverse, "declared", None)
    shown = []
    for _ in range(2):
        given = load(Codec().dump(args, "args"), "args")
        _settled(inverse(given, None) if spec is None else spec.shape.invoke(given))
        shown.append(copy.deepcopy(world()))
    once, twice = shown
    if once != twice:
        name = getattr(inverse, "__name__", repr(inverse))
        message = f"inverse {name} is not idempotent: after one run the world is {once!r}, after two {twice!r}"
        raise AssertionError(message)


def _settled(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value
