"""The player of a sequence: what callers hold, how they choose, and how model and store are asked the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .clock import FakeClock
from .reference import Claimed, Model, Refused
from .script import Dice, Setting


@dataclass(frozen=True)
class Handle:
    """A branch as some caller holds it; `base` is the tip of a parallel turn. `place` counts a branch's handles."""

    name: str
    token: int
    place: int
    base: frozenset[int] | None = None


@dataclass(frozen=True)
class Answer:
    """What one side answered: a value or the class of the refusal."""

    value: Any = None
    refused: str | None = None
    index: int | None = None


class Peer(Protocol):
    """The side that is held against the model."""

    def begin(self, model: Model, clock: FakeClock) -> None:
        """Open an empty store on that clock."""

    def run(self, verb: str, expected: Answer, arguments: dict[str, Any]) -> None:
        """Run the verb and compare the answer."""

    def compare(self) -> None:
        """Compare everything that can be looked at."""

    def compare_killed(self) -> None:
        """Compare what a process killed now would leave behind."""

    def finish(self) -> None:
        """Whatever is checked once per sequence."""


@dataclass
class Player:
    """One sequence under way; handles and claims are what callers would hold."""

    setting: Setting
    peer: Peer | None = None
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        """Begin with an empty store."""
        self.model = Model(self.setting.policy, self.setting.limits)
        self.handles: dict[str, list[Handle]] = {}
        self.turns: dict[str, list[Handle]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.claims: list[Claimed] = []
        self.since: dict[str, list[int]] = {}
        self.story: list[str] = []
        self.steps = 0
        self.reopened = 0
        self.kills = False
        if self.peer is not None:
            self.peer.begin(self.model, self.clock)

    def both(self, verb: str, action: Callable[[], Any], **arguments: Any) -> Answer:
        """Ask the model, then the peer for the same; the story is printed when they differ."""
        self.model.now = self.clock()
        self.steps += 1
        try:
            answer = Answer(action())
        except Refused as refusal:
            index = refusal.attributes.get("index")
            answer = Answer(refused=refusal.kind, index=index if isinstance(index, int) else None)
        self.story.append(f"{verb} {arguments} -> {answer.refused or answer.value}")
        if self.peer is not None:
            self.peer.run(verb, answer, arguments)
            self.peer.compare()
            if self.kills:
                self.peer.compare_killed()
        return answer

    # Choosing among what there is

    def handle(self, dice: Dice) -> Handle:
        """Mostly the newest handle of a branch that can still work, sometimes any branch or a stale handle."""
        usual = [n for n in sorted(self.handles) if self.model.branches[n].state == "open"]
        names = usual if usual and dice.roll(32) != 31 else sorted(self.handles)
        held = self.handles[dice.pick(names)]
        return held[-1] if dice.often() else held[dice.roll(len(held))]

    def effect(self, dice: Dice, wanted: Callable[[int], bool] = lambda _: True) -> int | None:
        """An eager effect that is wanted, newest first; now and then any eager effect."""
        eager = [e.id for e in reversed(self.model.effects.values()) if e.mode == "eager"]
        pool = [e for e in eager if wanted(e)] if dice.roll(16) != 15 else eager
        return dice.pick(pool) if pool else None

    def unknown(self, effect: int) -> bool:
        """Whether the effect has yet to report."""
        record = self.model.effects[effect]
        return record.outcome == "unknown" and record.state == "live"

    def token(self, dice: Dice, effect: int) -> int:
        """The place of a token of the effect: mostly that of the newest."""
        tokens = self.tokens[effect]
        return len(tokens) - 1 if dice.often() else dice.roll(len(tokens))

    def ref(self, dice: Dice) -> int | str:
        """Something to commit or abort: an effect that is live, rarely any, or a branch."""
        live = self.model.live()
        if dice.roll(4) and self.model.effects:
            return dice.pick(live if live and dice.roll(16) != 15 else sorted(self.model.effects))
        return dice.pick([n for n in sorted(self.handles) if self.model.branches[n].state == "open"] or ["b0"])

    def handed(self, name: str, token: int) -> None:
        """A caller got a new handle; parallel turns and brackets of the old one are not used any more."""
        held = self.handles.setdefault(name, [])
        held.append(Handle(name, token, len(held)))
        self.turns.pop(name, None)
        self.since.pop(name, None)
