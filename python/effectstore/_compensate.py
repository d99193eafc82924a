"""Driving the undo: one core pass per worker, with the caller's handlers."""

import asyncio
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from effectstore import _check
from effectstore._choices import Missing, OnFailure
from effectstore._context import refuse_new_work
from effectstore._errors import OptionsError
from effectstore._handlers import Handler, Handlers, ProgressHook, Worker, tools_of
from effectstore._payload import optional_text
from effectstore._rollback import LEASE_S, Rollback
from effectstore._session import Session
from effectstore._time import Seconds, lease_ms, to_ms
from effectstore._values import CompensationReport, Report, Retry

if TYPE_CHECKING:
    from effectstore import _effectstore as core

_JOIN_S = 0.05
"""How often the caller's thread looks for an interrupt while its workers work."""


def compensate(
    session: Session,
    handlers: Handlers,
    *,
    rollback: "Rollback | int | Literal['due']" = "due",
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
    """See `Store.compensate`."""
    refuse_new_work()
    _check.handlers(handlers, "handlers")
    _check.handlers(probes, "probes")
    _check.hook(progress, "progress")
    rule = _check.optional_instance(retry, Retry, "retry")
    if missing not in {"fail", "leave"}:
        message = f'missing is "fail" or "leave", not {missing!r}'
        raise OptionsError(message, option="missing")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        message = f"workers is a number from 1, not {workers!r}"
        raise OptionsError(message, option="workers")
    timeout_s = None if handler_timeout is None else to_ms(handler_timeout, "handler_timeout") / 1000
    stop = threading.Event()
    run = _Pass(
        session,
        _rollback_id(session, rollback),
        optional_text(agent, "agent"),
        tools=None if missing == "fail" else tools_of(handlers),
        missing_fails=missing == "fail",
        retry=None if rule is None else rule._raw(),
        on_failure=on_failure,
        lease_ms=lease_ms(lease),
        wait_ms=to_ms(timeout, "timeout"),
    )

    def worker() -> Worker:
        return Worker(session, handlers, probes, missing=missing, timeout_s=timeout_s, progress=progress, stop=stop)

    if workers == 1:
        rollbacks, report, approvals = run.with_worker(worker())
        return CompensationReport.of(rollbacks, [Report.of(report)], approvals)
    return _together(session, run, [worker() for _ in range(workers)], stop)


def _rollback_id(session: Session, rollback: "Rollback | int | Literal['due']") -> int | None:
    if isinstance(rollback, Rollback):
        session.check_own(rollback)
        return rollback.id
    if isinstance(rollback, int) and not isinstance(rollback, bool):
        return _check.identity(rollback, "rollback")
    if rollback == "due":
        return None
    message = f'rollback takes "due", a rollback or its id, not {rollback!r}'
    raise TypeError(message)


class _Pass:
    """One pass of a worker over what is due."""

    __slots__ = (
        "_agent",
        "_lease_ms",
        "_missing_fails",
        "_on_failure",
        "_retry",
        "_rollback",
        "_session",
        "_tools",
        "_wait_ms",
    )

    def __init__(
        self,
        session: Session,
        rollback: int | None,
        agent: str | None,
        *,
        tools: list[str] | None,
        missing_fails: bool,
        retry: "core._Retry | None",
        on_failure: OnFailure | None,
        lease_ms: int,
        wait_ms: int,
    ) -> None:
        self._session = session
        self._rollback = rollback
        self._agent = agent
        self._tools = tools
        self._missing_fails = missing_fails
        self._retry = retry
        self._on_failure = on_failure
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms

    def with_worker(self, worker: Worker) -> "tuple[list[int], core.ReportInfo, list[int]]":
        """Run the pass in this thread."""
        try:
            found = self._session.handle.compensate(
                self._rollback,
                self._agent,
                self._tools,
                self._missing_fails,
                self._retry,
                self._on_failure,
                self._lease_ms,
                self._wait_ms,
                worker,
            )
            worker.check()
        finally:
            worker.close()
        return found


def _together(session: Session, run: _Pass, workers: list[Worker], stop: threading.Event) -> CompensationReport:
    """Several workers. An interrupt of the caller, or of a handler, stops all of them after what they are running."""
    rollbacks: set[int] = set()
    approvals: set[int] = set()
    raised: list[BaseException] = []
    lock = threading.Lock()

    def work(worker: Worker) -> None:
        try:
            found, _, waited = run.with_worker(worker)
        except BaseException as error:  # noqa: BLE001  # Raised in the caller's thread.
            stop.set()
            with lock:
                raised.append(error)
        else:
            with lock:
                rollbacks.update(found)
                approvals.update(waited)

    threads = [
        threading.Thread(target=work, args=(worker,), name=f"effectstore-worker-{place}", daemon=True)
        for place, worker in enumerate(workers)
    ]
    for thread in threads:
        thread.start()
    try:
        _join(threads)
    except (KeyboardInterrupt, asyncio.CancelledError):
        stop.set()
        _join(threads)
        raise
    if raised:
        raise raised[0]
    reports = [Report.of(session.handle.rollback(found).report) for found in sorted(rollbacks)]
    return CompensationReport.of(rollbacks, reports, approvals)


def _join(threads: list[threading.Thread]) -> None:
    """Wait in slices, so that an interrupt is seen at once."""
    for thread in threads:
        while thread.is_alive():
            thread.join(_JOIN_S)
