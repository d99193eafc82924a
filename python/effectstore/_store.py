"""The store: one dependency graph and one append-only log, in one directory."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, TypeVar, get_args

from effectstore import _check
from effectstore import _effectstore as core
from effectstore._approval import Alert, Approval
from effectstore._artifact import Artifacts
from effectstore._base import Bound, Frozen, shown
from effectstore._branch import Branch
from effectstore._breaks import Notice
from effectstore._choices import (
    ApprovalKind,
    ApprovalState,
    BranchState,
    BreakSeverity,
    EffectState,
    Escalate,
    FenceStatus,
    Missing,
    OnConflict,
    OnFailure,
    Outcome,
    Overwrite,
    ReadRule,
    RequestTrigger,
    RollbackState,
    Severity,
)
from effectstore._compensate import compensate
from effectstore._context import refuse_new_work
from effectstore._effect import Effect
from effectstore._errors import EffectStoreError, LimitExceededError, NotFoundError
from effectstore._fence import Fence, Reconciliation
from effectstore._handlers import Handler, Handlers, ProgressHook
from effectstore._iterate import PAGE, matches, pages
from effectstore._metrics import Metrics
from effectstore._outbox import Outbox
from effectstore._payload import optional_text, text
from effectstore._registration import Registration, placed
from effectstore._rollback import LEASE_S, Rollback, Step
from effectstore._session import BranchRef, EffectRef, Ref, Session, demand
from effectstore._time import Seconds, lease_ms, to_ms
from effectstore._values import (
    CompensationReport,
    Decision,
    Limits,
    LogRecord,
    Policy,
    Retry,
    Story,
    Token,
    Verification,
)

_T = TypeVar("_T")

logger = logging.getLogger("effectstore")


def raw_limits(limits: Limits | None) -> "core._Limits | None":
    """The limits as the core takes them."""
    given = _check.optional_instance(limits, Limits, "limits")
    return None if given is None else given._raw()


def raw_policy(policy: Policy | None) -> "core._Policy | None":
    """The policy as the core takes it."""
    given = _check.optional_instance(policy, Policy, "policy")
    return None if given is None else given._raw()


class Store(Frozen, Bound):
    """An open store. Use it as a context manager, or close it. Everything may be used from any thread."""

    __slots__ = ("_session",)

    _session: Session

    def __init__(self, session: Session) -> None:
        object.__setattr__(self, "_session", session)

    def _carry(self) -> str:
        return f"its path, {self.path}"

    def _identity(self) -> tuple[object, ...]:
        return (self._session.store_id,)

    @property
    def path(self) -> str:
        """Its directory."""
        return self._session.path

    @property
    def id(self) -> str:
        """Its id, which is part of the keys of its inverses."""
        return self._session.store_id.hex()

    @property
    def limits(self) -> Limits:
        """The limits in force."""
        return Limits._of(self._session.handle.limits())

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return Policy._of(self._session.handle.policy())

    @property
    def artifacts(self) -> Artifacts:
        """Executable artifacts, each paired with the compensation that undoes a failed execution."""
        return Artifacts(self._session)

    @property
    def outbox(self) -> Outbox:
        """Committed deferred effects."""
        return Outbox(self._session)

    def close(self) -> None:
        """Close it; decides nothing. Further calls raise `StoreClosedError`."""
        self._session.handle.close()

    def __enter__(self) -> Self:
        self._session.handle.store_id()  # A closed store says so here, not at the first verb inside.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def configure(self, *, by: str, limits: Limits | None = None, policy: Policy | None = None) -> None:
        """Replace limits or policy; both live in the store."""
        self._session.handle.configure(
            text(by, "by"),
            raw_limits(limits),
            raw_policy(policy),
        )

    def freeze(self, *, by: str, reason: str) -> None:
        """Stop new registrations."""
        self._session.handle.freeze(text(by, "by"), text(reason, "reason"))

    def unfreeze(self, *, by: str) -> None:
        """Let them in again."""
        self._session.handle.unfreeze(text(by, "by"))

    def branch(
        self,
        name: str,
        *,
        agent: str | None = None,
        parent: BranchRef | None = None,
        reads: ReadRule = "speculative",
        overwrite: Overwrite = "guard",
        lease: Seconds | None = None,
    ) -> Branch:
        """Create a branch; `agent=None` is the name. Raises `BranchExistsError` if it is there.

        A `parent` that carries a token must hold the current one (`StaleTokenError`); by name, or fetched for reading,
        it is only named.
        """
        refuse_new_work()
        above = None if parent is None else self._session.branch_id(parent)
        held = parent.token if isinstance(parent, Branch) else None
        held_ms = None if lease is None else lease_ms(lease)
        made = self._session.handle.create_branch(
            text(name, "name"), optional_text(agent, "agent"), above, held, reads, overwrite, held_ms
        )
        return Branch._owned(self._session, made)

    def takeover(self, name: str, *, worker_gone: bool = False, by: str | None = None) -> Branch:
        """Take a branch's work over, with a new token; older holders of it and of its effects become stale.

        `worker_gone=True` says that the former worker is known to be dead, so that no call of it can still land.
        """
        taken = self._session.handle.takeover(text(name, "name"), worker_gone, optional_text(by, "by"))
        return Branch._owned(self._session, taken)

    def join(self, name: str, token: Token | tuple[int, int]) -> Branch:
        """The branch under a token that was handed over. Raises `StaleTokenError` if it is not the current one."""
        incarnation, number = token
        joined = self._session.handle.join(text(name, "name"), (incarnation, number))
        return Branch(self._session, joined, token=Token(incarnation, number))

    def branches(
        self,
        *,
        since: int = 0,
        limit: int | None = None,
        state: BranchState | None = None,
        agent: str | None = None,
        parent: str | None = None,
    ) -> Iterator[Branch]:
        """The branches in id order, for reading."""

        def fetch(after: int, size: int) -> list[Branch]:
            return [Branch(self._session, info, token=None) for info in self._session.handle.branches(after, size)]

        _check.one_of(state, "state", get_args(BranchState))
        return _listed(fetch, since, limit, state=state, agent=agent, parent=parent)

    def register_many(self, calls: Iterable[Registration]) -> list[Effect]:
        """Register calls, all or nothing, in order. `after=` may name earlier items; a refusal has `.index`."""
        refuse_new_work()
        if isinstance(calls, str | bytes | Mapping | Registration):
            message = f"register_many takes several Registrations, not {type(calls).__name__}"
            raise TypeError(message)
        most = self.limits.batch_records
        listed = [_check.instance(call, Registration, "register_many") for call in islice(calls, most + 1)]
        if len(listed) > most:
            message = f"batch_records would be more than {most}, which is the limit; register in several calls"
            raise LimitExceededError(message, limit="batch_records", value=len(listed), allowed=most, wait_for=())
        places: dict[int, int] = {}
        raw = []
        for place, call in enumerate(listed):
            self._session.check_own(call.branch)
            try:
                raw.append(placed(call, places))
            except EffectStoreError as error:
                error.index = place
                raise
            places[id(call)] = place
        receipts = self._session.handle.register(raw, 0) if raw else []
        return [call.branch._received(receipt, call.tool) for call, receipt in zip(listed, receipts, strict=True)]

    def decide(self, target: Ref) -> Decision:
        """What the fence would decide. Changes nothing."""
        return Decision.of(self._session.handle.decide(self._session.target(target)))

    def commit(self, target: Branch | Effect, *, escalate: Escalate = "wait", timeout: Seconds = 0) -> Fence:
        """Vote for the owner's part and ask for its commit, with the token of the branch.

        With `"wait"` an intent stays that commits by itself, and `timeout` waits for it; with `"never"` blockers raise
        `FenceClosureError`, as a doomed closure always does.
        """
        if isinstance(target, Branch):
            held, name = target.token, target.name
        elif isinstance(target, Effect):
            held, name = target._branch_token, target._branch_name
        else:
            message = f"commit takes a Branch or an Effect with its token, not {type(target).__name__}"
            raise TypeError(message)
        wanted = self._session.target(target)
        decided = self._session.handle.commit(wanted, demand(held, name), escalate, to_ms(timeout, "timeout"))
        fence = Fence._of(self._session, decided)
        logger.info("fence %s %s: %d committed", fence.id, fence.status, len(fence.committed))
        return fence

    def reconcile(
        self,
        *,
        commit: Ref | Iterable[Ref] = (),
        abort: Ref | Iterable[Ref] = (),
        closure: bool = False,
        by: str | None = None,
        reason: str | None = None,
        on_conflict: OnConflict = "raise",
        escalate: Escalate = "wait",
    ) -> Reconciliation:
        """The merge authority: settle winners and losers in one decision.

        `closure=True` votes for all that `commit` rests on, whoever owns it, and needs `by=`. Raises
        `ReconcileConflictError` if a winner rests on a loser, `FenceClosureError` with `escalate="never"`.
        """
        settled = self._session.handle.reconcile(
            self._targets(commit),
            self._targets(abort),
            closure,
            optional_text(by, "by"),
            optional_text(reason, "reason"),
            on_conflict,
            escalate,
        )
        found = Reconciliation._of(self._session, settled)
        logger.info(
            "reconciled: %d committed, %d doomed, %d cascaded, rollback %s",
            len(found.committed),
            len(found.doomed),
            len(found.cascaded),
            settled.rollback,
        )
        return found

    def _targets(self, refs: Ref | Iterable[Ref]) -> list[tuple[bool, int]]:
        if isinstance(refs, str | int | Branch | Effect):
            return [self._session.target(refs)]
        if isinstance(refs, bytes | bytearray | memoryview | Mapping):
            message = f"commit and abort take branches and effects, their names and ids, not {type(refs).__name__}"
            raise TypeError(message)
        return [self._session.target(ref) for ref in refs]

    def request_rollback(
        self,
        targets: Ref | Iterable[Ref],
        *,
        by: str,
        reason: str,
        trigger: RequestTrigger = "human",
        program_order: bool = False,
    ) -> Rollback:
        """Ask for committed effects to be undone, with all that rests on them.

        What rests on them is found by reading the log from the oldest on: observations and explicit `after`, with
        `program_order=True` also what came after them on their branches. Nothing happens until a person approves; see
        `Rollback.impact` and `.plan`. Live members fall with the approval, committed ones stay committed and become
        compensated. If more comes to rest on them before the answer, the approval is stale and another is asked for.
        """
        found = self._session.handle.request_rollback(
            self._targets(targets), text(by, "by"), text(reason, "reason"), trigger, program_order
        )
        rollback = Rollback._of(self._session, found)
        logger.info("rollback %s of %d effects asked for by %s", rollback.id, len(rollback.effects), by)
        return rollback

    def review(self, *, since: int = 0, limit: int | None = None) -> Iterator[Rollback]:
        """Finished rollbacks whose root cause or remedy is still owed, in id order."""

        def fetch(after: int, size: int) -> list[Rollback]:
            return [Rollback._of(self._session, info) for info in self._session.handle.review(after, size)]

        return _listed(fetch, since, limit)

    def compensate(
        self,
        handlers: Handlers = None,
        *,
        rollback: Rollback | int | Literal["due"] = "due",
        agent: str | None = None,
        missing: Missing = "fail",
        retry: Retry | None = None,
        on_failure: OnFailure | None = None,
        workers: int = 1,
        lease: Seconds = LEASE_S,
        timeout: Seconds = 0,
        handler_timeout: Seconds | None = None,
        probes: Mapping[str, Handler] | None = None,
        progress: ProgressHook | None = None,
    ) -> CompensationReport:
        """Run every step that is due and may be run here; sleep through its backoffs; wait for others up to `timeout`.

        `handlers` maps a tool to `handler(args, step)`, plain or async; `None` means the functions decorated in this
        process. `probes` has the same shape and says whether an effect of unknown outcome happened. `agent=None` acts
        for every agent. A handler that outlives `handler_timeout` counts as failed. `progress` is called with a
        `Progress` after each attempt. On `KeyboardInterrupt` the running attempt is recorded as interrupted and the
        exception passes; the rollback stays resumable.
        """
        report = compensate(
            self._session,
            handlers,
            rollback=rollback,
            agent=agent,
            missing=missing,
            retry=retry,
            on_failure=on_failure,
            workers=workers,
            lease=lease,
            timeout=timeout,
            handler_timeout=handler_timeout,
            probes=probes,
            progress=progress,
        )
        level = logging.INFO if report.clean else logging.WARNING
        logger.log(level, "compensated rollbacks %s: clean=%s", list(report.rollbacks), report.clean)
        return report

    def claim(
        self,
        agent: str,
        *,
        tools: str | Iterable[str] | None = None,
        lease: Seconds = LEASE_S,
        timeout: Seconds = 0,
    ) -> Step | None:
        """Take a step that is due; its attempt has begun durably. `None` if none comes within `timeout` seconds."""
        names = _check.names(tools, "tools")
        held_ms, wait_ms = lease_ms(lease), to_ms(timeout, "timeout")
        info = self._session.handle.claim(text(agent, "agent"), names, held_ms, wait_ms)
        return None if info is None else Step(self._session, info)

    def signal_break(
        self,
        branch: BranchRef,
        *,
        severity: BreakSeverity,
        reason: str,
        recoverable: bool,
        upstream: str | Iterable[str] = (),
        ack_within: Seconds = 30,
    ) -> Reconciliation:
        """Say that a branch cannot go on: it is doomed with all below it, and every agent touched gets a `Notice`.

        Each has to acknowledge within `ack_within` seconds; a missing acknowledgement raises an alert, critical unless
        `severity` is "transient". `recoverable=False` closes the branch for ever. The steps of the agents in `upstream`
        wait until the agent that broke has undone its own, even where no edge was recorded.
        A `Branch` with its token is checked for it (`StaleTokenError`); a name is anybody's to signal.

            store.signal_break("B", severity="permanent", reason="drift", recoverable=False, upstream=["planner"])
        """
        names = [upstream] if isinstance(upstream, str) else [text(name, "upstream") for name in upstream]
        settled = self._session.handle.signal_break(
            self._session.branch_id(branch),
            branch.token if isinstance(branch, Branch) else None,
            severity,
            text(reason, "reason"),
            recoverable,
            names,
            to_ms(ack_within, "ack_within"),
        )
        found = Reconciliation._of(self._session, settled)
        logger.info("break (%s): %d doomed, %d cascaded", severity, len(found.doomed), len(found.cascaded))
        return found

    def inbox(self, agent: str, *, since: int = 0, limit: int | None = None) -> Iterator[Notice]:
        """The notices that this agent (`"*"`: any) has not acknowledged, in id order; they survive a restart.

        for notice in store.inbox("deployer"):
            notice.ack()
        """
        to = text(agent, "agent")

        def fetch(after: int, size: int) -> list[Notice]:
            return [Notice._of(self._session, info) for info in self._session.handle.notices(to, after, size)]

        return _listed(fetch, since, limit)

    def metrics(self) -> Metrics:
        """Measure storms, rollbacks and storage. It reads the log of the last 30 days, at most a million records."""
        return Metrics._of(self._session.handle.metrics())

    def tick(self) -> int:
        """Do what fell due (leases, deadlines, backoffs); the number of events."""
        return self._session.handle.tick()

    def effect(self, id: EffectRef) -> Effect:  # noqa: A002  # The name of the interface.
        """One effect, for reading."""
        return Effect._of(self._session, self._session.handle.effect(self._session.effect_id(id)))

    def effects(
        self,
        *,
        since: int = 0,
        limit: int | None = None,
        branch: BranchRef | None = None,
        state: EffectState | None = None,
        outcome: Outcome | None = None,
        agent: str | None = None,
        tool: str | None = None,
    ) -> Iterator[Effect]:
        """The effects in id order, for reading."""
        of_branch = None if branch is None else self._session.branch_id(branch)
        _check.one_of(state, "state", get_args(EffectState))
        _check.one_of(outcome, "outcome", get_args(Outcome))

        def fetch(after: int, size: int) -> list[Effect]:
            infos = self._session.handle.effects(after, size, of_branch, state, outcome, agent, tool)
            return [Effect._of(self._session, info) for info in infos]

        return pages(fetch, lambda effect: effect.id, since=since, limit=limit)

    def fence(self, id: int) -> Fence:  # noqa: A002
        """One fence."""
        return Fence._of(self._session, self._session.handle.fence(_check.identity(id, "fence")))

    def fences(self, *, since: int = 0, limit: int | None = None, status: FenceStatus | None = None) -> Iterator[Fence]:
        """The fences in id order."""

        def fetch(after: int, size: int) -> list[Fence]:
            return [Fence._of(self._session, info) for info in self._session.handle.fences(after, size)]

        _check.one_of(status, "status", get_args(FenceStatus))
        return _listed(fetch, since, limit, status=status)

    def rollback(self, id: int) -> Rollback:  # noqa: A002
        """One rollback."""
        return Rollback._of(self._session, self._session.handle.rollback(_check.identity(id, "rollback")))

    def rollbacks(
        self, *, since: int = 0, limit: int | None = None, state: RollbackState | None = None
    ) -> Iterator[Rollback]:
        """The rollbacks in id order."""

        def fetch(after: int, size: int) -> list[Rollback]:
            return [Rollback._of(self._session, info) for info in self._session.handle.rollbacks(after, size)]

        _check.one_of(state, "state", get_args(RollbackState))
        return _listed(fetch, since, limit, state=state)

    def approval(self, id: int) -> Approval:  # noqa: A002
        """One approval."""
        return Approval._of(self._session, self._session.handle.approval(_check.identity(id, "approval")))

    def approvals(
        self,
        *,
        since: int = 0,
        limit: int | None = None,
        state: ApprovalState | None = None,
        kind: ApprovalKind | None = None,
    ) -> Iterator[Approval]:
        """The approvals in id order."""

        def fetch(after: int, size: int) -> list[Approval]:
            return [Approval._of(self._session, info) for info in self._session.handle.approvals(after, size)]

        _check.one_of(state, "state", get_args(ApprovalState))
        _check.one_of(kind, "kind", get_args(ApprovalKind))
        return _listed(fetch, since, limit, state=state, kind=kind)

    def alerts(self, *, since: int = 0, limit: int | None = None, severity: Severity | None = None) -> Iterator[Alert]:
        """The alerts in id order."""

        def fetch(after: int, size: int) -> list[Alert]:
            return [Alert._of(self._session, info) for info in self._session.handle.alerts(after, size)]

        _check.one_of(severity, "severity", get_args(Severity))
        return _listed(fetch, since, limit, severity=severity)

    def log(self, since: int = 0, *, limit: int | None = None, timeout: Seconds = 0) -> Iterator[LogRecord]:
        """The records after `since`, up to the log's head; `timeout` waits for the first one if there is none."""
        wait_ms = to_ms(timeout, "timeout")
        return self._log(_check.count(since, "since"), _check.optional_count(limit, "limit"), wait_ms)

    def _log(self, since: int, left: int | None, wait_ms: int) -> Iterator[LogRecord]:
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            entries = self._session.handle.log(since, size, wait_ms)
            for entry in entries:
                since = entry.seq
                yield LogRecord.of(entry)
            wait_ms = 0
            left = None if left is None else left - len(entries)
            if len(entries) < size:
                return

    def explain(self, ref: Ref) -> Story:
        """The records of one story in order: of an effect, a branch, a fence, a rollback, an approval."""
        found = self._session.target(ref)[1]
        records = tuple(LogRecord.of(entry) for entry in self._session.handle.explain(found))
        return Story(found, records, self._about(found, records[0].kind))

    def _about(self, found: int, kind: str) -> str:
        """What the story that begins with such a record is about, and how that stands now."""
        told = ""
        if kind == "branch_created":
            info = self._session.handle.branch(found)
            told = f"branch {shown(info.name)}, of {shown(info.agent)}: {info.state}"
        elif kind == "registered":
            effect = self._session.handle.effect(found)
            place = f"{shown(effect.tool)} on {shown(effect.branch_name)}, of {shown(effect.agent)}"
            told = f"effect {found}, {place}: {effect.state}, {effect.outcome}"
        elif kind == "approval_requested":
            approval = self.approval(found)
            told = f"approval {found} for {approval.about}: {approval.state}"
        elif kind in {"doomed", "rollback_requested", "intended", "fenced"}:
            # A doom of what never ran makes no rollback, and the end of a commit that waited is no fence of its own.
            with suppress(NotFoundError):
                fenced = kind in {"intended", "fenced"}
                state = "" if fenced else self.rollback(found).state.replace("_", " ")
                told = self.fence(found)._about() if fenced else f"rollback {found}: {state}"
        return told

    def verify(self, from_head: Verification | tuple[int, bytes | str] | None = None) -> Verification:
        """Check chain, indexes and invariants. With a head that was kept elsewhere it also finds a cut tail.

        Raises `CorruptedError` with the first bad place. Of a store in which a later version has written it checks
        numbers, chain and payloads, and says so in `newer`.
        """
        head: tuple[int, bytes] | None = None
        if isinstance(from_head, Verification):
            head = from_head.head, bytes.fromhex(from_head.head_hash)
        elif from_head is not None:
            number, digest = from_head
            head = number, bytes.fromhex(digest) if isinstance(digest, str) else digest
        records, last, chain, newer = self._session.handle.verify(head)
        return Verification(records, last, chain.hex(), newer)

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store into a directory that does not exist yet, while it is in use."""
        self._session.handle.backup(path)

    def export(self, file: str | os.PathLike[str] | BinaryIO) -> None:
        """Write the log as a CBOR sequence (RFC 8742), to a file that does not exist yet or a binary file object."""
        if isinstance(file, str | os.PathLike):
            self._session.handle.export(file)
            return
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "export"
            self._session.handle.export(copy)
            with copy.open("rb") as held:
                shutil.copyfileobj(held, file)

    def __repr__(self) -> str:
        return f"<Store {self.path}>"


def _listed(fetch: Callable[[int, int], list[_T]], since: int, limit: int | None, **wanted: Any) -> Iterator[_T]:
    return pages(fetch, _id, since=since, limit=limit, keep=matches(**wanted))


def _id(item: Any) -> int:
    found: int = item.id
    return found
