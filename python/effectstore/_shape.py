"""The shape of a tool: its parameters, and how declarations and recorded arguments meet them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Shape:
    """The parameters of a function, looked at once."""

    __slots__ = ("_exclude", "_keywords", "_leading", "_only", "_rest", "function", "names", "signature")

    def __init__(self, function: Callable[..., Any], exclude: Iterable[str] = ()) -> None:
        self.function = function
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters
        self.names = frozenset(parameters)
        self._exclude = frozenset((exclude,) if isinstance(exclude, str) else exclude)
        unknown = sorted(self._exclude - self.names)
        if unknown:
            message = f"exclude names {', '.join(unknown)}, which the function does not take"
            raise ValueError(message)
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        self._leading = [name for name, kind in kinds.items() if kind in _BY_POSITION]
        self._only = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY]
        self._rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), None)
        self._keywords = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters by name, with defaults. Raises the `TypeError` that the call itself would raise."""
        found = self.signature.bind(*args, **kwargs)
        found.apply_defaults()
        return dict(found.arguments)

    def recorded(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """What is recorded of a call: all parameters without the excluded ones."""
        return {name: value for name, value in named.items() if name not in self._exclude}

    def invoke(self, args: Any) -> Any:
        """Call the function with recorded arguments; with none where there are none."""
        named = {} if args is None else dict(args)
        rest = named.pop(self._rest, ()) if self._rest is not None else ()
        more = named.pop(self._keywords, {}) if self._keywords is not None else {}
        # What stands before *args can only be passed by position once there is something for *args.
        leading = self._leading if rest else self._only
        positional = [named.pop(name) for name in leading if name in named]
        return self.function(*positional, *rest, **named, **more)


class Declared:
    """A declaration of a tool: a value, or a callable that takes the parameters that it names."""

    __slots__ = ("_takes_all", "_value", "_wanted")

    def __init__(self, value: Any, what: str, names: frozenset[str], *, may_be_async: bool) -> None:
        self._value = value
        self._wanted: tuple[str, ...] | None = None
        self._takes_all = False
        if not callable(value) or isinstance(value, type):
            return
        if inspect.iscoroutinefunction(value) and not may_be_async:
            message = f"{what} of a plain function cannot be async"
            raise ValueError(message)
        try:
            parameters = inspect.signature(value).parameters.values()
        except (TypeError, ValueError) as error:
            message = f"{what} must be a callable with a signature"
            raise ValueError(message) from error
        self._takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        named = [p for p in parameters if p.kind in {*_BY_POSITION, inspect.Parameter.KEYWORD_ONLY}]
        unknown = [p.name for p in named if p.name not in names and p.default is inspect.Parameter.empty]
        if unknown:
            message = f"{what} names {', '.join(unknown)}, which the tool does not take"
            raise ValueError(message)
        if any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in named):
            message = f"{what} takes its parameters by name, so they cannot be positional-only"
            raise ValueError(message)
        self._wanted = tuple(p.name for p in named if p.name in names)

    def of(self, named: Mapping[str, Any]) -> Any:
        """The value for a call with these parameters; an awaitable if the callable is async."""
        if self._wanted is None:
            return self._value
        chosen = named if self._takes_all else {name: named[name] for name in self._wanted if name in named}
        return self._value(**chosen)
