"""Times, choices and errors as a type checker sees them."""

from __future__ import annotations

from datetime import datetime, timedelta

import effectstore
from effectstore import (
    Approval,
    DirtyKeyError,
    EffectStoreError,
    FenceClosureError,
    Inverse,
    LimitExceededError,
    Limits,
    NoBranchError,
    PayloadError,
    Policy,
    RefusedError,
    Registration,
    Retry,
    StaleTokenError,
    StorageError,
    Store,
    StoreBusyError,
)


def open_it(path: str) -> Store:
    return effectstore.open(
        path,
        limits=Limits(closure=10_000, depth=100),
        policy=Policy(
            auto_keys=10, on_failure="continue", retry=Retry(max_attempts=3), key_retention=timedelta(days=30)
        ),
        encode=str,
        clock=lambda: 0.0,
    )


def wait(store: Store) -> None:
    branch = store.branch("A", lease=timedelta(minutes=5))
    store.commit(branch, timeout=timedelta(seconds=1))
    store.claim("a", lease=timedelta(seconds=30), timeout=2)
    Inverse("undo", deadline=timedelta(hours=1), agent="*", compare_and_set=True, limitation="copies remain")
    Inverse("undo", deadline=datetime.now().astimezone())
    calls = [Registration("put", {"n": n}, branch=branch, inverse=Inverse("undo"), after=()) for n in range(3)]
    print([effect.id for effect in store.register_many(calls)])


def answer(store: Store) -> None:
    for approval in store.approvals(state="pending"):
        waiting: Approval = approval
        waiting.approve(by="ops", reason="checked")


def handle(store: Store) -> int:
    try:
        store.branch("A")
    except FenceClosureError as error:
        return len(error.decision.blockers)
    except (DirtyKeyError, LimitExceededError) as error:
        code: str = error.code
        return len(code)
    except StaleTokenError as error:
        return len(error.branch)
    except RefusedError as error:
        return error.index or 0
    except StoreBusyError as error:
        return error.pid
    except StorageError:
        return 1
    return 0


def builtin_parents() -> tuple[type[LookupError], type[ValueError], type[TimeoutError], type[Exception]]:
    return NoBranchError, PayloadError, StoreBusyError, EffectStoreError
