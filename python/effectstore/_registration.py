"""Registrations: a tool call as the core takes it, with everything encoded by value."""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from effectstore._approval import Approval
from effectstore._base import PAYLOAD
from effectstore._choices import Mode, Reversibility
from effectstore._effect import Effect
from effectstore._payload import Key, Keys, Reads, keys_bytes, optional_key_bytes, reads_raw, text
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
    branch = call.branch
    session = branch._session
    codec = session.codec
    tool = text(call.tool, "tool")
    follows = _follows(call.after, branch, places)
    approval = call.approval
    if isinstance(approval, Approval):
        session.check_own(approval)
        approval = approval.id
    return (
        (branch.id, demand(branch.token, branch.name)),
        tool,
        codec.dump(call.args, "args"),
        None if call.inverse is None else call.inverse._raw(codec),
        reads_raw(call.reads),
        keys_bytes(call.writes, "writes"),
        follows,
        (call.reversibility, call.mode),
        optional_key_bytes(call.idempotency_key, "idempotency_key"),
        None if call.fingerprint is None else codec.dump(call.fingerprint, "fingerprint"),
        call.cost,
        approval,
    )


def _follows(after: After, branch: "Branch", places: Mapping[int, int]) -> "core._Follows | None":
    if after is None:
        return None if branch._turn is None else ("turn", branch._turn, ())
    named: Iterable[EffectRef | Registration] = (after,) if isinstance(after, Effect | int | Registration) else after
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
