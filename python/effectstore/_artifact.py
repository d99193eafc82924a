"""Executable artifacts and the compensations that are paired with them (RFC-012, section 8)."""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Union, cast

from effectstore._base import PAYLOAD, Plain
from effectstore._choices import ArtifactState, FailureKind, Reversibility
from effectstore._errors import OptionsError
from effectstore._iterate import matches, pages
from effectstore._payload import Key, optional_key_bytes, optional_text, text
from effectstore._time import moment

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._session import Session

Fetch: TypeAlias = Callable[[str], bytes]
"""Fetches content from elsewhere: it is called with the `content_ref` and returns the bytes."""

ArtifactRef: TypeAlias = Union["ArtifactPair", "Artifact", int]
"""A pair, one of its artifacts, or an id."""

_HASH = "sha256:"
_HASH_BYTES = 32


def _hash_text(digest: bytes) -> str:
    return f"{_HASH}{digest.hex()}"


def _hash_bytes(content_hash: str) -> bytes:
    try:
        digest = bytes.fromhex(text(content_hash, "content_hash").removeprefix(_HASH))
    except ValueError:
        digest = b""
    if len(digest) != _HASH_BYTES:
        message = f'content_hash is "sha256:" and 64 hexadecimal digits, not {content_hash!r}'
        raise OptionsError(message, option="content_hash")
    return digest


@dataclass(frozen=True, slots=True)
class ArtifactSpec(Plain):
    """An artifact as it is handed over to `store.artifacts.create`.

    `type` names the handler that runs it. Its content is either given as `content` and kept by the store, or lies
    elsewhere: then `content_ref` says where, and `content_hash` names it, as "sha256:" and 64 hexadecimal digits.
    `reversibility` says how far its execution can be undone; a compensation that is `"irreversible"` runs only under
    an approval of its own. `agent` is who may run it; `None` is anyone.

    >>> import effectstore
    >>> effectstore.ArtifactSpec("PYTHON_SCRIPT", "fix.py", content=b"print(1)").name
    'fix.py'
    """

    type: str
    name: str
    _: KW_ONLY
    content: bytes | None = field(default=None, metadata=PAYLOAD, repr=False)
    content_ref: str | None = None
    content_hash: str | None = None
    reversibility: Reversibility = "full"
    agent: str | None = None

    def _raw(self) -> "core._NewArtifact":
        if self.content is not None and not isinstance(self.content, bytes | bytearray | memoryview):
            message = f"content is bytes, not {type(self.content).__name__}"
            raise OptionsError(message, option="content")
        return (
            text(self.type, "type"),
            text(self.name, "name"),
            None if self.content is None else bytes(self.content),
            optional_text(self.content_ref, "content_ref"),
            None if self.content_hash is None else _hash_bytes(self.content_hash),
            text(self.reversibility, "reversibility"),
            optional_text(self.agent, "agent"),
        )


@dataclass(frozen=True, slots=True)
class Artifact(Plain):
    """One artifact of a pair. `size` is that of content which the store holds, in bytes."""

    id: int
    type: str
    name: str
    state: ArtifactState
    is_compensation: bool
    compensates_for: int | None
    content_hash: str
    content_ref: str | None
    size: int | None
    reversibility: Reversibility
    agent: str | None

    @classmethod
    def _of(cls, raw: "core._Artifact", compensates_for: int | None = None) -> Self:
        found, kind, name, place, digest, size, reversibility, agent, state = raw
        return cls(
            found,
            kind,
            name,
            cast("ArtifactState", state),
            compensates_for is not None,
            compensates_for,
            _hash_text(digest),
            place,
            size,
            cast("Reversibility", reversibility),
            agent,
        )


@dataclass(frozen=True, slots=True)
class ArtifactMove(Plain):
    """A change of a pair's state, as it was recorded; `by` is `None` where no person or agent is known."""

    record: int
    time: datetime
    state: ArtifactState
    by: str | None
    reason: str | None

    @classmethod
    def _of(cls, raw: "core._Move") -> Self:
        record, time_ms, state, by, reason = raw
        return cls(record, moment(time_ms), cast("ArtifactState", state), by, reason)


@dataclass(frozen=True, slots=True)
class ArtifactFailure(Plain):
    """Why a primary failed. `run_id` names the failed run."""

    reason: str
    run_id: str | None
    by: str


@dataclass(frozen=True, slots=True)
class ArtifactRun(Plain):
    """The run of a compensation: its execution record and provenance.

    `id` is the effect whose step it is, in `rollback`. `ended` is `None` while it is due or under way; `by` is the
    agent that ran it, or the person that resolved it.
    """

    id: int
    rollback: int
    artifact: int
    compensating_for: int
    content_hash: str
    approved_by: str | None
    completed: bool
    kind: FailureKind | None
    attempts: int
    by: str | None
    ended: datetime | None

    @classmethod
    def _of(cls, raw: "core._Run", pair: "core.ArtifactPairInfo") -> Self:
        run, rollback, approved_by, outcome = raw
        completed, kind, attempts, by, ended_ms = outcome or (False, None, 0, None, None)
        return cls(
            run,
            rollback,
            pair.compensation[0],
            pair.primary[0],
            _hash_text(pair.compensation[4]),
            approved_by,
            completed,
            cast("FailureKind | None", kind),
            attempts,
            by,
            None if ended_ms is None else moment(ended_ms),
        )


@dataclass(frozen=True, slots=True)
class ArtifactPair(Plain):
    """An executable artifact with its compensation: created, reviewed, approved and promoted as one.

    `moves` are the changes of its state, oldest first; `failure` and `run` come with a failure.
    """

    primary: Artifact
    compensation: Artifact
    created_by: str
    moves: tuple[ArtifactMove, ...]
    failure: ArtifactFailure | None
    run: ArtifactRun | None

    @property
    def id(self) -> int:
        """The id of the primary, by which the pair goes."""
        return self.primary.id

    @property
    def state(self) -> ArtifactState:
        """The state of the primary."""
        return self.primary.state

    @classmethod
    def _of(cls, info: "core.ArtifactPairInfo") -> Self:
        return cls(
            Artifact._of(info.primary),
            Artifact._of(info.compensation, info.primary[0]),
            info.created_by,
            tuple(ArtifactMove._of(raw) for raw in info.moves),
            None if info.failure is None else ArtifactFailure(*info.failure),
            None if info.run is None else ArtifactRun._of(info.run, info),
        )


def _id(ref: ArtifactRef) -> int:
    if isinstance(ref, ArtifactPair | Artifact):
        return ref.id
    if isinstance(ref, int) and not isinstance(ref, bool):
        if ref < 0:
            message = f"ids are not negative: {ref}"
            raise ValueError(message)
        return ref
    message = f"an artifact, a pair or an id was expected, not {type(ref).__name__}"
    raise TypeError(message)


class Artifacts:
    """`store.artifacts`: executable artifacts, each with the compensation that undoes a failed execution.

    A pair goes through `create`, `submit`, `approve`, `promote`, `start` and `complete`; `reject` withdraws it before
    it ran. `fail` makes the compensation's run due, claimed like any step by `store.compensate` or `store.claim`. A
    verb takes the primary's id or the pair; a state that does not allow it raises `ArtifactStateError`.

    >>> import effectstore
    >>> store = effectstore.open(None)
    >>> fix = effectstore.ArtifactSpec("script", "fix", content=b"add column")
    >>> undo = effectstore.ArtifactSpec("script", "undo-fix", content=b"drop column")
    >>> pair = store.artifacts.create(fix, undo, by="ana")
    >>> _ = store.artifacts.submit(pair, by="ana")
    >>> _ = store.artifacts.approve(pair, by="ben", reason="read both")
    >>> _ = store.artifacts.promote(pair, by="ben")
    >>> _ = store.artifacts.fail(pair, by="runner", reason="exit code 1", run_id="run-7")
    >>> report = store.compensate({"script": lambda args, step: print(step.content().decode(), args["run_id"])})
    drop column run-7
    >>> store.artifacts.get(pair).state
    'failed_compensated'
    >>> store.close()
    """

    __slots__ = ("_session",)

    def __init__(self, session: "Session") -> None:
        self._session = session

    def create(
        self, primary: ArtifactSpec, compensation: ArtifactSpec, *, by: str, idempotency_key: Key | None = None
    ) -> ArtifactPair:
        """Make an artifact and its compensation, in one command: there is no way to make one alone.

        With an `idempotency_key` the pair is made once: saying it again with the same content answers the pair that is
        there, as it is by now. Other content, or an effect's key, raises `IdempotencyConflictError`: its `effect` is
        the id of the primary (or effect) and its `differs` is "primary", "compensation" or "kind". Keys are kept as
        those of effects are.

        Raises `OptionsError` for what cannot be used and `LimitExceededError` for what is too long or too large.
        """
        for spec, what in ((primary, "primary"), (compensation, "compensation")):
            if not isinstance(spec, ArtifactSpec):
                message = f"{what} is an ArtifactSpec, not {type(spec).__name__}"
                raise TypeError(message)
        key = optional_key_bytes(idempotency_key, "idempotency_key")
        made = self._session.handle.create_artifacts(primary._raw(), compensation._raw(), text(by, "by"), key)
        return ArtifactPair._of(made)

    def submit(self, pair: ArtifactRef, *, by: str) -> ArtifactPair:
        """Ask a person to review both."""
        return self._move("submit", pair, by)

    def approve(self, pair: ArtifactRef, *, by: str, reason: str | None = None) -> ArtifactPair:
        """Approve both, and with them the compensation's run unless it is irreversible.

        Raises `SeparationOfDutiesError` where the policy separates duties and `by` created or submitted the pair, and
        `ReasonRequiredError` where one of the two is irreversible and no reason is given.
        """
        return self._move("approve", pair, by, optional_text(reason, "reason"))

    def reject(self, pair: ArtifactRef, *, by: str, reason: str) -> ArtifactPair:
        """Turn both down, or withdraw them before they were executed. It is final."""
        return self._move("reject", pair, by, text(reason, "reason"))

    def promote(self, pair: ArtifactRef, *, by: str) -> ArtifactPair:
        """Make both active."""
        return self._move("promote", pair, by)

    def start(self, pair: ArtifactRef, *, by: str) -> ArtifactPair:
        """Record that the primary's execution begins; the record's number names the run."""
        return self._move("start", pair, by)

    def complete(self, pair: ArtifactRef, *, by: str) -> ArtifactPair:
        """Record that the primary was executed; its compensation is not needed."""
        return self._move("complete", pair, by)

    def fail(self, pair: ArtifactRef, *, by: str, reason: str, run_id: str | None = None) -> ArtifactPair:
        """Record that the primary failed. Saying it again changes nothing.

        The compensation's run becomes due if the pair is approved: its handler gets `compensating_for`,
        `failure_reason` and `run_id` as arguments. If it is not approved, a critical alert calls for a person and
        nothing runs. `run_id=None` takes the number of the record that started the run.
        """
        why, run = text(reason, "reason"), optional_text(run_id, "run_id")
        return ArtifactPair._of(self._session.handle.fail_artifact(_id(pair), text(by, "by"), why, run))

    def _move(self, verb: str, pair: ArtifactRef, by: str, reason: str | None = None) -> ArtifactPair:
        return ArtifactPair._of(self._session.handle.move_artifact(verb, _id(pair), text(by, "by"), reason))

    def get(self, artifact: ArtifactRef) -> ArtifactPair:
        """The pair of an artifact, named by either of the two. Raises `NotFoundError`."""
        return ArtifactPair._of(self._session.handle.artifact(_id(artifact)))

    def list(
        self, *, since: int = 0, limit: int | None = None, state: ArtifactState | None = None
    ) -> Iterator[ArtifactPair]:
        """The pairs in order of their ids."""

        def fetch(after: int, size: int) -> list[ArtifactPair]:
            return [ArtifactPair._of(info) for info in self._session.handle.artifacts(after, size)]

        return pages(fetch, lambda pair: pair.id, since=since, limit=limit, keep=matches(state=state))

    def content(self, artifact: ArtifactRef, fetch: Fetch | None = None) -> bytes:
        """The content of one artifact (of a pair: the primary's), checked against its SHA-256.

        What lies elsewhere is fetched by `fetch(content_ref)`. Raises `ContentMismatchError` where it is not what was
        reviewed, `OptionsError` where `fetch` is needed and missing.
        """
        return content(self._session, _id(artifact), fetch)


def content(session: "Session", artifact: int, fetch: Fetch | None) -> bytes:
    """See `Artifacts.content`."""
    pair = ArtifactPair._of(session.handle.artifact(artifact))
    one: Any = pair.primary if pair.primary.id == artifact else pair.compensation
    if one.content_ref is None or fetch is None:
        return session.handle.artifact_content(artifact)
    fetched = fetch(one.content_ref)
    session.handle.check_content(artifact, fetched)
    return fetched
