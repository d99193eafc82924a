"""What the objects of one open store share."""

from typing import TYPE_CHECKING, TypeAlias, Union

from effectstore._base import Bound
from effectstore._check import identity
from effectstore._errors import OptionsError, StaleTokenError
from effectstore._payload import Codec, text

if TYPE_CHECKING:
    from effectstore import _effectstore as core
    from effectstore._branch import Branch
    from effectstore._effect import Effect
    from effectstore._values import Token

EffectRef: TypeAlias = Union["Effect", int]
"""An effect, or its id."""

BranchRef: TypeAlias = Union["Branch", str]
"""A branch, or its name."""

Ref: TypeAlias = EffectRef | BranchRef
"""An effect or a branch."""


class Session:
    """The handle of an open store with the codec of its payloads."""

    __slots__ = ("codec", "handle", "path", "store_id")

    def __init__(self, handle: "core.Handle", codec: Codec) -> None:
        self.handle = handle
        self.codec = codec
        self.store_id = handle.store_id()
        self.path = handle.path()

    def target(self, ref: Ref) -> tuple[bool, int]:
        """What a reference names: whether it is a branch, and its id."""
        from effectstore._branch import Branch  # noqa: PLC0415  # Nouns need the session.

        if isinstance(ref, str):
            return True, self.handle.branch_named(text(ref, "branch")).id
        if isinstance(ref, Branch):
            self.check_own(ref)
            return True, ref.id
        return False, self.effect_id(ref)

    def branch_id(self, ref: BranchRef) -> int:
        """The id of a branch."""
        is_branch, found = self.target(ref)
        if not is_branch:
            message = f"a branch or its name was expected, not {ref!r}"
            raise TypeError(message)
        return found

    def effect_id(self, ref: EffectRef) -> int:
        """The id of an effect."""
        from effectstore._effect import Effect  # noqa: PLC0415  # Nouns need the session.

        if isinstance(ref, Effect):
            self.check_own(ref)
            return ref.id
        if isinstance(ref, int) and not isinstance(ref, bool):
            return identity(ref, "effect")
        message = f"an effect or its id was expected, not {type(ref).__name__}"
        raise TypeError(message)

    def check_own(self, item: Bound) -> None:
        """Refuse an object of another store: its id would name something else here."""
        if item._identity()[0] != self.store_id:
            message = f"{item!r} belongs to another store"
            raise OptionsError(message, option="target")


def demand(token: "Token | None", branch: str) -> "Token":
    """The token, or `StaleTokenError` where the object was fetched for reading."""
    if token is None:
        message = f"this object of branch {branch!r} is for reading; get it through its branch, which carries the token"
        raise StaleTokenError(message, branch=branch, held=None, current=None)
    return token
