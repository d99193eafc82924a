"""Help for tests of your own tools."""

import asyncio
import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from effectstore._handlers import Handler, Handlers, find
from effectstore._payload import Codec, load
from effectstore._tool import Tool
from effectstore._values import Inverse


def check_inverse(
    tool: Tool[..., Any],
    args: Mapping[str, Any] | None = None,
    *,
    world: Callable[[], Any],
    handlers: Handlers = None,
) -> None:
    """Run a decorated tool once and its inverse twice, and compare the world.

    `world` returns what the tool changes, in a form that compares by value. The inverse's arguments go through the
    store's encoding, as they would in a store. Raises `AssertionError` if the tool has no inverse, if the inverse does
    not bring back what was there before, or if running it a second time changes something: after a crash the same
    inverse is called again.
    """
    spec = getattr(tool, "declared", None)
    if spec is None:
        message = "check_inverse takes a function that effectstore.tool decorated"
        raise TypeError(message)
    named = spec.shape.bound((), dict(args or {}))
    inverse = _settled(spec.inverse.of(named))
    before = copy.deepcopy(world())
    result = _settled(spec.shape.invoke(named))
    if spec.inverse_after is not None:
        inverse = _settled(spec.inverse_after.of({**named, "result": result})) or inverse
    if inverse is None:
        message = f"tool {spec.name!r} declares no inverse"
        raise AssertionError(message)
    if world() == before:
        message = f"tool {spec.name!r} changed nothing that world() shows, so its inverse is not tested"
        raise AssertionError(message)
    for time in ("once", "twice"):
        _perform(inverse, handlers)
        found = world()
        if found != before:
            message = f"after the inverse of {spec.name!r} ran {time}, the world is {found!r} and was {before!r}"
            raise AssertionError(message)


def _perform(inverse: Inverse, handlers: Handlers) -> None:
    codec = Codec()
    for call in inverse.calls or (inverse,):
        handler: Handler | None = find(handlers, call.tool)
        if handler is None:
            message = f"nothing here can run the inverse {call.tool!r}"
            raise AssertionError(message)
        args = None if call.args is None else load(codec.dump(call.args, "inverse.args"), "inverse.args")
        _settled(handler(args, None))


def _settled(value: Any) -> Any:
    async def wait() -> Any:
        return await value

    return asyncio.run(wait()) if inspect.isawaitable(value) else value
