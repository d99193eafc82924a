"""T2 on the model: when every rollback is clean, the world is what the surviving effects alone would have made.

The world is a value per key: the id of the effect that wrote it last. An effect lands
when its call reports that it ran,
also when it reports late; an inverse puts back what was there when the effect was registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .play import Play
from .player import Answer
from .script import Setting
from .test_sequences import SEQUENCES, each_setting, play_seeds

compared = {"steps": 0, "keys": 0}


class WorldPlay(Play):
    """A play whose effects and inverses change a world."""

    def __post_init__(self) -> None:
        """The world begins with nothing written."""
        super().__post_init__()
        self.world: dict[str, int] = {}
        self.found: dict[int, dict[str, int]] = {}

    def both(self, verb: str, action: Callable[[], Any], **arguments: Any) -> Answer:
        """Run the verb, then do to the world what a runtime would have done."""
        reported = {e.id for e in self.model.effects.values() if e.outcome == "done"}
        finished = {e.id: e.undo.status for e in self.model.effects.values() if e.undo is not None}
        answer = super().both(verb, action, **arguments)
        for effect in self.model.effects.values():
            if effect.mode != "eager":
                continue
            if effect.id not in self.found:
                self.found[effect.id] = {k: self.world.get(k, 0) for k in effect.writes}
            if effect.outcome == "done" and effect.id not in reported:
                self.world |= dict.fromkeys(effect.writes, effect.id)
            status = effect.undo.status if effect.undo is not None else None
            if status == "resolved" and finished.get(effect.id) != "resolved":
                self.world |= {k: self.survivor(k) for k in effect.writes}
        if verb == "complete" and answer.refused is None:
            self.undo(arguments["step"].effect)
        self.compare()
        return answer

    def run_all(self) -> list[int]:
        """As one worker would; each inverse changes the world before the next step is taken."""
        order = []
        while (step := self.model.claim("*", lease=60.5)) is not None:
            self.undo(step.effect)
            self.model.complete(step)
            order.append(step.effect)
        return order

    def undo(self, effect: int) -> None:
        """What the inverse does: put back, or do nothing if it compares first and finds something else."""
        record = self.model.effects[effect]
        for key, value in self.found[effect].items():
            compares = record.inverse is not None and record.inverse.compare_and_set
            if not compares or self.world.get(key, 0) == effect:
                self.world[key] = value

    def survivor(self, key: str) -> int:
        """The last effect that wrote the key, ran and was not decided against; 0 if there is none."""
        effects = [e for e in self.model.effects.values() if self.model.wrote(e.id, key) and e.outcome == "done"]
        return max((e.id for e in effects if e.state in ("live", "committed")), default=0)

    def compare(self) -> None:
        """T2, wherever nothing is left to undo."""
        compared["steps"] += 1
        if all(self.model.report([r]).clean for r in self.model.rollbacks):
            for key in self.world:
                compared["keys"] += 1
                assert self.world[key] == self.survivor(key), (
                    f"T2: {key} is {self.world[key]}, not {self.survivor(key)}"
                )


def in_world(setting: Setting, script: list[bytes]) -> Play:
    """Play a script on the model and a world."""
    play = WorldPlay(setting)
    try:
        for command in script:
            play.play(command)
        play.finish()
    except Exception as error:
        error.add_note("\n".join(play.story))
        raise
    return play


@each_setting
def test_a_clean_report_means_a_clean_world(setting: Setting) -> None:
    before = compared["keys"]
    play_seeds(in_world, setting, lambda _: None)
    assert compared["keys"] > before + SEQUENCES, "the worlds were hardly ever clean: nothing was tested"
