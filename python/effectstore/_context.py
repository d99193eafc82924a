"""What the running code is part of: the active branch, the current effect, the inverse that it performs.

Context variables follow asyncio tasks, `asyncio.to_thread` and runtimes that copy the context.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from effectstore._errors import CompensationScopeError

if TYPE_CHECKING:
    from effectstore._branch import Branch
    from effectstore._effect import Effect
    from effectstore._rollback import Step

_branch: ContextVar["Branch | None"] = ContextVar("effectstore_branch", default=None)
_effect: ContextVar["Effect | None"] = ContextVar("effectstore_effect", default=None)
_undo: ContextVar["_Undo | None"] = ContextVar("effectstore_undo", default=None)


class _Undo:
    """An inverse that is being performed.

    A task that its handler leaves behind carries it, but no longer counts; a handler that outlived its time does.
    """

    __slots__ = ("lingers", "over", "step")

    def __init__(self, step: "Step") -> None:
        self.step = step
        self.lingers = False
        self.over = False


def active_branch() -> "Branch | None":
    """The branch on which decorated tools run here, if one is active."""
    return _branch.get()


def current_effect() -> "Effect":
    """The effect whose tool is running here: its key for the vendor's API, and `observe`.

    Raises `LookupError` outside of tools.
    """
    effect = _effect.get()
    if effect is None:
        message = "no tool of an effect is running here"
        raise LookupError(message)
    return effect


@contextmanager
def branch_scope(branch: "Branch") -> Iterator["Branch"]:
    """Decorated tools called inside run on this branch. Leaving it settles nothing."""
    held = _branch.set(branch)
    try:
        yield branch
    finally:
        _branch.reset(held)


@contextmanager
def effect_scope(effect: "Effect") -> Iterator[None]:
    """The effect is the current one inside."""
    held = _effect.set(effect)
    try:
        yield
    finally:
        _effect.reset(held)


@contextmanager
def undo_scope(step: "Step") -> Iterator[_Undo]:
    """The code inside performs an inverse (I16): it can look and clean up, but register nothing."""
    undo = _Undo(step)
    held = _undo.set(undo)
    held_branch = _branch.set(None)
    held_effect = _effect.set(None)
    try:
        yield undo
    finally:
        undo.over = not undo.lingers
        _effect.reset(held_effect)
        _branch.reset(held_branch)
        _undo.reset(held)


def refuse_new_work() -> None:
    """Raise `CompensationScopeError` in code that performs an inverse.

    Which branch is in compensation the core knows; who is calling only this side does.
    """
    undo = _undo.get()
    if undo is not None and not undo.over:
        rollback = undo.step.rollback
        message = f"not during compensation: the handler of rollback {rollback} may only clean up"
        raise CompensationScopeError(message, branch=undo.step.effect.branch, rollback=rollback)
