"""C1: one victim reached by two paths is aborted once and undone once, in the order of dependencies."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import effectstore
from effectstore import Branch, Effect, Policy, Reconciliation, Store
from support import OpenStore
from world import World, ids

# Names that give a wrong order when somebody sorts by them, whichever way.
NAMINGS = {
    "names rise": {"E1": "1-root", "E2": "2-left", "E3": "3-right", "E4": "4-join", "E5": "5-other"},
    "names fall": {"E1": "z", "E2": "y", "E3": "x", "E4": "w", "E5": "v"},
    "names mixed": {"E1": "m", "E2": "é", "E3": "a", "E4": "k", "E5": "0"},
}


def diamond(store: Store, world: World, names: dict[str, str], round_: int = 0) -> tuple[list[Branch], list[Effect]]:
    """E1[A] w{X}; E2[B] r{X} w{Y}; E3[C] r{X} w{Z}; E4[D] r{Y,Z} w{Q}; E5[F] r{K} w{M}."""
    reads = {"E1": [], "E2": ["X"], "E3": ["X"], "E4": ["Y", "Z"], "E5": ["K"]}
    writes = {"E1": "X", "E2": "Y", "E3": "Z", "E4": "Q", "E5": "M"}
    branches, effects = [], []
    for effect, name in names.items():
        branch = store.branch(f"{name}/{round_}", agent=name)
        key = f"{writes[effect]}/{round_}"
        seen = [f"{read}/{round_}" for read in reads[effect]]
        branches.append(branch)
        effects.append(world.put(branch, key, effect, reads=seen, label=f"I{effect[1:]}"))
    return branches, effects


def abort_both(first: Branch, second: Branch) -> list[Reconciliation]:
    """Abort two branches from two threads that start together."""
    barrier = Barrier(2)

    def abort(branch: Branch) -> Reconciliation:
        barrier.wait()
        return branch.abort(reason="contradicted")

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(abort, (first, second)))


@pytest.mark.parametrize("names", NAMINGS.values(), ids=NAMINGS.keys())
@pytest.mark.parametrize("second", [1, 2, 3], ids=["and B", "and C", "and D"])
def test_c01_diamond_is_aborted_and_undone_once(store: Store, world: World, names: dict[str, str], second: int) -> None:
    branches, (e1, e2, e3, e4, e5) = diamond(store, world, names)
    answers = abort_both(branches[0], branches[second])

    covered = {effect for answer in answers for effect in (*answer.doomed, *answer.cascaded)}
    assert covered == ids(e1, e2, e3, e4)
    report = store.compensate(world.handlers())
    undone = world.undone()
    assert sorted(undone) == ["I1", "I2", "I3", "I4"]
    assert (undone[0], undone[-1]) == ("I4", "I1")
    if {*answers[0].doomed, *answers[0].cascaded} == ids(e1, e2, e3, e4):  # abort(A) won
        assert undone == ["I4", "I3", "I2", "I1"]
    assert set(report.completed) == ids(e1, e2, e3, e4)
    assert (len(report.completed), report.failed, report.clean) == (4, (), True)
    assert store.commit(branches[4]).committed == (e5.id,)
    assert world.facts() == {"M/0": "E5"}


def test_c01_diamond_has_one_abort_decision_per_effect(store: Store, world: World) -> None:
    branches, effects = diamond(store, world, NAMINGS["names mixed"])
    abort_both(branches[0], branches[1])

    decisions = Counter(effect for rollback in store.rollbacks() for effect in rollback.effects)
    assert decisions == Counter({effect.id: 1 for effect in effects[:4]})
    for effect in effects[:4]:
        assert effect.id in store.rollback(store.effect(effect.id).rollback or 0).effects
    assert store.effect(effects[4].id).rollback is None


def test_c01_diamond_undone_in_plain_lifo_when_the_root_is_aborted_alone(store: Store, world: World) -> None:
    branches, _ = diamond(store, world, NAMINGS["names mixed"])
    branches[0].abort(reason="contradicted")
    store.compensate(world.handlers())
    assert world.undone() == ["I4", "I3", "I2", "I1"]


def test_c01_diamond_aborting_what_is_already_aborted_changes_nothing(store: Store, world: World) -> None:
    branches, effects = diamond(store, world, NAMINGS["names rise"])
    first = store.reconcile(abort=branches[0], reason="contradicted")
    for target in (branches[0], branches[3], effects[1], effects[3].id):
        again = store.reconcile(abort=target, reason="once more")
        assert again.rollback is None
        assert first.rollback is not None
        assert again.rollbacks == (first.rollback.id,)
    assert len(list(store.rollbacks())) == 1


@pytest.mark.parametrize("width", [2, 40])
def test_c01_ladder_of_diamonds_visits_each_victim_once(open_store: OpenStore, world: World, width: int) -> None:
    """A stack of diamonds has 2**depth paths to its end; a walk without a visited set never comes back."""
    store = open_store("ladder", policy=Policy(auto_keys=10_000))
    depth = 30 if width == 2 else 4
    root = world.put(store.branch("root"), "0/0", "root", label="root")
    previous, everything = ["0/0"], [root]
    for level in range(1, depth + 1):
        batch = []
        for place in range(width):
            branch = store.branch(f"{level}/{place}")
            key = f"{level}/{place}"
            batch.append(
                effectstore.Registration(
                    "put", {}, branch=branch, reads=previous, writes=key, inverse=world.inverse_of(key)
                )
            )
        everything += [effect.done(None) for effect in store.register_many(batch)]
        previous = [f"{level}/{place}" for place in range(width)]
    answer = store.reconcile(abort="root", reason="contradicted")
    assert answer.doomed == (root.id,)
    assert sorted(answer.cascaded) == sorted(effect.id for effect in everything[1:])


def test_c01_diamond_racing_aborts_1000_times(open_store: OpenStore, world: World) -> None:
    store = open_store("races", policy=Policy(auto_keys=10_000))
    for round_ in range(1000):
        labels = {"E1": "n", "E2": "m", "E3": "l", "E4": "k"}
        branches = [store.branch(f"{name}/{round_}") for name in labels.values()]
        reads: list[list[str]] = [[], [f"X{round_}"], [f"X{round_}"], [f"Y{round_}", f"Z{round_}"]]
        effects = [
            branch.register(
                "put", writes=f"{key}{round_}", reads=seen, inverse=world.inverse_of("", label=f"{round_}")
            ).done(None)
            for branch, key, seen in zip(branches, "XYZQ", reads, strict=True)
        ]
        answers = abort_both(branches[0], branches[1])
        covered = {effect for answer in answers for effect in (*answer.doomed, *answer.cascaded)}
        assert covered == ids(*effects), f"round {round_}"
    decisions = Counter(effect for rollback in store.rollbacks() for effect in rollback.effects)
    assert set(decisions.values()) == {1}
    assert len(decisions) == 4000
