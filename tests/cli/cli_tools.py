"""What the tests of the command line share: it runs in a process of its own, judged by code and output."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_TRACE = Path(__file__).parents[1] / "traces" / "own.jsonl"


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        """Standard output as JSON, one value a line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def object(self) -> Any:
        """Standard output as exactly one JSON value."""
        (value,) = self.objects
        return value


Cli = Callable[..., Ran]


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process without what would change the output, and with `changes`."""
    kept = {name: value for name, value in os.environ.items() if name not in {"EFFECTSTORE_PATH", "COLUMNS", "LINES"}}
    return {**kept, **changes}


@dataclass(frozen=True)
class Waiting:
    """A store in which a rollback waits for a person."""

    path: Path
    effect: int
    rollback: int
    approval: int
