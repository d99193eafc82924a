"""Branches: one speculative line of work of one agent."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from effectstore import _call
from effectstore._approval import Approval
from effectstore._base import Bound, Frozen, jsonable, shown
from effectstore._choices import BranchState, EffectState, IfUnknown, Mode, Outcome, ReadRule, Reversibility
from effectstore._context import branch_scope, refuse_new_work
from effectstore._effect import Effect
from effectstore._fence import Reconciliation
from effectstore._iterate import pages
from effectstore._payload import Key, Keys, Reads, optional_key_bytes, optional_text, reads_raw, text
from effectstore._registration import After, follows, place
from effectstore._session import Session, demand
from effectstore._time import Seconds, to_ms
from effectstore._values import Inverse, Observation, Token

if TYPE_CHECKING:
    from effectstore import _effectstore as core


class Branch(Frozen, Bound):
    """A snapshot of a branch, with its verbs. Equality and hash go by store, id and token.

    `token` is `None` on a branch that was fetched for reading. A branch is no context manager: commit, seal and abort
    are always written out.
    """

    __slots__ = ("_info", "_session", "_turn", "token")

    token: Token | None
    _session: Session
    _info: "core.BranchInfo"
    _turn: tuple[int, ...] | None

    def __init__(
        self,
        session: Session,
        info: "core.BranchInfo",
        *,
        token: Token | None,
        turn: tuple[int, ...] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "_session", session)
        put(self, "_info", info)
        put(self, "token", token)
        put(self, "_turn", turn)

    @classmethod
    def _owned(cls, session: Session, info: "core.BranchInfo") -> "Branch":
        """The branch for the holder of its current token."""
        return cls(session, info, token=Token(*info.token))

    def _carry(self) -> str:
        return f"its name, {shown(self.name)}, for store.takeover, and its token for store.join"

    def _identity(self) -> tuple[object, ...]:
        return self._session.store_id, self.id, self.token

    @property
    def id(self) -> int:
        """Its id."""
        return self._info.id

    @property
    def name(self) -> str:
        """Its name."""
        return self._info.name

    @property
    def agent(self) -> str:
        """The agent whose work it is."""
        return self._info.agent

    @property
    def parent(self) -> str | None:
        """Its parent's name."""
        return self._info.parent

    @property
    def tip(self) -> tuple[int, ...]:
        """Ids of the effects that the next one will rest on."""
        return tuple(self._info.tip) if self._turn is None else self._turn

    @property
    def state(self) -> BranchState:
        """Open, closed or doomed."""
        return cast("BranchState", self._info.state)

    @property
    def reads(self) -> ReadRule:
        """What it may rest on."""
        return cast("ReadRule", self._info.reads)

    def refresh(self) -> "Branch":
        """The newer snapshot, with the same token."""
        return Branch(self._session, self._session.handle.branch(self.id), token=self.token, turn=self._turn)

    def _verb(self, verb: "Callable[[int, Token], core.BranchInfo]") -> "Branch":
        return Branch(self._session, verb(self.id, self._demand()), token=self.token)

    def _demand(self) -> Token:
        return demand(self.token, self.name)

    def register(
        self,
        tool: str,
        args: Any = None,
        *,
        inverse: Inverse | None = None,
        reads: Reads = (),
        writes: Keys = (),
        after: After = None,
        reversibility: Reversibility | None = None,
        mode: Mode | None = None,
        idempotency_key: Key | None = None,
        fingerprint: Any = None,
        cost: float | None = None,
        approval: Approval | int | None = None,
        timeout: Seconds = 0,
    ) -> Effect:
        """Make the intent durable; only then may the tool run. `timeout` waits for busy or dirty keys.

        `after=None` rests on the branch's tip, `()` on no effect. The answer has `created=False` if the idempotency
        key was known. Raises a `RefusedError`, with nothing stored.
        """
        refuse_new_work()
        wait_ms = 0 if timeout == 0 else to_ms(timeout, "timeout")
        rests = None if after is None and self._turn is None else follows(after, self, {})
        kinds = (reversibility, mode)
        call = place(
            self, tool, args, inverse, reads, writes, rests, kinds, idempotency_key, fingerprint, cost, approval
        )
        (receipt,) = self._session.handle.register((call,), wait_ms)
        return self._received(receipt, tool)

    def _received(self, receipt: "core._Receipt", tool: str) -> Effect:
        effect, token, created, state, outcome = receipt
        return Effect(
            self._session,
            effect,
            token=None if token is None else Token(*token),
            branch_token=None if token is None else self.token,
            branch_name="" if token is None else self.name,
            tool=tool,
            created=created,
            state=state,
            outcome=outcome,
        )

    def parallel(self) -> "Branch":
        """The same branch for one turn: each register on it rests on the tip as of now, not on one another."""
        info = self._session.handle.branch(self.id)
        return Branch(self._session, info, token=self.token, turn=tuple(info.tip))

    def call(
        self,
        tool: str,
        args: Any,
        run: Callable[[], Any],
        *,
        not_run_on: type[BaseException] | Iterable[type[BaseException]] = (),
        if_unknown: IfUnknown = "raise",
        inverse_after: Callable[[Any], Inverse | None] | None = None,
        **as_register: Any,
    ) -> Any:
        """Register, run and report. `inverse_after` makes the inverse of the result.

        The tool runs only if the effect is new; a known one gives its recorded result, or raises. A deferred effect is
        returned and not run. What `run` raises is re-raised with a note; the outcome is then `not_run` if it is a
        `NotRunError` or one of `not_run_on`, else `unknown`.
        """
        rules = _call.Rules.of(not_run_on, if_unknown)
        effect = self.register(tool, args, **as_register)
        answer = _call.known(effect, rules)
        if answer is not None:
            return answer.value
        with _call.watched(effect, rules):
            result = run()
        return _call.report(effect, result, None if inverse_after is None else inverse_after(result))

    def active(self) -> AbstractContextManager["Branch"]:
        """Decorated tools called inside run on this branch. Leaving the block settles nothing, however it is left."""
        return branch_scope(self)

    def observe(
        self, keys: Reads, *, since: Observation | Iterable[Observation] | None = None, timeout: Seconds = 0
    ) -> tuple[Observation, ...]:
        """Record reads that count for every later effect of the branch.

        `since` brackets a read that takes time: everything counts that was live at any moment since then. `timeout`
        waits for keys that are dirty or that the read rule holds back.
        """
        refuse_new_work()
        start = None
        if since is not None:
            start = since.at if isinstance(since, Observation) else min((seen.at for seen in since), default=None)
        raw = reads_raw(keys, "keys")
        found = self._session.handle.observe(self.id, self._demand(), raw, start, to_ms(timeout, "timeout"))
        return tuple(Observation._of(item) for item in found)

    def effect(self, id: int) -> Effect:  # noqa: A002  # The name of the interface.
        """One effect of this branch, with its tokens."""
        return self._tokened([self._session.handle.effect(self._session.effect_id(id))])[0]

    def effects(
        self,
        *,
        since: int = 0,
        limit: int | None = None,
        state: EffectState | None = None,
        outcome: Outcome | None = None,
        tool: str | None = None,
    ) -> Iterator[Effect]:
        """The effects of this branch in id order, with their tokens."""

        def fetch(after: int, size: int) -> list[Effect]:
            infos = self._session.handle.effects(after, size, self.id, state, outcome, None, tool)
            return self._tokened(infos)

        return pages(fetch, lambda effect: effect.id, since=since, limit=limit)

    def _tokened(self, infos: "list[core.EffectInfo]") -> list[Effect]:
        """The effects with tokens that this holder may have.

        The branch is looked at after its effects: if our token is current then, no takeover came before, and the
        effects' tokens are ours too. If it is not, they get ours, which the core refuses as stale, and audits.
        """
        if not infos or self.token is None:
            return [Effect._of(self._session, info) for info in infos]
        current = Token(*self._session.handle.branch(self.id).token)
        return [
            Effect._of(
                self._session,
                info,
                token=None if info.branch != self.id else Token(*info.token) if current == self.token else self.token,
                branch_token=self.token if info.branch == self.id else None,
            )
            for info in infos
        ]

    def seal(self) -> "Branch":
        """Vote for all that it has registered. It stays open; later effects need their own vote."""
        return self._verb(self._session.handle.seal)

    def merge(self) -> "Branch":
        """Vote for a child and finish it: its effects join the parent's tip."""
        return self._verb(self._session.handle.merge)

    def heartbeat(self) -> "Branch":
        """Extend its lease."""
        return self._verb(self._session.handle.heartbeat)

    def resume(self) -> "Branch":
        """Go on after a doom from what survives, with a new token; this handle becomes stale."""
        return Branch._owned(self._session, self._session.handle.resume(self.id, self._demand()))

    def abort(self, *, reason: str, by: str | None = None) -> Reconciliation:
        """Doom its live effects and all that rests on them. The branch is closed for good."""
        because, who = text(reason, "reason"), optional_text(by, "by")
        settled = self._session.handle.abort((True, self.id), self._demand(), because, who)
        return Reconciliation._of(self._session, settled)

    def request_approval(
        self, tool: str, args: Any = None, *, by: str, reason: str, idempotency_key: Key | None = None
    ) -> Approval:
        """Ask a person to let an irreversible call start before its fence; pass the approval to `register`."""
        data = self._session.codec.dump(args, "args")
        key = optional_key_bytes(idempotency_key, "idempotency_key")
        asked = self._session.handle.ask_early(
            self.id, self._demand(), text(tool, "tool"), data, key, text(by, "by"), text(reason, "reason")
        )
        return Approval._of(self._session, asked)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """The fields in terms of JSON."""
        del payloads
        names = ("id", "name", "agent", "parent", "token", "tip", "state", "reads")
        return {name: jsonable(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        turn = "" if self._turn is None else ", one turn"
        return f"<Branch {self.id} {shown(self.name)} of {shown(self.agent)}: {self.state}{turn}>"
