"""Arguments that make sense whatever the store holds: checked here so that a message names the argument."""

import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")

LARGEST = (1 << 64) - 1
"""Largest number that the core takes."""


def refuse(message: str, option: str) -> NoReturn:
    """Raise `OptionsError`."""
    from effectstore._errors import OptionsError  # noqa: PLC0415  # The errors hold values, and these are checked here.

    raise OptionsError(message, option=option)


def count(value: Any, what: str, *, least: int = 0, most: int = LARGEST) -> int:
    """A whole number between two bounds. Raises `TypeError` or `OptionsError`."""
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{what} takes a whole number, not {type(value).__name__}"
        raise TypeError(message)
    if not least <= value <= most:
        upto = "" if most == LARGEST else f" to {most}"
        refuse(f"{what} is a number from {least}{upto}, not {value}", what)
    return value


def optional_count(value: Any, what: str, *, least: int = 0) -> int | None:
    """A whole number, if there is one."""
    return None if value is None else count(value, what, least=least)


def identity(value: Any, what: str) -> int:
    """An id: a whole number, zero or more."""
    return count(value, what)


def number(value: Any, what: str) -> float:
    """A finite number. Raises `TypeError` or `OptionsError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        message = f"{what} takes a number, not {type(value).__name__}"
        raise TypeError(message)
    if not math.isfinite(value):
        refuse(f"{what} is a finite number, not {value}", what)
    return value


def cost(value: Any) -> float | None:
    """A cost: finite, zero or more."""
    if value is None:
        return None
    found = number(value, "cost")
    if found < 0:
        refuse(f"cost is zero or more, not {found}", "cost")
    return found


def instance(value: Any, kind: type[_T], what: str) -> _T:
    """The value, if it is of its class."""
    if not isinstance(value, kind):
        message = f"{what} takes a {kind.__name__}, not {type(value).__name__}"
        raise TypeError(message)
    return value


def optional_instance(value: Any, kind: type[_T], what: str) -> _T | None:
    """The value, if there is one and it is of its class."""
    return None if value is None else instance(value, kind, what)


def handlers(value: Any, what: str) -> None:
    """Refuse handlers that are no mapping of tools to functions, before anything is claimed for them."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        message = f"{what} takes a mapping of tools to functions, not {type(value).__name__}"
        raise TypeError(message)
    for tool, handler in value.items():
        if not isinstance(tool, str) or not callable(handler):
            message = f"{what} takes a mapping of tools to functions; {tool!r} is mapped to {type(handler).__name__}"
            raise TypeError(message)


def hook(value: Any, what: str) -> None:
    """Refuse what is to be called and cannot be."""
    if value is not None and not callable(value):
        message = f"{what} takes a function, not {type(value).__name__}"
        raise TypeError(message)


def names(value: Any, what: str) -> list[str] | None:
    """One name, or several."""
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes | bytearray | Mapping):
        message = f"{what} takes one name or several, not {type(value).__name__}"
        raise TypeError(message)
    listed = list(value)
    for name in listed:
        instance(name, str, what)
    return listed


def one_of(value: Any, what: str, words: tuple[str, ...], *, none: bool = True) -> None:
    """Refuse a word that is none of a choice; with `none` there may be no word."""
    if not (none and value is None) and value not in words:
        shown = ", ".join(f'"{word}"' for word in words)
        refuse(f"{what} is one of {shown}, not {value!r}", what)
