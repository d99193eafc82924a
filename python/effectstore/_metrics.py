"""Metrics of storms, rollbacks and storage, as objects, JSON and Prometheus text."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from effectstore._base import Plain
from effectstore._time import moment


@dataclass(frozen=True, slots=True)
class Spread(Plain):
    """How a measure is spread: number of values, mean, median, 95th percentile, greatest."""

    count: int
    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class StormMetrics(Plain):
    """How much of the speculative work stood.

    `commit_efficiency` is the share of decided effects that were committed, `cascade` the number of effects that fell
    with one decision, `secondary_ratio` the share of doomed effects that were only dragged along, `wasted_cost` what
    doomed and compensated effects cost, `commit_lag` the seconds from a registration to its fence, `repeats` the calls
    that were registered again after the same call was doomed.
    """

    registered: int
    committed: int
    doomed: int
    void: int
    commit_efficiency: float
    cascade: Spread
    secondary_ratio: float
    wasted_cost: float
    commit_lag: Spread
    repeats: int
    refused: int


@dataclass(frozen=True, slots=True)
class RollbackMetrics(Plain):
    """The process of rolling back. `time_to_rollback` is in seconds, `within_an_hour` the share that met the target.

    `within_an_hour` is `None` where none is finished. Of several root causes of one rollback the newest counts, and a
    step for which there was no handler counts no attempt. `open` and `awaiting_approval` count what is so now; the
    others are about the window.
    """

    count: int
    per_month: float
    governed: int
    open: int
    awaiting_approval: int
    in_review: int
    time_to_rollback: Spread
    within_an_hour: float | None
    attempts: int
    failed_attempts: int
    root_causes: dict[str, int]
    repeated_causes: int


@dataclass(frozen=True, slots=True)
class StorageMetrics(Plain):
    """What the store holds and who reads it, now. `oldest_reader_transactions` is the age of the oldest view."""

    records: int
    segments: int
    live_effects: int
    effects_in_memory: int
    keys_in_memory: int
    branches_in_memory: int
    open_alerts: int
    file_bytes: int
    used_bytes: int
    map_bytes: int
    readers: int
    oldest_reader_transactions: int


@dataclass(frozen=True, slots=True)
class Metrics(Plain):
    """Measures of the store from `since` to `until`: 30 days, or the last million records if these are fewer.

    Nothing is kept for them: the window is counted when somebody asks.
    """

    from_record: int
    since: datetime
    until: datetime
    storms: StormMetrics
    rollbacks: RollbackMetrics
    storage: StorageMetrics

    @classmethod
    def _of(cls, raw: dict[str, Any]) -> Self:
        storms, rollbacks = dict(raw["storms"]), dict(raw["rollbacks"])
        storms["cascade"] = Spread(**storms["cascade"])
        storms["commit_lag"] = _seconds(storms.pop("commit_lag_ms"))
        rollbacks["time_to_rollback"] = _seconds(rollbacks.pop("time_to_rollback_ms"))
        return cls(
            raw["from_record"],
            moment(raw["since_ms"]),
            moment(raw["until_ms"]),
            StormMetrics(**storms),
            RollbackMetrics(**rollbacks),
            StorageMetrics(**raw["storage"]),
        )

    def prometheus(self) -> str:
        """The same in the text format of Prometheus, each measure as a gauge: most count a window that moves."""
        lines = []
        for part in ("storms", "rollbacks", "storage"):
            for name, labels, value in _samples(f"effectstore_{part}", getattr(self, part)):
                if labels in ("", _FIRST_CAUSE, _FIRST_QUANTILE):
                    lines.append(f"# TYPE {name} gauge")
                lines.append(f"{name}{labels} {value}")
        return "\n".join(lines) + "\n"


_FIRST_CAUSE = '{category="prompt"}'
_FIRST_QUANTILE = '{quantile="0.5"}'


def _seconds(raw: dict[str, Any]) -> Spread:
    return Spread(**{name: value if name == "count" else value / 1000 for name, value in raw.items()})


def _samples(prefix: str, group: Plain) -> Iterator[tuple[str, str, float]]:
    for item in fields(group):  # type: ignore[arg-type]  # Each group is a dataclass.
        value, name = getattr(group, item.name), f"{prefix}_{item.name}"
        unit = "_seconds" if item.name in ("commit_lag", "time_to_rollback") else ""
        if isinstance(value, Spread):
            yield f"{name}{unit}", _FIRST_QUANTILE, value.median
            yield f"{name}{unit}", '{quantile="0.95"}', value.p95
            yield f"{name}{unit}_max", "", value.max
            yield f"{name}{unit}_mean", "", value.mean
            yield f"{name}_count", "", value.count
        elif isinstance(value, dict):
            for category, count in value.items():
                yield name, f'{{category="{category}"}}', count
        elif value is not None:
            yield name, "", value
