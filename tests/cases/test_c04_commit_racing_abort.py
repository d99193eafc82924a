"""C4: a commit and an abort of the same work make exactly one decision, and it outlives a kill."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from effectstore import (
    AlreadySettledError,
    BranchClosedError,
    DoomedBranchError,
    Fence,
    FenceClosureError,
    Reconciliation,
    RefusedError,
    Store,
)
from support import Child, OpenStore, rest_of
from world import World, ids, states

ALREADY_DECIDED = (FenceClosureError, DoomedBranchError, BranchClosedError, AlreadySettledError)


def race(store: Store, world: World, round_: int) -> str:
    """E1[A] w{X}; E2[B] r{X}; commit(B) against abort(A). Answers which one won, after checking the loser."""
    a, b = store.branch(f"A{round_}"), store.branch(f"B{round_}")
    undo = world.inverse_of(f"X{round_}", label=str(round_))
    e1 = a.register("put", writes=f"X{round_}", inverse=undo).done(None)
    e2 = b.register("use", reads=f"X{round_}", inverse=undo).done(None)
    a = a.seal()
    barrier = Barrier(2)

    def commit() -> Fence | RefusedError:
        barrier.wait()
        try:
            return store.commit(b)
        except ALREADY_DECIDED as error:
            return error

    def abort() -> Reconciliation:
        barrier.wait()
        return a.abort(reason="contradicted")

    with ThreadPoolExecutor(2) as pool:
        committing, aborting = pool.submit(commit), pool.submit(abort)
        fence, answer = committing.result(timeout=30), aborting.result(timeout=30)

    if isinstance(fence, Fence):
        assert fence.status == "committed"
        assert set(fence.committed) == ids(e1, e2)
        assert set(answer.kept) >= {e1.id}
        assert (answer.doomed, answer.cascaded, answer.rollback) == ((), (), None)
        assert states(store, e1, e2) == ["committed", "committed"]
        return "commit"
    assert "already decided: aborted" in str(fence)
    assert {*answer.doomed, *answer.cascaded} == ids(e1, e2)
    assert answer.kept == ()
    assert states(store, e1, e2) == ["doomed", "doomed"]
    return "abort"


def test_c04_commit_racing_abort_makes_one_decision_1000_times(open_store: OpenStore, world: World) -> None:
    store = open_store()
    wins = [race(store, world, round_) for round_ in range(1000)]
    store.close()

    store = open_store()
    store.compensate(world.handlers())
    undone = set(world.undone())
    assert undone == {str(round_) for round_, winner in enumerate(wins) if winner == "abort"}


@pytest.mark.parametrize("refused", ["abort first", "blocked, never"])
def test_c04_a_refused_commit_leaves_no_latent_intent(store: Store, world: World, refused: str) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Y", 1, reads="X")
    if refused == "abort first":
        a.abort(reason="contradicted")
        with pytest.raises(ALREADY_DECIDED, match="already decided: aborted"):
            store.commit(b)
        redo = world.put(b.resume(), "Y2", 2)
        assert states(store, e1, e2, redo) == ["doomed", "doomed", "live"]
        return
    with pytest.raises(FenceClosureError) as refusal:
        store.commit(b, escalate="never")
    assert {blocker.effect: blocker.reason for blocker in refusal.value.decision.blockers} == {e1.id: "unknown"}
    e1.done(None)
    a.seal()
    assert states(store, e1, e2) == ["live", "live"]
    assert list(store.fences()) == []
    assert set(store.commit(b).committed) == ids(e1, e2)


def test_c04_no_commit_while_what_it_rests_on_is_not_done(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Y", 1, reads="X")
    a.seal()
    fence = store.commit(b)
    assert (fence.status, fence.committed) == ("waiting", ())
    assert [(blocker.effect, blocker.reason) for blocker in fence.blockers] == [(e1.id, "unknown")]
    assert states(store, e1, e2) == ["live", "live"]
    e1.done(None, durable=True)
    assert fence.refresh().status == "committed"
    assert states(store, e1, e2) == ["committed", "committed"]


@pytest.mark.parametrize("last", ["vote", "outcome"])
def test_c04_an_abort_ends_a_waiting_intent_for_good(store: Store, world: World, last: str) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=last == "vote")
    e2 = world.put(b, "Y", 1, reads="X")
    if last == "outcome":
        a = a.seal()
    fence = store.commit(b)
    assert fence.status == "waiting"
    a.abort(reason="contradicted")
    assert fence.refresh().status == "aborted"
    if last == "outcome":
        with pytest.raises(AlreadySettledError):
            e1.done(None)
    assert states(store, e1, e2) == ["doomed", "doomed"]
    store.compensate(world.handlers())
    assert sorted(world.undone()) == ["X", "Y"]


ABORTER = """
    import sys
    import effectstore

    store = effectstore.open(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        name, incarnation, number = line.split()
        answer = store.join(name, (int(incarnation), int(number))).abort(reason="contradicted")
        kept, doomed = ",".join(map(str, answer.kept)), ",".join(map(str, [*answer.doomed, *answer.cascaded]))
        print(f"{kept or '-'} {doomed or '-'}", flush=True)
"""


def numbers(text: str) -> set[int]:
    return set() if text == "-" else {int(number) for number in text.split(",")}


def test_c04_commit_racing_abort_of_another_process_1000_times(
    open_store: OpenStore, world: World, child: Child
) -> None:
    """The aborter is a process of its own, so no lock within one process can decide the race."""
    store = open_store()
    aborter = child(ABORTER, stdin=True)
    assert aborter.stdout is not None
    assert aborter.stdin is not None
    assert aborter.stdout.readline() == "ready\n", aborter.communicate()[1]
    wins = {"commit": 0, "abort": 0}
    chance = random.Random(4)
    for round_ in range(1000):
        a, b = store.branch(f"A{round_}"), store.branch(f"B{round_}")
        undo = world.inverse_of(f"X{round_}", label=str(round_))
        e1 = a.register("put", writes=f"X{round_}", inverse=undo).done(None)
        e2 = b.register("use", reads=f"X{round_}", inverse=undo).done(None)
        token = a.seal().token
        assert token is not None
        print(f"A{round_}", *token, file=aborter.stdin, flush=True)
        time.sleep(chance.uniform(0.0, 0.001))
        try:
            committed = set(store.commit(b).committed)
        except ALREADY_DECIDED:
            committed = set()
        kept, doomed = map(numbers, aborter.stdout.readline().split())
        if committed:
            wins["commit"] += 1
            assert (committed, kept, doomed) == (ids(e1, e2), ids(e1), set()), f"round {round_}"
            assert states(store, e1, e2) == ["committed", "committed"]
        else:
            wins["abort"] += 1
            assert (kept, doomed) == (set(), ids(e1, e2)), f"round {round_}"
            assert states(store, e1, e2) == ["doomed", "doomed"]
    assert min(wins.values()) > 0, f"no race at all: {wins}"
    aborter.communicate(timeout=30)
    store.verify()


RACER = """
    import sys
    from threading import Barrier, Thread
    import effectstore
    from effectstore import RefusedError
    from world import World

    store, world = effectstore.open(sys.argv[1]), World(sys.argv[2])
    start = int(sys.argv[3])
    print("ready", flush=True)
    for round_ in range(start, start + 10_000):
        a, b = store.branch(f"A{round_}"), store.branch(f"B{round_}")
        undo = world.inverse_of(f"X{round_}", label=str(round_))
        e1 = a.register("put", writes=f"X{round_}", inverse=undo).done(None)
        e2 = b.register("use", reads=f"X{round_}", inverse=undo).done(None)
        a = a.seal()
        barrier = Barrier(2)

        def commit():
            barrier.wait()
            try:
                fence = store.commit(b)
            except RefusedError:
                print(f"commit-refused {round_} {e1.id} {e2.id}\\n", end="", flush=True)
            else:
                print(f"{fence.status} {round_} {e1.id} {e2.id}\\n", end="", flush=True)

        def abort():
            barrier.wait()
            answer = a.abort(reason="contradicted")
            word = "kept" if answer.kept else "doomed"
            print(f"{word} {round_} {e1.id} {e2.id}\\n", end="", flush=True)

        threads = [Thread(target=commit), Thread(target=abort)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
"""


def test_c04_the_decision_is_the_same_after_kill_and_reopen(
    open_store: OpenStore, world: World, child: Child, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    said: dict[int, set[str]] = {}
    effects: dict[int, tuple[int, int]] = {}
    for kill in range(20):
        process = child(RACER, kill * 10_000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(chance.uniform(0.005, 0.25))
        process.kill()
        for line in rest_of(process).splitlines(keepends=True):
            parts = line.split()
            if line.endswith("\n"):  # The last line may be cut by the kill.
                said.setdefault(int(parts[1]), set()).add(parts[0])
                effects[int(parts[1])] = (int(parts[2]), int(parts[3]))
    assert effects, f"no round was decided before its kill; seed {seed}"

    store = open_store()
    store.compensate(world.handlers())
    undone = set(world.undone())
    for round_, (e1, e2) in effects.items():
        both = {store.effect(e1).state, store.effect(e2).state}
        assert len(both) == 1, f"round {round_} is half decided, seed {seed}"
        words = said[round_]
        expected = {"committed"} if words & {"committed", "kept"} else {"doomed"}
        assert both == expected, f"round {round_} said {words}, seed {seed}"
        assert (str(round_) in undone) == (both == {"doomed"}), f"round {round_}, seed {seed}"
        assert not {"committed", "doomed"} <= words
    store.verify()
