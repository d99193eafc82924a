"""Governed rollbacks: committed work is undone only as a person agreed, with all that rests on it, and with a trail."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import (
    AlreadySettledError,
    ApprovalClosedError,
    Branch,
    DirtyKeyError,
    DoomedBranchError,
    DoomedDependencyError,
    Inverse,
    NotFoundError,
    OptionsError,
    Registration,
    Store,
)
from governed import agree, ask, committed
from support import OpenStore
from world import World, blocked_by, ids, members, states


def test_a_request_changes_nothing_until_a_person_agrees(store: Store, world: World, b: Branch) -> None:
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1)
    assert (rollback.state, rollback.governed, rollback.trigger) == ("awaiting_approval", True, "human")
    assert store.compensate(world.handlers()).completed == ()
    assert (states(store, e1), world.facts()) == (["committed"], {"X": "A"})
    assert world.put(b, "Y", 1, reads={"X": e1.id}).state == "live", "its key is not dirty and it may be rested on"
    assert list(store.branches(state="doomed")) == []


def test_impact_and_plan_are_told_before_anybody_agrees(store: Store, world: World) -> None:
    undo = world.inverse_of("X", limitation="mail is out")
    e1 = committed(store, world, "X", "A", inverse=undo)
    e2 = committed(store, world, "Y", "B", reads="X")
    rollback = ask(store, e1)
    impact, plan = rollback.impact(), rollback.plan()
    assert (impact.effects, impact.done, impact.rests_on) == ((e1.id, e2.id), (e1.id,), (e2.id,))
    assert (impact.keys, impact.agents, impact.reversibility) == (("X", "Y"), ("a", "b"), "partial")
    assert impact.limitations == ((e1.id, "mail is out"),)
    assert [(step.effect, step.tool, step.agent) for step in plan.steps] == [
        (e2.id, "put_back", "b"),
        (e1.id, "put_back", "a"),
    ]
    (approval,) = store.approvals()
    assert approval.digest == plan.digest


def test_readers_of_a_committed_value_are_found_though_no_edge_was_recorded(store: Store, world: World) -> None:
    """The writer was committed before each of them read, so nothing in memory ever rested on it."""
    e1 = committed(store, world, "X", "A")
    declared = committed(store, world, "Y", "declared", reads="X")
    named = committed(store, world, "Z", "named", reads={"X": e1.id})
    looked = store.branch("looked")
    looked.observe("X")
    first = world.put(looked, "P", 1)
    later = world.put(looked, "Q", 2, after=())
    store.commit(looked)
    blind = committed(store, world, "W", "blind")
    child = store.branch("child", parent=looked)
    below = world.put(child, "R", 3, after=())
    behind = committed(store, world, "S", "behind", after=declared)
    rollback = ask(store, e1)
    assert set(rollback.effects) == ids(e1, declared, named, first, later, below, behind)
    assert blind.id not in rollback.effects


def test_a_value_that_was_overwritten_before_the_read_was_not_seen(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "X", "B")
    reader = committed(store, world, "Y", "C", reads="X")
    assert set(ask(store, e1).effects) == ids(e1)
    assert set(ask(store, e2).effects) == ids(e2, reader)


def test_a_call_that_was_under_way_may_have_seen_it(store: Store, world: World) -> None:
    """It began before the writer and reported after it was committed."""
    reader = store.branch("reader")
    running = world.put(reader, "Y", 1, reads="X", report=False)
    e1 = committed(store, world, "X", "A")
    running.done(None)
    store.commit(reader)
    assert set(ask(store, e1).effects) == ids(e1, running)


def test_program_order_counts_where_it_is_asked_for(store: Store, world: World, a: Branch) -> None:
    e1 = world.put(a, "X", 1)
    store.commit(a)
    e2 = world.put(a, "Y", 1)
    assert set(ask(store, e1).effects) == ids(e1)
    assert set(ask(store, e1, program_order=True).effects) == ids(e1, e2)


def test_a_call_that_never_ran_hands_on_what_it_rested_on(store: Store, world: World, a: Branch) -> None:
    e1 = committed(store, world, "X", "W")
    failed = world.put(a, "Y", 1, reads="X", report=False)
    after = store.branch("B").register("look", {}, inverse=Inverse("undo", {}), after=failed).done(None)
    failed.not_run("refused")
    assert set(ask(store, e1).effects) == ids(e1, after)


def test_approval_dooms_the_live_and_compensates_the_committed(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "Y", "B", reads="X")
    c, d = store.branch("C"), store.branch("D")
    e3 = world.put(c, "Z", 1, reads="Y")
    e4 = world.put(d, "P", 1, after=e3)
    rollback = ask(store, e1)
    assert set(rollback.effects) == ids(e1, e2, e3, e4)
    agree(store, rollback)
    assert states(store, e1, e2, e3, e4) == ["committed", "committed", "doomed", "doomed"]
    with pytest.raises(DoomedBranchError):
        world.put(c, "Q", 1)
    report = store.compensate(world.handlers())
    assert report.clean
    assert members(report) == sorted(ids(e1, e2, e3, e4))
    assert world.undone() == ["P", "Z", "Y", "X"]
    assert [store.effect(effect.id).compensated for effect in (e1, e2, e3, e4)] == [True] * 4
    assert (states(store, e1, e2), store.effect(e1.id).rollback, world.facts()) == (
        ["committed"] * 2,
        rollback.id,
        {},
    )
    assert rollback.refresh().state == "in_review"
    store.verify()


def test_members_count_as_doomed_and_their_keys_are_dirty_from_the_approval_on(
    store: Store, world: World, b: Branch
) -> None:
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1)
    agree(store, rollback)
    with pytest.raises(DirtyKeyError) as dirty:
        world.put(b, "X", 2)
    assert (dirty.value.writers, dirty.value.rollback) == ((e1.id,), rollback.id)
    for after in ({"after": e1}, {"reads": {"X": e1.id}}):
        with pytest.raises(DoomedDependencyError):
            world.put(b, "Y", 1, **after)
    store.compensate(world.handlers())
    for after in ({"after": e1}, {"reads": {"X": e1.id}}):
        with pytest.raises(DoomedDependencyError):
            world.put(b, "Y", 1, **after)
    assert world.put(b, "X", 2).state == "live"


def test_a_branch_that_saw_it_and_did_nothing_yet_is_stopped(store: Store, world: World, b: Branch) -> None:
    e1 = committed(store, world, "X", "A")
    b.observe("X")
    agree(store, ask(store, e1))
    with pytest.raises(DoomedBranchError):
        world.put(b, "Y", 1)
    assert world.put(b.resume(), "Y", 1).state == "live"


def test_a_changed_plan_makes_the_approval_stale_and_asks_anew(store: Store, world: World, b: Branch) -> None:
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1)
    (first,) = rollback.approvals
    e2 = world.put(b, "Y", 1, reads="X")
    with pytest.raises(ApprovalClosedError) as refusal:
        agree(store, rollback)
    newer = rollback.refresh()
    assert newer.approvals == (first, refusal.value.successor)
    assert (refusal.value.state, store.approval(first).state) == ("stale", "stale")
    assert (set(newer.effects), states(store, e1, e2)) == (ids(e1, e2), ["committed", "live"])
    agree(store, newer)
    assert store.compensate(world.handlers()).clean
    assert (states(store, e1, e2), world.facts()) == (["committed", "doomed"], {})


def test_a_denial_leaves_everything_as_it_was_and_another_request_can_be_made(
    store: Store, world: World, b: Branch
) -> None:
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1)
    store.approval(rollback.approvals[0]).deny(by="ops", reason="it was right")
    denied = rollback.refresh()
    assert (denied.state, [failure.kind for failure in denied.report.failed]) == ("closed", ["denied"])
    assert world.put(b, "Y", 1, reads="X").state == "live"
    assert (states(store, e1), list(store.review())) == (["committed"], [])
    again = rollback.request_approval(by="judge", reason="look again")
    assert (again.state, rollback.refresh().state) == ("pending", "awaiting_approval")
    again.approve(by="ops", reason="so it is")
    assert store.compensate(world.handlers()).clean
    assert world.facts() == {}


@pytest.mark.parametrize("verb", ["doomed", "void", "compensated"])
def test_what_is_undone_already_cannot_be_asked_for(store: Store, world: World, a: Branch, verb: str) -> None:
    effect = world.put(a, "X", 1, report=verb != "void")
    if verb == "doomed":
        a.abort(reason="contradicted")
    elif verb == "void":
        effect.not_run("refused")
    else:
        store.commit(a)
        agree(store, ask(store, effect))
    with pytest.raises(AlreadySettledError) as refusal:
        ask(store, effect)
    # Until its inverse ran it is still committed.
    state = "committed" if verb == "compensated" else verb
    assert (refusal.value.ref, refusal.value.state) == (effect.id, state)
    store.compensate(world.handlers())
    with pytest.raises(AlreadySettledError):
        ask(store, effect)


def test_a_request_names_something_that_is_there(store: Store, a: Branch) -> None:
    with pytest.raises(NotFoundError):
        store.request_rollback(4711, by="judge", reason="wrong")
    with pytest.raises(OptionsError):
        store.request_rollback(a, by="judge", reason="nothing was done")
    with pytest.raises(OptionsError):
        store.request_rollback(a, by="judge", reason=" ")
    with pytest.raises(OptionsError):
        store.request_rollback(a, by="judge", reason="x", trigger="automatic")  # type: ignore[arg-type]


def test_a_branch_stands_for_all_that_it_has_committed(store: Store, world: World, a: Branch) -> None:
    e1, e2 = world.put(a, "X", 1), world.put(a, "Y", 2)
    store.commit(a)
    rollback = ask(store, a)
    assert set(rollback.effects) == ids(e1, e2)
    agree(store, rollback)
    assert store.compensate(world.handlers()).clean
    assert world.undone() == ["Y", "X"]


def test_a_later_committed_writer_outside_keeps_its_value_and_is_named(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "X", "B")
    rollback = ask(store, e1)
    agree(store, rollback)
    (failure,) = store.compensate(world.handlers()).failed
    assert (failure.kind, failure.writer, world.facts()) == ("conflict", e2.id, {"X": "B"})


@pytest.mark.parametrize("decision", ["commit", "abort"])
def test_a_later_live_writer_outside_holds_the_step_back(store: Store, world: World, b: Branch, decision: str) -> None:
    e1 = committed(store, world, "X", "A")
    later = world.put(b, "X", "B")
    agree(store, ask(store, e1))
    report = store.compensate(world.handlers())
    assert blocked_by(report) == {e1.id: {later.id}}
    if decision == "commit":
        store.commit(b)
        (failure,) = store.compensate(world.handlers()).failed
        assert (failure.kind, failure.writer) == ("conflict", later.id)
    else:
        b.abort(reason="contradicted")
        assert store.compensate(world.handlers()).clean
        assert (world.undone(), world.facts()) == (["X", "X"], {})


def test_the_order_holds_over_all_unfinished_rollbacks(store: Store, world: World, b: Branch) -> None:
    """A doomed later writer of another rollback is undone first, whatever its rollback."""
    e1 = committed(store, world, "X", "A")
    second = world.put(b, "X", "B", label="second")
    b.abort(reason="contradicted")
    rollback = ask(store, e1)
    agree(store, rollback)
    assert store.compensate(world.handlers(), rollback=rollback).completed == ()
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), second.id > e1.id) == (["second", "X"], True)


def test_later_writers_in_the_set_are_undone_first_and_no_conflict(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A", label="one")
    e2 = committed(store, world, "X", "B", label="two", reads="X")
    rollback = ask(store, e1)
    assert set(rollback.effects) == ids(e1, e2)
    agree(store, rollback)
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), world.facts()) == (["two", "one"], {})


def test_a_failed_inverse_blocks_what_it_rested_on_though_that_was_committed_before(store: Store, world: World) -> None:
    """The order among committed members comes from the log (I13)."""
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "Y", "B", reads="X")
    rollback = ask(store, e1)
    agree(store, rollback)
    report = store.compensate(world.handlers({"Y": RuntimeError("down")}))
    assert (blocked_by(report), world.facts()) == ({e1.id: {e2.id}}, {"X": "A", "Y": "B"})
    rollback.refresh().retry(e2, by="ops", reason="it is up again")
    assert store.compensate(world.handlers()).clean


def test_a_deferred_effect_of_the_set_that_has_not_run_never_will(store: Store, world: World, b: Branch) -> None:
    e1 = committed(store, world, "X", "A")
    mail = b.register("send", {}, mode="deferred", inverse=Inverse("undo", {}), after=e1)
    store.commit(b)
    rollback = ask(store, e1)
    assert set(rollback.effects) == ids(e1, mail)
    agree(store, rollback)
    assert store.outbox.claim("b") is None
    report = store.compensate(world.handlers())
    assert (report.clean, report.discarded, list(store.outbox.pending())) == (True, (mail.id,), [])
    assert states(store, mail) == ["committed"]
    store.verify()


def test_a_deferred_effect_that_ran_is_undone(store: Store, world: World, b: Branch) -> None:
    mail = b.register("put", {}, mode="deferred", writes="M", inverse=world.inverse_of("M"))
    store.commit(b)
    delivery = store.outbox.claim("b")
    assert delivery is not None
    world["M"] = "sent"
    delivery.effect.done(None)
    reader = committed(store, world, "N", "R", reads="M")
    rollback = ask(store, mail)
    assert set(rollback.effects) == ids(mail, reader)
    agree(store, rollback)
    assert store.compensate(world.handlers()).clean
    assert (world.undone(), world.facts()) == (["N", "M"], {})


def test_it_survives_a_restart_at_every_stage(open_store: OpenStore, world: World) -> None:
    store = open_store()

    def again() -> Store:
        nonlocal store
        store.verify()
        store.close()
        store = open_store()
        store.verify()
        return store

    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "Y", "B", reads="X")
    live = world.put(store.branch("C"), "Z", 1, reads="Y")
    rollback = ask(again(), e1)
    plan = rollback.plan()
    assert again().rollback(rollback.id).plan() == plan
    agree(again(), store.rollback(rollback.id))
    assert states(again(), e1, e2, live) == ["committed", "committed", "doomed"]
    with pytest.raises(DirtyKeyError):
        world.put(store.branch("D"), "X", 1)
    step = again().claim("C")
    assert step is not None
    world.put_back(step.args, step)
    step.complete()
    report = again().compensate(world.handlers())
    assert (report.clean, members(report)) == (True, sorted(ids(e1, e2, live)))
    again()
    assert (states(store, e1, e2), world.facts()) == (["committed"] * 2, {})
    assert store.rollback(rollback.id).state == "in_review"
    with pytest.raises(DoomedDependencyError):
        world.put(store.branch("E"), "Q", 1, after=e1)


def test_memory_and_log_agree_after_many_settled_effects(open_store: OpenStore, world: World) -> None:
    """The liveness table is folded between the request and its end, so a start reads a part of the log only."""
    store = open_store()
    e1 = committed(store, world, "X", "A")
    busy = store.branch("busy")

    def churn() -> None:
        for _ in range(5):
            calls = [_call(busy) for _ in range(1000)]
            for effect in store.register_many(calls):
                effect.done(None)
            store.commit(busy)

    rollback = ask(store, e1)
    churn()
    agree(store, rollback)
    churn()
    store.close()
    store = open_store()
    store.verify()
    assert store.compensate(world.handlers()).clean
    store.close()
    open_store().verify()


def _call(branch: Branch) -> Any:
    return Registration("put", {}, branch=branch, inverse=Inverse("undo", {}), after=())


def test_t1_only_a_governed_rollback_ever_holds_a_committed_effect(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A")
    b = store.branch("B")
    e2 = world.put(b, "Y", 1, reads="X")
    answer = store.reconcile(abort=[e1, b], reason="contradicted")
    assert (answer.kept, answer.doomed) == ((e1.id,), (e2.id,))
    ask(store, e1)
    store.compensate(world.handlers())
    for rollback in store.rollbacks():
        held = {store.effect(effect).state for effect in rollback.effects}
        assert rollback.governed or held <= {"doomed"}


# A deferred call that fails for good


def test_a_failed_deferred_call_asks_for_what_rests_on_it(store: Store, world: World, a: Branch) -> None:
    first = a.register("first", {}, mode="deferred", inverse=Inverse("undo", {}))
    second = a.register("second", {}, mode="deferred", inverse=Inverse("undo", {}), after=first)
    store.commit(a)
    delivery = store.outbox.claim("a")
    assert delivery is not None
    delivery.effect.not_run("the address does not exist")
    (rollback,) = store.rollbacks()
    assert (set(rollback.effects), rollback.trigger, rollback.state) == (
        ids(first, second),
        "automatic",
        "awaiting_approval",
    )
    agree(store, rollback)
    assert store.rollback(rollback.id).report.discarded == (first.id, second.id)
    assert (states(store, first, second), list(store.outbox.pending())) == (["committed"] * 2, [])
    store.verify()


def test_a_denied_run_asks_for_what_rests_on_it_and_nothing_else(store: Store, a: Branch) -> None:
    mail = a.register("send", {}, reversibility="irreversible")
    behind = a.register("log", {}, inverse=Inverse("undo", {}), after=mail)
    alone = a.register("send", {"n": 2}, reversibility="irreversible", after=())
    store.commit(a)
    for approval in list(store.approvals(kind="effect")):
        approval.deny(by="ops", reason="wrong text")
    (rollback,) = store.rollbacks()
    assert (set(rollback.effects), alone.id in rollback.effects) == (ids(mail, behind), False)


def test_two_processes_ask_agree_and_undo(open_store: OpenStore, world: World, child: Any) -> None:
    store = open_store()
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "Y", "B", reads="X")
    asker = child(
        """
        import sys, effectstore
        with effectstore.open(sys.argv[1]) as store:
            print(store.request_rollback(int(sys.argv[3]), by="judge", reason="wrong").id, flush=True)
        """,
        e1.id,
    )
    out, err = asker.communicate(timeout=60)
    assert out, err
    rollback = store.rollback(int(out))
    assert set(rollback.effects) == ids(e1, e2)
    agree(store, rollback)
    worker = child(
        """
        import sys, effectstore
        from world import World
        world = World(sys.argv[2])
        with effectstore.open(sys.argv[1]) as store:
            print(store.compensate(world.handlers()).clean, flush=True)
        """
    )
    out, err = worker.communicate(timeout=60)
    assert out == "True\n", err
    assert (world.undone(), world.facts(), rollback.refresh().state) == (["Y", "X"], {}, "in_review")
    store.verify()
