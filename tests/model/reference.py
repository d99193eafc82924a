"""The reference model: effects, branches, fence and rollbacks put together, with the verbs on steps and time."""

from __future__ import annotations

from .effects import Call, Effects, Registered
from .fence import Decision, Reconciliation, verb
from .rollback import Claimed, Report
from .world import Fence, Inverse, Limits, Policy, Refused, Retry

__all__ = [
    "Call",
    "Claimed",
    "Decision",
    "Fence",
    "Inverse",
    "Limits",
    "Model",
    "Policy",
    "Reconciliation",
    "Refused",
    "Registered",
    "Report",
    "Retry",
]


class Model(Effects):
    """Set-based, complete and slow; it says what the store must answer."""

    @verb
    def tick(self) -> None:
        """Do what fell due; every other writing verb does the same first."""

    @verb
    def claim(self, agent: str, *, lease: float = 60.0) -> Claimed | None:
        """Begin the next attempt of the highest ready step that the agent may run."""
        return self.claim_step(agent, lease)

    @verb
    def complete(self, step: Claimed) -> None:
        """The inverse ran."""
        self.complete_step(step, self.claim_position(step))

    @verb
    def fail(self, step: Claimed, *, permanent: bool = False, retry_after: float | None = None) -> None:
        """The inverse failed."""
        self.fail_step(step, self.claim_position(step), permanent=permanent, after=retry_after)

    @verb
    def release(self, step: Claimed) -> None:
        """The worker gives the step back."""
        self.release_step(step, self.claim_position(step))

    @verb
    def renew(self, step: Claimed, *, lease: float = 60.0) -> None:
        """The worker needs more time."""
        self.renew_step(step, lease)

    def claim_position(self, step: Claimed) -> int:
        """The step of the model at which the claim began."""
        starts = [p for p, e, g in self.starts if e == step.effect and g == step.generation]
        return starts[step.attempt - 1] if step.attempt <= len(starts) else self.position

    @verb
    def approve(self, rollback: int, *, reason: str | None = None) -> None:
        """A person approves the pending request of the rollback."""
        self.answer(rollback, approve=True, reason=reason)

    @verb
    def deny(self, rollback: int) -> None:
        """A person denies the pending request of the rollback."""
        self.answer(rollback, approve=False, reason=None)

    @verb
    def request_approval(self, rollback: int) -> None:
        """Ask anew after a denial."""
        self.ask_again(rollback)

    @verb
    def retry(self, effect: int) -> None:
        """A person wants the failed step tried again."""
        self.retry_step(effect)

    @verb
    def resolve(self, effect: int) -> None:
        """A person has undone the effect by hand."""
        self.resolve_step(effect)

    @verb
    def exposed(self, effect: int) -> None:
        """An outside party saw the effect: its class is at least partial."""
        record = self.effects[effect]
        if record.reversibility == "full":
            record.reversibility = "partial"
