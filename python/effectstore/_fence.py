"""Fences and reconciliations: what was decided, or is waited for."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

from effectstore._base import Bound, NoTruth, Plain, shown
from effectstore._choices import FenceStatus
from effectstore._rollback import Rollback
from effectstore._session import Session
from effectstore._time import Seconds, to_ms
from effectstore._values import Blocker

if TYPE_CHECKING:
    from effectstore import _effectstore as core


_LACKS = {"no_vote": "has no vote", "unknown": "has not reported"}
_MOST = 8
"""How many blockers a story names."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fence(Bound, NoTruth, Plain):
    """One decision at the fence, or the intent that waits for it. `id` is `None` where nothing was left to decide."""

    _session: Session
    id: int | None
    status: FenceStatus
    committed: tuple[int, ...]
    blockers: tuple[Blocker, ...]
    by: str | None

    @classmethod
    def _of(cls, session: Session, info: "core.FenceInfo") -> "Fence":
        return cls(
            session,
            info.id,
            cast("FenceStatus", info.status),
            tuple(info.committed),
            tuple(Blocker._of(raw) for raw in info.blockers),
            info.by,
        )

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    def refresh(self) -> "Fence":
        """The newer snapshot."""
        return self if self.id is None else Fence._of(self._session, self._session.handle.fence(self.id))

    def wait(self, timeout: Seconds) -> "Fence":
        """Wait up to `timeout` seconds for the decision; afterwards the intent stays, and the status is `waiting`."""
        if self.id is None:
            return self
        found = self._session.handle.wait_fence(self.id, to_ms(timeout, "timeout"))
        return Fence._of(self._session, found)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        return _without_session(Plain.to_dict(self, payloads=payloads))

    def _about(self) -> str:
        """How it stands, and what is in its way."""
        ways = [
            f"effect {known.effect} on branch {shown(known.branch)}, of {shown(known.agent)}, {_LACKS[known.reason]}"
            for known in self.blockers[:_MOST]
        ]
        more = len(self.blockers) - len(ways)
        named = "; ".join([*ways, f"{more} more"] if more > 0 else ways)
        return f"fence {self.id}: {self.status}{' for ' if named else ''}{named}"

    def __repr__(self) -> str:
        count = len(self.blockers)
        waits = f" for {count} blocker{'' if count == 1 else 's'}" if count else ""
        return f"<Fence {self.id}: {self.status}{waits}, {len(self.committed)} committed>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reconciliation(Bound, NoTruth, Plain):
    """What one decision settled. Ids throughout, but for `fence` and `rollback`.

    `rollbacks` are those that hold what was named, earlier ones too; `rollback` is the new one, or `None` if nothing
    was newly doomed that may have run.
    """

    _ask: ClassVar[str] = "committed, .doomed or .rollback"

    fence: Fence | None
    committed: tuple[int, ...]
    doomed: tuple[int, ...]
    cascaded: tuple[int, ...]
    kept: tuple[int, ...]
    rollbacks: tuple[int, ...]
    rollback: Rollback | None
    _session: Session = field(repr=False)

    @classmethod
    def _of(cls, session: Session, info: "core.ReconciliationInfo") -> "Reconciliation":
        return cls(
            None if info.fence is None else Fence._of(session, info.fence),
            tuple(info.committed),
            tuple(info.doomed),
            tuple(info.cascaded),
            tuple(info.kept),
            tuple(info.rollbacks),
            None if info.rollback is None else Rollback._of(session, session.handle.rollback(info.rollback)),
            session,
        )

    def _carry(self) -> str:
        return "its to_dict(), or the ids of its fence and rollback"

    def _identity(self) -> tuple[object, ...]:
        settled = (self.committed, self.doomed, self.cascaded, self.kept, self.rollbacks)
        return self._session.store_id, self.fence, *settled, self.rollback

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        return _without_session(Plain.to_dict(self, payloads=payloads))

    def __repr__(self) -> str:
        counts = f"{len(self.committed)} committed, {len(self.doomed)} doomed, {len(self.cascaded)} cascaded"
        rollback = "none" if self.rollback is None else str(self.rollback.id)
        return f"<Reconciliation: {counts}, {len(self.kept)} kept, rollback {rollback}>"


def _without_session(found: dict[str, Any]) -> dict[str, Any]:
    del found["_session"]
    return found
