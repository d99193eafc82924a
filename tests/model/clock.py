"""The one place that knows what the store expects as `clock=`: a callable that returns seconds since the epoch."""

from __future__ import annotations


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.seconds = start

    def __call__(self) -> float:
        """The time as `effectstore.open(clock=)` asks for it."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
