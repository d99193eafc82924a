"""What a random sequence is made of: settings of a store, and commands as short byte strings.

A command's bytes are read as choices among what exists at that moment, so every byte string is a valid command and
any part of a sequence is a sequence: a failure shrinks by leaving commands out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from .reference import Call, Inverse, Limits, Model, Policy, Retry

Item = TypeVar("Item")
COMMAND_BYTES = 12
KEYS = ("a", "b", "c", "d")
AGENTS = ("ann", "bob")
UNKNOWN_ID = 10**9
# Halves keep due times off the whole seconds by which the clock moves, so that "at" and "after" never differ.
RETRY = Retry(max_attempts=2, delay=2.5, backoff=2.0, max_delay=30.5)


@dataclass(frozen=True)
class Setting:
    """One kind of store and the branches made in it."""

    name: str
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    rules: tuple[str, ...] = ("speculative",)
    overwrites: tuple[str, ...] = ("guard",)
    leases: tuple[float | None, ...] = (None,)
    branches: int = 4
    children: bool = False


SETTINGS = (
    Setting("plain"),
    Setting("rules", rules=("speculative", "sealed", "committed"), overwrites=("guard", "depend")),
    Setting("nested", children=True, leases=(None, None, 40.5), branches=6, overwrites=("guard", "depend")),
    Setting(
        "strict",
        policy=Policy(auto_keys=1, on_failure="continue", require_inverse=False),
        limits=Limits(live_effects=12, live_writers_per_key=2, closure=6),
    ),
)


class Dice:
    """Reads a command's bytes as choices; past the end every choice is the first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def roll(self, sides: int) -> int:
        """A number below `sides`."""
        value = self.data[self.place] if self.place < len(self.data) else 0
        self.place += 1
        return value % sides

    def pick(self, items: list[Item] | tuple[Item, ...]) -> Item:
        """One of the items."""
        return items[self.roll(len(items))]

    def often(self) -> bool:
        """True seven times out of eight."""
        return self.roll(8) != 7


def inverse_from(dice: Dice, now: float) -> Inverse | None:
    """An inverse: mostly plain, now and then compare-and-set, partial, for anyone, with a window, or none."""
    kind = dice.roll(16)
    if kind == 15:
        return None
    return Inverse(
        retry=RETRY,
        compare_and_set=kind in (8, 9, 10, 11),
        partial=kind == 12,
        agent="*" if kind == 13 else None,
        deadline=now + 90.5 if kind == 14 else None,
    )


def call_from(dice: Dice, model: Model, earlier: int = 0) -> Call:
    """One registration: few keys, so that calls meet; now and then wrong ids, versions and repeated keys."""
    shape = dice.roll(16)
    reads: dict[str, int | None] = {}
    if shape in (1, 2, 3, 6, 7, 8):
        reads[dice.pick(KEYS)] = None
    if shape in (4, 9):
        key = dice.pick(KEYS)
        writers = [e.id for e in model.effects.values() if model.wrote(e.id, key)]
        reads[key] = dice.pick([0, *reversed(writers)])
    writes: tuple[str, ...] = () if shape in (0, 1) else (dice.pick(KEYS),)
    if shape == 9:
        writes = tuple(reads)
    if shape in (5, 8):
        writes = tuple(sorted({*writes, dice.pick(KEYS)}))
    if shape in (6, 7):
        reads = dict.fromkeys(writes)
    after: tuple[int, ...] | None = None
    order = dice.roll(16)
    if order in (8, 9, 10):
        after = ()
    elif order in (11, 12) and model.effects:
        deferred = [e for e in model.live() if model.effects[e].mode == "deferred"]
        after = (dice.pick(deferred if deferred and dice.roll(2) else sorted(model.effects, reverse=True)),)
    elif order == 13 and earlier:
        after = (-1 - dice.roll(earlier),)
    elif order == 14:
        after = (UNKNOWN_ID,) if dice.roll(4) == 3 else None
    key_name = f"once-{dice.roll(3)}" if dice.roll(10) == 9 else None
    kind = dice.roll(16)
    return Call(
        tool=f"tool-{dice.roll(2)}" if key_name else "tool",
        args="x" if key_name is None or dice.often() else "y",
        reads=reads,
        writes=writes,
        after=after,
        inverse=inverse_from(dice, model.now),
        reversibility="irreversible" if kind == 15 else None,
        mode="deferred" if kind == 14 else None,
        key=key_name,
    )
