"""The outside world of the tests: facts that tools change, and the list of calls that changed them.

A world is one SQLite file that a test owns. It is not the store's business and knows nothing of it, so a test that asks
the world asks an independent witness. Child processes open the same file, and a kill loses nothing that was written.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import effectstore
from effectstore import (
    Branch,
    BranchClosedError,
    CompensationReport,
    DoomedBranchError,
    Effect,
    Inverse,
    Report,
    Retry,
    Step,
)

Handler = Callable[[Any, Step], Any]

STOPPED = (DoomedBranchError, BranchClosedError)
"""A branch that was aborted by name is doomed and closed at once; a test of that takes either name for the refusal."""

AT_ONCE = Retry(max_attempts=3, delay=0.0, backoff=1.0, max_delay=0.0, jitter=0.0)
"""Three attempts without a pause, for tests that count attempts and not seconds."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the world: `kind` is "tool" or "inverse"."""

    kind: str
    tool: str
    label: str
    args: Any
    idempotency_key: str | None
    attempt: int | None
    effect: int | None


class World:
    """Facts by name, and every call in the order of arrival."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._run("CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        self._run("CREATE TABLE IF NOT EXISTS calls (n INTEGER PRIMARY KEY, call TEXT NOT NULL)")

    def _run(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        # One connection a call: threads and child processes then share nothing but the file.
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=OFF")  # A kill of a process loses no page that it has written.
            return connection.execute(sql, values).fetchall()

    def __getitem__(self, name: str) -> Any:
        rows = self._run("SELECT value FROM facts WHERE name = ?", name)
        return json.loads(rows[0][0]) if rows else None

    def __setitem__(self, name: str, value: object) -> None:
        self._run("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, json.dumps(value))

    def facts(self) -> dict[str, Any]:
        """Everything that is the case; a fact set back to None counts as absent."""
        pairs = ((name, json.loads(value)) for name, value in self._run("SELECT name, value FROM facts"))
        return {name: value for name, value in pairs if value is not None}

    def note(self, kind: str, tool: str, args: Mapping[str, Any], step: Step | None = None) -> None:
        """Add one call to the list before it has any effect."""
        call = {
            "kind": kind,
            "tool": tool,
            "label": str(args.get("label", args.get("key", ""))),
            "args": dict(args),
            "idempotency_key": step.idempotency_key if step else None,
            "attempt": step.attempt if step else None,
            "effect": step.effect.id if step else None,
        }
        self._run("INSERT INTO calls (call) VALUES (?)", json.dumps(call))

    def calls(self, kind: str | None = None) -> list[Call]:
        """The calls so far, of one kind or of both."""
        rows = self._run("SELECT call FROM calls ORDER BY n")
        return [call for call in (Call(**json.loads(row[0])) for row in rows) if kind in (None, call.kind)]

    def undone(self) -> list[str]:
        """The labels of the inverse calls in the order in which they arrived (the LOG of the cases)."""
        return [call.label for call in self.calls("inverse")]

    def inverse_of(self, key: str, label: str | None = None, **options: Any) -> Inverse:
        """The inverse that sets `key` back to what the world shows now."""
        options.setdefault("retry", AT_ONCE)
        return Inverse("put_back", {"key": key, "value": self[key], "label": label or key}, **options)

    def put(
        self,
        branch: Branch,
        key: str,
        value: object,
        *,
        label: str | None = None,
        report: bool = True,
        inverse: Inverse | None = None,
        **options: Any,
    ) -> Effect:
        """Set a fact through the store: record it with its inverse, change the world, report."""
        options.setdefault("writes", key)
        effect = branch.register(
            "put",
            {"key": key, "value": value},
            inverse=inverse or self.inverse_of(key, label),
            **options,
        )
        self.note("tool", "put", {"key": key, "value": value, "label": label or key})
        self[key] = value
        return effect.done(None) if report else effect

    def put_back(self, args: Mapping[str, Any], step: Step) -> None:
        """The inverse of `put`: idempotent, for it sets a value and adds nothing."""
        self.note("inverse", "put_back", args, step)
        self[args["key"]] = args["value"]

    def handlers(self, failing: Mapping[str, BaseException] | None = None) -> dict[str, Handler]:
        """Handlers for `compensate`; an inverse whose label is in `failing` is noted and raises."""
        failures = dict(failing or {})

        def put_back(args: Mapping[str, Any], step: Step) -> None:
            error = failures.get(str(args["label"]))
            if error is not None:
                self.note("inverse", "put_back", args, step)
                raise error
            self.put_back(args, step)

        return {"put_back": put_back}


class FakeClock:
    """Seconds since the epoch that pass only when a test says so."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = start

    def __call__(self) -> float:
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        with self._lock:
            self._now += seconds


def ids(*effects: Effect) -> set[int]:
    """The ids of some effects, for comparison with what a result lists."""
    return {effect.id for effect in effects}


def blocked_by(report: CompensationReport | Report) -> dict[int, set[int]]:
    """Which effects are blocked, and by which."""
    return {item.effect: set(item.by) for item in report.blocked}


def members(report: CompensationReport | Report) -> list[int]:
    """Every place in which the report names an effect, so that a member in two places shows twice."""
    listed = [*report.completed, *report.unsettled, *report.pending, *report.discarded]
    return sorted([*listed, *(failure.effect for failure in report.failed), *(item.effect for item in report.blocked)])


def states(store: effectstore.Store, *effects: Effect) -> list[str]:
    """What the store says of the effects now."""
    return [store.effect(effect.id).state for effect in effects]


class SharedClock:
    """A clock like `FakeClock` that several processes read: it stands in a world's file."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __call__(self) -> float:
        now = self._world["now"]
        return 1_800_000_000.0 if now is None else float(now)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once, in every process."""
        self._world["now"] = self() + seconds
