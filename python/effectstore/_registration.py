"""Registrations: a tool call as the core takes it, with everything encoded by value."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from effectstore import _check
from effectstore._approval import Approval
from effectstore._base import PAYLOAD
from effectstore._choices import Mode, Reversibility
from effectstore._effect import Effect
from effectstore._payload import Key, Keys, Reads, key_bytes, keys_bytes, reads_raw, text
from effectstore._session import EffectRef, demand
from effectstore._values import Inverse

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._branch import Branch

After: TypeAlias = "EffectRef | Registration | Iterable[EffectRef | Registration] | None"
"""What a call follows: `None` the branch's tip, else these and nothing else."""


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """What `branch.register` takes, as a value for `store.register_many`.

    Equality is identity: `after=` names objects.
    """

    tool: str
    args: Any = field(default=None, metadata=PAYLOAD, repr=False)
    _: KW_ONLY
    branch: "Branch"
    inverse: Inverse | None = field(default=None, repr=False)
    reads: Reads = ()
    writes: Keys = ()
    after: After = None
    reversibility: Reversibility | None = None
    mode: Mode | None = None
    idempotency_key: Key | None = None
    fingerprint: Any = field(default=None, metadata=PAYLOAD, repr=False)
    cost: float | None = None
    approval: Approval | int | None = None


def placed(call: Registration, places: Mapping[int, int]) -> "core._Placed":
    """The call as the core takes it. `places` gives the earlier items of the same batch by identity."""
    return place(
        call.branch,
        call.tool,
        call.args,
        call.inverse,
        call.reads,
        call.writes,
        follows(call.after, call.branch, places),
        (call.reversibility, call.mode),
        call.idempotency_key,
        call.fingerprint,
        call.cost,
        call.approval,
    )


def place(  # noqa: PLR0917  # By position, because this is the way of every register.
    branch: "Branch",
    tool: str,
    args: Any,
    inverse: Inverse | None,
    reads: Reads,
    writes: Keys,
    follows: "core._Follows | None",
    kinds: tuple[Reversibility | None, Mode | None],
    idempotency_key: Key | None,
    fingerprint: Any,
    cost: float | None,
    approval: Approval | int | None,
) -> "core._Placed":
    """A call on a branch, encoded. One call is placed without a `Registration`, whose making takes its time."""
    codec = branch._session.codec
    if isinstance(approval, Approval):
        branch._session.check_own(approval)
        approval = approval.id
    elif approval is not None:
        _check.identity(approval, "approval")
    undo = _check.optional_instance(inverse, Inverse, "inverse")
    return (
        (branch._info.id, demand(branch.token, branch._info.name)),
        text(tool, "tool"),
        codec.dump(args, "args"),
        None if undo is None else undo._raw(codec),
        reads_raw(reads),
        keys_bytes(writes, "writes"),
        follows,
        kinds,
        None if idempotency_key is None else key_bytes(idempotency_key, "idempotency_key"),
        None if fingerprint is None else codec.dump(fingerprint, "fingerprint"),
        _check.cost(cost),
        approval,
    )


def follows(after: After, branch: "Branch", places: Mapping[int, int]) -> "core._Follows | None":
    """What a call follows, as the core takes it."""
    if after is None:
        return None if branch._turn is None else ("turn", branch._turn, ())
    named: Iterable[EffectRef | Registration] = (after,) if isinstance(after, Effect | int | Registration) else after
    if isinstance(named, str | bytes | bytearray | memoryview | Mapping):
        message = f"after takes effects or their ids, not {type(named).__name__}"
        raise TypeError(message)
    effects: list[int] = []
    items: list[int] = []
    for ref in named:
        if isinstance(ref, Registration):
            place = places.get(id(ref))
            if place is None:
                message = "after= names a Registration that is not an earlier item of this call"
                raise ValueError(message)
            items.append(place)
        else:
            effects.append(branch._session.effect_id(ref))
    return "these", effects, items
