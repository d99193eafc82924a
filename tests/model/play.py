"""Plays a script of commands on the model and, where there is one, on a store beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from .clock import FakeClock
from .reference import Call, Claimed, Model, Refused
from .script import AGENTS, KEYS, Dice, Setting, call_from


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

    def finish(self) -> None:
        """Whatever is checked once per sequence."""


@dataclass
class Play:
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
        return answer

    def play(self, command: bytes) -> None:
        """Play one command."""
        dice = Dice(command)
        verb = dice.roll(len(VERBS))
        if not any(self.model.branches[n].state == "open" for n in self.handles) and verb < 128:
            stopped = any(self.model.branches[n].state == "doomed" for n in self.handles)
            (self.do_resume if stopped and verb % 2 else self.do_branch)(dice)
        elif self.handles:
            getattr(self, f"do_{VERBS[verb]}")(dice)

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

    # Branches

    def do_branch(self, dice: Dice) -> None:
        """Create a branch, or a child; rarely with a name that is taken."""
        count = len(self.handles)
        working = sum(self.model.branches[n].state != "closed" for n in self.handles)
        taken = working >= self.setting.branches or (count > 0 and dice.roll(32) == 31)
        name = f"b{dice.roll(max(count, 1)) if taken else count}"
        usual = [n for n in sorted(self.handles) if self.model.branches[n].state == "open"]
        parents: list[str | None] = [None, *(usual if dice.often() else sorted(self.handles))]
        if not self.setting.children:
            parents = [None]
        arguments: dict[str, Any] = {
            "agent": dice.pick(AGENTS),
            "parent": dice.pick(parents),
            "reads": dice.pick(self.setting.rules),
            "overwrite": dice.pick(self.setting.overwrites),
            "lease": dice.pick(self.setting.leases),
        }
        answer = self.both("branch", lambda: self.model.branch(name, **arguments).token, name=name, **arguments)
        if answer.refused is None:
            self.handed(name, answer.value)

    def do_takeover(self, dice: Dice) -> None:
        """Take a branch over; the effects get new tokens."""
        name = dice.pick(sorted(self.handles))
        gone = dice.roll(4) == 3
        places = {e: len(self.tokens[e]) for e in self.model.own(name)}
        answer = self.both(
            "takeover", lambda: self.model.takeover(name, worker_gone=gone), name=name, gone=gone, places=places
        )
        self.handed(name, answer.value)
        for effect in self.model.own(name):
            self.tokens[effect].append(answer.value)

    def do_resume(self, dice: Dice) -> None:
        """Resume a branch, mostly a stopped one."""
        stopped = [n for n in sorted(self.handles) if self.model.branches[n].state == "doomed"]
        if stopped and dice.often():
            handle = self.handles[dice.pick(stopped)][-1]
        else:
            handle = self.handle(dice)
        answer = self.both("resume", lambda: self.model.resume(handle.name, handle.token), handle=handle)
        if answer.refused is None:
            self.handed(handle.name, answer.value)

    def do_heartbeat(self, dice: Dice) -> None:
        """Renew a branch's lease."""
        handle = self.handle(dice)
        self.both("heartbeat", lambda: self.model.heartbeat(handle.name, handle.token), handle=handle)

    def do_merge(self, dice: Dice) -> None:
        """Finish a child."""
        handle = self.handle(dice)
        states = {n: b.state for n, b in self.model.branches.items()}
        parents = {n: b.parent for n, b in self.model.branches.items()}
        children = [n for n in sorted(states) if states[n] == "open" and states.get(parents[n] or "") == "open"]
        if children and dice.often():
            handle = self.handles[dice.pick(children)][-1]
        if self.model.branches[handle.name].parent is not None:
            self.both("merge", lambda: self.model.merge(handle.name, handle.token), handle=handle)

    def do_parallel(self, dice: Dice) -> None:
        """Begin a parallel turn."""
        handle = self.handle(dice)
        if handle.token == self.model.branches[handle.name].token:
            turns = self.turns.setdefault(handle.name, [])
            turn = Handle(handle.name, handle.token, len(turns), frozenset(self.model.tip(handle.name)))
            turns.append(turn)
            self.both("parallel", lambda: None, handle=handle, turn=turn)

    def do_observe(self, dice: Dice) -> None:
        """A branch reads: one or two keys, a version, or with a bracket."""
        handle = self.handle(dice)
        keys: dict[str, int | None] = {dice.pick(KEYS): None}
        shape = dice.roll(8)
        since = None
        brackets = self.since.setdefault(handle.name, [])
        if shape == 5:
            keys[dice.pick(KEYS)] = None
        elif shape == 6:
            key = next(iter(keys))
            writers = [e.id for e in self.model.effects.values() if self.model.wrote(e.id, key)]
            keys = {key: dice.pick([*reversed(writers), 0])}
        elif shape == 7 and brackets:
            since = dice.pick(brackets)
        answer = self.both(
            "observe",
            lambda: [s.copy() for s in self.model.observe(handle.name, handle.token, keys, since=since)],
            handle=handle,
            keys=keys,
            since=since,
        )
        if answer.refused is None:
            brackets.append(self.model.position)

    # Effects

    def take(self, answer: Answer) -> None:
        """Note the effect that a registration handed out."""
        for registered in answer.value if isinstance(answer.value, list) else [answer.value]:
            if registered.created:
                self.tokens[registered.effect] = [registered.token]

    def do_register(self, dice: Dice) -> None:
        """Register one effect, and mostly report it at once."""
        handle = self.handle(dice)
        turns = self.turns.get(handle.name, [])
        if turns and dice.roll(3) == 2:
            handle = dice.pick(turns)
        quick = dice.roll(3)
        call = call_from(dice, self.model)
        name, token, base = handle.name, handle.token, handle.base
        answer = self.both(
            "register", lambda: self.model.register(name, token, call, base=base), handle=handle, call=call
        )
        if answer.refused is None:
            self.take(answer)
            if quick < 2 and answer.value.created and self.model.effects[answer.value.effect].mode == "eager":
                self.report(answer.value.effect, 0, ran=True)

    def do_register_many(self, dice: Dice) -> None:
        """Register two or three effects in one call, of one or two branches."""
        handles = [self.handle(dice)] * 2 + [self.handle(dice)]
        calls: list[Call] = []
        for place in range(2 + dice.roll(2)):
            calls.append(call_from(Dice(dice.data[dice.place :] + dice.data[: place + 3]), self.model, place))
            dice.place += 2
        items = [(h.name, h.token, c, h.base) for h, c in zip(handles, calls, strict=False)]
        answer = self.both(
            "register_many", lambda: self.model.register_many(items), handles=handles[: len(calls)], calls=calls
        )
        if answer.refused is None:
            self.take(answer)

    def report(self, effect: int, place: int, *, ran: bool) -> None:
        """Report an outcome with the token at that place."""
        token = self.tokens[effect][place]
        action = (lambda: self.model.done(effect, token)) if ran else (lambda: self.model.not_run(effect, token))
        self.both("done" if ran else "not_run", action, effect=effect, place=place)

    def do_done(self, dice: Dice) -> None:
        """A call reports that it ran."""
        effect = self.effect(dice, self.unknown)
        if effect is not None:
            self.report(effect, self.token(dice, effect), ran=True)

    def do_late(self, dice: Dice) -> None:
        """A call of a settled effect reports late, one way or the other."""
        effect = self.effect(dice, lambda e: self.model.effects[e].state in ("doomed", "void"))
        if effect is not None:
            self.report(effect, self.token(dice, effect), ran=dice.roll(3) > 0)

    def do_not_run(self, dice: Dice) -> None:
        """A call reports that it did not run."""
        effect = self.effect(dice, self.unknown)
        if effect is not None:
            self.report(effect, self.token(dice, effect), ran=False)

    def do_late_observe(self, dice: Dice) -> None:
        """A running call has read a key."""
        effect = self.effect(dice, self.unknown)
        if effect is None:
            return
        place, keys = self.token(dice, effect), [dice.pick(KEYS)]
        token = self.tokens[effect][place]
        self.both(
            "late_observe",
            lambda: self.model.late_observe(effect, token, keys),
            effect=effect,
            place=place,
            keys=keys,
        )

    def do_close(self, dice: Dice) -> None:
        """Somebody says that an effect's worker is gone."""
        effect = self.effect(dice, lambda e: self.model.effects[e].outcome == "unknown")
        if effect is not None:
            self.both("close", lambda: self.model.close(effect), effect=effect)

    def do_exposed(self, dice: Dice) -> None:
        """An outside party saw a live effect."""
        effect = self.effect(dice, self.unknown)
        if effect is not None and self.unknown(effect):
            place = len(self.tokens[effect]) - 1
            self.both("exposed", lambda: self.model.exposed(effect), effect=effect, place=place)

    # Fence

    def do_seal(self, dice: Dice) -> None:
        """A branch votes."""
        handle = self.handle(dice)
        self.both("seal", lambda: self.model.seal(handle.name, handle.token), handle=handle)

    def do_commit(self, dice: Dice) -> None:
        """A branch asks for the commit of all that it has, or of one of its effects."""
        handle = self.handle(dice)
        own = self.model.own(handle.name)
        target: int | str = dice.pick(own[::-1]) if own and dice.roll(3) == 2 else handle.name
        if isinstance(target, int) and handle.token != self.model.branches[handle.name].token:
            target = handle.name
        escalate = "wait" if dice.often() else "never"
        self.both(
            "commit",
            lambda: self.model.commit(handle.name, handle.token, target, escalate=escalate),
            handle=handle,
            target=target,
            escalate=escalate,
        )

    def do_abort(self, dice: Dice) -> None:
        """A branch aborts itself."""
        handle = self.handle(dice)
        self.both("abort", lambda: self.model.abort(handle.name, handle.token), handle=handle)

    def do_reconcile(self, dice: Dice) -> None:
        """The merge authority settles some work one way and some the other."""
        arguments: dict[str, Any] = {
            "commit": tuple(dict.fromkeys(self.ref(dice) for _ in range(dice.roll(3)))),
            "abort": tuple(dict.fromkeys(self.ref(dice) for _ in range(dice.roll(3)))),
            "closure": dice.roll(2) == 1,
            "on_conflict": "raise" if dice.roll(3) else "abort",
            "escalate": "wait" if dice.often() else "never",
        }
        self.both("reconcile", lambda: self.model.reconcile(**arguments), **arguments)

    def do_abort_effect(self, dice: Dice) -> None:
        """The merge authority decides against one effect."""
        live = self.model.live()
        if live:
            arguments: dict[str, Any] = {"abort": (dice.pick(live),), "commit": (), "closure": False}
            arguments |= {"on_conflict": "raise", "escalate": "wait"}
            self.both("reconcile", lambda: self.model.reconcile(**arguments), **arguments)

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
            answer = self.both("claim", lambda: self.model.claim("*", lease=60.5), agent="*", lease=60.5)
            if answer.value is None:
                break
            self.end(answer.value, dice.pick(("complete",) * 5 + ("fail", "fail", "permanent")))

    def do_compensate(self, dice: Dice) -> None:
        """One worker runs all that is due in one call, and every handler succeeds."""
        if any(self.model.unfinished(e) for e in self.model.effects) or dice.roll(16) == 0:
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
    ("register", 63),
    ("branch", 11),
    ("done", 20),
    ("observe", 14),
    ("late_observe", 10),
    ("not_run", 10),
    ("late", 7),
    ("register_many", 8),
    ("parallel", 5),
    ("seal", 9),
    ("commit", 9),
    ("reconcile", 7),
    ("abort_effect", 6),
    ("abort", 2),
    ("resume", 9),
    ("takeover", 3),
    ("heartbeat", 2),
    ("merge", 4),
    ("close", 3),
    ("exposed", 2),
    ("claim", 8),
    ("end", 11),
    ("drain", 6),
    ("compensate", 6),
    ("person", 11),
    ("time", 9),
    ("reopen", 1),
)
VERBS = tuple(verb for verb, weight in WEIGHTS for _ in range(weight))
