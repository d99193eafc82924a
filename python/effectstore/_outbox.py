"""The outbox: committed deferred effects, handed out in dependency order, at least once, under a stable key."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from effectstore._base import Bound, Frozen, jsonable
from effectstore._check import handlers as check_handlers
from effectstore._check import names as names_of
from effectstore._context import effect_scope, refuse_new_work
from effectstore._effect import Effect
from effectstore._errors import AlreadySettledError, EffectStoreError, NotRunError, PayloadError
from effectstore._handlers import Caller, Handlers, find, tools_of
from effectstore._payload import optional_text, text
from effectstore._rollback import LEASE_S
from effectstore._session import Session
from effectstore._time import Seconds, lease_ms, moment, to_ms
from effectstore._values import Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from effectstore import _effectstore as core

ANYONE = "*"
"""Acts for every agent."""


class Delivery(Frozen, Bound):
    """A deferred effect that was handed out under a lease. Report it by `effect.done` or `effect.not_run`."""

    __slots__ = ("_info", "_session", "effect")

    _session: Session
    _info: "core.DeliveryInfo"
    effect: Effect

    def __init__(self, session: Session, info: "core.DeliveryInfo") -> None:
        object.__setattr__(self, "_session", session)
        object.__setattr__(self, "_info", info)
        object.__setattr__(self, "effect", Effect(session, info.effect, token=Token(*info.token)))

    def _carry(self) -> str:
        return f"the effect's id, {self._info.effect}: it is handed out again when the lease has run out"

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self._info.effect, self._info.token

    @property
    def idempotency_key(self) -> str:
        """The stable key of its call, the same at every attempt."""
        return self._info.idempotency_key

    @property
    def attempt(self) -> int:
        """How often it was handed out."""
        return self._info.attempt

    @property
    def lease_until(self) -> datetime:
        """The end of the lease."""
        return moment(self._info.lease_until_ms)

    @property
    def token(self) -> Token:
        """The token of the hold."""
        return Token(*self._info.token)

    def renew(self, lease: Seconds | None = None) -> "Delivery":
        """Hold it for `lease` seconds from now (60 by default)."""
        held_ms = lease_ms(LEASE_S if lease is None else lease)
        held = self._session.handle.hold_delivery(self._info.effect, self._info.token, held_ms)
        return self if held is None else Delivery(self._session, held)

    def release(self) -> None:
        """Give it back, to be handed out again."""
        self._session.handle.hold_delivery(self._info.effect, self._info.token, None)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        del payloads
        names = ("idempotency_key", "attempt", "lease_until", "token")
        return {"effect": self._info.effect, **{name: jsonable(getattr(self, name)) for name in names}}

    def __repr__(self) -> str:
        return f"<Delivery of effect {self._info.effect}: attempt {self.attempt}>"


class Outbox:
    """`store.outbox`."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def pending(self, agent: str | None = None) -> "Iterator[Effect]":
        """Deferred effects whose fence has committed and that have not been reported, for reading."""
        for found in self._session.handle.deliveries(optional_text(agent, "agent")):
            yield Effect._of(self._session, self._session.handle.effect(found))

    def claim(
        self,
        agent: str,
        *,
        tools: "str | Iterable[str] | None" = None,
        lease: Seconds = LEASE_S,
        timeout: Seconds = 0,
    ) -> Delivery | None:
        """The next effect for this agent (`"*"`: for any), or `None` if none comes within `timeout` seconds."""
        refuse_new_work()
        names = names_of(tools, "tools")
        held_ms, wait_ms = lease_ms(lease), to_ms(timeout, "timeout")
        info = self._session.handle.deliver(text(agent, "agent"), names, held_ms, wait_ms)
        return None if info is None else Delivery(self._session, info)

    def run(self, handlers: Handlers = None, *, agent: str | None = None) -> tuple[Effect, ...]:
        """Run what is handed out until nothing is, and report it; `handler(args, delivery)`, plain or async.

        Only tools that have a handler are taken. A handler that raises `NotRunError` did nothing, for good. What else
        it raises, and a result that is no payload, leaves the outcome unknown: the effect is given back, to be handed
        out again under the same key, and the exception passes with a note. A handler that reports for itself, by
        `delivery.effect`, has the last word.
        """
        refuse_new_work()
        check_handlers(handlers, "handlers")
        tools = tools_of(handlers)
        caller = Caller()
        done: list[Effect] = []
        try:
            while (delivery := self.claim(ANYONE if agent is None else agent, tools=tools)) is not None:
                done.append(self._run_one(delivery, handlers, caller))
        finally:
            caller.close()
        return tuple(done)

    def _run_one(self, delivery: Delivery, handlers: Handlers, caller: Caller) -> Effect:
        effect = delivery.effect
        handler = find(handlers, effect.tool)
        if handler is None:
            delivery.release()
            message = f"tool {effect.tool!r} was handed out without a handler"
            raise LookupError(message)
        try:
            with effect_scope(effect):
                result = caller.call(handler, effect.args, delivery)
        except NotRunError as error:
            said = error
            return _unless_told(effect, lambda: effect.not_run(said))
        except BaseException as error:
            error.add_note(f"effectstore: the outcome of deferred effect {effect.id} is unknown; {_back(delivery)}")
            raise
        try:
            return _unless_told(effect, lambda: effect.done(result))
        except PayloadError as error:
            what = f"the tool of deferred effect {effect.id} ran, and its result is no payload"
            error.add_note(f"effectstore: {what}; {_back(delivery)}, under the same key")
            raise
        except EffectStoreError as error:
            error.add_note(f"effectstore: the tool of deferred effect {effect.id} ran, and that could not be recorded")
            raise


def _unless_told(effect: Effect, report: "Callable[[], Effect]") -> Effect:
    """The reported effect. A handler may have reported for itself: then its word stands."""
    try:
        return report()
    except AlreadySettledError:
        newer = effect.refresh()
        if newer.outcome == "unknown" or newer.state == "doomed":
            raise
        return newer


def _back(delivery: Delivery) -> str:
    """Give the delivery back, and say so."""
    try:
        delivery.release()
    except EffectStoreError as refusal:
        return f"it could not be given back: {refusal}"
    return "it was given back and will be handed out again"
