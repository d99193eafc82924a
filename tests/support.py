"""Types and helpers that tests in every folder share; the fixtures are in conftest."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from effectstore import Store

TESTS = Path(__file__).resolve().parent

OpenStore = Callable[..., Store]
Child = Callable[..., "subprocess.Popen[str]"]


def rest_of(process: subprocess.Popen[str]) -> str:
    """What a child still writes, to its end; `communicate` would lose what a `readline` before it has buffered."""
    assert process.stdout is not None
    output = process.stdout.read()
    process.wait(timeout=60)
    return output
