"""Rollbacks and their steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from effectstore._approval import Approval
from effectstore._artifact import Fetch, content
from effectstore._audit import audit_record
from effectstore._base import Bound, Frozen, Plain, jsonable, shown
from effectstore._choices import CauseCategory, RollbackState, Trigger
from effectstore._effect import Effect, problem
from effectstore._errors import ContentMismatchError, OptionsError
from effectstore._payload import Key, key_text, load, optional_text, reads_raw, text
from effectstore._plan import read_plan
from effectstore._process import Impact, RootCause
from effectstore._session import EffectRef, Session
from effectstore._time import Seconds, lease_ms, moment, optional_moment, to_ms
from effectstore._values import Plan, Report, Token

if TYPE_CHECKING:
    from effectstore import _effectstore as core

LEASE_S = 60
"""How long a claimed step or delivery is held, in seconds, unless the caller says otherwise."""

_STEP_FIELDS = (
    "id",
    "rollback",
    "tool",
    "agent",
    "idempotency_key",
    "attempt",
    "generation",
    "expected_versions",
    "deadline",
    "lease_until",
    "token",
    "artifact",
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rollback(Bound, Plain):
    """One durable plan of inverses with its progress. `effects` are its members, `approvals` ids, oldest first.

    A `governed` one undoes committed effects, too: a person asked for it, and nothing happens until one approves it.
    """

    _session: Session
    id: int
    state: RollbackState
    effects: tuple[int, ...]
    initiated_by: str | None
    trigger: Trigger
    reason: str
    approvals: tuple[int, ...]
    report: Report
    governed: bool
    created: datetime
    finished: datetime | None
    root_cause: RootCause | None
    waived_by: str | None

    @classmethod
    def _of(cls, session: Session, info: "core.RollbackInfo") -> "Rollback":
        return cls(
            session,
            info.id,
            cast("RollbackState", info.state),
            tuple(info.effects),
            info.initiated_by,
            cast("Trigger", info.trigger),
            info.reason,
            tuple(info.approvals),
            Report.of(info.report),
            info.governed,
            moment(info.created_ms),
            optional_moment(info.finished_ms),
            None if info.root_cause is None else RootCause._of(info.root_cause),
            None if info.waived is None else info.waived[0],
        )

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    def refresh(self) -> "Rollback":
        """The newer snapshot."""
        return Rollback._of(self._session, self._session.handle.rollback(self.id))

    def plan(self) -> Plan:
        """The steps that are left, in the order in which one worker would take them."""
        return read_plan(self._session, self.id)

    def impact(self) -> Impact:
        """What was done and what rests on it, with keys, agents and class; known before anybody approves."""
        return Impact._of(self._session.handle.impact(self.id))

    def audit(self) -> dict[str, Any]:
        """The audit record in terms of JSON, as far as it has come: what was undone, by whom, and who agreed."""
        return audit_record(self._session.handle.audit(self.id))

    def record_root_cause(
        self, category: CauseCategory, *, note: str, by: str, remedy: str | None = None
    ) -> "Rollback":
        """Say why it was necessary, and (`remedy`) what was changed because of it.

        It stays in review until both are known; the newest record counts. A cause that an earlier rollback had raises
        an alert: the same kind, with the same note, the same remedy or an agent in common.
        """
        found = self._session.handle.record_root_cause(
            self.id, category, text(note, "note"), text(by, "by"), optional_text(remedy, "remedy")
        )
        return Rollback._of(self._session, found)

    def waive_remedy(self, *, by: str, reason: str) -> "Rollback":
        """Say that nothing is changed because of it, and why."""
        waived = self._session.handle.waive_remedy(self.id, text(by, "by"), text(reason, "reason"))
        return Rollback._of(self._session, waived)

    def retry(self, step: "Step | EffectRef", *, by: str, reason: str) -> "Rollback":
        """Make a failed step due again."""
        self._session.handle.retry_step(self.id, self._step(step), text(by, "by"), text(reason, "reason"))
        return self.refresh()

    def resolve(
        self,
        step: "Step | EffectRef",
        *,
        by: str,
        reason: str,
        versions: Mapping[Key, int] | None = None,
    ) -> "Rollback":
        """Record that a person undid a step; `versions` says which version each key now holds."""
        held = reads_raw(versions or {}, "versions")
        self._session.handle.resolve_step(self.id, self._step(step), text(by, "by"), text(reason, "reason"), held)
        return self.refresh()

    def request_approval(self, *, by: str, reason: str) -> Approval:
        """Ask a person to approve the plan as it is now; asking twice for one plan makes one request.

        A denied rollback is opened again by this: its failed steps are due once the new request is approved, and a
        governed one looks up anew what rests on its effects.
        """
        asked = self._session.handle.ask_rollback(self.id, text(by, "by"), text(reason, "reason"))
        return Approval._of(self._session, asked)

    def _step(self, step: "Step | EffectRef") -> int:
        return step.id if isinstance(step, Step) else self._session.effect_id(step)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        found = Plain.to_dict(self, payloads=payloads)
        del found["_session"]
        return found

    def __repr__(self) -> str:
        return f"<Rollback {self.id} of {len(self.effects)} effects: {self.state}>"


class Step(Frozen, Bound):
    """A claimed step: its attempt has begun, durably. `id` is its effect's.

    Equality and hash go by store, id and claim.
    """

    __slots__ = ("_info", "_session")

    _session: Session
    _info: "core.StepInfo"

    def __init__(self, session: Session, info: "core.StepInfo") -> None:
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_info", info)

    def _carry(self) -> str:
        return f"the rollback's id, {self.rollback}: step {self.id} is claimed again when its lease has run out"

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id, self.token

    @property
    def id(self) -> int:
        """The id of its effect."""
        return self._info.effect

    @property
    def rollback(self) -> int:
        """The id of its rollback."""
        return self._info.rollback

    @property
    def effect(self) -> Effect:
        """The effect that it undoes, for reading."""
        return Effect(self._session, self.id, token=None)

    @property
    def tool(self) -> str:
        """The tool to call; empty for a step that a person performs."""
        return self._info.tool

    @property
    def args(self) -> Any:
        """The arguments of the inverse, decoded anew; `None` where only the outcome would have completed them."""
        data = self._info.args
        return None if data is None else load(data, "args")

    @property
    def args_cbor(self) -> bytes | None:
        """The arguments as stored."""
        return self._info.args

    @property
    def agent(self) -> str:
        """The agent that owns the effect."""
        return self._info.agent

    @property
    def idempotency_key(self) -> str:
        """The same at every attempt of one generation (I14)."""
        return self._info.idempotency_key

    @property
    def attempt(self) -> int:
        """Attempts begun in this generation, this one included."""
        return self._info.attempt

    @property
    def generation(self) -> int:
        """How often the inverse became due anew."""
        return self._info.generation

    @property
    def expected_versions(self) -> dict[str, int]:
        """The versions that the effect wrote, for an inverse that compares before it sets."""
        return {key_text(key): version or 0 for key, version in self._info.expected_versions}

    @property
    def deadline(self) -> datetime | None:
        """The moment past which it is not attempted."""
        return optional_moment(self._info.deadline_ms)

    @property
    def lease_until(self) -> datetime:
        """The end of the lease. A handler must not outlive it: renew, or stop."""
        return moment(self._info.lease_until_ms)

    @property
    def token(self) -> Token:
        """The token of the claim."""
        return Token(*self._info.token)

    @property
    def artifact(self) -> int | None:
        """The id of the artifact that holds the inverse's code, if it names one."""
        return self._info.artifact

    def content(self, fetch: Fetch | None = None) -> bytes:
        """The code of its artifact, checked; what lies elsewhere is fetched by `fetch(content_ref)`.

        Raises `ContentMismatchError` where it is not what was reviewed: let it pass, and the step fails for good with
        that kind. Raises `OptionsError` where the inverse names no artifact.
        """
        if self.artifact is None:
            message = "the inverse names no artifact"
            raise OptionsError(message, option="artifact")
        return content(self._session, self.artifact, fetch)

    def complete(self, result: Any = None) -> None:
        """Report that the inverse ran. Raises `LeaseLostError` if the lease was lost; it is then evidence."""
        data = None if result is None else self._session.codec.dump(result, "result")
        self._end(("completed", data, "", "", 0))

    def fail(self, error: BaseException | str, *, permanent: bool = False, retry_after: Seconds | None = None) -> None:
        """Report that the attempt failed: for good, to be called again after `retry_after`, or as retry says."""
        kind, after_ms = "permanent" if permanent else "failed", 0
        if isinstance(error, ContentMismatchError):
            kind, permanent = "mismatched", True
        if retry_after is not None and not permanent:
            kind, after_ms = "later", to_ms(retry_after, "retry_after")
        name, message = problem(error) if not isinstance(error, str) else ("Error", error)
        self._end((kind, None, name, message, after_ms))

    def renew(self, lease: Seconds | None = None) -> "Step":
        """Hold it for `lease` seconds from now (60 by default)."""
        held_ms = lease_ms(LEASE_S if lease is None else lease)
        return Step(self._session, self._session.handle.renew_step(self.id, self.token, held_ms))

    def release(self) -> None:
        """Give it back: the attempt is recorded as interrupted, and the step is due."""
        self._end(("interrupted", None, "", "", 0))

    def _end(self, end: "core._StepEnd") -> None:
        self._session.handle.end_step(self.id, self.token, end)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON; arguments only if asked for."""
        names = (*_STEP_FIELDS, "args") if payloads else _STEP_FIELDS
        return {name: jsonable(getattr(self, name), payloads=payloads) for name in names}

    def __repr__(self) -> str:
        return f"<Step {self.id} {shown(self.tool)} of rollback {self.rollback}: attempt {self.attempt}>"
