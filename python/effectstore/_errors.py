"""The error tree. A refusal says no and changes nothing; a storage error is about disk, file or process.

Errors carry ids, never bound objects, and pickle. `BY_CODE` is the one map from the core's codes to classes.
"""

import logging
from typing import Any, ClassVar

from effectstore._base import jsonable
from effectstore._choices import ApprovalState, EffectState
from effectstore._values import Decision, Token

logger = logging.getLogger("effectstore")


class EffectStoreError(Exception):
    """Every error of the store.

    `code` is stable and shared with Rust, C and the command line; `index` is the refused item's place in a batch.
    """

    code: str = "error"
    index: int | None
    attributes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str = "", *, index: int | None = None, **attributes: Any) -> None:
        super().__init__(message)
        self.index = index
        for name in self.attributes:
            setattr(self, name, attributes.pop(name, None))
        if attributes:
            unknown = f"{type(self).__name__} has no attribute {', '.join(attributes)}"
            raise TypeError(unknown)

    def to_dict(self, *, payloads: bool = False) -> dict[str, Any]:
        """Code, message, index and attributes in terms of JSON."""
        found: dict[str, Any] = {"code": self.code, "message": str(self), "index": self.index}
        for name in self.attributes:
            found[name] = jsonable(getattr(self, name), payloads=payloads)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in self.attributes}
        return _restore, (type(self), str(self), self.index, self.code, named)


def _restore(
    kind: type[EffectStoreError], message: str, index: int | None, code: str, named: dict[str, Any]
) -> EffectStoreError:
    error = kind(message, index=index, **named)
    if code != kind.code:
        error.code = code
    return error


class RefusedError(EffectStoreError):
    """A rule said no; nothing changed beyond an audit record and what the rule itself says."""

    code = "refused"


class StorageError(EffectStoreError):
    """Disk, file or process."""

    code = "io"


class FenceClosureError(RefusedError):
    """The closure holds a doomed effect, or something was in the way of a commit that should not wait."""

    code = "fence_closure"
    attributes = ("decision", "rollback")
    decision: Decision
    rollback: int | None


class ReconcileConflictError(RefusedError):
    """A winner rests on a loser; `path` leads from the one to the other."""

    code = "reconcile_conflict"
    attributes = ("path",)
    path: tuple[int, ...]


class StaleTokenError(RefusedError):
    """The token was replaced, or there was none."""

    code = "stale_token"
    attributes = ("branch", "held", "current")
    branch: str
    held: Token | None
    current: Token | None


class DoomedBranchError(RefusedError):
    """The branch is doomed until it resumes."""

    code = "doomed_branch"
    attributes = ("branch", "cause")
    branch: str
    cause: int | None


class BranchClosedError(RefusedError):
    """The branch was merged or aborted by name."""

    code = "branch_closed"
    attributes = ("branch", "cause")
    branch: str
    cause: int | None


class DoomedDependencyError(RefusedError):
    """Nothing new can rest on a doomed effect."""

    code = "doomed_dependency"
    attributes = ("dependency", "key")
    dependency: int
    key: str | None


class BranchExistsError(RefusedError):
    """The name is taken."""

    code = "branch_exists"
    attributes = ("branch",)
    branch: str


class InverseRequiredError(RefusedError):
    """The effect has no inverse and is not declared irreversible."""

    code = "inverse_required"
    attributes = ("tool",)
    tool: str


class CompensationScopeError(RefusedError):
    """No new work while an inverse runs: not on its branch, and not by its handler."""

    code = "compensation_scope"
    attributes = ("branch", "rollback")
    branch: str
    rollback: int


class NoBranchError(RefusedError, LookupError):
    """A decorated tool was called where no branch is active."""

    code = "no_branch"
    attributes = ("tool",)
    tool: str


class UncommittedKeyError(RefusedError):
    """The branch's read rule does not admit the key's live writers yet."""

    code = "uncommitted_key"
    attributes = ("key", "writers", "rollback")
    key: str
    writers: tuple[int, ...]
    rollback: int | None


class DirtyKeyError(RefusedError):
    """The key may show a doomed value."""

    code = "dirty_key"
    attributes = ("key", "writers", "rollback")
    key: str
    writers: tuple[int, ...]
    rollback: int | None


class KeyBusyError(RefusedError):
    """A call that writes the key is in flight."""

    code = "key_busy"
    attributes = ("key", "writers", "rollback")
    key: str
    writers: tuple[int, ...]
    rollback: int | None


class PayloadError(RefusedError, ValueError):
    """The value would not come back equal; `path` says where it is."""

    code = "payload"
    attributes = ("path", "reason")
    path: str
    reason: str


class CommitReservedError(RefusedError):
    """The policy lets only `reconcile` commit."""

    code = "commit_reserved"
    attributes = ("target",)
    target: int | str


class IdempotencyConflictError(RefusedError):
    """The idempotency key belongs to another call.

    `effect` is the id of what it belongs to, and `differs` says in what: "tool" or "args" of an effect, "primary" or
    "compensation" of a pair of artifacts, "kind" where one is an effect and the other is not.
    """

    code = "idempotency_conflict"
    attributes = ("effect", "differs")
    effect: int
    differs: str


class OutcomeUnknownError(RefusedError):
    """The first call under this key may or may not have run."""

    code = "outcome_unknown"
    attributes = ("effect",)
    effect: int


class AlreadySettledError(RefusedError):
    """It was decided before. `rollback` is the id of the unfinished rollback that holds it, where that is why."""

    code = "already_settled"
    attributes = ("ref", "state", "rollback")
    ref: int
    state: EffectState | str
    rollback: int | None


class IrreversibleBeforeFenceError(RefusedError):
    """An irreversible effect cannot start before its fence without an approval."""

    code = "irreversible_before_fence"
    attributes = ("tool", "approval")
    tool: str
    approval: int | None


class ApprovalRequiredError(RefusedError):
    """The approval is not given yet."""

    code = "approval_required"
    attributes = ("tool", "approval")
    tool: str
    approval: int | None


class ApprovalClosedError(RefusedError):
    """The approval was answered, or its plan changed."""

    code = "approval_closed"
    attributes = ("approval", "state", "successor")
    approval: int
    state: ApprovalState
    successor: int | None


class SeparationOfDutiesError(RefusedError):
    """Whoever caused the rollback, or made or submitted the artifact, may not be its approver."""

    code = "separation_of_duties"
    attributes = ("approval", "by", "artifact")
    approval: int | None
    by: str
    artifact: int | None


class ReasonRequiredError(RefusedError):
    """The answer to an approval, or the approval of an artifact, needs a written reason."""

    code = "reason_required"
    attributes = ("approval", "by", "artifact")
    approval: int | None
    by: str
    artifact: int | None


class LimitExceededError(RefusedError):
    """A limit of the store; `wait_for` are the effects whose settling makes room."""

    code = "limit_exceeded"
    attributes = ("limit", "value", "allowed", "wait_for")
    limit: str
    value: int
    allowed: int
    wait_for: tuple[int, ...]


class FrozenError(RefusedError):
    """An operator stopped new registrations."""

    code = "frozen"
    attributes = ("by", "reason")
    by: str
    reason: str


class LeaseLostError(RefusedError):
    """The step or delivery is no longer held under this lease."""

    code = "lease_lost"
    attributes = ("step", "holder")
    step: int
    holder: str | None


class NotFoundError(RefusedError, LookupError):
    """There is nothing of that id or name."""

    code = "not_found"
    attributes = ("ref",)
    ref: int | str


class ArtifactStateError(RefusedError):
    """The artifact's state does not allow it."""

    code = "artifact_state"
    attributes = ("artifact", "state")
    artifact: int
    state: str


class ContentMismatchError(RefusedError):
    """The artifact's content is not the one that was reviewed."""

    code = "content_mismatch"
    attributes = ("artifact",)
    artifact: int


class ReadOnlyError(RefusedError):
    """The store was opened for reading."""

    code = "read_only"
    attributes = ("option",)
    option: str | None


class OptionsError(RefusedError, ValueError):
    """An option or argument that cannot be used."""

    code = "options"
    attributes = ("option",)
    option: str


class StoreBusyError(StorageError, TimeoutError):
    """Process `pid` has held the writer lock for `held_for` seconds."""

    code = "store_busy"
    attributes = ("pid", "held_for")
    pid: int
    held_for: float


class StoreFullError(StorageError):
    """The store's map is full."""

    code = "store_full"


class DiskFullError(StorageError):
    """The disk is full."""

    code = "disk_full"


class CorruptedError(StorageError):
    """The files are damaged; `where` is the first bad place."""

    code = "corrupted"
    attributes = ("where",)
    where: str


class FormatError(StorageError):
    """The files are no store, or one that this version does not handle."""

    code = "format"


class PoisonedError(StorageError):
    """An earlier panic left the store unusable in this process."""

    code = "poisoned"
    attributes = ("cause",)
    cause: str


class NotCommittedError(StorageError):
    """The commit failed and nothing of it was kept; the store goes on."""

    code = "not_committed"


class CommitUnknownError(StorageError):
    """The commit failed where it may have been kept."""

    code = "commit_unknown"
    attributes = ("command",)
    command: str | None


class TruncatedError(StorageError):
    """The data file was cut off."""

    code = "truncated"


class ForkedError(StorageError):
    """The store was opened before a fork and cannot be used in the child."""

    code = "forked"


class LockLostError(StorageError):
    """The lock file was deleted or replaced."""

    code = "lock_lost"


class HistoryRewoundError(StorageError):
    """The files were replaced by an older copy."""

    code = "history_rewound"


class StoreClosedError(StorageError):
    """The store is closed."""

    code = "store_closed"


class NotRunError(Exception):
    """Raised by a tool that did nothing: the outcome of its effect is `not_run`."""


class PermanentError(Exception):
    """Raised by a handler whose inverse will never work: no more attempts."""


class RetryLaterError(Exception):
    """Raised by a handler that wants to be called again after `after` seconds."""

    def __init__(self, after: float, message: str = "") -> None:
        super().__init__(message or f"again after {after} seconds")
        self.after = after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.after, str(self))


def _leaves(kind: type[EffectStoreError]) -> list[type[EffectStoreError]]:
    return [found for child in kind.__subclasses__() for found in (child, *_leaves(child))]


BY_CODE: dict[str, type[EffectStoreError]] = {kind.code: kind for kind in _leaves(EffectStoreError)}


def from_core(code: str, message: str, index: int | None, fields: dict[str, Any]) -> EffectStoreError:
    """The error of a refusal or failure of the core. The extension calls it; see `rust/python/src/errors.rs`."""
    kind = BY_CODE.get(code, StorageError)
    logger.debug("%s: %s", code, message)
    known = {name: _attribute(name, value) for name, value in fields.items() if name in kind.attributes}
    return _restore(kind, message, index, code, known)


def _attribute(name: str, value: Any) -> Any:
    if name == "decision":
        return Decision.of(value)
    if name == "key" and isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if name in {"held", "current"} and value is not None:
        return Token(*value)
    return tuple(value) if isinstance(value, list) else value
