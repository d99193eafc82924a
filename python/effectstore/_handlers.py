"""Running what callers give: handlers of inverses, probes and deferred tools, plain or async."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from effectstore._choices import Missing
from effectstore._context import undo_scope
from effectstore._effect import problem
from effectstore._errors import ContentMismatchError, EffectStoreError, PermanentError, RetryLaterError
from effectstore._rollback import Step
from effectstore._time import to_ms
from effectstore._tool import handler_of, known_tools
from effectstore._values import Progress

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._session import Session

Handler: TypeAlias = Callable[..., Any]
"""`handler(args, step)`, plain or async."""

Handlers: TypeAlias = Mapping[str, Handler] | None
"""Handlers by tool; `None` means the functions decorated in this process, called untracked as `fn(**args)`."""

ProgressHook: TypeAlias = Callable[[Progress], Any]
"""Called after each attempt."""


Late: TypeAlias = Callable[[bool, Any], None]
"""Told how a handler ended that had outlived its time: whether it returned, and what it returned or raised."""


logger = logging.getLogger("effectstore")


class HandlerTimeoutError(Exception):
    """A handler took longer than `handler_timeout`."""


class HandlerCancelledError(Exception):
    """An async handler ended with a `CancelledError` that nobody outside of it had asked for."""


INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What ends a worker and says nothing of the handler that it was raised in."""


def find(handlers: Handlers, tool: str) -> Handler | None:
    """The handler of a tool."""
    if handlers is not None:
        return handlers.get(tool)
    shape = handler_of(tool)
    return None if shape is None else lambda args, _: shape.invoke(args)


def tools_of(handlers: Handlers) -> list[str]:
    """The tools that can be run here."""
    return known_tools() if handlers is None else list(handlers)


def _later_ms(after: float) -> int:
    """The wait that a handler asks for. Nonsense is no reason to lose the attempt: it means at once."""
    try:
        return to_ms(after, "after")
    except (TypeError, ValueError):
        return 0


class Caller:
    """Calls handlers of one worker. Async ones run on one event loop, so that clients bound to it can be shared."""

    __slots__ = ("_runner", "_threads", "_timeout_s")

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._runner: asyncio.Runner | None = None
        self._threads: ThreadPoolExecutor | None = None

    def call(self, handler: Handler, args: Any, subject: Any, late: Late | None = None) -> Any:
        """What the handler returns.

        Raises `HandlerTimeoutError`; a plain handler then goes on in its thread, and `late` is told how it ended.
        """
        if self._timeout_s is None or inspect.iscoroutinefunction(handler):
            found = handler(args, subject)
        else:
            found = self._in_thread(lambda: handler(args, subject), late)
        return self._awaited(found) if inspect.isawaitable(found) else found

    def _in_thread(self, work: Callable[[], Any], late: Late | None) -> Any:
        box: list[tuple[bool, Any]] = []
        given_up = False
        lock = threading.Lock()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                found = True, context.run(work)
            except BaseException as error:  # noqa: BLE001  # Carried over to the thread that waits.
                found = False, error
            with lock:
                box.append(found)
                tell = late if given_up else None
            if tell is not None:
                tell(*found)

        thread = threading.Thread(target=run, name="effectstore-handler", daemon=True)
        thread.start()
        thread.join(self._timeout_s)
        with lock:
            given_up = not box
        if given_up:
            raise HandlerTimeoutError(f"no answer within {self._timeout_s} s")
        ran, value = box[0]
        if ran:
            return value
        raise value

    def _awaited(self, found: Awaitable[Any]) -> Any:
        timeout_s = self._timeout_s

        async def wait() -> Any:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    return await found
            except TimeoutError as error:
                if limit.expired():
                    raise HandlerTimeoutError(f"no answer within {timeout_s} s") from error
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling() == 0:
                    raise HandlerCancelledError("it was cancelled from within") from error
                raise

        if self._runner is None:
            self._runner = asyncio.Runner()
        context = contextvars.copy_context()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self._threads is None:
                return self._runner.run(wait(), context=context)
        # A loop is running in this thread and cannot be entered again, so the handler gets one in another.
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="effectstore-handlers")
        return self._threads.submit(self._runner.run, wait(), context=context).result()

    def close(self) -> None:
        """End the event loop."""
        if self._runner is not None and self._threads is not None:
            self._threads.submit(self._runner.close).result()
        elif self._runner is not None:
            self._runner.close()
        if self._threads is not None:
            self._threads.shutdown()


def _overrun(step: Step, returned: bool, value: Any) -> None:  # noqa: FBT001  # As `Late` has it.
    """Report how a handler ended whose attempt was given up. The core refuses it, and takes it as evidence."""
    try:
        if returned:
            step.complete()
        else:
            step.fail(value)
    except EffectStoreError as error:
        logger.info("a handler of step %d ended after its time: %s", step.id, error.code)


def _failed(error: Exception) -> "core._StepEnd":
    """How an attempt ended whose handler raised this."""
    match error:
        case RetryLaterError():
            return "later", None, *problem(error), _later_ms(error.after)
        case ContentMismatchError():
            return "mismatched", None, *problem(error), 0
        case PermanentError():
            return "permanent", None, *problem(error), 0
        case HandlerTimeoutError():
            return "timed_out", None, *problem(error), 0
        case _:
            return "failed", None, *problem(error), 0


class Worker:
    """Performs the steps that the core hands to it. What it returns tells the core how the attempt ended."""

    __slots__ = ("_caller", "_failed_progress", "_handlers", "_missing", "_probes", "_progress", "_session", "_stop")

    def __init__(
        self,
        session: "Session",
        handlers: Handlers,
        probes: Mapping[str, Handler] | None,
        *,
        missing: Missing,
        timeout_s: float | None,
        progress: ProgressHook | None,
        stop: threading.Event,
    ) -> None:
        self._session = session
        self._handlers = handlers
        self._probes = probes or {}
        self._missing = missing
        self._caller = Caller(timeout_s)
        self._progress = progress
        self._failed_progress: BaseException | None = None
        self._stop = stop

    def __call__(self, info: "core.StepInfo") -> "core._StepEnd":
        """One attempt. Interrupts pass: the core records the attempt as interrupted and hands them on."""
        self.check()
        step = Step(self._session, info)
        if self._stop.is_set():
            return "interrupted", None, "", "", 0
        end = self._attempt(step)
        if self._progress is not None and end[0] != "leave":
            self._tell(step, end[0])
        return end

    def check(self) -> None:
        """Raise what the caller's progress raised; the outcome of its step was recorded first."""
        error, self._failed_progress = self._failed_progress, None
        if error is not None:
            raise error

    def _tell(self, step: Step, outcome: Any) -> None:
        try:
            told = Progress(step.rollback, step.id, step.tool, step.agent, step.attempt, outcome)
            self._progress(told)  # type: ignore[misc]  # The caller looked.
        except BaseException as error:  # noqa: BLE001  # Raised by check, once the outcome is recorded.
            self._failed_progress = error
            self._stop.set()

    def _attempt(self, step: Step) -> "core._StepEnd":
        handler = find(self._handlers, step.tool)
        if handler is None:
            return "leave" if self._missing == "leave" else "no_handler", None, "", "", 0
        try:
            with undo_scope(step) as undo:
                try:
                    if self._never_happened(step):
                        return "never_happened", None, "", "", 0
                    late = functools.partial(_overrun, step)
                    result = self._caller.call(handler, step.args, step, late)
                except HandlerTimeoutError:
                    undo.lingers = True
                    raise
        except Exception as error:  # noqa: BLE001  # Whatever a handler raises is an attempt that failed.
            return _failed(error)
        except INTERRUPTS:
            raise
        except BaseException as error:
            # Not ours to swallow, and still the handler's: the attempt is recorded as failed, then the error passes.
            with contextlib.suppress(EffectStoreError):
                step.fail(error)
            raise
        return "completed", self._result(result), "", "", 0

    def _never_happened(self, step: Step) -> bool:
        """Whether a probe says so. Only an effect of unknown outcome leaves the question open."""
        probe = self._probes.get(step.tool)
        if probe is None or step._info.outcome != "unknown":
            return False
        return self._caller.call(probe, step.args, step) is False

    def _result(self, result: Any) -> bytes | None:
        """The result as bytes. The inverse ran, so a result that is no payload is left out rather than refused."""
        try:
            return None if result is None else self._session.codec.dump(result, "result")
        except Exception:  # noqa: BLE001  # The caller's own encoder may raise anything; the inverse ran all the same.
            return None

    def close(self) -> None:
        """End the worker's event loop."""
        self._caller.close()
