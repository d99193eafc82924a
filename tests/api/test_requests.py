"""Requests to undo committed work, seen from outside while they wait, and against one another."""

from __future__ import annotations

import pytest

from effectstore import AlreadySettledError, Store
from governed import agree, ask, committed
from world import World, ids


@pytest.mark.parametrize("governed", [True, False])
def test_a_rollback_that_waits_for_a_person_is_reported_by_a_plain_compensate(
    store: Store, world: World, *, governed: bool
) -> None:
    """One that was asked for and one that a doom made are reported alike, by both forms of the call."""
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", "A", inverse=world.inverse_of("X", limitation="mail is out"))
    if governed:
        store.commit(branch)
        rollback = ask(store, effect)
    else:
        found = store.reconcile(abort=branch, reason="wrong").rollback
        assert found is not None
        rollback = found
    for report in (
        store.compensate({}),
        store.compensate({}, rollback=rollback),
        store.compensate({}, workers=2),
    ):
        assert (report.clean, report.pending, report.rollbacks) == (False, (effect.id,), (rollback.id,))
        assert report.approvals == rollback.refresh().approvals
    agree(store, rollback)
    assert store.compensate(world.handlers()).clean


def test_an_effect_of_two_requests_is_reported_once(store: Store, world: World) -> None:
    effect = committed(store, world, "X", "A")
    first, second = ask(store, effect), ask(store, effect)
    report = store.compensate({})
    assert (report.pending, report.rollbacks) == ((effect.id,), (first.id, second.id))


def test_what_an_effect_rests_on_is_the_same_at_every_stage_of_a_rollback(store: Store, world: World) -> None:
    """The answer is that of the records: settled ones are named, and no rollback adds or takes any."""
    writer = committed(store, world, "X", "A")
    named = committed(store, world, "Y", "B", reads={"X": writer.id})
    after = committed(store, world, "Z", "C", after=named)
    blind = committed(store, world, "W", "D", reads="X")
    branch = store.branch("E")
    first = world.put(branch, "P", 1)
    second = world.put(branch, "Q", 1, reads="Z")

    def resting() -> dict[int, tuple[int, ...]]:
        everything = (writer, named, after, blind, first, second)
        return {effect.id: store.effect(effect.id).rests_on for effect in everything}

    expected = {
        writer.id: (),
        named.id: (writer.id,),
        after.id: (named.id,),
        blind.id: (),
        first.id: (),
        second.id: (first.id,),
    }
    assert resting() == expected
    rollback = ask(store, writer)
    assert set(rollback.effects) == ids(writer, named, after, blind, second)
    assert resting() == expected
    agree(store, rollback)
    assert resting() == expected
    assert store.compensate(world.handlers()).clean
    assert resting() == expected
    store.commit(branch.resume())
    assert resting() == expected


def test_what_never_happened_leaves_its_place_for_good(store: Store, world: World) -> None:
    """Live or committed, an effect names what it named and what that rested on."""
    branch = store.branch("A")
    first = world.put(branch, "X", 1)
    failed = world.put(branch, "Y", 1, report=False)
    last = world.put(branch, "Z", 1)
    assert last.refresh().rests_on == (failed.id,)
    failed.not_run("refused")
    assert last.refresh().rests_on == (first.id, failed.id)
    store.commit(branch)
    assert store.effect(last.id).rests_on == (first.id, failed.id)


def test_a_request_for_what_a_rollback_holds_names_that_rollback(store: Store, world: World) -> None:
    effect = committed(store, world, "X", "A")
    rollback = ask(store, effect)
    agree(store, rollback)
    with pytest.raises(AlreadySettledError, match=f"held by rollback {rollback.id}") as held:
        ask(store, effect)
    assert (held.value.ref, held.value.state, held.value.rollback) == (effect.id, "committed", rollback.id)
    assert not store.effect(effect.id).compensated
    store.compensate(world.handlers())
    with pytest.raises(AlreadySettledError) as over:
        ask(store, effect)
    assert (over.value.state, over.value.rollback) == ("compensated", None)
