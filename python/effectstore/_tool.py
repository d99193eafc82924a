"""The decorator: tools that record themselves on the active branch. Needs no store, so it works at import time."""

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from effectstore import _call
from effectstore._branch import Branch
from effectstore._choices import IfUnknown, Mode, Reversibility
from effectstore._context import active_branch, refuse_new_work
from effectstore._effect import Effect
from effectstore._errors import NoBranchError
from effectstore._payload import Key, Keys, Reads
from effectstore._registration import After
from effectstore._shape import Declared, Shape
from effectstore._values import Inverse

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class Tool(Protocol[P, R_co]):
    """A decorated function: called like the original, it records the call on its branch first."""

    __name__: str

    @property
    def name(self) -> str:
        """The tool's name in the store."""

    @property
    def untracked(self) -> Callable[P, Any]:
        """The original function, which records nothing."""

    def options(
        self,
        *,
        branch: Branch | None = None,
        idempotency_key: Key | None = None,
        after: After = None,
        cost: float | None = None,
    ) -> "Tool[P, R_co]":
        """A copy for one call: on this branch, under this key, following these effects, at this cost."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Record the call, run the tool and report its outcome."""


class _Deferring(Protocol):
    """Decorates a function whose calls are handed out after their fence: a call gives the effect."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, Any]], /) -> Tool[P, Coroutine[Any, Any, Effect]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Tool[P, Effect]: ...


class _Tracking(Protocol):
    """Decorates a function."""

    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...


@dataclass(frozen=True, slots=True)
class _Options:
    """What one call says for itself."""

    branch: Branch | None = None
    idempotency_key: Key | None = None
    after: After = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class _Spec:
    """A tool as it was declared."""

    name: str
    shape: Shape
    rules: _call.Rules
    read_only: bool
    reversibility: Reversibility | None
    mode: Mode | None
    branch: Declared
    reads: Declared
    writes: Declared
    inverse: Declared
    inverse_after: Declared | None
    idempotency_key: Declared
    cost: Declared
    options: _Options = _Options()

    def declarations(self, named: dict[str, Any]) -> dict[str, Any]:
        """What the call declares; some may still be awaitable."""
        options = self.options
        found: dict[str, Any] = {"branch": options.branch or self.branch.of(named), "reads": self.reads.of(named)}
        if self.read_only:
            return found
        found["writes"] = self.writes.of(named)
        found["inverse"] = self.inverse.of(named)
        key, cost = options.idempotency_key, options.cost
        found["idempotency_key"] = self.idempotency_key.of(named) if key is None else key
        found["cost"] = self.cost.of(named) if cost is None else cost
        return found

    def place(self, declared: dict[str, Any]) -> Branch:
        """The branch of the call."""
        refuse_new_work()
        branch = declared.pop("branch")
        if branch is None:
            branch = active_branch()
        if branch is None:
            message = f"no branch is active for tool {self.name!r}; use branch.active(), or .options(branch=)"
            raise NoBranchError(message, tool=self.name)
        if not isinstance(branch, Branch):
            message = f"branch= of tool {self.name!r} gave {type(branch).__name__}, not a Branch"
            raise TypeError(message)
        return branch

    def register(self, branch: Branch, named: dict[str, Any], declared: dict[str, Any]) -> Effect:
        """Record the call."""
        return branch.register(
            self.name,
            self.shape.recorded(named),
            after=self.options.after,
            reversibility=self.reversibility,
            mode=self.mode,
            **declared,
        )


_registry: dict[str, tuple[tuple[str, str], Shape]] = {}
_registry_lock = Lock()


def handler_of(name: str) -> Shape | None:
    """The function that was decorated under this name in this process."""
    entry = _registry.get(name)
    return None if entry is None else entry[1]


def known_tools() -> list[str]:
    """The names of all functions that were decorated in this process."""
    return list(_registry)


def _enter(name: str, function: Callable[..., Any], shape: Shape) -> None:
    origin = (function.__module__, function.__qualname__)
    with _registry_lock:
        held = _registry.get(name)
        if held is not None and held[0] != origin:
            message = f"tool name {name!r} is taken by {'.'.join(held[0])}; give name="
            raise ValueError(message)
        _registry[name] = (origin, shape)


@overload
def tool(
    *,
    mode: Literal["deferred"],
    name: str | None = None,
    read_only: Literal[False] = False,
    reads: Reads | Callable[..., Any] = (),
    writes: Keys | Callable[..., Any] = (),
    inverse: Inverse | Callable[..., Any] | None = None,
    inverse_after: Callable[..., Any] | None = None,
    reversibility: Reversibility | None = None,
    idempotency_key: Key | Callable[..., Any] | None = None,
    branch: Branch | Callable[..., Any] | None = None,
    exclude: str | Iterable[str] = (),
    not_run_on: type[BaseException] | Iterable[type[BaseException]] = (),
    if_unknown: IfUnknown = "raise",
    cost: float | Callable[..., Any] | None = None,
) -> _Deferring: ...
@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    reads: Reads | Callable[..., Any] = (),
    writes: Keys | Callable[..., Any] = (),
    inverse: Inverse | Callable[..., Any] | None = None,
    inverse_after: Callable[..., Any] | None = None,
    reversibility: Reversibility | None = None,
    mode: Literal["eager"] | None = None,
    idempotency_key: Key | Callable[..., Any] | None = None,
    branch: Branch | Callable[..., Any] | None = None,
    exclude: str | Iterable[str] = (),
    not_run_on: type[BaseException] | Iterable[type[BaseException]] = (),
    if_unknown: IfUnknown = "raise",
    cost: float | Callable[..., Any] | None = None,
) -> _Tracking: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    read_only: bool = False,
    reads: Reads | Callable[..., Any] = (),
    writes: Keys | Callable[..., Any] = (),
    inverse: Inverse | Callable[..., Any] | None = None,
    inverse_after: Callable[..., Any] | None = None,
    reversibility: Reversibility | None = None,
    mode: Mode | None = None,
    idempotency_key: Key | Callable[..., Any] | None = None,
    branch: Branch | Callable[..., Any] | None = None,
    exclude: str | Iterable[str] = (),
    not_run_on: type[BaseException] | Iterable[type[BaseException]] = (),
    if_unknown: IfUnknown = "raise",
    cost: float | Callable[..., Any] | None = None,
) -> Any:
    """Make a function, plain or async, record its calls on the active branch before it runs.

    `reads`, `writes`, `inverse`, `idempotency_key`, `cost` and `branch` are values, or callables that take the
    parameters that they name; they run before the call is registered. `inverse_after` may also name `result`; it
    completes or replaces the inverse, and one must be there before the call can run: `inverse=Inverse("cancel")`.
    `read_only=True` registers no effect: `reads` are observed before and after the run. Raises `ValueError` for a
    name that another function has, and for parameters that do not exist.
    """
    if function is not None:
        # A tool without declarations would be refused at its first call, so it is refused here.
        message = "write @effectstore.tool(inverse=...), or read_only=True: a tool is decorated with what it declares"
        raise TypeError(message)

    def decorate(function: Callable[..., Any]) -> Any:
        is_async = inspect.iscoroutinefunction(function)
        shape = Shape(function, exclude)
        called = function.__name__ if name is None else name

        def declared(value: Any, what: str, more: frozenset[str] = frozenset()) -> Declared:
            return Declared(value, f"{what}= of tool {called!r}", shape.names | more, may_be_async=is_async)

        if read_only and (inverse is not None or inverse_after is not None or writes != ()):
            message = f"tool {called!r} is read_only and declares writes or an inverse"
            raise ValueError(message)
        spec = _Spec(
            name=called,
            shape=shape,
            rules=_call.Rules.of(not_run_on, if_unknown),
            read_only=read_only,
            reversibility=reversibility,
            mode=mode,
            branch=declared(branch, "branch"),
            reads=declared(reads, "reads"),
            writes=declared(writes, "writes"),
            inverse=declared(inverse, "inverse"),
            inverse_after=None
            if inverse_after is None
            else declared(inverse_after, "inverse_after", frozenset({"result"})),
            idempotency_key=declared(idempotency_key, "idempotency_key"),
            cost=declared(cost, "cost"),
        )
        _enter(called, function, shape)
        return _wrap(function, spec, is_async=is_async)

    return decorate


def _wrap(function: Callable[..., Any], spec: _Spec, *, is_async: bool) -> Any:
    """The function that records. It is a true function, so that other decorators see what they expect."""
    if is_async:

        @functools.wraps(function)
        async def tracked(*args: Any, **kwargs: Any) -> Any:
            return await _run_async(function, spec, args, kwargs)

    else:

        @functools.wraps(function)
        def tracked(*args: Any, **kwargs: Any) -> Any:
            return _run(function, spec, args, kwargs)

    def options(**chosen: Any) -> Any:
        given = {name: value for name, value in chosen.items() if value is not None}
        return _wrap(function, replace(spec, options=replace(spec.options, **given)), is_async=is_async)

    made = cast("Any", tracked)
    made.name = spec.name
    made.untracked = function
    made.options = options
    made.declared = spec
    return made


def _run(function: Callable[..., Any], spec: _Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = spec.shape.bound(args, kwargs)
    declared = spec.declarations(named)
    branch = spec.place(declared)
    if spec.read_only:
        seen = branch.observe(declared["reads"])
        result = function(*args, **kwargs)
        branch.observe(declared["reads"], since=seen)
        return result
    effect = spec.register(branch, named, declared)
    answer = _call.known(effect, spec.rules)
    if answer is not None:
        return answer.value
    with _call.watched(effect, spec.rules):
        result = function(*args, **kwargs)
    inverse = None if spec.inverse_after is None else spec.inverse_after.of({**named, "result": result})
    return _call.report(effect, result, inverse)


async def _run_async(function: Callable[..., Any], spec: _Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    named = spec.shape.bound(args, kwargs)
    declared = {name: await _value(item) for name, item in spec.declarations(named).items()}
    branch = spec.place(declared)
    if spec.read_only:
        seen = branch.observe(declared["reads"])
        result = await function(*args, **kwargs)
        branch.observe(declared["reads"], since=seen)
        return result
    effect = spec.register(branch, named, declared)
    answer = _call.known(effect, spec.rules)
    if answer is not None:
        return answer.value
    with _call.watched(effect, spec.rules):
        result = await function(*args, **kwargs)
    inverse = None if spec.inverse_after is None else await _value(spec.inverse_after.of({**named, "result": result}))
    return _call.report(effect, result, inverse)


async def _value(item: Any) -> Any:
    return await item if inspect.isawaitable(item) else item
