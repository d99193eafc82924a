"""Plain values: what callers hand over and what verbs hand back. They hold no store, compare by fields and pickle."""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast, get_args

from effectstore import _check
from effectstore._base import PAYLOAD, NoTruth, Plain, jsonable
from effectstore._choices import (
    Authority,
    BlockReason,
    DecisionKind,
    FailureKind,
    IrreversibleRule,
    OnFailure,
    Reversibility,
    StepOutcome,
)
from effectstore._process import DEFAULT_RULES, ApprovalRule
from effectstore._time import Seconds, moment, optional_moment, optional_ms, since_epoch_ms, to_ms

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._artifact import Artifact
    from effectstore._payload import Codec


class Token(NamedTuple):
    """Proof of ownership, strictly increasing (I9): the store's incarnation, then the number of a record."""

    incarnation: int
    number: int


@dataclass(frozen=True, slots=True)
class Retry(Plain):
    """How often and how patiently an inverse is tried.

    `delay` is the wait in seconds before the second attempt, `backoff` the factor by which it grows, `max_delay` the
    longest wait, `jitter` the share by which it varies (0 to 1).
    """

    max_attempts: int = 5
    delay: Seconds = 1.0
    backoff: float = 2.0
    max_delay: Seconds = 60.0
    jitter: float = 0.2

    def _raw(self) -> "core._Retry":
        attempts = _check.count(self.max_attempts, "max_attempts", least=1, most=(1 << 32) - 1)
        delay_ms, max_delay_ms = to_ms(self.delay, "delay"), to_ms(self.max_delay, "max_delay")
        backoff, jitter = _check.number(self.backoff, "backoff"), _check.number(self.jitter, "jitter")
        return attempts, delay_ms, backoff, max_delay_ms, jitter

    @classmethod
    def _of(cls, raw: "core._Retry") -> Self:
        attempts, delay_ms, backoff, max_delay_ms, jitter = raw
        return cls(attempts, delay_ms / 1000, backoff, max_delay_ms / 1000, jitter)


@dataclass(frozen=True, slots=True)
class Policy(Plain):
    """Rules of the store that its owners may set. Times are `Seconds`; `key_retention=None` keeps keys for ever.

    `confirm_within` is how long a downstream agent has for each of its turns to undo its part of a rollback.
    `rules` is the approval matrix; the first row that fits decides.
    """

    require_inverse: bool = True
    auto_keys: int = 5
    irreversible: IrreversibleRule = "approval"
    authority: Authority = "owner"
    on_failure: OnFailure = "halt"
    retry: Retry = field(default_factory=Retry)
    confirm_within: Seconds = 300
    key_retention: Seconds | None = None
    separation_of_duties: bool = False
    rules: tuple[ApprovalRule, ...] = DEFAULT_RULES

    def __post_init__(self) -> None:
        """Refuse what no store would take, where it is written down."""
        _check.one_of(self.irreversible, "irreversible", get_args(IrreversibleRule), none=False)
        _check.one_of(self.authority, "authority", get_args(Authority), none=False)
        _check.one_of(self.on_failure, "on_failure", get_args(OnFailure), none=False)
        for rule in self.rules:
            _check.instance(rule, ApprovalRule, "rules")
        self._raw()

    def _raw(self) -> "core._Policy":
        return {
            "require_inverse": self.require_inverse,
            "auto_keys": _check.count(self.auto_keys, "auto_keys"),
            "irreversible": self.irreversible,
            "authority": self.authority,
            "on_failure": self.on_failure,
            "retry": _check.instance(self.retry, Retry, "retry")._raw(),
            "confirm_within_ms": to_ms(self.confirm_within, "confirm_within"),
            "key_retention_ms": optional_ms(self.key_retention, "key_retention"),
            "separation_of_duties": self.separation_of_duties,
            "rules": None if self.rules == DEFAULT_RULES else [rule._raw() for rule in self.rules],
        }

    @classmethod
    def _of(cls, raw: "core._Policy") -> Self:
        named: dict[str, Any] = dict(raw)
        retention_ms = named.pop("key_retention_ms")
        return cls(
            confirm_within=named.pop("confirm_within_ms") / 1000,
            key_retention=None if retention_ms is None else retention_ms / 1000,
            retry=Retry._of(named.pop("retry")),
            rules=tuple(ApprovalRule._of(rule) for rule in named.pop("rules")),
            **named,
        )


@dataclass(frozen=True, slots=True)
class Limits(Plain):
    """Limits of the store (I20). Beyond one a registration is refused with what to wait for; `None` is no limit."""

    payload_bytes: int = 1 << 20
    live_effects: int = 1_000_000
    dependencies: int = 4096
    keys: int = 1024
    key_bytes: int = 65_536
    name_bytes: int = 1024
    live_writers_per_key: int = 64
    readers_per_version: int = 100_000
    closure: int | None = None
    depth: int | None = None
    fan_out: int | None = None
    batch_records: int = 100_000

    def __post_init__(self) -> None:
        """Refuse what no store would take, where it is written down."""
        self._raw()

    def _raw(self) -> "core._Limits":
        unbounded = {"closure", "depth", "fan_out"}
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None or name not in unbounded:
                _check.count(value, name, least=1)
        return cast("core._Limits", {name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def _of(cls, raw: "core._Limits") -> Self:
        return cls(**cast("dict[str, Any]", raw))


def _call(call: "Inverse | tuple[str, Any]") -> "Inverse":
    """One call of a list: an `Inverse`, or a pair of tool and arguments."""
    if isinstance(call, Inverse):
        return call
    if not isinstance(call, tuple | list) or len(call) not in {1, 2}:
        message = f"a call is an Inverse or a pair of tool and arguments, not {type(call).__name__}"
        raise TypeError(message)
    return Inverse(*call)


@dataclass(frozen=True, slots=True)
class Inverse(Plain):
    """The logged undo of an effect: which tool to call with which arguments.

    `args=None`: completed by `done(inverse=)`; if the outcome stays unknown, the handler gets `None`. `deadline` is an
    aware datetime, or a timedelta from the registration. `agent` says who may run it: `None` the effect's agent, `"*"`
    anyone. `artifact` is the approved artifact that holds its code, or its id. `limitation` says in words what stays
    behind, and makes the class partial. `calls` and `instruction` are set by `steps` and `manual`.
    """

    tool: str
    args: Any = field(default=None, metadata=PAYLOAD, repr=False)
    _: KW_ONLY
    deadline: datetime | timedelta | None = None
    compare_and_set: bool = False
    agent: str | None = None
    retry: Retry | None = None
    artifact: "Artifact | int | str | None" = None
    limitation: str | None = None
    calls: tuple["Inverse", ...] = ()
    instruction: str | None = None

    @classmethod
    def steps(cls, calls: Iterable["Inverse | tuple[str, Any]"], **options: Any) -> Self:
        """An ordered list of calls, each an `Inverse` or a pair of tool and arguments; `options` hold for all."""
        made = tuple(_call(call) for call in calls)
        if not made:
            message = "an inverse of steps needs at least one call"
            raise ValueError(message)
        return cls(made[0].tool, None, calls=made, **options)

    @classmethod
    def manual(cls, text: str, **options: Any) -> Self:
        """A step that a person performs and confirms; `text` says what is to be done."""
        return cls("", None, instruction=text, **options)

    def _raw(self, codec: "Codec", root: str = "inverse") -> "core._Inverse":
        calls = self.calls or (() if self.instruction is not None else (self,))
        deadline_ms = deadline_after_ms = None
        if isinstance(self.deadline, timedelta):
            deadline_after_ms = to_ms(self.deadline, "deadline")
        elif self.deadline is not None:
            deadline_ms = since_epoch_ms(self.deadline, "deadline")
        return (
            [(call.tool, None if call.args is None else codec.dump(call.args, f"{root}.args")) for call in calls],
            self.instruction,
            deadline_ms,
            deadline_after_ms,
            self.compare_and_set,
            self.agent,
            None if self.retry is None else _check.instance(self.retry, Retry, "retry")._raw(),
            None if self.artifact is None else str(getattr(self.artifact, "id", self.artifact)),
            self.limitation,
        )

    @classmethod
    def _of(cls, raw: "core._Inverse") -> Self:
        from effectstore._payload import load  # noqa: PLC0415  # The errors need this module, and payloads the errors.

        calls, instruction, deadline_ms, after_ms, compare_and_set, agent, retry, artifact, limitation = raw
        made = [(tool, None if args is None else load(args, "inverse.args")) for tool, args in calls]
        deadline: datetime | timedelta | None = optional_moment(deadline_ms)
        if deadline is None and after_ms is not None:
            deadline = timedelta(milliseconds=after_ms)
        single = len(made) == 1
        return cls(
            made[0][0] if made else "",
            made[0][1] if single else None,
            deadline=deadline,
            compare_and_set=compare_and_set,
            agent=agent,
            retry=None if retry is None else Retry._of(retry),
            artifact=int(artifact) if artifact is not None and artifact.isdecimal() else artifact,
            limitation=limitation,
            calls=() if single else tuple(Inverse(tool, args) for tool, args in made),
            instruction=instruction,
        )


@dataclass(frozen=True, slots=True)
class Observation(Plain):
    """A recorded read: `writers` are the live effects that the reader now rests on; empty, the key is settled.

    `at` is the log's head when it was answered; `observe(since=)` counts from there.
    """

    key: str
    writers: tuple[int, ...]
    version: int | None = None
    at: int = 0

    @classmethod
    def _of(cls, raw: "core._Observation") -> Self:
        key, version, writers, at = raw
        return cls(key.decode("utf-8", "surrogateescape"), tuple(writers), version, at)


@dataclass(frozen=True, slots=True)
class Blocker(Plain):
    """An effect in the way of a commit, and why."""

    effect: int
    branch: str
    agent: str
    reason: BlockReason

    @classmethod
    def _of(cls, raw: "core._Blocker") -> Self:
        effect, branch, agent, reason = raw
        return cls(effect, branch, agent, cast("BlockReason", reason))


@dataclass(frozen=True, slots=True)
class Decision(NoTruth, Plain):
    """What a fence would decide. Ids throughout; `expired` are members past their undo window."""

    _ask: ClassVar[str] = "kind"

    target: int
    kind: DecisionKind
    closure: tuple[int, ...]
    blockers: tuple[Blocker, ...]
    cause: int | None
    expired: tuple[int, ...]

    @classmethod
    def of(cls, info: "core.DecisionInfo") -> Self:
        """The decision as a value."""
        return cls(
            info.target,
            cast("DecisionKind", info.kind),
            tuple(info.closure),
            tuple(Blocker._of(raw) for raw in info.blockers),
            info.cause,
            tuple(info.expired),
        )


@dataclass(frozen=True, slots=True)
class Failure(Plain):
    """A failed step. `attempts` counts those begun in this generation; `writer` is the later writer of a conflict."""

    effect: int
    tool: str
    agent: str
    kind: FailureKind
    error_type: str
    message: str
    attempts: int
    writer: int | None

    @property
    def step(self) -> int:
        """The step's id, which is its effect's."""
        return self.effect

    @classmethod
    def _of(cls, raw: "core._Failure") -> Self:
        effect, tool, agent, kind, error_type, message, attempts, writer = raw
        return cls(effect, tool, agent, cast("FailureKind", kind), error_type, message, attempts, writer)


class BlockedStep(NamedTuple):
    """A step, and what holds it: failed steps or live writers."""

    effect: int
    by: tuple[int, ...]

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        return {name: jsonable(getattr(self, name), payloads=payloads) for name in self._fields}


@dataclass(frozen=True, slots=True)
class Report(NoTruth, Plain):
    """What became of a rollback's members; each is in exactly one list (I18).

    `limitations` say of undone effects what stays behind all the same.
    """

    _ask: ClassVar[str] = "clean"

    completed: tuple[int, ...]
    unsettled: tuple[int, ...]
    failed: tuple[Failure, ...]
    blocked: tuple[BlockedStep, ...]
    pending: tuple[int, ...]
    discarded: tuple[int, ...]
    clean: bool
    downstream_confirmed: bool
    limitations: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, info: "core.ReportInfo") -> Self:
        """The report as a value."""
        return cls(
            tuple(info.completed),
            tuple(info.unsettled),
            tuple(Failure._of(raw) for raw in info.failed),
            tuple(BlockedStep(effect, tuple(by)) for effect, by in info.blocked),
            tuple(info.pending),
            tuple(info.discarded),
            info.clean,
            info.downstream_confirmed,
            tuple(info.limitations),
        )


@dataclass(frozen=True, slots=True)
class CompensationReport(NoTruth, Plain):
    """What became of the whole rollbacks that a `compensate` touched, whichever agent ran their steps.

    `approvals` are the ids of those that it waits for; `limitations` say of undone effects what stays behind.
    """

    _ask: ClassVar[str] = "clean"

    rollbacks: tuple[int, ...]
    completed: tuple[int, ...]
    unsettled: tuple[int, ...]
    pending: tuple[int, ...]
    discarded: tuple[int, ...]
    failed: tuple[Failure, ...]
    blocked: tuple[BlockedStep, ...]
    approvals: tuple[int, ...]
    clean: bool
    downstream_confirmed: bool
    limitations: tuple[tuple[int, str], ...] = ()

    @classmethod
    def of(cls, rollbacks: Iterable[int], reports: Iterable[Report], approvals: Iterable[int]) -> Self:
        """The reports of several rollbacks as one."""
        each = list(reports)
        return cls(
            rollbacks=tuple(sorted(rollbacks)),
            completed=tuple(sorted({effect for report in each for effect in report.completed})),
            unsettled=tuple(sorted({effect for report in each for effect in report.unsettled})),
            pending=tuple(sorted({effect for report in each for effect in report.pending})),
            discarded=tuple(sorted({effect for report in each for effect in report.discarded})),
            failed=tuple(failure for report in each for failure in report.failed),
            blocked=tuple(blocked for report in each for blocked in report.blocked),
            approvals=tuple(sorted(approvals)),
            clean=all(report.clean for report in each),
            downstream_confirmed=all(report.downstream_confirmed for report in each),
            limitations=tuple(limitation for report in each for limitation in report.limitations),
        )


@dataclass(frozen=True, slots=True)
class Progress(Plain):
    """An attempt that ended, as `compensate(progress=)` is told. `step` is the id of its effect."""

    rollback: int
    step: int
    tool: str
    agent: str
    attempt: int
    outcome: StepOutcome


@dataclass(frozen=True, slots=True)
class PlannedStep(Plain):
    """A step of a plan. A list of calls has a list of pairs of tool and arguments in `args`."""

    effect: int
    tool: str
    args: Any = field(metadata=PAYLOAD, repr=False)
    agent: str
    reversibility: Reversibility
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Plan(Plain):
    """The steps of a rollback that are left, in the order in which one worker would take them.

    `digest` names exactly this plan; approvals are bound to it.
    """

    digest: str
    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True)
class Verification(Plain):
    """What `verify` walked. `head` and `head_hash` may be kept elsewhere and given to a later `verify`.

    `newer` is the first record of a kind that a later version wrote: from there on only the chain could be checked.
    """

    records: int
    head: int
    head_hash: str
    newer: int | None = None


@dataclass(frozen=True, slots=True)
class LogRecord(Plain):
    """A record of the log. `ref` is the effect, branch or rollback that it is about; `hash` is its chain hash.

    `text` is what it says as a sentence; only the records of a story have one.
    """

    seq: int
    time: datetime
    kind: str
    ref: int | None
    body_cbor: bytes = field(repr=False)
    hash: str = field(repr=False)
    text: str | None = None

    @property
    def body(self) -> Any:
        """The record's header, decoded; payloads appear as length and hash."""
        from effectstore._payload import load_header  # noqa: PLC0415  # The errors need this module.

        return load_header(self.body_cbor)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON. A header holds no payloads, so both forms are the same."""
        found = super(LogRecord, self).to_dict(payloads=payloads)
        del found["body_cbor"]
        if self.text is None:
            del found["text"]
        return found

    @classmethod
    def of(cls, entry: "core.LogEntry") -> Self:
        """The record as a value."""
        when = moment(entry.time_ms)
        ref, digest = entry.reference or None, entry.hash.hex()
        return cls(entry.seq, when, entry.kind, ref, entry.body, digest, entry.text)


_TIMERS = frozenset({"confirm_by"})
"""Records that set a moment and say nothing that a person did or must know."""


@dataclass(frozen=True, slots=True)
class Story(Plain):
    """What the log tells about one effect, branch, fence or rollback. `str(story)` is the tale for people."""

    ref: int
    records: tuple[LogRecord, ...]
    about: str = ""

    def __str__(self) -> str:
        lines = [f"The story of {self.about or self.ref}"]
        for record in self.records:
            if record.kind not in _TIMERS:
                when = record.time.strftime("%Y-%m-%d %H:%M:%S")
                lines.append(f"  {record.seq:>8}  {when}  {record.text or record.kind.replace('_', ' ')}")
        return "\n".join(lines)
