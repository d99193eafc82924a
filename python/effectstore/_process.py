"""Values of the governed process: the approval matrix, impact, root causes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast, get_args

from effectstore import _check
from effectstore._base import Plain
from effectstore._choices import CauseCategory, Reach, Reversibility

if TYPE_CHECKING:
    from effectstore import _effectstore as core

Approver = Literal["automatic", "person"]
"""Who lets a rollback run: nobody needs to, or a person must."""


@dataclass(frozen=True, slots=True)
class ApprovalRule(Plain):
    """One row of the approval matrix; the first that fits decides, and what none is about needs a person with a reason.

    `reach` is how far the steps can be undone, the worst of them. `at_most` limits the row to sets that write so many
    distinct keys (an effect that names none counts as one): a number, `"auto_keys"` for the policy's, `None` for any.
    A rollback of committed effects asks a person in any case.

    >>> import effectstore
    >>> effectstore.ApprovalRule("full", "automatic", at_most=3).to_dict()
    {'reach': 'full', 'approver': 'automatic', 'at_most': 3, 'reason': False}
    """

    reach: Reach
    approver: Approver
    at_most: int | Literal["auto_keys"] | None = None
    reason: bool = False

    def __post_init__(self) -> None:
        """Refuse what no store would take, where it is written down."""
        _check.one_of(self.reach, "reach", get_args(Reach), none=False)
        _check.one_of(self.approver, "approver", get_args(Approver), none=False)
        if self.at_most != "auto_keys":
            _check.optional_count(self.at_most, "at_most")

    def _raw(self) -> "core._Rule":
        by_policy = self.at_most == "auto_keys"
        bound = None if by_policy else cast("int | None", self.at_most)
        return self.reach, bound, by_policy, self.approver == "person", self.reason

    @classmethod
    def _of(cls, raw: "core._Rule") -> Self:
        reach, bound, by_policy, person, reason = raw
        at_most: int | Literal["auto_keys"] | None = "auto_keys" if by_policy else bound
        return cls(cast("Reach", reach), "person" if person else "automatic", at_most, reason)


DEFAULT_RULES = (
    ApprovalRule("full", "automatic", at_most="auto_keys"),
    ApprovalRule("full", "person"),
    ApprovalRule("partial", "person"),
    ApprovalRule("irreversible", "person", reason=True),
    ApprovalRule("not_compensable", "person", reason=True),
)
"""The matrix of the rollback process: small and full runs by itself, everything else asks a person."""


@dataclass(frozen=True, slots=True)
class Impact(Plain):
    """What a rollback touches, told before anybody approves it.

    `effects` are all members: `done`, which were named, and `rests_on`, which rest on those. `keys` and `agents` are
    those concerned, `reversibility` the worst of the steps. `not_compensable` have no inverse; `limitations` say what
    stays behind of whom; `expiring` have a deadline for their undo, the first to pass in front.
    """

    effects: tuple[int, ...]
    done: tuple[int, ...]
    rests_on: tuple[int, ...]
    keys: tuple[str, ...]
    agents: tuple[str, ...]
    reversibility: Reversibility
    not_compensable: tuple[int, ...]
    limitations: tuple[tuple[int, str], ...]
    expiring: tuple[int, ...]

    @classmethod
    def _of(cls, info: "core.ImpactInfo") -> Self:
        from effectstore._payload import key_text  # noqa: PLC0415  # The errors need this module.

        return cls(
            tuple(info.effects),
            tuple(info.done),
            tuple(info.rests_on),
            tuple(key_text(key) for key in info.keys),
            tuple(info.agents),
            cast("Reversibility", info.reversibility),
            tuple(info.not_compensable),
            tuple(info.limitations),
            tuple(info.expiring),
        )


@dataclass(frozen=True, slots=True)
class RootCause(Plain):
    """Why a rollback was necessary. `remedy` names what was changed because of it; it may be given later."""

    category: CauseCategory
    note: str
    by: str
    remedy: str | None

    @classmethod
    def _of(cls, raw: "core._Cause") -> Self:
        category, note, by, remedy = raw
        return cls(cast("CauseCategory", category), note, by, remedy)
