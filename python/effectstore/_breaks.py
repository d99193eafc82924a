"""BREAK: the notices that an agent has to take note of."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from effectstore._base import Bound, Plain
from effectstore._choices import BreakSeverity, NoticeKind
from effectstore._session import Session
from effectstore._time import moment

if TYPE_CHECKING:
    from effectstore import _effectstore as core


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Notice(Bound, Plain):
    """Tells one agent that a branch broke. It stays in the agent's inbox until it is acknowledged.

    `ack_by` is the moment after which a missing acknowledgement raises an alert; a later one still counts.

        for notice in store.inbox("deployer"):
            stop_working_on(notice.branch)
            notice.ack()
    """

    _session: Session
    id: int
    kind: NoticeKind
    agent: str
    severity: BreakSeverity
    branch: str
    reason: str
    recoverable: bool
    ack_by: datetime
    acknowledged: bool

    @classmethod
    def _of(cls, session: Session, info: "core.NoticeInfo") -> "Notice":
        return cls(
            session,
            info.id,
            "break",
            info.agent,
            cast("BreakSeverity", info.severity),
            info.branch,
            info.reason,
            info.recoverable,
            moment(info.ack_by_ms),
            info.acknowledged,
        )

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    def refresh(self) -> "Notice":
        """The newer snapshot."""
        return Notice._of(self._session, self._session.handle.notice(self.id))

    def ack(self) -> "Notice":
        """Take note, in the name of the agent that it is to. A second time changes nothing."""
        return Notice._of(self._session, self._session.handle.ack_notice(self.id, self.agent))

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        found = Plain.to_dict(self, payloads=payloads)
        del found["_session"]
        return found

    def __repr__(self) -> str:
        return f"<Notice {self.id} to {self.agent}: {self.branch} broke, {self.severity}>"
