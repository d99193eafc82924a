"""Fixtures that the tests share: a world, a clock, stores that are closed again, child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import Branch, Store
from support import TESTS, Child, OpenStore
from world import FakeClock, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A fresh outside world."""
    return World(tmp_path / "world.sqlite")


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still; `effectstore.open(clock=clock)` takes any callable that returns seconds."""
    return FakeClock()


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Open a store under the test's directory; every store that it opened is closed after the test."""
    opened: list[Store] = []

    def opener(name: str = "store", **options: Any) -> Store:
        store = effectstore.open(tmp_path / name, **options)
        opened.append(store)
        return store

    yield opener
    for store in reversed(opened):
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """A store with every default."""
    return open_store()


@pytest.fixture
def timed(open_store: OpenStore, clock: FakeClock) -> Store:
    """A store whose time is `clock`."""
    return open_store("timed", clock=clock)


@pytest.fixture
def a(store: Store) -> Branch:
    """A branch named A, of the agent "a"."""
    return store.branch("A", agent="a")


@pytest.fixture
def b(store: Store) -> Branch:
    """A branch named B, of the agent "b"."""
    return store.branch("B", agent="b")


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """Start Python code in a process of its own; `argv[1]` is the store, `argv[2]` the world, more may follow."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object, store: str = "store", env: dict[str, str] | None = None) -> Any:
        script = tmp_path / f"child-{len(started)}.py"
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        command = [sys.executable, str(script), str(tmp_path / store), str(tmp_path / "world.sqlite")]
        path = os.pathsep.join(part for part in (str(TESTS), os.environ.get("PYTHONPATH", "")) if part)
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
