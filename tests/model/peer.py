"""The store's side of a sequence: every verb through the public Python API, every answer held against the model's."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from .clock import FakeClock
from .player import Answer, Handle
from .reference import Call, Claimed, Model
from .script import UNKNOWN_ID


def ids(items: Iterable[Any]) -> set[int]:
    """Ids, whether snapshots or plain numbers were handed out."""
    return {getattr(item, "id", item) for item in items}


class StorePeer:
    """Drives `effectstore` and translates between its ids, handles and steps and those of the model."""

    def __init__(self, api: Any, path: Path) -> None:
        self.api = api
        self.path = path
        self.real: dict[int, int] = {}
        self.handles: dict[tuple[str, int], Any] = {}
        self.newest: dict[str, int] = {}
        self.turns: dict[tuple[str, int, int], Any] = {}
        self.effects: dict[tuple[int, int], Any] = {}
        self.brackets: dict[tuple[str, int], Any] = {}
        self.fences: dict[int, int] = {}
        self.rollbacks: dict[int, int] = {}
        self.steps: dict[Claimed, Any] = {}
        self.keys: dict[tuple[int, int], str] = {}

    def begin(self, model: Model, clock: FakeClock) -> None:
        """Open an empty store with the model's policy and limits."""
        self.model, self.clock = model, clock
        policy, limits = model.policy, model.limits
        retry = self.api.Retry(
            max_attempts=policy.retry.max_attempts,
            delay=policy.retry.delay,
            backoff=policy.retry.backoff,
            max_delay=policy.retry.max_delay,
            jitter=0.0,
        )
        wanted = {
            "live_effects": limits.live_effects,
            "live_writers_per_key": limits.live_writers_per_key,
            "closure": limits.closure,
        }
        self.store = self.api.open(
            self.path,
            clock=clock,
            policy=self.api.Policy(
                require_inverse=policy.require_inverse,
                auto_keys=policy.auto_keys,
                authority=policy.authority,
                on_failure=policy.on_failure,
                retry=retry,
                confirm_within=1e9,  # The model knows no limit to confirm, so none is ever over.
            ),
            limits=self.api.Limits(**{name: value for name, value in wanted.items() if value is not None}),
        )

    def finish(self) -> None:
        """The log itself must be sound at the end of a sequence."""
        self.store.verify()

    def close_quietly(self) -> None:
        """Close the store whatever happened to the sequence; a first error must not be hidden by a second."""
        with contextlib.suppress(Exception):
            self.store.close()

    def run(self, verb: str, expected: Answer, arguments: dict[str, Any]) -> None:
        """Run the verb; refusals must be of the class that the model names."""
        try:
            value = getattr(self, f"run_{verb}")(expected, **arguments)
        except self.api.EffectStoreError as error:
            got = type(error).__name__
            assert got == expected.refused, f"{verb}: {got} ({error}), the model says {expected}"
            if expected.index is not None:
                assert error.index == expected.index, f"{verb}: refused item {error.index}, not {expected.index}"
            return
        assert expected.refused is None, f"{verb}: answered {value!r}, the model refuses: {expected.refused}"

    # Translation

    def held(self, handle: Handle) -> Any:
        """The real branch behind a handle."""
        if handle.base is not None:
            return self.turns[handle.name, handle.token, handle.place]
        return self.handles[handle.name, handle.place]

    def ref(self, ref: int | str) -> int | str:
        """A branch's name or an effect's real id."""
        return ref if isinstance(ref, str) else self.real[ref]

    def keep(self, name: str, handle: Any) -> None:
        """Note a branch's newest handle."""
        self.newest[name] = self.newest.get(name, -1) + 1
        self.handles[name, self.newest[name]] = handle

    def version(self, version: int) -> int:
        """The real id of a version; 0 is before the store."""
        return self.real[version] if version else 0

    def reads(self, reads: dict[str, int | None]) -> Any:
        """Keys, or keys with versions."""
        if any(v is not None for v in reads.values()):
            return {k: self.version(v) for k, v in reads.items() if v is not None}
        return list(reads)

    def options(self, call: Call) -> dict[str, Any]:
        """What a registration takes beside tool and arguments."""
        inverse = None
        if call.inverse is not None and call.inverse.retry is not None:
            window = call.inverse.deadline
            retry = call.inverse.retry
            inverse = self.api.Inverse(
                "undo",
                {"tool": call.tool},
                deadline=None if window is None else timedelta(seconds=window - self.clock()),
                compare_and_set=call.inverse.compare_and_set,
                agent=call.inverse.agent,
                retry=self.api.Retry(
                    max_attempts=retry.max_attempts,
                    delay=retry.delay,
                    backoff=retry.backoff,
                    max_delay=retry.max_delay,
                    jitter=0.0,
                ),
                limitation="a trace stays" if call.inverse.partial else None,
            )
        return {
            "inverse": inverse,
            "reads": self.reads(call.reads),
            "writes": list(call.writes),
            "reversibility": call.reversibility,
            "mode": call.mode,
            "idempotency_key": call.key,
        }

    def real_after(self, after: tuple[int, ...] | None) -> list[int] | None:
        """Explicit dependencies by real id."""
        return None if after is None else [UNKNOWN_ID if a == UNKNOWN_ID else self.real[a] for a in after]

    def note(self, registered: Any, effect: Any) -> None:
        """Compare one registration's answer and keep the handle."""
        assert effect.created == registered.created, f"created={effect.created}, the model says {registered}"
        if registered.created:
            assert effect.id not in self.real.values(), f"id {effect.id} was given out twice"
            assert effect.id > max(self.real.values(), default=0), f"id {effect.id} does not rise"
            self.real[registered.effect] = effect.id
            self.effects[registered.effect, 0] = effect
        else:
            assert effect.id == self.real[registered.effect], f"{effect!r} for {registered}"
            assert (effect.token is None) == (registered.token is None), f"token of {effect!r}"

    def check_seen(self, live: set[int], observation: Any, allowed: set[int] | None = None) -> None:
        """The writers named are live ones and cover, directly or through others, every live one."""
        back = {real: effect for effect, real in self.real.items()}
        named = {back[w] for w in observation.writers}
        covered = named | {a for w in named for a in self.model.closure(w)}
        assert named <= (allowed or live), f"{observation} names more than {live}"
        assert live <= covered, f"{observation} misses some of {live}"

    # Branches

    def run_branch(self, expected: Answer, *, name: str, parent: str | None, **options: Any) -> None:
        """Create a branch."""
        handle = self.store.branch(name, parent=parent, **options)
        if expected.refused is None:
            self.keep(name, handle)

    def run_takeover(self, _: Answer, *, name: str, gone: bool, places: dict[int, int]) -> None:
        """Take over; the new handle gives new handles of the effects."""
        handle = self.store.takeover(name, worker_gone=gone, by="operator" if gone else None)
        self.keep(name, handle)
        for effect, place in places.items():
            self.effects[effect, place] = handle.effect(self.real[effect])

    def run_resume(self, _: Answer, *, handle: Handle) -> None:
        """Resume; the old handle is stale."""
        self.keep(handle.name, self.held(handle).resume())

    def run_heartbeat(self, _: Answer, *, handle: Handle) -> None:
        """Renew the lease."""
        self.held(handle).heartbeat()

    def run_merge(self, _: Answer, *, handle: Handle) -> None:
        """Finish a child."""
        self.held(handle).merge()

    def run_parallel(self, _: Answer, *, handle: Handle, turn: Handle) -> None:
        """Begin a parallel turn."""
        self.turns[turn.name, turn.token, turn.place] = self.held(handle).parallel()

    def run_observe(self, expected: Answer, *, handle: Handle, keys: dict[str, int | None], since: int | None) -> None:
        """A branch reads."""
        bracket = None if since is None else self.brackets[handle.name, since]
        observations = self.held(handle).observe(self.reads(keys), since=bracket)
        if expected.refused is None:
            self.brackets[handle.name, expected.value[-1].position] = observations[-1]
            assert [o.key for o in observations] == [s.key for s in expected.value]
            for observation, seen in zip(observations, expected.value, strict=True):
                self.check_seen({w for w in seen.writers if self.model.effects[w].state == "live"}, observation)

    # Effects

    def run_register(self, expected: Answer, *, handle: Handle, call: Call) -> None:
        """Register one effect."""
        effect = self.held(handle).register(
            call.tool, {"v": call.args}, after=self.real_after(call.after), **self.options(call)
        )
        if expected.refused is None:
            self.note(expected.value, effect)

    def run_register_many(self, expected: Answer, *, handles: list[Handle], calls: list[Call]) -> None:
        """Register several; `after` names earlier items by their registration."""
        items: list[Any] = []
        for handle, call in zip(handles, calls, strict=True):
            earlier = call.after is not None and call.after and call.after[0] < 0
            after = [items[-a - 1] for a in call.after or ()] if earlier else self.real_after(call.after)
            item = self.api.Registration(
                call.tool, {"v": call.args}, branch=self.held(handle), after=after, **self.options(call)
            )
            items.append(item)
        effects = self.store.register_many(items)
        if expected.refused is None:
            for registered, effect in zip(expected.value, effects, strict=True):
                self.note(registered, effect)

    def run_done(self, _: Answer, *, effect: int, place: int) -> None:
        """Report that the call ran."""
        self.effects[effect, place].done({"of": effect})

    def run_not_run(self, _: Answer, *, effect: int, place: int) -> None:
        """Report that the call did not run."""
        self.effects[effect, place].not_run("refused by the tool")

    def run_late_observe(self, expected: Answer, *, effect: int, place: int, keys: list[str]) -> None:
        """A running call has read."""
        (observation,) = self.effects[effect, place].observe(keys)
        if expected.refused is None:
            self.check_seen(set(expected.value), observation)

    def run_close(self, _: Answer, *, effect: int) -> None:
        """The worker is gone."""
        self.store.effect(self.real[effect]).close(by="operator", reason="host is gone")

    def run_exposed(self, _: Answer, *, effect: int, place: int) -> None:
        """An outside party saw it."""
        self.effects[effect, place].exposed("customer")

    # Fence

    def run_seal(self, _: Answer, *, handle: Handle) -> None:
        """Vote."""
        self.held(handle).seal()

    def check_fence(self, expected: Any, fence: Any) -> None:
        """Compare an intent or a decision."""
        assert fence.status == expected.status, f"{fence!r}, the model says {expected}"
        self.fences[expected.id] = fence.id

    def run_commit(self, expected: Answer, *, handle: Handle, target: int | str, escalate: str) -> None:
        """Ask for a commit."""
        branch = self.held(handle)
        asked = branch if isinstance(target, str) else branch.effect(self.real[target])
        fence = self.store.commit(asked, escalate=escalate)
        if expected.refused is None:
            self.check_fence(expected.value, fence)

    def check_reconciliation(self, expected: Any, got: Any) -> None:
        """Compare what was settled."""
        for field in ("committed", "doomed", "cascaded"):
            wanted = {self.real[e] for e in getattr(expected, field)}
            assert ids(getattr(got, field)) == wanted, f"{field}: {getattr(got, field)}, the model says {wanted}"
        assert ids(got.kept) <= {self.real[e] for e in expected.kept}, f"kept {got.kept}"
        assert (got.rollback is None) == (expected.rollback is None), f"rollback {got.rollback}"
        assert (got.fence is None) == (expected.fence is None), f"fence {got.fence}"
        if expected.fence is not None:
            self.check_fence(expected.fence, got.fence)

    def run_abort(self, expected: Answer, *, handle: Handle) -> None:
        """Abort a branch by its owner."""
        got = self.held(handle).abort(reason="changed its mind")
        if expected.refused is None:
            self.check_reconciliation(expected.value, got)

    def run_reconcile(self, expected: Answer, *, commit: Any, abort: Any, **options: Any) -> None:
        """Settle both sides."""
        sides = {"commit": [self.ref(r) for r in commit], "abort": [self.ref(r) for r in abort]}
        got = self.store.reconcile(**sides, by="judge", reason="compared", **options)
        if expected.refused is None:
            self.check_reconciliation(expected.value, got)

    # Undo

    def run_claim(self, expected: Answer, *, agent: str, lease: float) -> None:
        """Take the next step."""
        step = self.store.claim(agent, lease=lease)
        if expected.refused is not None:
            return
        claimed: Claimed | None = expected.value
        assert (step is None) == (claimed is None), f"{step!r}, the model says {claimed}"
        if claimed is not None:
            assert step.effect.id == self.real[claimed.effect], f"{step!r}, the model says {claimed}"
            assert step.attempt == claimed.attempt, f"attempt {step.attempt}, the model says {claimed}"
            key = self.keys.setdefault((claimed.effect, claimed.generation), step.idempotency_key)
            assert key == step.idempotency_key, "I14: the key changed within a generation"
            assert len(set(self.keys.values())) == len(self.keys), "I14: one key for two generations"
            self.steps[claimed] = step

    def run_complete(self, _: Answer, *, step: Claimed) -> None:
        """The inverse ran."""
        self.steps[step].complete()

    def run_fail(self, _: Answer, *, step: Claimed) -> None:
        """The inverse failed."""
        self.steps[step].fail("broken")

    def run_permanent(self, _: Answer, *, step: Claimed) -> None:
        """The inverse failed for good."""
        self.steps[step].fail("impossible", permanent=True)

    def run_later(self, _: Answer, *, step: Claimed) -> None:
        """The inverse asks for time."""
        self.steps[step].fail("busy", retry_after=7.5)

    def run_release(self, _: Answer, *, step: Claimed) -> None:
        """Give a step back."""
        self.steps[step].release()

    def run_renew(self, _: Answer, *, step: Claimed) -> None:
        """Keep a step longer."""
        self.steps[step].renew(lease=90.5)

    def run_compensate(self, expected: Answer) -> None:
        """Run all that is due."""
        order: list[int] = []
        handlers = {"undo": lambda args, step: order.append(step.effect.id)}
        self.store.compensate(handlers, lease=60.5, timeout=0)
        assert order == [self.real[e] for e in expected.value], f"undone {order}, the model says {expected.value}"

    def approval(self, rollback: int) -> Any:
        """The newest approval of the rollback."""
        return self.store.approval(max(self.store.rollback(self.rollbacks[rollback]).approvals))

    def run_approve(self, _: Answer, *, rollback: int, reason: str | None) -> None:
        """A person says yes."""
        self.approval(rollback).approve(by="person", reason=reason)

    def run_deny(self, _: Answer, *, rollback: int) -> None:
        """A person says no."""
        self.approval(rollback).deny(by="person", reason="no")

    def run_request_approval(self, _: Answer, *, rollback: int) -> None:
        """Ask anew."""
        self.store.rollback(self.rollbacks[rollback]).request_approval(by="operator", reason="please")

    def rollback_of(self, effect: int) -> Any:
        """The real rollback that holds the effect."""
        rollback = self.model.effects[effect].rollback
        assert rollback is not None
        return self.store.rollback(self.rollbacks[rollback])

    def run_retry(self, _: Answer, *, effect: int) -> None:
        """A person wants another try."""
        self.rollback_of(effect).retry(self.real[effect], by="operator", reason="repaired")

    def run_resolve(self, _: Answer, *, effect: int) -> None:
        """A person did it by hand."""
        self.rollback_of(effect).resolve(self.real[effect], by="operator", reason="by hand")

    # Time

    def run_tick(self, _: Answer) -> None:
        """Do what fell due."""
        self.store.tick()

    def run_reopen(self, _: Answer, *, names: list[str], owners: dict[int, str]) -> None:
        """Close, open, and pick the work up with names, ids and tokens."""
        tokens = {name: self.handles[name, self.newest[name]].token for name in names}
        self.store.close()
        self.store = self.api.open(self.path, clock=self.clock)
        self.handles = {(name, 0): self.store.join(name, token) for name, token in tokens.items()}
        self.newest = dict.fromkeys(names, 0)
        self.turns.clear()
        self.brackets.clear()
        self.effects = {(e, 0): self.handles[owner, 0].effect(self.real[e]) for e, owner in owners.items()}

    # Looking

    def compare(self) -> None:
        """Compare all that the public API shows."""
        self.compare_effects()
        self.compare_branches()
        for effect in self.model.live():
            self.compare_decision(effect)
        for fence in self.model.fences.values():
            if fence.id in self.fences:
                got = self.store.fence(self.fences[fence.id]).status
                assert got == fence.status, f"fence {fence.id}: {got}, the model says {fence}"
        self.compare_rollbacks()

    def compare_killed(self) -> None:
        """What a process killed now would leave behind: the files as they are, opened by somebody else."""
        image = self.path.with_name("killed")
        shutil.copytree(self.path, image)
        held, self.store = self.store, self.api.open(image, clock=self.clock)
        try:
            self.compare_effects()
            states = {b.name: b.state for b in self.store.branches()}
            assert states == {b.name: b.state for b in self.model.branches.values()}
            for effect in self.model.live():
                self.compare_decision(effect)
            self.compare_rollbacks()
            self.store.verify()
        finally:
            self.store.close()
            self.store = held
            shutil.rmtree(image)

    def compare_effects(self) -> None:
        """State, outcome, vote and rollback of every effect."""
        for effect in self.model.effects.values():
            got = self.store.effect(self.real[effect.id])
            wanted = (effect.state, effect.outcome, self.model.sealed(effect.id))
            assert (got.state, got.outcome, got.sealed) == wanted, (
                f"effect {effect.id}: {got!r}, the model says {wanted}"
            )
            assert (got.rollback is None) == (effect.rollback is None), f"effect {effect.id}: rollback {got.rollback}"
            if effect.rollback is not None:
                real = getattr(got.rollback, "id", got.rollback)
                known = self.rollbacks.setdefault(effect.rollback, real)
                assert known == real, f"effect {effect.id}: rollback {real}, its fellows are in {known}"

    def compare_branches(self) -> None:
        """State, tip and decision of every branch."""
        states = {b.name: b.state for b in self.store.branches()}
        assert states == {b.name: b.state for b in self.model.branches.values()}
        for branch in self.model.branches.values():
            if branch.state == "open":
                handle = self.handles[branch.name, self.newest[branch.name]].refresh()
                tip = {self.real[e] for e in self.model.tip(branch.name)}
                assert ids(handle.tip) == tip, f"{branch.name}: tip {handle.tip}, the model says {tip}"
            self.compare_decision(branch.name)

    def compare_decision(self, target: int | str) -> None:
        """What the fence would say."""
        wanted, got = self.model.decide(target), self.store.decide(self.ref(target))
        assert got.kind == wanted.kind, f"decide({target}): {got}, the model says {wanted}"
        if wanted.kind == "abort":
            return
        assert ids(got.closure) == {self.real[e] for e in wanted.closure}, f"decide({target}): {got}, not {wanted}"
        blockers = {(b.effect, b.reason) for b in got.blockers}
        assert blockers == {(self.real[e], reason) for e, reason in wanted.blockers}, f"decide({target}): {got}"

    def compare_rollbacks(self) -> None:
        """The report of every rollback, and whether it waits for a person."""
        back = {real: effect for effect, real in self.real.items()}
        blocked = self.model.blocked(self.model.before())
        for rollback, real in self.rollbacks.items():
            wanted = self.model.report([rollback], blocked=blocked)
            got = self.store.rollback(real)
            for field in ("completed", "unsettled", "pending", "discarded"):
                members = {back[e] for e in ids(getattr(got.report, field))}
                assert members == getattr(wanted, field), f"rollback {rollback} {field}: {members}, not {wanted}"
            failed = {back[f.effect]: f.kind for f in got.report.failed}
            assert failed == wanted.failed, f"rollback {rollback} failed: {failed}, not {wanted}"
            stuck = {back[b.effect if hasattr(b, "effect") else b[0]] for b in got.report.blocked}
            assert stuck == wanted.blocked, f"rollback {rollback} blocked: {stuck}, not {wanted}"
            assert got.report.clean == wanted.clean, f"rollback {rollback}: clean={got.report.clean}"
            waits = got.state == "awaiting_approval"
            assert waits == (self.model.rollbacks[rollback].gate == "pending"), f"rollback {rollback}: {got.state}"
