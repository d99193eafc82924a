"""Dooming, and the undo of what was doomed: order, claims, attempts, guard, generations, approvals and reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .world import Approval, Effect, Refused, Retry, Rollback, Undo, World

DONE = ("completed", "resolved")


@dataclass(frozen=True)
class Doom:
    """What one decision against effects did."""

    named: tuple[int, ...]
    cascaded: tuple[int, ...]
    rollback: Rollback | None


@dataclass(frozen=True)
class Claimed:
    """A step as `claim` hands it out."""

    effect: int
    attempt: int
    generation: int
    token: int


@dataclass(frozen=True)
class Report:
    """The members of rollbacks, each in exactly one place (I18)."""

    completed: frozenset[int]
    unsettled: frozenset[int]
    failed: dict[int, str]
    blocked: frozenset[int]
    pending: frozenset[int]
    discarded: frozenset[int]
    waiting: int

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do or to know."""
        return not (self.unsettled or self.failed or self.blocked or self.pending)


class Rollbacks(World):
    """Rules of section 7 and the doom that starts them."""

    def doom(self, named: Iterable[int]) -> Doom:
        """Decide against the effects and all that rests on them, and plan the undo, in one step (I5, I7)."""
        roots = sorted(named)
        for effect in roots:
            self.effects[effect].state = "doomed"
        dragged = sorted(self.cascade(roots))
        for effect in dragged:
            self.effects[effect].state = "doomed"
        members = sorted({*roots, *dragged})
        for effect in members:
            self.plan_undo(self.effects[effect])
        for fence in self.fences.values():
            if fence.status == "waiting" and set(fence.targets) & set(members):
                fence.status = "aborted"
        self.stop_branches(members)
        rollback = None
        if any(self.may_have_run(e) for e in members):
            rollback = Rollback(self.new_id(), tuple(members), self.position)
            self.rollbacks[rollback.id] = rollback
            for effect in members:
                self.effects[effect].rollback = rollback.id
            # It is asked for at the end of the step, and nothing is handed out before.
            if self.asks(self.plan(rollback))[0]:
                rollback.gate = "pending"
        return Doom(tuple(roots), tuple(dragged), rollback)

    def plan_undo(self, effect: Effect) -> None:
        """A newly doomed effect gets a step if it may have happened."""
        effect.settled = self.position
        if effect.sealed_then is None:
            effect.sealed_then = self.counts(effect.id)
        if effect.mode == "deferred" or effect.outcome == "not_run":
            effect.undo = Undo("discarded")
        else:
            effect.undo = Undo("due")

    def stop_branches(self, members: Iterable[int]) -> None:
        """Doom stops every open branch that owns, was handed or has observed one of the effects."""
        doomed = set(members)
        for branch in self.branches.values():
            if branch.state != "open":
                continue
            cut = (set(self.own(branch.name)) | self.expand(branch.handed) | self.observed(branch.name)) & doomed
            if cut:
                branch.state, branch.cause = "doomed", min(cut)

    # Order and readiness

    def unfinished(self, effect: int) -> bool:
        """Whether the member still has an inverse to run or to be given up."""
        undo = self.effects[effect].undo
        return undo is not None and undo.status in ("due", "claimed", "failed")

    def domain(self) -> set[int]:
        """Members of all rollbacks that are not clean (C48)."""
        return {e for r in self.rollbacks.values() if not self.report([r.id]).clean for e in r.members}

    def overwrote(self, later: int, earlier: int) -> bool:
        """Whether both wrote a common key and the first did it later."""
        if later <= earlier or not (self.may_have_run(later) and self.may_have_run(earlier)):
            return False
        return any(self.wrote(later, k) and self.wrote(earlier, k) for k in self.effects[earlier].writes)

    def before(self) -> dict[int, set[int]]:
        """For each member what must be undone before it, transitively (I13)."""
        domain = self.domain()
        first = {e: {f for f in domain - {e} if e in self.direct(f) or self.overwrote(f, e)} for e in domain}
        changed = True
        while changed:
            changed = False
            for ahead in first.values():
                more = {g for f in ahead for g in first[f]} - ahead
                if more:
                    ahead |= more
                    changed = True
        return first

    def held_by(self, effect: int, before: dict[int, set[int]]) -> set[int]:
        """The unfinished members that this step has to wait for."""
        held = set()
        for other in before.get(effect, set()) - {effect}:
            ring = effect in before[other]
            undo = self.effects[other].undo
            if not self.unfinished(other) or (ring and other < effect) or undo is None:
                continue
            waived = undo.status == "failed" and self.policy.on_failure == "continue"
            if not waived or self.overwrote(other, effect):
                held.add(other)
        return held

    def later_writers(self, effect: int, state: str) -> list[int]:
        """Writers of one of its keys after it that are in the given state."""
        keys = self.effects[effect].writes
        return [
            e.id
            for e in self.effects.values()
            if e.id > effect and e.state == state and any(self.wrote(e.id, k) for k in keys)
        ]

    def guarded(self, effect: int) -> bool:
        """Whether later writers matter for the step (C49)."""
        record = self.effects[effect]
        return record.inverse is None or not record.inverse.compare_and_set or record.late

    def blocked(self, before: dict[int, set[int]]) -> set[int]:
        """Due steps behind a live later writer, or behind a failed or blocked one (C52)."""
        due = {e.id for e in self.effects.values() if e.undo is not None and e.undo.status == "due"}
        failed = {e.id for e in self.effects.values() if e.undo is not None and e.undo.status == "failed"}
        found = {e for e in due if self.guarded(e) and self.later_writers(e, "live")}
        while True:
            more = {e for e in due - found if self.held_by(e, before) & (found | failed)}
            if not more:
                return found
            found |= more

    def may_run(self, effect: Effect, agent: str) -> bool:
        """Whether the agent may run the inverse of the effect (C57, C66)."""
        own = self.branches[effect.branch].agent
        owner = effect.inverse.agent if effect.inverse is not None and effect.inverse.agent else own
        return agent in ("*", owner) or owner == "*"

    def ready(self, agent: str = "*") -> list[int]:
        """The steps that can be claimed now, highest id first."""
        before = self.before()
        found = []
        for e in self.effects.values():
            if e.undo is None or e.undo.status != "due" or e.rollback is None or not self.may_run(e, agent):
                continue
            gate = self.rollbacks[e.rollback].gate
            waits = self.guarded(e.id) and self.later_writers(e.id, "live")
            due = gate in ("automatic", "approved") and e.undo.not_before <= self.now
            if due and not waits and not self.held_by(e.id, before):
                found.append(e.id)
        return sorted(found, reverse=True)

    # Attempts

    def retry_of(self, effect: Effect) -> Retry:
        """The inverse's own retry rule or the policy's."""
        return (effect.inverse.retry if effect.inverse is not None else None) or self.policy.retry

    def claim_step(self, agent: str, lease: float) -> Claimed | None:
        """Begin the next attempt of the highest ready step."""
        ready = self.ready(agent)
        if not ready:
            return None
        undo = self.undo(ready[0])
        undo.status, undo.token, undo.lease_until = "claimed", self.new_token(), self.now + lease
        undo.attempt += 1
        undo.begun += 1
        undo.claimed_position = self.position
        self.starts.append((self.position, ready[0], undo.generation))
        assert undo.token is not None
        return Claimed(ready[0], undo.attempt, undo.generation, undo.token)

    def undo(self, effect: int) -> Undo:
        """The step of a doomed effect."""
        undo = self.effects[effect].undo
        assert undo is not None
        return undo

    def raise_generation(self, effect: int) -> None:
        """The inverse is due again under a new key; a claim is left to end first (C59)."""
        undo = self.undo(effect)
        if undo.status == "claimed":
            undo.evidence_pending = True
            return
        rollback = self.effects[effect].rollback
        if undo.status == "discarded" and rollback is not None:
            self.rollbacks[rollback].grown = True
        undo.status, undo.kind, undo.writer, undo.evidence_pending = "due", None, None, False
        undo.generation += 1
        undo.attempt = undo.failures = 0
        undo.not_before = 0.0
        undo.finished_position = None

    def earlier_due_again(self, effect: int, since: int) -> None:
        """Inverses of earlier doomed writers of its keys that finished after the position are due again."""
        for e in self.effects.values():
            if e.id >= effect or e.undo is None or e.undo.status not in DONE:
                continue
            assert e.undo.finished_position is not None
            if self.overwrote(effect, e.id) and e.undo.finished_position > since:
                self.raise_generation(e.id)

    def held_claim(self, step: Claimed) -> Undo | None:
        """The step's progress if the claim still holds."""
        undo = self.undo(step.effect)
        return undo if undo.status == "claimed" and undo.token == step.token else None

    def lost(self, step: Claimed, *, evidence: bool, position: int) -> None:
        """Refuse the outcome of a lost lease; it may have run late, which is evidence (C51)."""
        if evidence:
            self.earlier_due_again(step.effect, position)
        raise Refused("LeaseLostError", step=step.effect)

    def complete_step(self, step: Claimed, position: int) -> None:
        """Record success; earlier writers that this undo may have put back are due again."""
        undo = self.held_claim(step)
        if undo is None:
            self.lost(step, evidence=True, position=position)
            return
        undo.token = None
        undo.status, undo.finished_position = "completed", self.position
        if undo.evidence_pending:
            self.raise_generation(step.effect)
        self.earlier_due_again(step.effect, self.effects[step.effect].registered)

    def fail_step(self, step: Claimed, position: int, *, permanent: bool, after: float | None) -> None:
        """Record a failed attempt; bounded attempts, then a person."""
        undo = self.held_claim(step)
        if undo is None:
            self.lost(step, evidence=True, position=position)
            return
        retry = self.retry_of(self.effects[step.effect])
        undo.token, undo.status = None, "due"
        undo.failures += 1
        if undo.evidence_pending:
            self.raise_generation(step.effect)
        elif permanent:
            undo.status, undo.kind = "failed", "permanent"
        elif undo.failures >= retry.max_attempts:
            undo.status, undo.kind = "failed", "error"
        else:
            undo.not_before = self.now + (retry.wait(undo.failures) if after is None else after)

    def release_step(self, step: Claimed, position: int) -> None:
        """Give the step back; the attempt is on record but not counted (C50)."""
        undo = self.held_claim(step)
        if undo is None:
            self.lost(step, evidence=False, position=position)
            return
        undo.token, undo.status = None, "due"
        if undo.evidence_pending:
            self.raise_generation(step.effect)

    def renew_step(self, step: Claimed, lease: float) -> None:
        """Move the end of the lease."""
        undo = self.held_claim(step)
        if undo is None:
            raise Refused("LeaseLostError", step=step.effect)
        undo.lease_until = self.now + lease

    def expire_steps(self) -> None:
        """End the claims whose lease is over (C50)."""
        for e in self.effects.values():
            undo = e.undo
            if undo is None or undo.status != "claimed" or self.now < undo.lease_until:
                continue
            undo.token, undo.status = None, "due"
            undo.failures += 1
            if undo.evidence_pending:
                self.raise_generation(e.id)
            elif undo.failures >= self.retry_of(e).max_attempts:
                undo.status, undo.kind = "failed", "timeout"

    def judge_due(self) -> None:
        """Fail due steps that cannot be run: no inverse, denied, window over, a committed later writer (C49-C60)."""
        for e in self.effects.values():
            if e.undo is None or e.undo.status != "due":
                continue
            committed = self.later_writers(e.id, "committed") if self.guarded(e.id) else []
            kind = None
            if e.inverse is None:
                kind = "not_compensable"
            elif e.rollback is not None and self.rollbacks[e.rollback].gate == "denied":
                kind = "denied"
            elif e.inverse.deadline is not None and self.now >= e.inverse.deadline:
                kind = "expired"
            elif committed:
                kind, e.undo.writer = "conflict", committed[0]
            if kind is not None:
                e.undo.status, e.undo.kind = "failed", kind

    def retry_step(self, effect: int) -> None:
        """A person asks for another round of a failed step."""
        undo = self.undo(effect)
        undo.status, undo.kind, undo.writer = "due", None, None
        undo.failures, undo.not_before = 0, 0.0

    def resolve_step(self, effect: int) -> None:
        """A person says that the undo is done (C53)."""
        undo = self.undo(effect)
        undo.status, undo.kind, undo.writer, undo.finished_position = "resolved", None, None, self.position

    # Approvals

    def plan(self, rollback: Rollback) -> frozenset[int]:
        """The members that have a step."""
        return frozenset(e for e in rollback.members if self.may_have_run(e))

    def asks(self, plan: Iterable[int]) -> tuple[bool, bool]:
        """Whether the plan needs a person, and whether it needs a written reason."""
        steps = [self.effects[e] for e in plan]
        keys = len({k for e in steps for k in e.writes}) + sum(1 for e in steps if not e.writes)
        bare = any(e.inverse is None or e.reversibility == "irreversible" for e in steps)
        partial = any(e.reversibility == "partial" for e in steps)
        return bare or partial or keys > self.policy.auto_keys, bare

    def ask(self, rollback: Rollback) -> None:
        """Ask for an approval of the plan as it is now, if the policy wants one."""
        person, reason = self.asks(self.plan(rollback))
        if person:
            rollback.approvals.append(Approval(self.new_id(), rollback.id, reason))
            self.approved_plans[rollback.approvals[-1].id] = self.plan(rollback)
        rollback.gate = "pending" if person else "automatic"
        rollback.grown = False

    def review_plans(self) -> None:
        """A pending request whose plan changed is stale; an approved plan may shrink but not grow (C55)."""
        for rollback in self.rollbacks.values():
            plan = self.plan(rollback)
            rollback.grown &= any(self.unfinished(e) for e in rollback.members)
            last = rollback.approvals[-1] if rollback.approvals else None
            if (rollback.gate == "automatic" and self.asks(plan)[0]) or (rollback.gate == "pending" and last is None):
                self.ask(rollback)
            elif rollback.gate == "pending" and last is not None and plan != self.approved_plans[last.id]:
                last.state = "stale"
                self.ask(rollback)
            elif (
                rollback.gate == "approved"
                and last is not None
                and (rollback.grown or not plan <= self.approved_plans[last.id])
            ):
                self.ask(rollback)

    def answer(self, rollback: int, *, approve: bool, reason: str | None) -> None:
        """Answer the pending request once."""
        record = self.rollbacks[rollback]
        last = record.approvals[-1]
        if last.state != "pending":
            raise Refused("ApprovalClosedError", approval=last.id)
        if approve and last.reason_required and reason is None:
            raise Refused("ReasonRequiredError", approval=last.id)
        last.state = record.gate = "approved" if approve else "denied"

    def ask_again(self, rollback: int) -> None:
        """A new request after a denial; what was denied is due behind it (C56)."""
        record = self.rollbacks[rollback]
        if not any(self.unfinished(e) for e in record.members):
            raise Refused("AlreadySettledError", ref=rollback, state="finished")
        if record.gate != "denied":
            return
        for effect in record.members:
            undo = self.undo(effect)
            if undo.kind == "denied":
                undo.status, undo.kind = "due", None
        self.ask(record)

    # Reports

    def report(self, rollbacks: Iterable[int], *, blocked: set[int] | None = None) -> Report:
        """Where each member is (I18); `blocked` is computed by the caller, as it looks at all rollbacks."""
        places: dict[str, set[int]] = {p: set() for p in ("completed", "unsettled", "blocked", "pending", "discarded")}
        failed: dict[int, str] = {}
        waiting = 0
        for rollback in (self.rollbacks[r] for r in rollbacks):
            waiting += rollback.gate == "pending"
            for effect in rollback.members:
                undo = self.undo(effect)
                if undo.status == "failed":
                    failed[effect] = undo.kind or ""
                elif undo.status in DONE:
                    places["completed" if self.settled_outcome(effect) else "unsettled"].add(effect)
                elif undo.status == "discarded":
                    places["discarded"].add(effect)
                else:
                    places["blocked" if effect in (blocked or set()) else "pending"].add(effect)
        frozen = {place: frozenset(effects) for place, effects in places.items()}
        return Report(failed=failed, waiting=waiting, **frozen)

    def full_report(self, rollbacks: Iterable[int]) -> Report:
        """The report with what is blocked told apart from what is pending."""
        return self.report(rollbacks, blocked=self.blocked(self.before()))
