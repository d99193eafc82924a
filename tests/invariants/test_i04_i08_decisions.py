"""I4 to I8, T1 and T2: what is decided is closed, final, whole, and seen by nobody before it is durable."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from effectstore import (
    AlreadySettledError,
    DoomedDependencyError,
    Inverse,
    Policy,
    ReconcileConflictError,
    RefusedError,
    Store,
)
from random_work import RandomWork
from support import Child, OpenStore
from world import STOPPED, World, ids, states

SEEDS = range(8)


@pytest.mark.parametrize("blind", [False, True], ids=["readers", "blind writers"])
@pytest.mark.parametrize("seed", SEEDS)
def test_i04_i05_i06_t1_hold_after_every_step_of_random_work(
    open_store: OpenStore, world: World, seed: int, blind: bool
) -> None:
    work = RandomWork(open_store(policy=Policy(auto_keys=1000)), world, seed, blind=blind)
    for turn in itertools.count():
        work.step()
        work.check()
        if turn >= 120 and {"committed", "doomed"} <= set(work.seen.values()):
            break  # Some chances commit late; a run without a commit would show nothing.
        assert turn < 400, "work that never commits"
    work.store.verify()


@pytest.mark.parametrize("blind", [False, True], ids=["readers", "blind writers"])
@pytest.mark.parametrize("seed", SEEDS)
def test_t2_the_world_is_what_the_survivors_alone_would_have_made(
    open_store: OpenStore, world: World, seed: int, blind: bool
) -> None:
    work = RandomWork(open_store(policy=Policy(auto_keys=1000)), world, seed, blind=blind)
    for _ in range(80):
        work.step()
    store = work.store
    # A doomed branch may hold live work, too: what survived of it, for its agent to resume.
    store.reconcile(abort=[branch.name for branch in store.branches() if branch.state != "closed"], reason="end")
    store.compensate(world.handlers())
    open_ones = [rollback for rollback in store.rollbacks() if not rollback.report.clean]
    if not blind:
        assert open_ones == []
    if not open_ones:
        assert world.facts() == work.surviving_world()
    else:  # Only a conflict with committed newer work may keep a rollback from being clean, and it names the writer.
        failures = [failure for rollback in open_ones for failure in rollback.report.failed]
        assert {failure.kind for failure in failures} == {"conflict"}
        assert {store.effect(failure.writer or 0).state for failure in failures} == {"committed"}


def test_i04_a_deploy_is_never_committed_on_a_config_that_can_still_fall(store: Store, world: World) -> None:
    """The seed's story: B writes X, C deploys because of it and wants the commit, then B is contradicted."""
    b, c = store.branch("B"), store.branch("C")
    e1, e2 = world.put(b, "X", 1), world.put(c, "deployed", 2, reads="X")
    fence = store.commit(c)
    assert (fence.status, fence.committed) == ("waiting", ())
    assert [(blocker.effect, blocker.reason) for blocker in fence.blockers] == [(e1.id, "no_vote")]
    store.reconcile(abort=b, reason="A contradicted B")
    assert states(store, e1, e2) == ["doomed", "doomed"]
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), world.facts()) == (["deployed", "X"], {})


def test_i05_nothing_live_registers_on_a_doomed_effect(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1)
    a.abort(reason="contradicted")
    with pytest.raises(DoomedDependencyError) as by_after:
        world.put(b, "Y", 1, after=e1)
    assert by_after.value.dependency == e1.id
    with pytest.raises(DoomedDependencyError) as by_version:
        world.put(b, "Y", 1, reads={"X": e1.id})
    assert (by_version.value.dependency, by_version.value.key) == (e1.id, "X")
    with pytest.raises(STOPPED):
        a.register("put", {}, inverse=Inverse("undo", {}))


@pytest.mark.parametrize("first", ["committed", "doomed", "void"])
@pytest.mark.parametrize("verb", ["commit", "abort", "done", "not_run"])
def test_i06_what_is_settled_stays_settled(store: Store, world: World, first: str, verb: str) -> None:
    branch = store.branch("A")
    effect = world.put(branch, "X", 1, report=first != "void")
    if first == "committed":
        store.commit(branch)
    elif first == "doomed":
        store.reconcile(abort=effect, reason="contradicted")
    else:
        effect.not_run("refused")
    try:
        if verb == "commit":
            store.commit(effect)
        elif verb == "abort":
            store.reconcile(abort=effect, reason="too late")
        elif verb == "done" and first != "void":
            effect.done("again")
        elif verb == "not_run":
            effect.not_run("after all")
    except RefusedError:
        pass
    assert states(store, effect) == [first]


def test_i06_a_void_effect_changes_only_by_evidence_that_it_ran(store: Store, world: World) -> None:
    """The runtime said "not run", a reader went on, then the answer of the tool arrived after all."""
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Y", 1, reads="X")
    e1.not_run("time-out before sending")
    with pytest.raises(AlreadySettledError):
        e1.done("it ran")
    assert states(store, e1) == ["doomed"]
    assert any(alert.ref == e1.id or str(e1.id) in alert.text for alert in store.alerts())
    assert states(store, e2) == ["doomed"]


def test_i07_a_decision_is_whole_whenever_somebody_looks(open_store: OpenStore, world: World) -> None:
    """A reader looks while work is aborted: a doomed effect never comes without its rollback and stopped branch."""
    store = open_store(policy=Policy(auto_keys=1000))
    stop, looks, wrong = threading.Event(), [0], list[str]()
    last: list[list[int]] = []

    def look() -> None:
        while not stop.is_set():
            for chain in last[-3:]:
                found = [store.effect(effect) for effect in chain * 2]
                looks[0] += 1
                if found[0].state == "doomed" and any(effect.state != "doomed" for effect in found):
                    wrong.append(f"{chain} in part")
                if any(effect.state == "doomed" and effect.rollback is None for effect in found):
                    wrong.append(f"{chain} without a rollback")

    reader = threading.Thread(target=look)
    reader.start()
    for round_ in range(150):
        first, second = store.branch(f"A{round_}"), store.branch(f"B{round_}")
        chain = [world.put(first, f"X{round_}", 1), world.put(second, f"Y{round_}", 1, reads=f"X{round_}")]
        last.append([effect.id for effect in chain])
        first.abort(reason="contradicted")
        assert second.refresh().state == "doomed"
    stop.set()
    reader.join()
    assert wrong == []
    assert looks[0] > 0


def test_i07_a_refused_reconciliation_changes_nothing(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1, e2 = world.put(a, "X", 1), world.put(b, "Y", 1, reads="X")
    e3 = world.put(c, "Z", 1, reads="Y")
    with pytest.raises(ReconcileConflictError) as conflict:
        store.reconcile(commit=c, abort=a, reason="contradicted")
    assert (conflict.value.path[0], conflict.value.path[-1]) == (e3.id, e1.id)
    assert conflict.value.path == (e3.id, e2.id, e1.id)
    assert states(store, e1, e2, e3) == ["live"] * 3
    assert (list(store.rollbacks()), list(store.fences())) == ([], [])
    answer = store.reconcile(commit=c, abort=a, reason="contradicted", on_conflict="abort")
    assert {*answer.doomed, *answer.cascaded} == ids(e1, e2, e3)


COMMITTER = """
    import sys
    import effectstore
    from effectstore import Inverse
    store = effectstore.open(sys.argv[1])
    print("ready", flush=True)
    for turn in range(100_000):
        branch = store.branch(f"{sys.argv[3]}-{turn}")
        branch.register("put", {}, inverse=Inverse("undo", {})).done(None)
        if turn % 2:
            store.commit(branch)
        else:
            branch.abort(reason="contradicted")
"""


def test_i08_what_a_reader_saw_is_still_so_after_the_writer_was_killed(open_store: OpenStore, child: Child) -> None:
    """Another process acts on what it reads, so it must never read a decision that a crash can take back."""
    store = open_store()
    for kill in range(10):
        writer = child(COMMITTER, kill)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n", writer.communicate()[1]
        seen: dict[int, str] = {}
        last, until = max((effect.id for effect in store.effects()), default=0), time.monotonic() + 0.15
        while time.monotonic() < until:
            for effect in store.effects(since=last, limit=1000):
                if effect.state != "live":
                    seen[effect.id] = effect.state
        writer.kill()
        writer.communicate()
        store.close()
        store = open_store()
        assert {effect: store.effect(effect).state for effect in seen} == seen


def test_t1_no_committed_effect_is_in_an_automatic_rollback(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1)
    assert store.commit(a).status == "committed"
    e2, e3 = world.put(a, "Y", 1), world.put(b, "Z", 1, reads=["X", "Y"])
    answer = a.abort(reason="contradicted")
    assert answer.rollback is not None
    assert (set(answer.rollback.effects), set(answer.kept)) == (ids(e2, e3), ids(e1))
    store.compensate(world.handlers())
    assert (states(store, e1), world.facts()) == (["committed"], {"X": 1})


def test_t1_a_committed_effect_is_undone_only_by_a_governed_rollback(store: Store, world: World) -> None:
    a = store.branch("A", agent="a")
    e1 = world.put(a, "X", 1)
    store.commit(a)
    rollback = store.request_rollback(e1, by="judge", reason="the advice was wrong", trigger="judge")
    assert states(store, e1) == ["committed"]
    if rollback.state == "awaiting_approval":
        store.approval(rollback.approvals[0]).approve(by="ops", reason="agreed")
    assert store.compensate(world.handlers()).clean
    assert (states(store, e1), store.effect(e1.id).compensated, world.facts()) == (["committed"], True, {})
