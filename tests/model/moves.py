"""The moves of branches, their effects and the fence."""

from __future__ import annotations

from typing import Any

from .player import Answer, Handle, Player
from .reference import Call
from .script import AGENTS, KEYS, Dice, call_from


class Moves(Player):
    """Each `do_` method is one command; its dice choose what it is about."""

    # Branches

    def do_branch(self, dice: Dice) -> None:
        """Create a branch, or a child; rarely with a name that is taken."""
        count = len(self.handles)
        working = sum(self.model.branches[n].state != "closed" for n in self.handles)
        taken = working >= self.setting.branches or (count > 0 and dice.roll(32) == 31)
        name = f"b{dice.roll(max(count, 1)) if taken else count}"
        usual = [n for n in sorted(self.handles) if self.model.branches[n].state == "open"]
        parents = usual if usual and dice.often() else sorted(self.handles)
        parent = dice.pick(parents) if self.setting.children and parents and dice.roll(3) else None
        arguments: dict[str, Any] = {
            "agent": dice.pick(AGENTS),
            "parent": parent,
            "reads": dice.pick(self.setting.rules),
            "overwrite": dice.pick(self.setting.overwrites),
            "lease": dice.pick(self.setting.leases),
        }
        answer = self.both("branch", lambda: self.model.branch(name, **arguments).token, name=name, **arguments)
        if answer.refused is None:
            self.handed(name, answer.value)

    def do_takeover(self, dice: Dice) -> None:
        """Take a branch over; the effects get new tokens."""
        self.takeover(dice.pick(sorted(self.handles)), gone=dice.roll(4) == 3)

    def takeover(self, name: str, *, gone: bool) -> None:
        """Hand out new tokens."""
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
        shape = dice.roll(10)
        since = None
        brackets = self.since.setdefault(handle.name, [])
        if shape == 5:
            keys[dice.pick(KEYS)] = None
        elif shape == 6:
            key = next(iter(keys))
            writers = [e.id for e in self.model.effects.values() if self.model.wrote(e.id, key)]
            keys = {key: dice.pick([*reversed(writers), 0])}
        elif shape > 6 and brackets:
            since = dice.pick(brackets)
        self.observe(handle, keys, since)

    def observe(self, handle: Handle, keys: dict[str, int | None], since: int | None) -> None:
        """Read, and keep the bracket."""
        answer = self.both(
            "observe",
            lambda: [s.copy() for s in self.model.observe(handle.name, handle.token, keys, since=since)],
            handle=handle,
            keys=keys,
            since=since,
        )
        if answer.refused is None:
            self.since.setdefault(handle.name, []).append(self.model.position)

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
        effect = self.effect(dice, self.may_come_late)
        if effect is not None:
            self.report(effect, self.token(dice, effect), ran=dice.roll(3) > 0)

    def may_come_late(self, effect: int) -> bool:
        """Whether a report that the call ran would be evidence."""
        record = self.model.effects[effect]
        return record.state in ("doomed", "void") and record.outcome != "done"

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
        resting = [e for e in self.model.live() if self.model.closure(e)]
        if resting and dice.roll(3) == 2:
            commit: tuple[int | str, ...] = (dice.pick(resting[::-1]),)
        else:
            commit = tuple(dict.fromkeys(self.ref(dice) for _ in range(dice.roll(3))))
        arguments: dict[str, Any] = {
            "commit": commit,
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
