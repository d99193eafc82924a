"""Plays a script of commands on the model and, where there is one, on a store beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .moves import Moves
from .player import Handle
from .reference import Claimed
from .script import AGENTS, KEYS, Dice


class Play(Moves):
    """The moves of workers, persons and time, and of things that go wrong; `play` chooses among all."""

    def play(self, command: bytes) -> None:
        """Play one command."""
        dice = Dice(command)
        verb = dice.roll(len(VERBS))
        if not any(self.model.branches[n].state == "open" for n in self.handles) and verb < 128:
            stopped = any(self.model.branches[n].state == "doomed" for n in self.handles)
            (self.do_resume if stopped and verb % 2 else self.do_branch)(dice)
        elif self.handles:
            getattr(self, f"do_{VERBS[verb]}")(dice)

    # Undo

    def do_claim(self, dice: Dice) -> None:
        """A worker takes a step; asking where nothing is left is rarely worth a command."""
        if not any(self.model.unfinished(e) for e in self.model.effects) and dice.roll(16):
            return
        agent = dice.pick(("*", *AGENTS))
        answer = self.both("claim", lambda: self.model.claim(agent, lease=60.5), agent=agent, lease=60.5)
        if answer.value is not None:
            self.claims.append(answer.value)

    def do_end(self, dice: Dice) -> None:
        """A worker reports on a step that it has, or had."""
        if not self.claims:
            self.do_claim(dice)
            return
        step = self.claims.pop(dice.roll(len(self.claims)))
        self.end(
            step, dice.pick(("complete", "complete", "complete", "fail", "permanent", "later", "release", "renew"))
        )

    def end(self, step: Claimed, how: str) -> None:
        """End an attempt, or renew its lease and go on."""
        actions: dict[str, Callable[[], Any]] = {
            "complete": lambda: self.model.complete(step),
            "fail": lambda: self.model.fail(step),
            "permanent": lambda: self.model.fail(step, permanent=True),
            "later": lambda: self.model.fail(step, retry_after=7.5),
            "release": lambda: self.model.release(step),
            "renew": lambda: self.model.renew(step, lease=90.5),
        }
        answer = self.both(how, actions[how], step=step)
        if how == "renew" and answer.refused is None:
            self.claims.append(step)

    def do_drain(self, dice: Dice) -> None:
        """One worker takes step after step; some of its attempts fail."""
        for _ in range(1 + dice.roll(8)):
            self.clock.advance(dice.pick((0, 0, 2)))
            answer = self.both("claim", lambda: self.model.claim("*", lease=60.5), agent="*", lease=60.5)
            if answer.value is None:
                break
            self.end(answer.value, dice.pick(("complete",) * 5 + ("fail", "fail", "permanent")))

    def do_compensate(self, dice: Dice) -> None:
        """One worker runs all that is due in one call, and every handler succeeds."""
        if any(self.model.unfinished(e) for e in self.model.effects) or dice.roll(16) == 0:
            # The real call sleeps through backoffs, and nobody moves the given clock meanwhile.
            self.clock.advance(32)
            self.both("compensate", self.run_all)

    def run_all(self) -> list[int]:
        """The order in which one worker runs all that is due."""
        order = []
        while (step := self.model.claim("*", lease=60.5)) is not None:
            self.model.complete(step)
            order.append(step.effect)
        return order

    def do_person(self, dice: Dice) -> None:
        """A person answers a request, asks anew, or deals with a failed step."""
        pending = [r.id for r in self.model.rollbacks.values() if r.gate == "pending"]
        denied = [r.id for r in self.model.rollbacks.values() if r.gate == "denied"]
        kinds = ("error", "permanent", "timeout", "conflict", "expired")
        failed = [e.id for e in self.model.effects.values() if e.undo is not None and e.undo.kind in kinds]
        if pending:
            rollback, answer = dice.pick(pending), dice.roll(6)
            reason = None if answer == 5 else "looked at"
            if answer == 4:
                self.both("deny", lambda: self.model.deny(rollback), rollback=rollback)
            else:
                self.both(
                    "approve",
                    lambda: self.model.approve(rollback, reason=reason),
                    rollback=rollback,
                    reason=reason,
                )
        elif denied and dice.roll(3):
            rollback = dice.pick(denied)
            self.both("request_approval", lambda: self.model.request_approval(rollback), rollback=rollback)
        elif failed:
            effect = dice.pick(failed)
            if dice.roll(2):
                self.both("retry", lambda: self.model.retry(effect), effect=effect)
            else:
                self.both("resolve", lambda: self.model.resolve(effect), effect=effect)

    # Things that go wrong together

    def do_stall(self, dice: Dice) -> None:
        """A worker outlives its lease; another does its work, then the first one reports."""
        answer = self.both("claim", lambda: self.model.claim("*", lease=60.5), agent="*", lease=60.5)
        if answer.value is not None:
            self.clock.advance(70)
            self.do_compensate(dice)
            self.end(answer.value, dice.pick(("complete", "complete", "fail", "release", "renew")))

    def do_zombie(self, dice: Dice) -> None:
        """A branch is taken over while a call runs; the old worker reports, then perhaps the new one."""
        effect = self.effect(dice, self.unknown)
        if effect is not None:
            self.takeover(self.model.effects[effect].branch, gone=dice.roll(4) == 3)
            self.report(effect, len(self.tokens[effect]) - 2, ran=dice.roll(4) > 0)
            if dice.roll(2):
                self.report(effect, len(self.tokens[effect]) - 1, ran=False)

    def do_mistake(self, dice: Dice) -> None:
        """A branch says that it saw the version of a call that then turns out never to have run, or did it?"""
        effect = self.effect(dice, lambda e: self.unknown(e) and bool(self.model.effects[e].writes))
        if effect is None or not self.unknown(effect):
            return
        key = dice.pick(self.model.effects[effect].writes or KEYS)
        self.observe(self.handle(dice), {key: effect if dice.roll(3) else None}, None)
        if self.unknown(effect):
            self.report(effect, len(self.tokens[effect]) - 1, ran=False)
        if dice.roll(4) == 3:
            self.do_register(dice)
            self.report(effect, len(self.tokens[effect]) - 1, ran=True)

    # Time

    def do_time(self, dice: Dice) -> None:
        """Time passes; mostly somebody lets the store do what fell due."""
        self.clock.advance(dice.pick((1, 3, 10, 35, 70)))
        if dice.often():
            self.both("tick", self.model.tick)

    def finish(self) -> None:
        """End every claim, let persons approve, and undo all that can be undone, so that final reports are compared."""
        for step in self.claims:
            self.both("release", partial(self.model.release, step), step=step)
        self.claims.clear()
        for _ in range(2):
            for rollback in [r.id for r in self.model.rollbacks.values() if r.gate == "pending"]:
                approve = partial(self.model.approve, rollback, reason="end of the run")
                self.both("approve", approve, rollback=rollback, reason="end of the run")
            self.clock.advance(200)
            self.both("tick", self.model.tick)
            # The real call sleeps through backoffs, and nobody moves the given clock meanwhile.
            self.clock.advance(32)
            self.both("compensate", self.run_all)

    def do_reopen(self, _: Dice) -> None:
        """A reopening that the commands ask for."""
        self.reopen()

    def reopen(self) -> None:
        """The process closes the store and opens it anew; steps are given back first, as handles do not survive."""
        for step in self.claims:
            self.both("release", partial(self.model.release, step), step=step)
        self.claims.clear()
        self.turns.clear()
        self.since.clear()
        for name in self.handles:
            newest = Handle(name, self.handles[name][-1].token, 0)
            self.handles[name] = [newest]
        self.tokens = {e: tokens[-1:] for e, tokens in self.tokens.items()}
        owners = {e: self.model.effects[e].branch for e in self.tokens}
        self.reopened += 1
        self.both("reopen", lambda: None, names=sorted(self.handles), owners=owners)


# How often each verb is played, of 256 rolls.
WEIGHTS: Sequence[tuple[str, int]] = (
    ("register", 58),
    ("branch", 9),
    ("done", 20),
    ("observe", 13),
    ("late_observe", 10),
    ("not_run", 10),
    ("late", 9),
    ("register_many", 8),
    ("parallel", 5),
    ("seal", 9),
    ("commit", 9),
    ("reconcile", 7),
    ("abort_effect", 5),
    ("abort", 2),
    ("resume", 7),
    ("takeover", 3),
    ("heartbeat", 2),
    ("merge", 5),
    ("close", 3),
    ("exposed", 2),
    ("claim", 6),
    ("end", 9),
    ("drain", 6),
    ("compensate", 6),
    ("person", 11),
    ("stall", 4),
    ("zombie", 3),
    ("mistake", 4),
    ("time", 9),
    ("reopen", 1),
)
VERBS = tuple(verb for verb, weight in WEIGHTS for _ in range(weight))
