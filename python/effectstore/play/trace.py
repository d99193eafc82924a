"""Reading and checking a recorded trace: one JSON object a line, one line a tool call."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

Reversibility = Literal["full", "partial", "irreversible"]

_REVERSIBILITIES = ("full", "partial", "irreversible")
_TEXT_FIELDS = ("run", "branch", "agent", "tool")


class TraceError(ValueError):
    """A trace file cannot be played.

    `path` is the file as it was given, `line` the number of the offending line from 1 (None where the file as a whole
    is at fault), `reason` what is wrong, in words. The message never holds values of the trace.
    """

    def __init__(self, path: str, line: int | None, reason: str) -> None:
        place = path if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {reason}")
        self.path = path
        self.line = line
        self.reason = reason

    def __reduce__(self) -> tuple[type["TraceError"], tuple[str, int | None, str]]:
        return (TraceError, (self.path, self.line, self.reason))


@dataclass(frozen=True, slots=True)
class Delta:
    """A change of the world: values that keys take, and keys that cease to exist."""

    values: Mapping[str, Any]
    removed: tuple[str, ...]

    @property
    def keys(self) -> frozenset[str]:
        """All keys that the change touches."""
        return frozenset(self.values) | frozenset(self.removed)

    @property
    def empty(self) -> bool:
        """Whether the change changes nothing."""
        return not self.values and not self.removed

    def to_args(self) -> dict[str, Any]:
        """The change in the shape that an inverse carries as its arguments."""
        return {"set": dict(self.values), "unset": list(self.removed)}


NOTHING = Delta({}, ())


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded tool call. `before` is the recorded inverse, `redo` what the call left behind; both may be empty."""

    run: str
    branch: str
    agent: str
    seq: int
    tool: str
    args: Mapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    result: Any
    restore_tool: str
    before: Delta
    redo: Delta
    reversibility: Reversibility


def read_trace(path: str | Path) -> dict[str, list[Call]]:
    """Read a trace file: the calls of each run in their recorded order, runs in order of first appearance.

    Raises `TraceError` with the line's number for anything that is not a playable call, and for a file that is
    missing, unreadable or holds no call.
    """
    name = str(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise TraceError(name, None, error.strerror or type(error).__name__) from error
    runs = parse_trace(text.split(b"\n"), name)
    if not runs:
        raise TraceError(name, None, "holds no call")
    return runs


def parse_trace(lines: Iterable[bytes], path: str = "<trace>") -> dict[str, list[Call]]:
    """Parse lines of a trace; blank lines are passed over. Errors as `read_trace`."""
    runs: dict[str, list[Call]] = {}
    agents: dict[tuple[str, str], str] = {}
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            call = _parse_call(raw)
            _check_place(call, runs, agents)
        except ValueError as error:
            raise TraceError(path, number, str(error)) from None
        runs.setdefault(call.run, []).append(call)
    return runs


def _parse_call(raw: bytes) -> Call:
    try:
        row = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")
    texts = {field: _text(row, field) for field in _TEXT_FIELDS}
    writes = _keys(row, "writes")
    restore_tool, before = _inverse(row)
    redo = NOTHING if row.get("redo") is None else _delta(row["redo"], "redo")
    if redo.keys != frozenset(writes):
        raise ValueError("field 'writes' does not name the keys that 'redo' changes")
    if before.keys != redo.keys:
        raise ValueError("'inverse' and 'redo' do not touch the same keys")
    return Call(
        **texts,
        seq=_sequence(row),
        args=_mapping(row.get("args", {}), "args"),
        reads=_keys(row, "reads"),
        writes=writes,
        result=row.get("result"),
        restore_tool=restore_tool,
        before=before,
        redo=redo,
        reversibility=_reversibility(row),
    )


def _check_place(call: Call, runs: Mapping[str, list[Call]], agents: dict[tuple[str, str], str]) -> None:
    """A run's calls come in order, and each branch belongs to one agent."""
    earlier = runs.get(call.run)
    if earlier and earlier[-1].seq >= call.seq:
        raise ValueError(f"field 'seq' is {call.seq}, not above {earlier[-1].seq} of the call before it")
    owner = agents.setdefault((call.run, call.branch), call.agent)
    if owner != call.agent:
        raise ValueError("branch belongs to another agent in an earlier line")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"holds {name}, which is not JSON")


def _text(row: Mapping[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise ValueError(f"field '{field}' is missing or not a text")
    return value


def _sequence(row: Mapping[str, Any]) -> int:
    value = row.get("seq")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("field 'seq' is missing or not a whole number from 0")
    return value


def _reversibility(row: Mapping[str, Any]) -> Reversibility:
    value = row.get("class", "full")
    if value not in _REVERSIBILITIES:
        raise ValueError(f"field 'class' is not one of {', '.join(_REVERSIBILITIES)}")
    return cast("Reversibility", value)


def _mapping(value: Any, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"field '{field}' is not a JSON object")
    return value


def _texts(value: Any, field: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"field '{field}' is not a list of texts")
    if len(set(value)) != len(value):
        raise ValueError(f"field '{field}' names a key twice")
    return tuple(value)


def _keys(row: Mapping[str, Any], field: str) -> tuple[str, ...]:
    return _texts(row.get(field, []), field)


def _delta(value: Any, field: str) -> Delta:
    parts = _mapping(value, field)
    delta = Delta(_mapping(parts.get("set", {}), f"{field}.set"), _texts(parts.get("unset", []), f"{field}.unset"))
    if frozenset(delta.values) & frozenset(delta.removed):
        raise ValueError(f"field '{field}' both sets and removes a key")
    return delta


def _inverse(row: Mapping[str, Any]) -> tuple[str, Delta]:
    """The tool that undoes the call and the values to put back; a call that changed nothing has neither."""
    value = row.get("inverse")
    if value is None:
        return f"{row['tool']}.nothing_to_undo", NOTHING
    parts = _mapping(value, "inverse")
    return _text(parts, "tool"), _delta(parts.get("args", {}), "inverse.args")
