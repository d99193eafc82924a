"""Times: seconds come in, milliseconds go to the core, aware UTC datetimes come out."""

import math
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from effectstore._check import hook, refuse

Seconds: TypeAlias = float | timedelta
"""A span of time: seconds as a number, or a `timedelta`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 1 << 53
"""The last moment that a float still names to the millisecond."""

_LONGEST_MS = int(threading.TIMEOUT_MAX) * 1000
"""The longest wait that every clock of the system takes; on 64 bits some 292 years."""


def to_ms(span: Seconds, what: str) -> int:
    """Milliseconds of a span, rounded up, so that a wait is never shorter than asked for.

    Raises `ValueError` for a negative, infinite or overlong span: there is no "for ever".
    """
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, bool) or not isinstance(span, int | float):
        message = f"{what} takes seconds as a number or a timedelta, not {type(span).__name__}"
        raise TypeError(message)
    if not 0 <= span * 1000 <= _LONGEST_MS:
        message = f"{what} must be a finite number of seconds from 0 to {_LONGEST_MS // 1000}, not {span}"
        raise ValueError(message)
    return math.ceil(round(span * 1000, 3))


def lease_ms(lease: Seconds) -> int:
    """Milliseconds of a lease, which is longer than nothing. Raises `OptionsError` for any other number."""
    span = lease.total_seconds() if isinstance(lease, timedelta) else lease
    number = isinstance(span, int | float) and not isinstance(span, bool)
    if number and not 0 < span * 1000 <= _LONGEST_MS:
        refuse(f"lease must be a number of seconds above 0, at most {_LONGEST_MS // 1000}, not {lease}", "lease")
    return to_ms(lease, "lease")


def optional_ms(span: Seconds | None, what: str) -> int | None:
    """Milliseconds of a span, if there is one."""
    return None if span is None else to_ms(span, what)


def moment(time_ms: int) -> datetime:
    """The aware UTC datetime of these milliseconds since the epoch."""
    try:
        return _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def optional_moment(time_ms: int | None) -> datetime | None:
    """The aware UTC datetime of these milliseconds since the epoch, if there are any."""
    return None if time_ms is None else moment(time_ms)


def since_epoch_ms(when: datetime, what: str) -> int:
    """Milliseconds since the epoch of an aware datetime; `ValueError` for a naive one."""
    if when.utcoffset() is None:
        message = f"{what} must be an aware datetime"
        raise ValueError(message)
    return max(0, (when - _EPOCH) // timedelta(milliseconds=1))


_clocks: "WeakValueDictionary[Any, Callable[[], int]]" = WeakValueDictionary()


def clock_ms(clock: Callable[[], float]) -> Callable[[], int]:
    """The caller's clock, in seconds since the epoch, as the core reads it; for equal clocks the same.

    Raises `TypeError` for what cannot be called.
    """
    hook(clock, "clock")
    try:
        known = _clocks.get(clock)
        name: Any = clock
    except TypeError:  # It has no hash, so it is known by itself only.
        known, name = _clocks.get(id(clock)), id(clock)
    if known is not None:
        return known

    def read() -> int:
        now = clock()
        if not 0 <= now * 1000 <= _LATEST_MS:
            message = f"the clock gives {now}; it must give seconds since the epoch"
            raise ValueError(message)
        return int(now * 1000)

    _clocks[name] = read
    return read
