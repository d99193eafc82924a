"""Requests to undo committed work, seen from outside while they wait, and against one another."""

from __future__ import annotations

import pytest

from effectstore import AlreadySettledError, ApprovalClosedError, Effect, OptionsError, Store
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


def test_the_approval_of_a_call_that_is_not_registered_yet_names_the_call(store: Store) -> None:
    """Its subject is the branch's id, which is no effect's."""
    asked = store.branch("c").request_approval("mail", {"to": "all"}, by="clerk", reason="it is urgent")
    assert repr(asked) == f"<Approval {asked.id} of call mail on branch c: pending>"
    assert repr(store.approval(asked.id)) == repr(asked)
    assert (asked.kind, asked.tool, asked.branch) == ("effect", "mail", "c")


def test_a_request_that_names_nothing_says_so(store: Store) -> None:
    with pytest.raises(OptionsError, match="nothing was named"):
        store.request_rollback([], by="judge", reason="wrong")


def test_a_denied_request_names_tool_and_agent_of_each_step_and_can_be_opened_again(store: Store, world: World) -> None:
    effect = committed(store, world, "X", "A")
    rollback = ask(store, effect)
    store.approval(rollback.approvals[0]).deny(by="ops", reason="it was right")
    (failure,) = rollback.refresh().report.failed
    assert (failure.kind, failure.tool, failure.agent) == ("denied", "put_back", "a")
    assert rollback.request_approval(by="judge", reason="look again").state == "pending"
    assert rollback.refresh().state == "awaiting_approval"


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


def _steps(store: Store, rollback: int) -> set[int]:
    return {step.effect for step in store.rollback(rollback).plan().steps}


def test_a_request_whose_effects_another_rollback_took_is_over(store: Store, world: World) -> None:
    """Nobody is asked to approve nothing: it ends with that approval, and owes nothing."""
    effect = committed(store, world, "X", "A")
    first, second = ask(store, effect), ask(store, effect)
    agree(store, first)
    (approval,) = second.approvals
    assert store.approval(approval).state == "stale"
    over = second.refresh()
    assert (over.state, over.report.discarded, over.report.clean) == ("closed", (effect.id,), True)
    with pytest.raises(ApprovalClosedError) as closed:
        store.approval(approval).approve(by="ops", reason="agreed")
    assert (closed.value.state, closed.value.successor) == ("stale", None)
    report = store.compensate(world.handlers())
    assert (report.clean, report.rollbacks) == (True, (first.id,))
    assert [rollback.id for rollback in store.review()] == [first.id]
    store.verify()


def test_a_request_of_which_another_rollback_took_a_part_is_asked_for_anew(store: Store, world: World) -> None:
    one = committed(store, world, "X", "A")
    two = committed(store, world, "Y", "B")
    first, second = ask(store, one), ask(store, one, two)
    agree(store, first)
    newer = second.refresh()
    assert (newer.state, set(newer.effects), _steps(store, second.id)) == ("awaiting_approval", ids(two), ids(two))
    assert [store.approval(known).state for known in newer.approvals] == ["stale", "pending"]
    agree(store, newer)
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), world.facts()) == (["Y", "X"], {})
    store.verify()


@pytest.mark.parametrize("end", ["doomed", "void"])
def test_a_request_for_live_work_that_fell_otherwise_is_over(store: Store, world: World, end: str) -> None:
    branch = store.branch("A")
    effect: Effect = world.put(branch, "X", 1, report=end == "doomed")
    rollback = ask(store, effect)
    if end == "doomed":
        branch.abort(reason="wrong")
    else:
        effect.not_run("refused")
    assert (rollback.refresh().state, store.approval(rollback.approvals[0]).state) == ("closed", "stale")
    assert store.compensate(world.handlers()).clean
    store.verify()
