"""Requests to undo committed work, seen from outside while they wait, and against one another."""

from __future__ import annotations

import pytest

from effectstore import Store
from governed import agree, ask, committed
from world import World


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
