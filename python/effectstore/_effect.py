"""Effects: snapshots of one tool call, with the verbs that report its outcome."""

from typing import TYPE_CHECKING, Any, cast

from effectstore import _check
from effectstore._base import Bound, Frozen, jsonable, shown
from effectstore._choices import EffectState, Mode, Outcome, Reversibility
from effectstore._context import refuse_new_work
from effectstore._payload import Reads, key_text, load, reads_raw, text
from effectstore._session import Session, demand
from effectstore._values import Inverse, Observation, Token

if TYPE_CHECKING:
    from effectstore import _effectstore as core

SHORT = 500
"""Longest error text that is handed on, in characters: error texts may hold secrets and be huge."""

_FIELDS = (
    "id",
    "branch",
    "agent",
    "token",
    "tool",
    "reads",
    "read_versions",
    "writes",
    "after",
    "rests_on",
    "inverse",
    "reversibility",
    "mode",
    "idempotency_key",
    "cost",
    "created",
    "state",
    "outcome",
    "sealed",
    "compensated",
    "fence",
    "rollback",
)
_PAYLOADS = ("args", "result")


def problem(error: BaseException | str) -> tuple[str, str]:
    """Type and shortened text of an error."""
    if isinstance(error, str):
        kind, message = "NotRunError", error
    else:
        kind = type(error).__name__
        try:
            message = str(error)
        except Exception:  # noqa: BLE001  # A broken __str__ must not hide the error itself.
            message = "(its text cannot be shown)"
    cut = message if len(message) <= SHORT else message[:SHORT] + "…"
    return kind, cut.encode(errors="backslashreplace").decode()


class Effect(Frozen, Bound):
    """One recorded tool call. Equality and hash go by store and id.

    What the verb's answer did not carry is fetched at the first access and stays as it was then. `token` is `None` on
    an effect that was fetched for reading; then every verb but `close` raises `StaleTokenError`.
    """

    __slots__ = (
        "_branch_name",
        "_branch_token",
        "_info",
        "_outcome",
        "_session",
        "_state",
        "_tool",
        "created",
        "id",
        "token",
    )

    _session: Session
    id: int
    token: Token | None
    created: bool
    _branch_token: Token | None
    _branch_name: str
    _state: str | None
    _outcome: str | None
    _tool: str | None
    _info: "core.EffectInfo | None"

    def __init__(
        self,
        session: Session,
        effect: int,
        *,
        token: Token | None,
        branch_token: Token | None = None,
        branch_name: str = "",
        created: bool = True,
        state: str | None = None,
        outcome: str | None = None,
        tool: str | None = None,
        info: "core.EffectInfo | None" = None,
    ) -> None:
        put = object.__setattr__
        put(self, "_session", session)
        put(self, "id", effect)
        put(self, "token", token)
        put(self, "created", created)
        put(self, "_branch_token", branch_token)
        put(self, "_branch_name", branch_name)
        put(self, "_state", state)
        put(self, "_outcome", outcome)
        put(self, "_tool", tool)
        put(self, "_info", info)

    @classmethod
    def _of(
        cls,
        session: Session,
        info: "core.EffectInfo",
        *,
        token: Token | None = None,
        branch_token: Token | None = None,
        created: bool = True,
    ) -> "Effect":
        return cls(
            session,
            info.id,
            token=token,
            branch_token=branch_token,
            branch_name=info.branch_name,
            created=created,
            tool=info.tool,
            state=info.state,
            outcome=info.outcome,
            info=info,
        )

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id

    def _full(self) -> "core.EffectInfo":
        info = self._info
        if info is None:
            info = self._session.handle.effect(self.id)
            object.__setattr__(self, "_info", info)
        return info

    @property
    def branch(self) -> str:
        """The name of its branch; after a merge, the parent's."""
        return self._branch_name or self._full().branch_name

    @property
    def agent(self) -> str:
        """Its branch's agent."""
        return self._full().agent

    @property
    def tool(self) -> str:
        """The tool that was called."""
        return self._full().tool if self._tool is None else self._tool

    @property
    def args(self) -> Any:
        """The arguments, decoded anew at every access."""
        return load(self._full().args, "args")

    @property
    def args_cbor(self) -> bytes:
        """The arguments as stored."""
        return self._full().args

    @property
    def reads(self) -> tuple[str, ...]:
        """The keys that the call was declared to read."""
        return tuple(key_text(key) for key, _ in self._full().reads)

    @property
    def read_versions(self) -> dict[str, int]:
        """The versions of keys that the caller vouched for."""
        return {key_text(key): version for key, version in self._full().reads if version is not None}

    @property
    def writes(self) -> tuple[str, ...]:
        """The keys that the call writes."""
        return tuple(key_text(key) for key in self._full().writes)

    @property
    def after(self) -> tuple[int, ...]:
        """Ids of the effects that it follows: its branch's tip at the registration, or what `after=` named."""
        return tuple(self._full().after)

    @property
    def rests_on(self) -> tuple[int, ...]:
        """Ids of all effects that its records name as what it rests on directly, settled ones included.

        These are its predecessors, or what `after=` named; the versions that it named; the writers of its reads that
        were live when it looked; and what a void one of all these rested on. No decision changes the answer. A read
        without a version of what was settled by then names no effect: a governed rollback finds such readers in the
        log (`Rollback.impact`).
        """
        return tuple(self._full().rests_on)

    @property
    def inverse(self) -> Inverse | None:
        """Its undo as last known."""
        raw = self._full().inverse
        return None if raw is None else Inverse._of(raw)

    @property
    def reversibility(self) -> Reversibility:
        """How far it can be undone."""
        return cast("Reversibility", self._full().reversibility)

    @property
    def mode(self) -> Mode:
        """Whether it runs before its fence or after it."""
        return cast("Mode", self._full().mode)

    @property
    def idempotency_key(self) -> str | None:
        """The caller's name for the call."""
        key = self._full().idempotency_key
        return None if key is None else key_text(key)

    @property
    def cost(self) -> float | None:
        """What it cost, in the caller's unit."""
        return self._full().cost

    @property
    def state(self) -> EffectState:
        """Live, committed, doomed or void."""
        return cast("EffectState", self._full().state if self._state is None else self._state)

    @property
    def outcome(self) -> Outcome:
        """What is known of its call."""
        return cast("Outcome", self._full().outcome if self._outcome is None else self._outcome)

    @property
    def result(self) -> Any:
        """The result, decoded anew at every access; `None` until it is done.

        The answer to a repeated call of another branch holds no result of a doomed effect.
        """
        data = self.result_cbor
        return None if data is None else load(data, "result")

    @property
    def result_cbor(self) -> bytes | None:
        """The result as stored."""
        if self.token is None and not self.created and self.state == "doomed":
            return None
        return self._full().result

    @property
    def sealed(self) -> bool:
        """Whether it has every vote that it needs."""
        return self._full().sealed

    @property
    def compensated(self) -> bool:
        """Whether its inverse ran or a person undid it."""
        return self._full().compensated

    @property
    def fence(self) -> int | None:
        """The id of the fence that committed it."""
        return self._full().fence

    @property
    def rollback(self) -> int | None:
        """The id of the rollback that holds it."""
        return self._full().rollback

    def refresh(self) -> "Effect":
        """The newer snapshot, with the same tokens."""
        info = self._session.handle.effect(self.id)
        return Effect._of(self._session, info, token=self.token, branch_token=self._branch_token, created=self.created)

    def done(self, result: Any, /, *, inverse: Inverse | None = None, durable: bool = False) -> "Effect":
        """Report that the call ran. `inverse` completes or replaces the one that was registered.

        Without one it becomes durable with the next batch, a few milliseconds later; `durable=True` waits for that.
        Raises `AlreadySettledError` if it comes too late; it then counts as evidence.
        """
        codec = self._session.codec
        undo = _check.optional_instance(inverse, Inverse, "inverse")
        raw = None if undo is None else undo._raw(codec)
        token = demand(self.token, self.branch)
        state = self._session.handle.done(self.id, token, codec.dump(result, "result"), raw, durable)
        return self._after_report("done", state)

    def not_run(self, error: BaseException | str, /) -> "Effect":
        """Report that the call did not run: the effect is void. The error is stored as type and shortened text."""
        state = self._session.handle.not_run(self.id, demand(self.token, self.branch), *problem(error))
        return self._after_report("not_run", state)

    def _after_report(self, outcome: Outcome, state: str | None) -> "Effect":
        # Without a state the effect is settled and has left memory; it is looked up when somebody asks.
        return Effect(
            self._session,
            self.id,
            token=self.token,
            branch_token=self._branch_token,
            branch_name=self._branch_name,
            created=self.created,
            tool=self._tool,
            state=state,
            outcome=outcome,
        )

    def exposed(self, to: str) -> "Effect":
        """Record that an outside party saw it; its class becomes at least partial."""
        self._session.handle.exposed(self.id, demand(self.token, self.branch), text(to, "to"))
        return self.refresh()

    def close(self, *, by: str, reason: str) -> "Effect":
        """Say that its worker is known to be gone, so that its call cannot land any more. Needs no token."""
        self._session.handle.close_effect(self.id, text(by, "by"), text(reason, "reason"))
        return self.refresh()

    def observe(self, keys: Reads) -> tuple[Observation, ...]:
        """Record reads that the running call has made. Never waits, and ignores the branch's read rule."""
        refuse_new_work()
        found = self._session.handle.observe_late(self.id, demand(self.token, self.branch), reads_raw(keys, "keys"))
        return tuple(Observation._of(raw) for raw in found)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON; arguments, result and the inverse's arguments only if asked for."""
        names = _FIELDS + _PAYLOADS if payloads else _FIELDS
        return {name: jsonable(getattr(self, name), payloads=payloads) for name in names}

    def __repr__(self) -> str:
        # No look-up here: a repr is also wanted of a store that is closed or damaged.
        tool = "" if self._tool is None else f" {shown(self._tool)}"
        on = f" on {shown(self._branch_name)}" if self._branch_name else ""
        known = ", ".join(word for word in (self._state, self._outcome) if word)
        return f"<Effect {self.id}{tool}{on}{': ' if known else ''}{known}>"
