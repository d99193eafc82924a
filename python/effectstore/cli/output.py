"""Output for people (tables that fit a terminal's width, no control characters) and for programs (JSON)."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

LEAST_COLUMN = 8
"""A column that may be cut keeps at least this many characters."""


def width() -> int:
    """Columns of the terminal. Where there is none, what reads the output wants all of it, and nothing is cut."""
    if not sys.stdout.isatty():
        return sys.maxsize
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def plain_text(text: object, *, lines: bool = False) -> str:
    """The text with control characters written out, so that no name can steer a terminal. `lines` keeps line ends."""
    shown = []
    for character in str(text):
        if character.isprintable() or (lines and character == "\n"):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


def cut(text: str, room: int) -> str:
    """The text, shortened to `room` characters with a mark where something is missing."""
    return text if len(text) <= room else text[: max(0, room - 1)] + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose columns are as wide as they need; the widest but the first give way to the terminal's width.

    The first column holds what a person types or copies, so it is never cut.
    """
    cells = [[plain_text(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in cells)]) for at, name in enumerate(head)]
    room = width() - 2 * (len(head) - 1)
    while sum(widths) > room:
        size, widest = max((size, at) for at, size in enumerate(widths[1:], start=1))
        if size <= LEAST_COLUMN:
            break
        widths[widest] -= 1
    lines = []
    for row in [list(head), *cells]:
        parts = [cut(value, size).ljust(size) for value, size in zip(row, widths, strict=True)]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Names and values, one pair a line, values below one another and wrapped at the terminal's width."""
    listed = [(name, plain_text(value)) for name, value in rows]
    size = max((len(name) for name, _ in listed), default=0)
    return "\n".join(wrapped(f"{name.ljust(size)}  {value}".rstrip(), size + 2) for name, value in listed)


def wrapped(line: str, indent: int) -> str:
    """The line, continued below itself with an indent where it is wider than the terminal; no word is torn."""
    if len(line) <= width():
        return line
    # Only the part behind the indent is wrapped, since wrapping squeezes nothing but must not break the columns.
    parts = textwrap.wrap(line[indent:], width() - indent, break_long_words=False, break_on_hyphens=False)
    return line[:indent] + f"\n{' ' * indent}".join(parts)


def say(text: str) -> None:
    """Print for people."""
    print(text)


def note(text: str) -> None:
    """Print beside the result, on standard error."""
    print(plain_text(text), file=sys.stderr)


def emit(value: Any) -> None:
    """Print one JSON object on one line."""
    print(json.dumps(jsonable(value), allow_nan=False))


def jsonable(value: Any) -> Any:
    """The value with everything that JSON lacks as text: times in ISO 8601, bytes in hex, odd numbers as written."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, Mapping):
        return {name if isinstance(name, str) else str(jsonable(name)): jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return str(value)


def moment(time: datetime) -> str:
    """A time for people, in UTC to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


class Progress:
    """A bar on standard error, shown only where that is a terminal."""

    def __init__(self, total: int, what: str) -> None:
        self._total = max(1, total)
        self._what = what
        self._done = 0
        self._shown = -1
        self._live = sys.stderr.isatty()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        percent = 100 * self._done // self._total
        if self._live and percent != self._shown:
            self._shown = percent
            bar = "#" * (percent // 4)
            print(f"\r{self._what} [{bar:<25}] {percent:>3} %", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Wipe the bar, so that what follows starts on a clean line."""
        if self._live and self._shown >= 0:
            print("\r" + " " * (len(self._what) + 36) + "\r", end="", file=sys.stderr, flush=True)
