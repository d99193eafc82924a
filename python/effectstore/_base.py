"""What values, results and bound objects have in common."""

import math
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar, NoReturn, Self
from uuid import UUID

PAYLOAD = {"payload": True}
"""Marks a dataclass field that holds a payload: `to_dict()` leaves it out unless asked for it."""


def jsonable(value: Any, *, payloads: bool = False) -> Any:  # noqa: PLR0911  # One for each kind.
    """The value in terms of JSON: times as ISO 8601 text, bytes as hexadecimal digits, tuples as lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): jsonable(item, payloads=payloads) for name, item in value.items()}
    if hasattr(value, "to_dict"):
        return value.to_dict(payloads=payloads)
    if isinstance(value, list | tuple):
        return [jsonable(item, payloads=payloads) for item in value]
    return repr(value)


class Plain:
    """A value that holds no store: it compares by its fields and pickles."""

    __slots__ = ()

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON; payloads only if asked for."""
        return {
            field.name: jsonable(getattr(self, field.name), payloads=payloads)
            for field in fields(self)  # type: ignore[arg-type]  # Every subclass is a dataclass.
            if payloads or "payload" not in field.metadata
        }


class NoTruth:
    """A result that is neither true nor false: asking would read as a yes where none was given."""

    __slots__ = ()

    _ask: ClassVar[str] = "status"

    def __bool__(self) -> NoReturn:
        message = f"{type(self).__name__} has no truth value; ask .{self._ask}"
        raise TypeError(message)


class Bound:
    """A snapshot that belongs to an open store. Equality and hash go by store and id.

    It does not pickle: another process has to fetch its own by the id.
    """

    __slots__ = ()

    def _carry(self) -> str:
        """What another process needs to fetch its own."""
        return f"its id, {self._identity()[1]}"

    def _identity(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bound) or type(self) is not type(other):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self._identity()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        message = f"{type(self).__name__} belongs to an open store and does not pickle; carry {self._carry()}"
        raise TypeError(message)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__reduce__()


def shown(name: str) -> str:
    """A name on one line: odd characters appear escaped."""
    return name if name.isprintable() else repr(name)


class Frozen:
    """Refuses assignment. For snapshots that fetch some fields on first access and so are no dataclasses."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> NoReturn:
        message = f"{type(self).__name__} is a snapshot; {name} cannot be set"
        raise AttributeError(message)

    def __delattr__(self, name: str) -> NoReturn:
        message = f"{type(self).__name__} is a snapshot; {name} cannot be deleted"
        raise AttributeError(message)
