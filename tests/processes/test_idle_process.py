"""A process that was idle for long: what others wrote meanwhile is theirs, and costs it no place in their way."""

from __future__ import annotations

from effectstore import Inverse, Registration, Store
from support import Child, OpenStore

SETTLES = 5_000
"""More than the 4,096 after which the liveness table is folded."""

IDLE = """
    import sys, effectstore
    with effectstore.open(sys.argv[1]) as store:
        print("idle", flush=True)
        sys.stdin.readline()
        store.branch("late")
    print("wrote", flush=True)
"""

MARK = """
    import sys, lmdb
    env = lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=64, create=False)
    with env.begin() as txn:
        mark = txn.get(b"liveness", db=env.open_db(b"meta", txn, create=False))
    print(int.from_bytes(mark[:8], "big"), flush=True)
"""


def settle_many(store: Store) -> int:
    """Settle enough for a fold, and answer the last record before it."""
    branch = store.branch("many")
    inverse = Inverse("unset", {})
    store.register_many([Registration("set", {}, branch=branch, after=(), inverse=inverse) for _ in range(SETTLES)])
    branch.abort(reason="history")
    return max(record.seq for record in store.log())


def test_i10_a_process_that_was_idle_does_not_fold_the_liveness_table_once_more(
    open_store: OpenStore, child: Child
) -> None:
    """The place of a fold is fixed by the log: a replay would put it elsewhere, and others wait for it meanwhile."""
    store = open_store()
    idle = child(IDLE, stdin=True)
    assert idle.stdout is not None
    assert idle.stdout.readline() == "idle\n", idle.communicate()[1]
    folded_at = settle_many(store)
    store.branch("folds the table")
    assert idle.stdin is not None
    idle.stdin.write("go\n")
    idle.stdin.flush()
    assert idle.stdout.readline() == "wrote\n", idle.communicate()[1]
    store.verify()
    store.close()
    output, error = child(MARK).communicate(timeout=60)
    assert output, error
    assert int(output) == folded_at
