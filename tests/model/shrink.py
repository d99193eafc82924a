"""Makes a failing script short: leave out ever smaller parts while it still fails."""

from __future__ import annotations

from collections.abc import Callable


def shrink(script: list[bytes], fails: Callable[[list[bytes]], bool], *, runs: int = 150) -> list[bytes]:
    """The shortest failing script found within that many runs of `fails`."""
    size = max(1, len(script) // 2)
    while size:
        start = 0
        while start < len(script) and runs:
            shorter = script[:start] + script[start + size :]
            runs -= 1
            if fails(shorter):
                script = shorter
            else:
                start += size
        size //= 2
    return script
