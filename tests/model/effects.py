"""Effects: registration with its refusals, outcomes with their second look, late calls as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .branches import Branches
from .fence import verb
from .world import Branch, Effect, Inverse, Refused, Seen


@dataclass(frozen=True)
class Call:
    """What `register` takes; `after` holds ids or, negative, places of earlier items of the call (-1: the first)."""

    tool: str
    args: str = ""
    reads: dict[str, int | None] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    after: tuple[int, ...] | None = None
    inverse: Inverse | None = None
    reversibility: str | None = None
    mode: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Registered:
    """The answer of `register`."""

    effect: int
    created: bool
    token: int | None


class Effects(Branches):
    """Rules of sections 3 and 4 on effects."""

    # Registration

    @verb
    def register(self, name: str, token: int, call: Call, *, base: frozenset[int] | None = None) -> Registered:
        """Record one effect; `base` is the tip of a parallel turn."""
        tip = set(base) if base is not None else None
        return self.admit(name, token, call, tip)

    @verb
    def register_many(self, items: Sequence[tuple[str, int, Call, frozenset[int] | None]]) -> list[Registered]:
        """All or nothing; the items are siblings on the tips as before the call (C14)."""
        tips = {name: self.tip(name) for name, _, _, _ in items if name in self.branches}
        saved = (self.last_id, dict(self.keys), {n: list(b.seen) for n, b in self.branches.items()})
        answers: list[Registered] = []
        for index, (name, token, call, base) in enumerate(items):
            after = call.after
            if after is not None:
                after = tuple(answers[-a - 1].effect if a < 0 else a for a in after)
            try:
                tip = set(base) if base is not None else tips.get(name, set())
                answers.append(self.admit(name, token, replace(call, after=after), tip))
            except Refused as refusal:
                self.last_id, self.keys = saved[0], saved[1]
                for branch, seen in saved[2].items():
                    self.branches[branch].seen = seen
                for answer in answers:
                    if answer.created:
                        self.effects.pop(answer.effect, None)
                refusal.attributes["index"] = index
                raise
        return answers

    def admit(self, name: str, token: int, call: Call, tip: set[int] | None) -> Registered:
        """Judge one registration in the order of C5 and record it."""
        branch = self.guard_token(name, token)
        known = self.known(branch, call)
        if known is not None:
            return known
        self.guard_open(branch)
        if self.compensating(name):
            raise Refused("CompensationScopeError", branch=name)
        for seen in branch.seen:
            if self.blocking(branch, seen):
                raise Refused(seen.error or "UncommittedKeyError", key=seen.key)
        effect = self.draft(branch, call)
        self.rest(branch, effect, call, tip)
        self.check_limits(effect)
        self.last_id = effect.id
        self.effects[effect.id] = effect
        if call.key is not None:
            self.keys[call.key] = effect.id
        return Registered(effect.id, True, effect.token)

    def known(self, branch: Branch, call: Call) -> Registered | None:
        """The first effect of a known idempotency key; another branch observes it by asking (C10)."""
        if call.key is None or call.key not in self.keys:
            return None
        first = self.effects[self.keys[call.key]]
        if first.tool != call.tool or first.args != call.args:
            differs = "tool" if first.tool != call.tool else "args"
            raise Refused("IdempotencyConflictError", effect=first.id, differs=differs)
        if first.branch == branch.name:
            return Registered(first.id, False, first.token)
        if first.state == "live":
            branch.seen = [*branch.seen, Seen("lookup", None, {first.id}, self.position)]
        return Registered(first.id, False, None)

    def draft(self, branch: Branch, call: Call) -> Effect:
        """The effect as it would be recorded; it enters nothing yet."""
        if self.frozen:
            raise Refused("FrozenError")
        if call.inverse is None and call.reversibility != "irreversible" and self.policy.require_inverse:
            raise Refused("InverseRequiredError", tool=call.tool)
        kind = call.reversibility or ("partial" if call.inverse is not None and call.inverse.partial else "full")
        named = [a for a in call.after or () if a in self.effects]
        deferred = kind == "irreversible" or any(self.effects[a].mode == "deferred" for a in named)
        mode = "deferred" if deferred or call.mode == "deferred" else "eager"
        return Effect(
            id=self.last_id + 1,
            branch=branch.name,
            agent=branch.agent,
            tool=call.tool,
            args=call.args,
            reads=dict(call.reads),
            writes=call.writes,
            mode=mode,
            reversibility=kind,
            inverse=call.inverse,
            key=call.key,
            token=branch.token,
            registered=self.position,
        )

    def rest(self, branch: Branch, effect: Effect, call: Call, tip: set[int] | None) -> None:
        """Give the effect its edges and judge what they name."""
        if call.after is None:
            base = self.tip(branch.name) if tip is None else tip
            for dependency in (d for d in base if self.effects[d].state == "live"):
                effect.deps.setdefault(dependency, set()).add("order")
        for dependency in call.after or ():
            if dependency not in self.effects:
                raise Refused("NotFoundError", ref=dependency)
            for target in self.expand([dependency]):
                if self.effects[target].state == "doomed":
                    raise Refused("DoomedDependencyError", dependency=target, key=None)
                effect.deps.setdefault(target, set()).add("after")
        for seen in branch.seen:
            for writer in seen.writers:
                effect.deps.setdefault(writer, set()).add("version" if seen.kind == "version" else "branch")
        for key, version in call.reads.items():
            if version is not None:
                for writer in self.check_version(branch, key, version):
                    effect.deps.setdefault(writer, set()).add("version")
            elif effect.mode == "eager":
                for writer in self.check_read(branch, key):
                    effect.deps.setdefault(writer, set()).add("read")
        if effect.mode == "eager":
            self.check_writes(branch, effect, call)

    def check_writes(self, branch: Branch, effect: Effect, call: Call) -> None:
        """A written key is neither dirty nor in flight, and a version named for it is the newest (C9)."""
        for key in call.writes:
            if self.dirty(key):
                raise Refused("DirtyKeyError", key=key, writers=self.dirty(key))
            busy = [w for w in self.live_writers(key) if self.effects[w].outcome == "unknown"]
            if busy:
                raise Refused("KeyBusyError", key=key, writers=busy)
            if branch.overwrite == "depend":
                for writer in self.live_writers(key):
                    effect.deps.setdefault(writer, set()).add("overwrite")
        for key in call.writes:
            version = call.reads.get(key)
            standing = [e.id for e in self.effects.values() if self.wrote(e.id, key) and self.stands(e)]
            if version is not None and standing and version != max(standing):
                raise Refused("KeyBusyError", key=key, writers=[max(standing)])

    def stands(self, effect: Effect) -> bool:
        """Whether the effect's version counts when the newest is looked for."""
        return effect.state in ("live", "committed")

    def check_limits(self, effect: Effect) -> None:
        """No limit is exceeded silently (I20, C13)."""
        limits = self.limits
        self.effects[effect.id] = effect
        try:
            if limits.live_effects is not None and len(self.live()) > limits.live_effects:
                raise Refused("LimitExceededError", limit="live_effects")
            for key in effect.writes if limits.live_writers_per_key is not None else ():
                writers = self.live_writers(key)
                front = [w for w in writers if not any(w in self.closure(o) for o in writers if o != w)]
                if limits.live_writers_per_key is not None and len(front) > limits.live_writers_per_key:
                    raise Refused("LimitExceededError", limit="live_writers_per_key")
            if limits.closure is not None and len(self.closure(effect.id)) > limits.closure:
                raise Refused("LimitExceededError", limit="closure")
        finally:
            del self.effects[effect.id]

    # Outcomes

    def current(self, effect: int, token: int) -> bool:
        """Whether the token is the effect's own; it outlives doom and resume, not a takeover."""
        return self.effects[effect].token == token

    def look_again(self, effect: Effect, keys: Sequence[str]) -> list[int]:
        """Add an edge to every writer that the running call may have seen; answer the doomed ones (C22)."""
        doomed = []
        for key in keys:
            for writer in self.writers_since(key, effect.registered):
                if writer == effect.id:
                    continue
                effect.deps.setdefault(writer, set()).add("read")
                doomed += [w for w in self.expand([writer]) if self.effects[w].state == "doomed"]
            doomed += [w for w in self.dirty_since(key, effect.registered) if w != effect.id]
        return doomed

    def raw_reads(self, effect: Effect) -> list[str]:
        """The keys whose names hold for the whole call; deferred ones are resolved when handed out."""
        return [k for k, v in effect.reads.items() if v is None and effect.mode == "eager"]

    @verb
    def done(self, effect: int, token: int) -> None:
        """The call returned; its reads are looked at once more."""
        record = self.effects[effect]
        if not self.current(effect, token):
            self.stale(record, evidence=True)
        if record.state in ("doomed", "void"):
            self.late_done(record)
            raise Refused("AlreadySettledError", ref=effect, state=record.state)
        if record.outcome != "unknown":
            raise Refused("AlreadySettledError", ref=effect, state=record.state)
        record.outcome = "done"
        seen_doomed = self.look_again(record, self.raw_reads(record))
        self.freeze(record)
        if seen_doomed:
            self.doom([effect])

    @verb
    def not_run(self, effect: int, token: int) -> None:
        """The call never happened: the effect is void and leaves its place to what it rested on (C26, C30)."""
        record = self.effects[effect]
        if not self.current(effect, token):
            self.stale(record, evidence=False)
        if record.outcome != "unknown" or record.evidence or record.state not in ("live", "doomed"):
            raise Refused("AlreadySettledError", ref=effect, state=record.state)
        record.outcome = "not_run"
        if record.state == "doomed":
            if record.undo is not None and record.undo.begun == 0:
                record.undo.status, record.undo.kind = "discarded", None
            return
        seen_doomed = self.look_again(record, self.raw_reads(record))
        self.freeze(record)
        if seen_doomed:
            self.doom([effect])
        else:
            self.make_void(record)

    def freeze(self, record: Effect) -> None:
        """From now on the effect's edges are fixed (I1)."""
        record.frozen_deps = frozenset(record.deps)
        record.read_window = self.position

    def make_void(self, record: Effect) -> None:
        """Hand on what the effect rested on, and stop what says that it saw what never was."""
        liars = [e for e in self.live() if "version" in self.effects[e].deps.get(record.id, ())]
        record.sealed_then = self.counts(record.id)
        record.state, record.settled, record.voided = "void", self.position, self.position
        if record.key is not None and self.keys.get(record.key) == record.id:
            del self.keys[record.key]
        for branch in self.branches.values():
            if branch.name == record.branch or record.id in branch.handed:
                branch.handed.discard(record.id)
                if record.deps:
                    branch.seen.append(Seen("inherited", None, set(record.deps), self.position))
        if liars:
            self.doom(liars)
        for branch in self.branches.values():
            named = any(s.kind == "version" and record.id in s.writers for s in branch.seen)
            if named and branch.state == "open":
                branch.state, branch.cause = "doomed", record.id

    def stale(self, record: Effect, *, evidence: bool) -> None:
        """Refuse a stale token; a stale `done` is evidence all the same (C28, C29)."""
        if evidence and record.state in ("doomed", "void"):
            self.late_done(record)
        elif evidence and record.state == "live" and record.outcome == "unknown":
            record.evidence = True
        raise Refused("StaleTokenError", branch=record.branch)

    def late_done(self, record: Effect) -> None:
        """A late call did run: once per effect its inverse is due under a new generation (C28, C31)."""
        if record.outcome == "done":
            return
        record.outcome, record.late, record.evidence = "done", True, True
        if record.state == "void":
            record.was_void = True
            self.doom([record.id])
            committed = (e.id for e in self.effects.values() if e.state == "committed")
            self.alerts.append((record.id, tuple(e for e in committed if record.id in self.direct(e))))
        self.raise_generation(record.id)
        self.earlier_due_again(record.id, record.registered)

    @verb
    def late_observe(self, effect: int, token: int, keys: Sequence[str]) -> list[int]:
        """The running call has read the keys: it takes the edges, whatever the read rule says."""
        record = self.effects[effect]
        if not self.current(effect, token):
            raise Refused("StaleTokenError", branch=record.branch)
        if record.state != "live" or record.outcome != "unknown":
            raise Refused("AlreadySettledError", ref=effect, state=record.state)
        doomed = self.look_again(record, keys)
        if doomed:
            self.doom([effect])
            raise Refused("DirtyKeyError", writers=doomed)
        return sorted(w for k in keys for w in self.live_writers(k) if w != effect)

    @verb
    def close(self, effect: int) -> None:
        """Somebody knows that the worker is gone (C32)."""
        record = self.effects[effect]
        if record.outcome == "unknown":
            record.closed = True
