"""An oracle for plays, written from the semantics and from the played history alone.

It knows nothing of the store, of the player or of what either reported: it takes the calls in the order they were
played, the branches that were aborted and the failure policy (every effect that survives is committed before the
first inverse runs), and says what has to come out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One played call: who made it, the keys that it read and wrote, its class, and the change that it made."""

    effect: int
    branch: str
    reads: frozenset[str]
    writes: frozenset[str]
    reversibility: str
    values: Values
    removed: frozenset[str]


@dataclass(frozen=True)
class Verdict:
    """What has to come out. `overwritten`: doomed effects with the surviving later writers of their keys (the guard).

    `surely`: those of them whose step comes up, because no other stuck step is in front of it. `stuck`: all steps that
    do not run: overwritten ones, and what the failure policy holds up behind them.
    """

    doomed: frozenset[int]
    survivors: frozenset[int]
    overwritten: Mapping[int, frozenset[int]]
    surely: frozenset[int]
    stuck: frozenset[int]
    undone: frozenset[int]
    needs_person: bool


def resting(history: Sequence[Line]) -> dict[int, frozenset[int]]:
    """What each effect rests on directly: its branch's earlier calls, and every earlier writer of what it read.

    Nothing is settled while the calls are played one after the other, so every earlier writer is a live one.
    """
    return {
        line.effect: frozenset(
            earlier.effect
            for earlier in history[:place]
            if earlier.branch == line.branch or earlier.writes & line.reads
        )
        for place, line in enumerate(history)
    }


def judge(history: Sequence[Line], aborted: Iterable[str], on_failure: str) -> Verdict:
    """The verdict on a play."""
    losers = set(aborted)
    rests_on = resting(history)
    place = {line.effect: number for number, line in enumerate(history)}
    lines = {line.effect: line for line in history}
    doomed: set[int] = set()
    for line in history:
        if line.branch in losers or rests_on[line.effect] & doomed:
            doomed.add(line.effect)
    survivors = set(lines) - doomed

    def overwrites(later: int, earlier: int) -> bool:
        return place[later] > place[earlier] and bool(lines[later].writes & lines[earlier].writes)

    overwritten = {
        effect: frozenset(writer for writer in survivors if overwrites(writer, effect))
        for effect in doomed
        if any(overwrites(writer, effect) for writer in survivors)
    }

    before = _before(doomed, lambda first, then: then in rests_on[first] or overwrites(first, then))

    def held_up(effect: int, by: int) -> bool:
        # `continue` waives the order of dependencies behind a failure; what is only blocked is still to be undone.
        waived = on_failure == "continue" and by in overwritten
        return by in before[effect] and (not waived or overwrites(by, effect))

    stuck = set(overwritten)
    while True:
        more = {effect for effect in doomed - stuck if any(held_up(effect, other) for other in stuck)}
        if not more:
            break
        stuck |= more
    surely = frozenset(effect for effect in overwritten if not any(held_up(effect, other) for other in stuck))
    return Verdict(
        doomed=frozenset(doomed),
        survivors=frozenset(survivors),
        overwritten=overwritten,
        surely=surely,
        stuck=frozenset(stuck),
        undone=frozenset(doomed - stuck),
        needs_person=_needs_person([lines[effect] for effect in doomed]),
    )


def _before(doomed: set[int], directly: Callable[[int, int], bool]) -> dict[int, set[int]]:
    """What has to be undone before each effect, through others too."""
    before = {then: {first for first in doomed - {then} if directly(first, then)} for then in doomed}
    while True:
        grown = {then: ahead.union(*(before[first] for first in ahead)) for then, ahead in before.items()}
        if grown == before:
            return before
        before = grown


def _needs_person(steps: Sequence[Line]) -> bool:
    """The default approval policy: alone may run what is full and writes at most five keys."""
    keys = frozenset().union(*(line.writes for line in steps))
    size = len(keys) + sum(not line.writes for line in steps)
    return size > 5 or any(line.reversibility != "full" for line in steps)


def order_faults(history: Sequence[Line], undone: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of inverses that ran in the wrong order: one effect rested on the other, or overwrote it (I13)."""
    rests_on = resting(history)
    place = {line.effect: number for number, line in enumerate(history)}
    writes = {line.effect: line.writes for line in history}
    faults = []
    for number, first in enumerate(undone):
        for second in undone[number + 1 :]:
            late_dependent = first in rests_on[second]
            late_writer = place[second] > place[first] and bool(writes[first] & writes[second])
            if late_dependent or late_writer:
                faults.append((first, second))
    return faults


def replay(initial: Values, history: Sequence[Line], survivors: Iterable[int]) -> dict[str, Any]:
    """The world that the survivors alone make, one after the other."""
    kept = set(survivors)
    world = dict(initial)
    for line in history:
        if line.effect in kept:
            world.update(line.values)
            for key in line.removed:
                world.pop(key, None)
    return world
