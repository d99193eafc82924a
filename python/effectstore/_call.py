"""A tracked call: register, run, report. Shared by `branch.call` and decorated tools, plain and async."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from effectstore._choices import IfUnknown
from effectstore._context import effect_scope
from effectstore._effect import Effect
from effectstore._errors import (
    AlreadySettledError,
    EffectStoreError,
    NotRunError,
    OptionsError,
    OutcomeUnknownError,
    PayloadError,
)
from effectstore._values import Inverse


@dataclass(frozen=True, slots=True)
class Rules:
    """What a tool's exceptions and unknown outcomes mean."""

    not_run_on: tuple[type[BaseException], ...]
    if_unknown: IfUnknown

    @classmethod
    def of(cls, not_run_on: type[BaseException] | Iterable[type[BaseException]], if_unknown: IfUnknown) -> Self:
        """The rules, checked before anything is registered."""
        if if_unknown not in {"raise", "run"}:
            message = f'if_unknown is "raise" or "run", not {if_unknown!r}'
            raise OptionsError(message, option="if_unknown")
        kinds = (not_run_on,) if isinstance(not_run_on, type) else tuple(not_run_on)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                message = f"not_run_on takes exception classes, not {kind!r}"
                raise TypeError(message)
        return cls((NotRunError, *kinds), if_unknown)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returns without running its tool."""

    value: Any


def known(effect: Effect, rules: Rules) -> Answer | None:
    """The answer that does without a run; `None` if the tool is to run now."""
    if effect.created:
        return Answer(effect) if effect.mode == "deferred" else None
    if effect.state == "doomed" or effect.compensated:
        state = "doomed" if effect.state == "doomed" else "compensated"
        message = f"the call is known as effect {effect.id}, which is {state}; use another idempotency key"
        raise AlreadySettledError(message, ref=effect.id, state=state)
    if effect.outcome == "done":
        return Answer(effect.result)
    if effect.mode == "deferred":
        return Answer(effect)
    if rules.if_unknown == "run" and effect.token is not None:
        return None
    message = f"the call is known as effect {effect.id}, and whether it ran is not; ask the world, then report it"
    raise OutcomeUnknownError(message, effect=effect.id)


@contextmanager
def watched(effect: Effect, rules: Rules) -> Iterator[None]:
    """Run the tool inside. What it raises is recorded where it says so, noted, and left to pass unchanged."""
    try:
        with effect_scope(effect):
            yield
    except BaseException as error:
        error.add_note(_after_exception(effect, error, rules))
        raise


def _after_exception(effect: Effect, error: BaseException, rules: Rules) -> str:
    if not isinstance(error, rules.not_run_on):
        return f"effectstore: the outcome of effect {effect.id} of tool {effect.tool!r} is unknown"
    try:
        effect.not_run(error)
    except EffectStoreError as refusal:
        return f"effectstore: effect {effect.id} did not run, and not_run could not be recorded: {refusal}"
    return f"effectstore: the outcome of effect {effect.id} of tool {effect.tool!r} is not_run"


def report(effect: Effect, result: Any, inverse: Inverse | None) -> Any:
    """Record the result and hand it back."""
    try:
        effect.done(result, inverse=inverse)
    except PayloadError as error:
        error.add_note(f"effectstore: the tool of effect {effect.id} ran; report it with effect.done of another result")
        raise
    except EffectStoreError as error:
        error.add_note(f"effectstore: the tool of effect {effect.id} ran")
        raise
    return result
