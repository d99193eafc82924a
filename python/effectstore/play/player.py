"""Plays one run of a trace through a store: register, decide, compensate, prove."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import effectstore
from effectstore.play.schedule import Plan, branches_of
from effectstore.play.trace import Call, Delta
from effectstore.play.world import World

Show = Callable[[str], None]

PATIENCE_SECONDS = 2.0
"""How long a call waits for a key that somebody else keeps busy or dirty before the refusal is passed on."""

EARLY_REASON = "the recorded agent made this call before anybody had accepted its branch"
ROLLBACK_REASON = "the recorded run is undone as planned"


@dataclass(frozen=True, slots=True)
class Played:
    """One call as it was played: its effect, and what the keys that it changed held just before it."""

    effect: int
    call: Call
    before: Delta


@dataclass(frozen=True, slots=True)
class PlayResult:
    """What became of one run. All effects are ids, all keys are keys of the world.

    `clean`: everything aborted was undone. `waiting`: blockers of the fence, and steps that a live writer holds up.
    `exempt`: keys of steps that did not run (conflict, or blocked behind one). `differences`: other keys on which the
    world is not what the surviving effects alone make; a correct store leaves none.
    """

    run: str
    branches: int
    resting: Mapping[str, tuple[str, ...]]
    effects: int
    committed: tuple[int, ...]
    doomed: tuple[int, ...]
    cascaded: tuple[int, ...]
    undone: tuple[int, ...]
    conflicts: Mapping[int, int | None]
    failed: tuple[int, ...]
    blocked: tuple[int, ...]
    waiting: tuple[int, ...]
    fences: tuple[int, ...]
    rollbacks: tuple[int, ...]
    early_approvals: int
    rollback_approvals: int
    refusals: int
    clean: bool
    exempt: tuple[str, ...]
    differences: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        plain = asdict(self)
        plain["conflicts"] = {str(effect): writer for effect, writer in self.conflicts.items()}
        plain["proved"] = not self.differences
        return plain


@dataclass(slots=True)
class _Tally:
    committed: list[int] = field(default_factory=list)
    doomed: list[int] = field(default_factory=list)
    cascaded: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    rollbacks: list[int] = field(default_factory=list)
    early_approvals: int = 0
    rollback_approvals: int = 0
    refusals: int = 0


class Player:
    """One run on one store. `scope` is put before branch names and keys, so that runs sharing a store do not meet.

    `by` names the person in whose name approvals are given and decisions are made. `on_failure` is what an inverse that
    cannot run holds up (None: as the store's policy says). `show` is told what happens, a line
    at a time; `on_call` is called after each played call.
    """

    def __init__(
        self,
        store: effectstore.Store,
        calls: Sequence[Call],
        *,
        scope: str = "",
        by: str = "player",
        on_failure: Literal["halt", "continue"] | None = None,
        show: Show | None = None,
        on_call: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.calls = calls
        self.scope = scope
        self.by = by
        self.on_failure = on_failure
        self.initial = World.before(sorted(calls, key=lambda call: call.seq))
        self.world = self.initial.copy()
        self.history: list[Played] = []
        self.undone: list[int] = []
        self._show = show
        self._on_call = on_call
        self._branches: dict[str, effectstore.Branch] = {}
        self._branch_of: dict[int, str] = {}
        self._resting: dict[str, tuple[str, ...]] = {}
        self._tally = _Tally()

    def run(self, plan: Plan) -> PlayResult:
        """Play all calls, decide by the plan, compensate and prove. Raises `PlanError` before anything is stored."""
        plan.check(branches_of(self.calls))
        for call in self.calls:
            self.play_call(call)
        self._resting = {branch: self._rests_on(self._name(branch), branch) for branch in self._branches}
        self.decide(plan)
        report = self.compensate()
        return self.prove(report)

    # Register

    def play_call(self, call: Call) -> Played:
        """Register one call with its inverse, then let the tool change the world, then report the outcome."""
        branch = self._branch(call)
        # The inverse is what the world holds now: under another order than the recorded one, the values in the trace
        # are those of another history.
        before = self.world.inverse_of(call.redo)
        options = self._options(call, before)
        if call.reversibility == "irreversible":
            options["mode"] = "eager"
            options["approval"] = self._approve_early(branch, call)
        effect = self._register(branch, call, options)
        self.world.apply(call.redo)
        effect.done(call.result)
        played = Played(effect.id, call, before)
        self.history.append(played)
        self._branch_of[effect.id] = call.branch
        if self._show is not None:
            self._tell_call(played)
        if self._on_call is not None:
            self._on_call()
        return played

    def _branch(self, call: Call) -> effectstore.Branch:
        branch = self._branches.get(call.branch)
        if branch is None:
            branch = self.store.branch(self._name(call.branch), agent=call.agent)
            self._branches[call.branch] = branch
        return branch

    def _options(self, call: Call, before: Delta) -> dict[str, Any]:
        limitation = f"what {call.tool} leaves outside the recorded keys" if call.reversibility == "partial" else None
        return {
            "inverse": effectstore.Inverse(call.restore_tool, before.to_args(), limitation=limitation),
            "reads": [self._key(key) for key in call.reads],
            "writes": [self._key(key) for key in call.writes],
            "reversibility": call.reversibility,
        }

    def _register(self, branch: effectstore.Branch, call: Call, options: Mapping[str, Any]) -> effectstore.Effect:
        try:
            return branch.register(call.tool, call.args, **options)
        except (effectstore.KeyBusyError, effectstore.DirtyKeyError) as refusal:
            self._tally.refusals += 1
            self._tell(f"  refused: {refusal}; waiting up to {PATIENCE_SECONDS:g} s")
            return branch.register(call.tool, call.args, **options, timeout=PATIENCE_SECONDS)

    def _approve_early(self, branch: effectstore.Branch, call: Call) -> effectstore.Approval:
        """The call cannot be taken back, and the trace made it early: that needs a recorded approval first."""
        asked = branch.request_approval(call.tool, call.args, by=call.agent, reason=EARLY_REASON)
        self._tally.early_approvals += 1
        return asked.approve(by=self.by, reason=EARLY_REASON)

    # Decide

    def decide(self, plan: Plan) -> None:
        """Reconcile by the plan; the abort side wins where the two sides meet, and the refusal is shown."""
        losers = [self._name(branch) for branch in plan.abort]
        wanted = branches_of(self.calls) if plan.commit is None else plan.commit
        winners = [branch for branch in wanted if branch not in plan.abort]
        if not losers:
            self._commit([played.effect for played in self.history if played.call.branch in winners])
            return
        try:
            self._reconcile(commit=[self._name(branch) for branch in winners], abort=losers)
        except effectstore.ReconcileConflictError as conflict:
            self._tell_conflict(conflict)
            self._reconcile(commit=[], abort=losers)
            fallen = {*self._tally.doomed, *self._tally.cascaded}
            self._commit(
                [p.effect for p in self.history if p.call.branch in winners and p.effect not in fallen],
            )

    def _commit(self, effects: list[int]) -> None:
        if effects:
            self._reconcile(commit=effects, abort=[])

    def _reconcile(self, *, commit: Sequence[int | str], abort: Sequence[str]) -> None:
        """One decision. Whoever is named to commit takes along what it rests on, in the name of `by`."""
        answer = self.store.reconcile(
            commit=commit, abort=abort, closure=bool(commit), by=self.by, reason="the plan of this play"
        )
        tally = self._tally
        tally.committed.extend(answer.committed)
        tally.doomed.extend(answer.doomed)
        tally.cascaded.extend(effect for effect in answer.cascaded if effect not in set(answer.doomed))
        if answer.fence is not None:
            # A fence without an id found everything settled already.
            if answer.fence.id is not None:
                tally.fences.append(answer.fence.id)
            if answer.fence.status == "waiting":
                tally.waiting.extend(blocker.effect for blocker in answer.fence.blockers)
        if answer.rollback is not None:
            tally.rollbacks.append(answer.rollback.id)
        self._tell_decision(answer)

    # Compensate

    def compensate(self) -> list[effectstore.CompensationReport]:
        """Run every inverse that is due; approvals that a rollback waits for are given and counted."""
        handlers = {call.restore_tool: self._undo for call in self.calls}
        return [self._compensate_one(rollback, handlers) for rollback in self._tally.rollbacks]

    def _compensate_one(self, rollback: int, handlers: Mapping[str, Any]) -> effectstore.CompensationReport:
        answered: set[int] = set()
        while True:
            report = self.store.compensate(handlers, rollback=rollback, on_failure=self.on_failure)
            asked = [approval for approval in report.approvals if approval not in answered]
            if not asked:
                self._tell_leftovers(report)
                return report
            for approval in asked:
                self.store.approval(approval).approve(by=self.by, reason=ROLLBACK_REASON)
                answered.add(approval)
                self._tally.rollback_approvals += 1
                self._tell(f"approved   rollback {rollback} (approval {approval}), by {self.by}")

    def _undo(self, args: Mapping[str, Any], step: effectstore.Step) -> None:
        self.world.apply(Delta(args["set"], tuple(args["unset"])))
        self.undone.append(step.effect.id)
        self._tell(f"undone     {step.effect.id:>5} {step.effect.tool} of {self._branch_of[step.effect.id]}")

    # Prove

    def expected_world(self, fallen: Iterable[int]) -> World:
        """What the effects that did not fall make of the initial world, one after the other."""
        gone = frozenset(fallen)
        expected = self.initial.copy()
        for played in self.history:
            if played.effect not in gone:
                expected.apply(played.call.redo)
        return expected

    def prove(self, reports: Sequence[effectstore.CompensationReport]) -> PlayResult:
        """Compare the world with a replay of the surviving effects alone."""
        tally = self._tally
        failures = [failure for report in reports for failure in report.failed]
        blocked = [entry.effect for report in reports for entry in report.blocked]
        left = {*blocked, *(failure.effect for failure in failures)}
        exempt = sorted({key for p in self.history if p.effect in left for key in p.call.writes})
        expected = self.expected_world([*tally.doomed, *tally.cascaded])
        failed = [failure.effect for failure in failures]
        # A step that nothing failed for is held up by a writer that is still to be decided.
        held_up = blocked if not failures else []
        return PlayResult(
            run=self.calls[0].run,
            branches=len(self._branches),
            resting=self._resting,
            effects=len(self.history),
            committed=tuple(tally.committed),
            doomed=tuple(tally.doomed),
            cascaded=tuple(tally.cascaded),
            undone=tuple(self.undone),
            conflicts={failure.effect: failure.writer for failure in failures if failure.kind == "conflict"},
            failed=tuple(failed),
            blocked=tuple(blocked),
            waiting=tuple(dict.fromkeys([*tally.waiting, *held_up])),
            fences=tuple(tally.fences),
            rollbacks=tuple(tally.rollbacks),
            early_approvals=tally.early_approvals,
            rollback_approvals=tally.rollback_approvals,
            refusals=tally.refusals,
            clean=all(report.clean for report in reports),
            exempt=tuple(exempt),
            differences=self.world.differences(expected, but_for=exempt),
        )

    # Names and narration

    def _name(self, branch: str) -> str:
        return f"{self.scope}{branch}"

    def _key(self, key: str) -> str:
        return f"{self.scope}{key}"

    def _rests_on(self, target: int | str, branch: str) -> tuple[str, ...]:
        """The other branches in the closure, as the store sees it now."""
        closure = self.store.decide(target).closure
        owners = {self._branch_of[effect] for effect in closure if effect in self._branch_of}
        return tuple(name for name in self._branches if name in owners and name != branch)

    def _tell(self, line: str) -> None:
        if self._show is not None:
            self._show(line)

    def _tell_call(self, played: Played) -> None:
        call = played.call
        others = self._rests_on(played.effect, call.branch)
        rests = f"  <- rests on {', '.join(others)}" if others else ""
        early = "  (irreversible, approved early)" if call.reversibility == "irreversible" else ""
        self._tell(f"registered {played.effect:>5} {call.branch:<4} {call.tool}{rests}{early}")

    def _tell_conflict(self, conflict: effectstore.ReconcileConflictError) -> None:
        path = " -> ".join(f"{effect} ({self._branch_of.get(effect, '?')})" for effect in conflict.path)
        self._tell(f"refused    a branch to commit rests on one to abort: {path}; the abort side wins")

    def _tell_leftovers(self, report: effectstore.CompensationReport) -> None:
        for failure in report.failed:
            writer = "" if failure.writer is None else f", overwritten by {self._owned(failure.writer)}"
            self._tell(f"failed     {self._owned(failure.effect)}: {failure.kind}{writer}")
        for entry in report.blocked:
            self._tell(f"blocked    {self._owned(entry.effect)} behind {_ids(entry.by)}")

    def _owned(self, effect: int) -> str:
        return f"{effect} of {self._branch_of.get(effect, 'another run')}"

    def _tell_decision(self, answer: effectstore.Reconciliation) -> None:
        if answer.doomed or answer.cascaded:
            dragged = [effect for effect in answer.cascaded if effect not in set(answer.doomed)]
            self._tell(f"doomed     {_ids(answer.doomed)}; dragged along: {_ids(dragged)}")
        if answer.rollback is not None:
            self._tell(f"rollback   {answer.rollback.id}: {answer.rollback.state}")
        if answer.fence is not None:
            fence = answer.fence
            self._tell(f"fence      {fence.id}: {fence.status}, commits {_ids(answer.committed)} in one record")
            for blocker in fence.blockers:
                self._tell(f"blocked by {blocker.effect} of {blocker.branch}: {blocker.reason}")


def _ids(effects: Iterable[int]) -> str:
    return ", ".join(str(effect) for effect in effects) or "none"
