"""Approvals and alerts: what a person is asked, and what a person must know."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from effectstore._base import Bound, Plain, shown
from effectstore._choices import ApprovalKind, ApprovalState, Severity
from effectstore._payload import optional_text, text
from effectstore._plan import read_plan
from effectstore._session import Session
from effectstore._values import Plan

if TYPE_CHECKING:
    from effectstore import _effectstore as core


_LEVELS = {"warning": logging.WARNING, "critical": logging.CRITICAL}

logger = logging.getLogger("effectstore")


def log_alert(severity: str, alert: int, told: str, ref: int) -> None:
    """Write an alert that this process has raised to Python's log; the core calls it once the alert is durable."""
    logger.log(_LEVELS.get(severity, logging.CRITICAL), "alert %d on %d: %s", alert, ref, told)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Approval(Bound, Plain):
    """A request that a person answers once, for exactly this digest; a changed plan is another approval.

    `subject` is the id of a rollback or effect; for a call that is to start before its fence, of its branch, and
    `tool` and `branch` name the call. `about` says it in words.
    """

    _session: Session
    id: int
    kind: ApprovalKind
    subject: int
    tool: str | None
    branch: str | None
    digest: str
    reason_required: bool
    requested_by: str
    reason: str
    state: ApprovalState
    answered_by: str | None
    answer_reason: str | None

    @classmethod
    def _of(cls, session: Session, info: "core.ApprovalInfo") -> "Approval":
        return cls(
            session,
            info.id,
            cast("ApprovalKind", info.kind),
            info.subject,
            info.tool,
            # A repr looks nothing up, so the name is fetched here.
            None if info.tool is None else session.handle.branch(info.subject).name,
            info.digest.hex(),
            info.reason_required,
            info.requested_by,
            info.reason,
            cast("ApprovalState", info.state),
            info.answered_by,
            info.answer_reason,
        )

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    @property
    def about(self) -> str:
        """What it is for, in words: a rollback, the run of an effect, or a call that is not registered yet."""
        if self.tool is not None and self.branch is not None:
            return f"call {shown(self.tool)} on branch {shown(self.branch)}"
        return f"{self.kind} {self.subject}"

    @property
    def plan(self) -> Plan | None:
        """What is to be run, for a rollback. Compare its digest with this one: the plan may have changed since."""
        return read_plan(self._session, self.subject) if self.kind == "rollback" else None

    def refresh(self) -> "Approval":
        """The newer snapshot."""
        return Approval._of(self._session, self._session.handle.approval(self.id))

    def approve(self, *, by: str, reason: str | None = None) -> "Approval":
        """Give it. Raises `ReasonRequiredError`, `SeparationOfDutiesError` or `ApprovalClosedError`."""
        answered = self._session.handle.answer(self.id, True, text(by, "by"), optional_text(reason, "reason"))  # noqa: FBT003
        return Approval._of(self._session, answered)

    def deny(self, *, by: str, reason: str) -> "Approval":
        """Refuse it. The steps of a rollback fail as `denied`."""
        answered = self._session.handle.answer(self.id, False, text(by, "by"), text(reason, "reason"))  # noqa: FBT003
        return Approval._of(self._session, answered)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        found = Plain.to_dict(self, payloads=payloads)
        del found["_session"]
        return found

    def __repr__(self) -> str:
        return f"<Approval {self.id} of {self.about}: {self.state}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Alert(Bound, Plain):
    """Something that a person must know. `ref` is the effect, rollback or branch that it is about."""

    _session: Session
    id: int
    severity: Severity
    text: str
    ref: int
    acknowledged_by: str | None

    @classmethod
    def _of(cls, session: Session, info: "core.AlertInfo") -> "Alert":
        severity = cast("Severity", info.severity)
        return cls(session, info.id, severity, info.text, info.reference, info.acknowledged_by)

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    def ack(self, *, by: str) -> "Alert":
        """Mark it as seen."""
        return Alert._of(self._session, self._session.handle.acknowledge(self.id, text(by, "by")))

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        found = Plain.to_dict(self, payloads=payloads)
        del found["_session"]
        return found

    def __repr__(self) -> str:
        return f"<Alert {self.id} {self.severity} on {self.ref}>"
