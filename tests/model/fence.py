"""The fence: votes, decisions, intents that commit by themselves, and the merge authority."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from .rollback import Rollbacks
from .world import AUTHORITY, Branch, Fence, Refused, Rollback

Ref = int | str
Function = TypeVar("Function", bound=Callable[..., Any])


def verb(function: Function) -> Function:
    """Make a method one step: timers first, then the verb, then what follows from it, also if it was refused (C1)."""

    @functools.wraps(function)
    def step(self: Fences, *args: Any, **kwargs: Any) -> Any:
        self.begin()
        try:
            return function(self, *args, **kwargs)
        finally:
            self.settle()

    return cast("Function", step)


@dataclass(frozen=True)
class Decision:
    """The answer of `decide`: blockers are pairs of effect and reason."""

    kind: str
    closure: frozenset[int]
    blockers: frozenset[tuple[int, str]]
    cause: int | None = None


@dataclass(frozen=True)
class Reconciliation:
    """What the merge authority's call did."""

    fence: Fence | None
    committed: frozenset[int]
    doomed: frozenset[int]
    cascaded: frozenset[int]
    kept: frozenset[int]
    rollback: Rollback | None


class Fences(Rollbacks):
    """Rules of sections 5 and 6."""

    # One step

    def begin(self) -> None:
        """A new position, and everything that fell due before it."""
        self.position += 1
        for branch in list(self.branches.values()):
            if branch.state != "closed" and branch.lease_until is not None and self.now >= branch.lease_until:
                self.expire(branch)
        self.expire_steps()
        self.judge_due()

    def settle(self) -> None:
        """Everything that follows in the same transaction."""
        self.settle_intents()
        self.judge_due()
        self.review_plans()
        self.note_dirty()

    def expire(self, branch: Branch) -> None:
        """Past its lease the branch is stopped and its unsealed effects are doomed (C2)."""
        branch.lease_until = None
        unsealed = [e for e in self.own_live(branch.name) if not self.effects[e].votes & {branch.name, AUTHORITY}]
        if unsealed:
            self.doom(unsealed)
        if branch.state == "open":
            branch.state = "doomed"

    # Votes

    def sealed(self, effect: int) -> bool:
        """What the public snapshot shows; settled effects keep what they had."""
        then = self.effects[effect].sealed_then
        return self.counts(effect) if then is None else then

    def scope(self, name: str) -> set[int]:
        """The live effects that a vote of the branch covers: its own and those of the branches below."""
        return {e for b in self.below(name) for e in self.own_live(b)}

    def give(self, votes: dict[int, set[str]]) -> None:
        """Make votes part of the record."""
        for effect, voters in votes.items():
            self.effects[effect].votes |= voters

    # Decisions

    def members(self, targets: Iterable[int]) -> set[int]:
        """The live targets and all live effects that they rest on."""
        live = {t for t in targets if self.effects[t].state == "live"}
        return live | {a for t in live for a in self.closure(t)}

    def blockers(self, targets: Iterable[int], extra: dict[int, set[str]] | None = None) -> frozenset[tuple[int, str]]:
        """What keeps the targets from being committed now (I11)."""
        found = set()
        for effect in self.members(targets):
            record = self.effects[effect]
            if record.outcome == "unknown" and record.mode != "deferred":
                found.add((effect, "unknown"))
            if not self.counts(effect, extra):
                found.add((effect, "no_vote"))
        return frozenset(found)

    def targets_of(self, target: Ref) -> tuple[list[int], dict[int, set[str]]]:
        """The effects that a commit by the owner asks for, and the votes that it gives."""
        if isinstance(target, str):
            return self.own_live(target), {e: {target} for e in self.scope(target)}
        owner = self.effects[target].branch
        part = self.members([target]) & self.scope(owner)
        return [target], {e: {owner} for e in part}

    def decide(self, target: Ref) -> Decision:
        """Answer without changing anything (C34-C36)."""
        nothing: frozenset[int] = frozenset()
        if isinstance(target, str):
            branch = self.branches[target]
            if branch.state == "doomed" or branch.closed_by == "abort":
                return Decision("abort", nothing, frozenset(), branch.cause)
        else:
            state = self.effects[target].state
            if state in ("doomed", "void"):
                return Decision("abort", nothing, frozenset(), target if state == "doomed" else None)
            if state == "committed":
                return Decision("commit", nothing, frozenset())
        targets, votes = self.targets_of(target)
        closure = frozenset(a for t in targets for a in self.closure(t))
        blockers = self.blockers(targets, votes)
        return Decision("escalate" if closure or blockers else "commit", closure, blockers)

    def commit_members(self, fence: Fence) -> None:
        """Commit the whole closure of the fence's live targets in one record (I4, I7)."""
        members = self.members(fence.targets)
        for effect in sorted(members):
            record = self.effects[effect]
            record.sealed_then = self.counts(effect)
            record.state, record.settled, record.fence = "committed", self.position, fence.id
        fence.status, fence.committed, fence.position = "committed", tuple(sorted(members)), self.position

    def judge_fence(self, fence: Fence) -> bool:
        """Decide a waiting intent if it can be decided (C37)."""
        states = {self.effects[t].state for t in fence.targets}
        if "doomed" in states or (states and states <= {"void"}):
            fence.status = "aborted"
        elif "live" not in states:
            fence.status = "committed"
        elif not self.blockers(fence.targets):
            self.commit_members(fence)
        return fence.status != "waiting"

    def settle_intents(self) -> None:
        """Commit every intent that has become possible, in order of id."""
        while any(self.judge_fence(f) for f in list(self.fences.values()) if f.status == "waiting"):
            pass

    def ask_fence(self, targets: Iterable[int]) -> Fence:
        """Leave an intent and decide it at once if possible."""
        fence = Fence(self.new_id(), tuple(sorted(targets)), "waiting")
        self.fences[fence.id] = fence
        self.judge_fence(fence)
        return fence

    def commit_votes(self, target: Ref, escalate: str) -> Fence:
        """Vote for the owner's part, leave an intent and decide, or raise and leave nothing behind."""
        decision = self.decide(target)
        if decision.kind == "abort":
            raise Refused("FenceClosureError", cause=decision.cause)
        targets, votes = self.targets_of(target)
        if escalate == "never" and decision.blockers:
            raise Refused("FenceClosureError", blockers=decision.blockers)
        self.give(votes)
        return self.ask_fence(targets)

    # The merge authority

    def abort_side(self, refs: Collection[Ref]) -> tuple[set[int], set[int], list[str]]:
        """The live effects that are named, the committed ones that are kept, and the branches to close (C40, C41)."""
        named: set[int] = set()
        kept: set[int] = set()
        closing: list[str] = []
        for ref in refs:
            if isinstance(ref, str):
                below = self.below(ref)
                closing += [b for b in below if self.branches[b].state != "closed"]
                members = {e for b in below for e in self.own(b)}
            else:
                members = {ref}
            named |= {e for e in members if self.effects[e].state == "live"}
            kept |= {e for e in members if self.effects[e].state == "committed"}
        return named, kept, closing

    def commit_side(self, refs: Collection[Ref]) -> set[int]:
        """The effects that the commit side names; void ones are left out (C42)."""
        named: set[int] = set()
        for ref in refs:
            if self.decide(ref).kind == "abort" and (isinstance(ref, str) or self.effects[ref].state == "doomed"):
                raise Refused("FenceClosureError", cause=self.decide(ref).cause)
            if isinstance(ref, str) and self.branches[ref].state == "closed":
                raise Refused("BranchClosedError", branch=ref)
            if isinstance(ref, str):
                named |= set(self.own_live(ref))
            elif self.effects[ref].state != "void":
                named.add(ref)
        return named

    def authority_votes(self, named: set[int], *, closure: bool) -> dict[int, set[str]]:
        """The votes of the authority; other owners' unvoted deferred or irreversible effects are theirs (C44)."""
        votes = {e: {AUTHORITY} for e in named}
        owners = {self.effects[e].branch for e in named}
        for effect in self.members(named) if closure else ():
            record = self.effects[effect]
            theirs = record.mode == "deferred" or record.reversibility == "irreversible"
            if not theirs or record.branch in owners or self.counts(effect):
                votes[effect] = {AUTHORITY}
        return votes

    def reconcile_sides(
        self, commit: Collection[Ref], abort: Collection[Ref], *, closure: bool, on_conflict: str, escalate: str
    ) -> Reconciliation:
        """Settle both sides in one step, or refuse with nothing changed (C43, C45)."""
        for ref in (*commit, *abort):
            if ref not in (self.branches if isinstance(ref, str) else self.effects):
                raise Refused("NotFoundError", ref=ref)
        winners = self.commit_side(commit)
        named, kept, closing = self.abort_side(abort)
        wins = bool(commit)
        if self.members(winners) & (named | self.cascade(named)):
            if on_conflict == "raise":
                raise Refused("ReconcileConflictError")
            wins = False
        votes = self.authority_votes(winners, closure=closure)
        if wins and escalate == "never" and self.blockers(winners, votes):
            raise Refused("FenceClosureError", blockers=self.blockers(winners, votes))
        doom = self.doom(named)
        for name in closing:
            branch = self.branches[name]
            branch.state, branch.closed_by = "closed", "abort"
            branch.cause = min((e for e in self.own(name) if self.effects[e].state == "doomed"), default=None)
        fence = None
        if wins:
            self.give(votes)
            voids = [r for r in commit if isinstance(r, int) and self.effects[r].state == "void"]
            fence = self.ask_fence(winners or voids)
        return Reconciliation(
            fence,
            frozenset(fence.committed if fence else ()),
            frozenset(doom.named),
            frozenset(doom.cascaded),
            frozenset(kept),
            doom.rollback,
        )
