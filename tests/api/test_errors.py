"""Errors: two branches, stable codes, ids as attributes, no payloads in the text, and every one of them pickles."""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import effectstore
from effectstore import (
    Branch,
    EffectStoreError,
    Inverse,
    Limits,
    Policy,
    RefusedError,
    Registration,
    StorageError,
    Store,
)
from support import OpenStore
from world import World

CANARY = "canary-7f3a"
UNDO = Inverse("undo", {"secret": CANARY})

REFUSED = {
    "FenceClosureError": "decision rollback",
    "ReconcileConflictError": "path",
    "StaleTokenError": "branch held current",
    "DoomedBranchError": "branch cause",
    "BranchClosedError": "branch cause",
    "DoomedDependencyError": "dependency key",
    "BranchExistsError": "branch",
    "InverseRequiredError": "tool",
    "CompensationScopeError": "branch rollback",
    "NoBranchError": "tool",
    "UncommittedKeyError": "key writers rollback",
    "DirtyKeyError": "key writers rollback",
    "KeyBusyError": "key writers rollback",
    "PayloadError": "path reason",
    "CommitReservedError": "target",
    "IdempotencyConflictError": "effect differs",
    "OutcomeUnknownError": "effect",
    "AlreadySettledError": "ref state",
    "IrreversibleBeforeFenceError": "tool approval",
    "ApprovalRequiredError": "tool approval",
    "ApprovalClosedError": "approval state successor",
    "SeparationOfDutiesError": "approval by",
    "ReasonRequiredError": "approval by",
    "LimitExceededError": "limit value wait_for",
    "FrozenError": "by reason",
    "LeaseLostError": "step holder",
    "NotFoundError": "ref",
    "ReadOnlyError": "",
    "OptionsError": "option",
    "ArtifactStateError": "artifact state",
    "ContentMismatchError": "artifact",
}
STORAGE = [
    "StoreBusyError", "StoreFullError", "DiskFullError", "CorruptedError", "FormatError", "PoisonedError",
    "NotCommittedError", "CommitUnknownError", "TruncatedError", "ForkedError", "LockLostError",
    "HistoryRewoundError", "StoreClosedError",
]  # fmt: skip
BUILTIN = {
    "NoBranchError": LookupError,
    "NotFoundError": LookupError,
    "PayloadError": ValueError,
    "StoreBusyError": TimeoutError,
}


@pytest.mark.parametrize("name", [*REFUSED, *STORAGE])
def test_the_error_is_public_and_on_its_branch(name: str) -> None:
    error = getattr(effectstore, name)
    assert issubclass(error, RefusedError if name in REFUSED else StorageError)
    assert not issubclass(error, StorageError if name in REFUSED else RefusedError)
    assert issubclass(error, EffectStoreError)
    assert issubclass(error, BUILTIN.get(name, Exception))


def test_errors_of_your_own_code_are_not_errors_of_the_store() -> None:
    for error in (effectstore.NotRunError, effectstore.PermanentError, effectstore.RetryLaterError):
        assert not issubclass(error, EffectStoreError)
    assert effectstore.RetryLaterError(5).after == 5


def doomed_branch(store: Store) -> Branch:
    branch = store.branch("doomed")
    branch.register("put", {"secret": CANARY}, writes="dirty", inverse=UNDO).done(CANARY)
    branch.abort(reason="contradicted")
    return branch


def stopped_branch(store: Store) -> None:
    branch = store.branch("stopped")
    effect = branch.register("put", {"secret": CANARY}, inverse=UNDO)
    store.reconcile(abort=effect, reason="contradicted")
    branch.register("put", {"secret": CANARY}, inverse=UNDO)


def stale(store: Store) -> None:
    old = store.branch("taken")
    store.takeover("taken")
    old.seal()


def conflict(store: Store) -> None:
    branch = store.branch("A")
    branch.register("put", {"secret": CANARY}, idempotency_key="k", inverse=UNDO)
    branch.register("put", {"secret": CANARY + "2"}, idempotency_key="k", inverse=UNDO)


def busy(store: Store) -> None:
    store.branch("A").register("put", {"secret": CANARY}, writes="X", inverse=UNDO)
    store.branch("B").register("put", {"secret": CANARY}, writes="X", inverse=UNDO)


def uncommitted(store: Store) -> None:
    store.branch("A").register("put", {"secret": CANARY}, writes="X", inverse=UNDO).done(CANARY)
    store.branch("B", reads="committed").observe("X")


def blocked(store: Store) -> None:
    branch = store.branch("A")
    branch.register("put", {"secret": CANARY}, inverse=UNDO)
    store.commit(branch, escalate="never")


def frozen(store: Store) -> None:
    branch = store.branch("A")
    store.freeze(by="ops", reason="maintenance")
    branch.register("put", {"secret": CANARY}, inverse=UNDO)


def settled(store: Store) -> None:
    branch = store.branch("A")
    effect = branch.register("put", {"secret": CANARY}, inverse=UNDO)
    branch.abort(reason="contradicted")
    effect.done(CANARY)


PROVOKED: dict[str, Callable[[Store], Any]] = {
    "StaleTokenError": stale,
    "FenceClosureError": blocked,
    "BranchExistsError": lambda store: [store.branch("A"), store.branch("A")],
    "DoomedBranchError": stopped_branch,
    "DirtyKeyError": lambda store: [doomed_branch(store), store.branch("B").observe("dirty")],
    "InverseRequiredError": lambda store: store.branch("A").register("put", {"secret": CANARY}),
    "IrreversibleBeforeFenceError": lambda store: store.branch("A").register(
        "put", {"secret": CANARY}, reversibility="irreversible", mode="eager"
    ),
    "IdempotencyConflictError": conflict,
    "KeyBusyError": busy,
    "UncommittedKeyError": uncommitted,
    "PayloadError": lambda store: store.branch("A").register("put", {CANARY: object()}, inverse=UNDO),
    "AlreadySettledError": settled,
    "FrozenError": frozen,
    "NotFoundError": lambda store: store.effect(10**9),
    "LimitExceededError": lambda store: store.branch("n" * 2000),
}


@pytest.mark.parametrize("name", PROVOKED)
def test_a_refusal_has_its_attributes_and_pickles_without_its_store(
    store: Store, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(getattr(effectstore, name)) as refusal:
        PROVOKED[name](store)
    error = refusal.value
    for attribute in REFUSED[name].split():
        value = getattr(error, attribute)
        assert not isinstance(value, (effectstore.Effect, effectstore.Branch, effectstore.Rollback)), attribute
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.code, str(copy), copy.to_dict()) == (error.code, str(error), error.to_dict())
    for attribute in set(REFUSED[name].split()) - {"decision"}:
        assert getattr(copy, attribute) == getattr(error, attribute)
    if name != "PayloadError":  # There the path may name the field; its value stays out all the same.
        assert CANARY not in str(error) + repr(error)
        assert CANARY not in caplog.text


def test_codes_are_distinct_words(open_store: OpenStore) -> None:
    codes: dict[str, str] = {}
    for number, (name, provoke) in enumerate(PROVOKED.items()):
        with pytest.raises(EffectStoreError) as refusal:
            provoke(open_store(f"store-{number}"))
        assert codes.setdefault(refusal.value.code, name) == name
        assert refusal.value.code == refusal.value.code.strip().lower()
        assert " " not in refusal.value.code
    assert len(codes) == len(PROVOKED)


def test_a_message_names_the_id(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    effect = world.put(a, "X", 1)
    a.abort(reason="contradicted")
    with pytest.raises(effectstore.DoomedDependencyError, match=str(effect.id)):
        world.put(b, "Y", 1, after=effect)


def test_an_error_in_a_batch_has_its_index(store: Store) -> None:
    branch = store.branch("A")
    with pytest.raises(effectstore.InverseRequiredError) as refusal:
        store.register_many([Registration("a", branch=branch, inverse=UNDO), Registration("b", branch=branch)])
    assert refusal.value.index == 1
    assert pickle.loads(pickle.dumps(refusal.value)).index == 1


def test_a_single_refusal_has_no_index(store: Store) -> None:
    with pytest.raises(effectstore.InverseRequiredError) as refusal:
        store.branch("A").register("b")
    assert refusal.value.index is None


def test_who_and_why_are_keyword_only() -> None:
    checked = 0
    for owner in (
        effectstore.Store,
        effectstore.Branch,
        effectstore.Effect,
        effectstore.Rollback,
        effectstore.Approval,
    ):
        for name, verb in inspect.getmembers(owner, callable):
            if name.startswith("_"):
                continue
            try:
                parameters = inspect.signature(verb).parameters.values()
            except (TypeError, ValueError):
                continue
            for parameter in parameters:
                if parameter.name in ("by", "reason", "note"):
                    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{owner.__name__}.{name}"
                    checked += 1
    assert checked >= 15


def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    store = open_store(limits=Limits(), policy=Policy())
    branch = store.branch("A")
    store.close()
    store.close()
    for verb in (lambda: branch.seal(), lambda: store.branch("B"), lambda: list(store.effects()), store.verify):
        with pytest.raises(effectstore.StoreClosedError):
            verb()


def test_a_missing_store_is_not_created_when_told_so(tmp_path: Any) -> None:
    with pytest.raises((EffectStoreError, FileNotFoundError)):
        effectstore.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_read_only_refuses_to_write(open_store: OpenStore, world: World) -> None:
    store = open_store()
    effect = world.put(store.branch("A"), "X", 1)
    store.close()
    reader = open_store(read_only=True)
    assert reader.effect(effect.id).args == {"key": "X", "value": 1}
    for verb in (lambda: reader.branch("B"), lambda: reader.reconcile(abort="A"), lambda: reader.takeover("A")):
        with pytest.raises(effectstore.ReadOnlyError):
            verb()
