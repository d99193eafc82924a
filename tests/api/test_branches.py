"""Branches: creation, takeover, join and resume; children and merge; leases; sealing, voting and BREAK."""

from __future__ import annotations

from datetime import timedelta

import pytest

from effectstore import (
    Branch,
    BranchClosedError,
    BranchExistsError,
    DoomedBranchError,
    Inverse,
    NotFoundError,
    RefusedError,
    StaleTokenError,
    Store,
)
from support import OpenStore
from world import FakeClock, World, ids, states


def test_creating_a_branch_that_exists_is_an_error_whatever_its_state(store: Store, a: Branch) -> None:
    for state in ("open", "closed"):
        assert a.refresh().state == state
        with pytest.raises(BranchExistsError) as refusal:
            store.branch("A")
        assert refusal.value.branch == "A"
        if state == "open":
            a.abort(reason="contradicted")


def test_the_agent_defaults_to_the_name(store: Store) -> None:
    assert (store.branch("solo").agent, store.branch("B", agent="x").agent) == ("solo", "x")


def test_join_shares_the_token_and_takeover_replaces_it(store: Store, world: World, a: Branch) -> None:
    joined = store.join("A", a.token)
    e1, e2 = world.put(a, "X", 1), world.put(joined, "Y", 1)
    assert e2.after == (e1.id,)
    new = store.takeover("A")
    for old in (a, joined):
        with pytest.raises(StaleTokenError):
            world.put(old, "Z", 1)
    assert world.put(new, "Z", 1).after == (e2.id,)


def test_join_and_takeover_of_nobody_are_not_found(store: Store, a: Branch) -> None:
    with pytest.raises(NotFoundError):
        store.takeover("nobody")
    with pytest.raises(NotFoundError):
        store.join("nobody", a.token)


def test_an_effects_own_token_guards_its_outcome_whatever_happens_to_its_branch(store: Store, world: World) -> None:
    """Resume replaces the token of the branch; a tool that is still running keeps its own."""
    branch, other = store.branch("A"), store.branch("B")
    running = world.put(branch, "X", 1, report=False, after=())
    seen = world.put(other, "Y", 1)
    fallen = world.put(branch, "Z", 1, reads="Y", after=())
    other.abort(reason="contradicted")
    resumed = branch.resume()
    assert running.done("late but right").outcome == "done"
    assert states(store, running, seen, fallen) == ["live", "doomed", "doomed"]
    store.compensate(world.handlers())
    assert store.commit(resumed).committed == (running.id,)


def test_resume_goes_on_from_what_survives_with_a_new_token(store: Store, world: World, a: Branch) -> None:
    kept, fallen = world.put(a, "X", 1), world.put(a, "Y", 1)
    late = world.put(a, "Z", 1)
    answer = store.reconcile(abort=fallen, reason="contradicted")
    assert (answer.doomed, answer.cascaded) == ((fallen.id,), (late.id,))
    with pytest.raises(DoomedBranchError) as stopped:
        world.put(a, "W", 1)
    assert (stopped.value.branch, stopped.value.cause) == ("A", fallen.id)
    resumed = a.resume()
    assert (resumed.state, resumed.tip) == ("open", (kept.id,))
    with pytest.raises(StaleTokenError):
        world.put(a, "W", 1)
    assert world.put(resumed, "W", 1).after == (kept.id,)


def test_a_branch_aborted_by_name_never_resumes(store: Store, world: World, a: Branch) -> None:
    world.put(a, "X", 1)
    a.abort(reason="contradicted")
    with pytest.raises((BranchClosedError, DoomedBranchError)):
        a.resume()
    with pytest.raises((BranchClosedError, DoomedBranchError)):
        store.takeover("A").resume()


def test_abort_passes_a_doomed_branch_and_answers_what_was_decided(store: Store, world: World, a: Branch) -> None:
    world.put(a, "X", 1)
    first = a.abort(reason="contradicted")
    again = a.abort(reason="once more")
    assert first.rollback is not None
    assert (again.rollback, again.rollbacks) == (None, (first.rollback.id,))


def test_program_order_rests_on_the_tip(store: Store, world: World, a: Branch) -> None:
    e1, e2 = world.put(a, "1", 1), world.put(a, "2", 1)
    side = world.put(a, "3", 1, after=())
    assert (e1.after, e2.after, side.after) == ((), (e1.id,), ())
    assert set(a.refresh().tip) == ids(e2, side)
    assert set(world.put(a, "4", 1).after) == ids(e2, side)


def test_parallel_calls_rest_on_the_tip_before_the_turn(world: World, a: Branch) -> None:
    before = world.put(a, "1", 1)
    turn = a.parallel()
    assert (turn.name, turn.token) == (a.name, a.token)
    group = [world.put(turn, f"g{number}", 1) for number in range(3)]
    assert [effect.after for effect in group] == [(before.id,)] * 3
    after = world.put(a, "2", 1)
    assert set(after.after) == ids(*group)
    assert world.put(a.parallel(), "3", 1).after == (after.id,)


def test_after_the_empty_tuple_rests_on_no_effect_but_on_what_was_observed(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    b.observe("X")
    free = world.put(b, "Y", 1, after=())
    assert free.after == ()
    assert a.abort(reason="contradicted").cascaded == (free.id,)


def test_a_vote_covers_what_is_registered_and_the_branch_stays_open(store: Store, world: World, a: Branch) -> None:
    early = world.put(a, "X", 1)
    a = a.seal()
    late = world.put(a, "Y", 1)
    assert (a.state, store.effect(early.id).sealed, store.effect(late.id).sealed) == ("open", True, False)


def test_a_childs_merge_is_its_vote_and_hands_its_effects_to_the_parent(store: Store, world: World) -> None:
    parent = store.branch("P")
    before = world.put(parent, "X", 1)
    child = store.branch("P/1", parent=parent)
    inner = world.put(child, "Y", 1)
    assert inner.after == (before.id,)
    child.merge()
    with pytest.raises(RefusedError):
        world.put(child, "Z", 1)
    after = world.put(parent, "Z", 1)
    assert set(after.after) == ids(inner)
    assert set(store.commit(parent).committed) == ids(before, inner, after)


def test_a_childs_vote_counts_only_with_the_votes_above(store: Store, world: World) -> None:
    parent = store.branch("P")
    child = store.branch("P/1", parent=parent)
    inner = world.put(child, "Y", 1)
    fence = store.commit(child)
    assert (fence.status, states(store, inner)) == ("waiting", ["live"])
    parent.seal()
    assert fence.refresh().status == "committed"


@pytest.mark.parametrize("merged", [False, True])
def test_aborting_the_parent_takes_the_children_along(store: Store, world: World, merged: bool) -> None:
    parent = store.branch("P")
    child = store.branch("P/1", parent=parent)
    grandchild = store.branch("P/1/1", parent=child)
    inner, innermost = world.put(child, "X", 1), world.put(grandchild, "Y", 1)
    if merged:
        grandchild.merge()
        child.merge()
    answer = parent.abort(reason="contradicted")
    assert {*answer.doomed, *answer.cascaded} == ids(inner, innermost)
    with pytest.raises((DoomedBranchError, BranchClosedError)):
        store.branch("P/2", parent=parent)


def test_aborting_a_child_spares_its_parent(store: Store, world: World) -> None:
    parent = store.branch("P")
    before = world.put(parent, "X", 1)
    child = store.branch("P/1", parent=parent)
    inner = world.put(child, "Y", 1)
    assert child.abort(reason="contradicted").doomed == (inner.id,)
    assert world.put(parent, "Z", 1).after == (before.id,)


def test_a_handed_on_effect_that_is_doomed_stops_the_parent(store: Store, world: World) -> None:
    parent, other = store.branch("P"), store.branch("B")
    world.put(other, "X", 1)
    child = store.branch("P/1", parent=parent)
    inner = world.put(child, "Y", 1, reads="X")
    child.merge()
    assert other.abort(reason="contradicted").cascaded == (inner.id,)
    with pytest.raises(DoomedBranchError):
        world.put(parent, "Z", 1)
    assert parent.resume().state == "open"


def test_what_stands_for_a_handed_on_call_that_never_ran_is_in_the_tip_only_if_it_was_handed_on(
    store: Store, world: World
) -> None:
    """A child's tip is the tip of its parent's effects and its own; what others wrote is observed, no predecessor."""
    other, parent = store.branch("other"), store.branch("parent", overwrite="depend")
    foreign = world.put(other, "X", 1)
    own = world.put(parent, "Y", 1)
    failed = world.put(parent, "X", 2, report=False)
    child = store.branch("child", parent=parent)
    assert child.tip == (failed.id,)
    failed.not_run("refused")
    assert child.refresh().tip == parent.refresh().tip == (own.id,)
    # It stays observed: the call may have failed because of it.
    call = world.put(child, "Z", 1)
    assert call.after == (own.id,)
    other.abort(reason="wrong")
    assert (call.refresh().state, own.refresh().state, foreign.refresh().state) == ("doomed", "live", "doomed")


def test_a_resumed_child_goes_on_from_what_it_was_handed_and_not_from_what_its_parent_did_since(
    store: Store, world: World
) -> None:
    """What its parent registered later was never handed on, even where something that was handed on saw it."""
    parent = store.branch("parent")
    own = world.put(parent, "Y", 1)
    running = world.put(parent, "X", 1, report=False)
    child = store.branch("child", parent=parent)
    later = world.put(parent, "K", 1, after=())
    running.observe("K")
    running.done(None)
    store.reconcile(abort=[running], reason="wrong")
    child.resume()
    assert later.refresh().state == "live"
    assert child.refresh().tip == (own.id,)


def test_of_a_ring_of_handed_on_effects_the_newest_is_the_childs_tip(open_store: OpenStore, world: World) -> None:
    """The ring closes after the child was made; only one of its members was the parent's tip then."""
    store = open_store()
    parent = store.branch("parent")
    first = world.put(parent, "X", 1, report=False, after=())
    second = world.put(parent, "Y", 1, report=False, after=())
    first.observe("Y")
    child = store.branch("child", parent=parent)
    assert child.tip == (first.id,)
    second.observe("X")
    assert child.refresh().tip == parent.refresh().tip == (second.id,)
    store.close()
    store = open_store()
    child = store.join("child", child.token)
    assert child.tip == (second.id,)
    store.join("parent", parent.token).effect(second.id).not_run("refused")
    assert child.refresh().tip == (first.id,)


@pytest.mark.parametrize("lease", [30, 30.0, timedelta(seconds=30)])
def test_a_lease_is_kept_by_its_heartbeat(timed: Store, clock: FakeClock, world: World, lease: float) -> None:
    branch = timed.branch("A", lease=lease)
    effect = world.put(branch, "X", 1)
    for _ in range(10):
        clock.advance(29)
        branch = branch.heartbeat()
    timed.tick()
    assert states(timed, effect) == ["live"]
    clock.advance(31)
    timed.tick()
    assert states(timed, effect) == ["doomed"]
    with pytest.raises(RefusedError):
        branch.heartbeat()


def test_any_write_does_what_fell_due(timed: Store, clock: FakeClock, world: World) -> None:
    effect = world.put(timed.branch("A", lease=30), "X", 1)
    clock.advance(31)
    timed.branch("B")
    assert states(timed, effect) == ["doomed"]


def test_a_branch_without_a_lease_is_kept_for_ever(timed: Store, clock: FakeClock, world: World) -> None:
    effect = world.put(timed.branch("A"), "X", 1)
    clock.advance(10 * 365 * 86_400)
    timed.tick()
    assert states(timed, effect) == ["live"]


def test_a_signalled_break_dooms_tells_and_may_forbid_to_resume(timed: Store, clock: FakeClock, world: World) -> None:
    a, b = timed.branch("A", agent="a"), timed.branch("B", agent="b")
    e1, e2 = world.put(a, "X", 1), world.put(b, "Y", 1, reads="X")
    answer = timed.signal_break("A", severity="permanent", reason="model drift", recoverable=False, ack_within=30)
    assert {*answer.doomed, *answer.cascaded} == ids(e1, e2)
    (notice,) = timed.inbox("b")
    assert (notice.severity, notice.reason, notice.recoverable) == ("permanent", "model drift", False)
    with pytest.raises(RefusedError):
        a.resume()


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_missing_acknowledgement_of_a_break_is_escalated(
    timed: Store, clock: FakeClock, world: World, acknowledged: bool
) -> None:
    a, b = timed.branch("A", agent="a"), timed.branch("B", agent="b")
    world.put(a, "X", 1)
    world.put(b, "Y", 1, reads="X")
    timed.signal_break("A", severity="transient", reason="lost", recoverable=True, ack_within=30)
    if acknowledged:
        for agent in ("a", "b"):
            for notice in timed.inbox(agent):
                notice.ack()
    before = len(list(timed.alerts()))
    clock.advance(31)
    timed.tick()
    assert (len(list(timed.alerts())) > before) == (not acknowledged)


def test_upstream_agents_wait_for_the_confirmation_of_the_one_that_broke(store: Store, world: World) -> None:
    """No edge was recorded between them; the order comes from the signal alone."""
    up, down = store.branch("up", agent="up"), store.branch("down", agent="down")
    down_effect = world.put(down, "D", 1)
    up_effect = world.put(up, "U", 1)
    store.signal_break("down", severity="transient", reason="lost", recoverable=True, upstream=["up"])
    up.abort(reason="follows")
    assert store.claim("up") is None
    report = store.compensate(world.handlers())
    assert (world.undone(), report.clean) == (["D", "U"], True)
    assert set(report.completed) == ids(down_effect, up_effect)


def test_branches_survive_a_reopen_with_what_they_saw(open_store: OpenStore, world: World) -> None:
    store = open_store()
    a, b = store.branch("A"), store.branch("B", reads="sealed", overwrite="depend")
    world.put(a, "X", 1)
    a.seal()
    b.observe("X")
    held = world.put(b, "Y", 1)
    token = b.token
    store.close()
    store = open_store()
    again = store.join("B", token)
    late = world.put(again, "Z", 1)
    assert late.after == (held.id,)
    assert set(store.reconcile(abort="A", reason="contradicted").cascaded) == ids(held, late)


def test_an_inverse_of_a_childs_effect_runs_once(store: Store, world: World) -> None:
    parent = store.branch("P", agent="p")
    child = store.branch("P/1", parent="P", agent="c")
    child.register("put", {}, writes="X", inverse=Inverse("put_back", {"key": "X", "value": None, "label": "I"})).done(
        1
    )
    child.merge()
    parent.abort(reason="contradicted")
    store.compensate(world.handlers())
    assert world.undone() == ["I"]
