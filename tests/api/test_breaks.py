"""BREAK: doom, notices and inboxes, acknowledgements and their escalation, the order of upstream agents."""

from __future__ import annotations

import json

import pytest

from effectstore import (
    BranchClosedError,
    DoomedBranchError,
    NotFoundError,
    OptionsError,
    StaleTokenError,
    Store,
)
from support import Child, OpenStore
from world import FakeClock, World, ids, states


def told(store: Store, *agents: str) -> dict[str, int]:
    """How many notices are in each inbox."""
    return {agent: len(list(store.inbox(agent))) for agent in agents}


def test_a_break_stops_its_branch_until_it_resumes(store: Store, world: World) -> None:
    a = store.branch("A", agent="a")
    kept, lost = store.branch("B", agent="b"), world.put(a, "X", 1)
    other = world.put(kept, "Y", 1)
    settled = store.signal_break(a, severity="transient", reason="lost", recoverable=True)
    assert (set(settled.doomed), settled.cascaded) == (ids(lost), ())
    assert states(store, lost, other) == ["doomed", "live"]
    with pytest.raises(DoomedBranchError):
        world.put(a, "Z", 1)
    assert store.compensate(world.handlers()).clean
    world.put(a.resume(), "X", 2)


def test_an_unrecoverable_break_forbids_to_resume_on_every_level(store: Store, world: World) -> None:
    parent = store.branch("P", agent="p")
    child = store.branch("P/1", parent=parent, agent="c")
    world.put(child, "X", 1)
    store.signal_break("P", severity="catastrophic", reason="poisoned", recoverable=False)
    for branch in (parent, child):
        with pytest.raises(BranchClosedError):
            branch.resume()
        with pytest.raises(BranchClosedError):
            store.takeover(branch.name).resume()
    assert told(store, "p", "c") == {"p": 1, "c": 1}


def test_a_break_of_a_child_leaves_its_parent(store: Store, world: World) -> None:
    parent = store.branch("P", agent="p")
    above = world.put(parent, "X", 1)
    child = store.branch("P/1", parent=parent, agent="c")
    below = world.put(child, "Y", 1)
    store.signal_break(child, severity="permanent", reason="lost", recoverable=False)
    assert states(store, above, below) == ["live", "doomed"]
    assert (parent.refresh().state, told(store, "p", "c")) == ("open", {"p": 0, "c": 1})


def test_a_break_of_a_merged_or_settled_branch_comes_too_late(store: Store, world: World) -> None:
    parent = store.branch("P", agent="p")
    child = store.branch("P/1", parent=parent)
    world.put(child, "Y", 1)
    child.merge()
    empty = store.branch("E")
    empty.abort(reason="not needed")
    for name in ("P/1", "E"):
        with pytest.raises(BranchClosedError):
            store.signal_break(name, severity="permanent", reason="lost", recoverable=True)


def test_a_second_break_tells_again_and_decides_nothing_anew(store: Store, world: World) -> None:
    a = store.branch("A", agent="a")
    world.put(a, "X", 1)
    first = store.signal_break("A", severity="transient", reason="lost", recoverable=True)
    again = store.signal_break("A", severity="permanent", reason="lost for good", recoverable=False)
    assert (again.doomed, again.rollback) == ((), None)
    assert first.rollback is not None
    assert again.rollbacks == (first.rollback.id,)
    assert [notice.severity for notice in store.inbox("a")] == ["transient", "permanent"]
    with pytest.raises(BranchClosedError):
        a.resume()


def test_a_branch_object_is_checked_for_its_token_and_a_name_is_not(store: Store, world: World) -> None:
    a = store.branch("A", agent="a")
    effect = world.put(a, "X", 1)
    store.takeover("A")
    with pytest.raises(StaleTokenError):
        store.signal_break(a, severity="transient", reason="a zombie", recoverable=True)
    assert (states(store, effect), told(store, "a")) == (["live"], {"a": 0})
    (shown,) = store.branches(agent="a")
    assert store.signal_break(shown, severity="transient", reason="lost", recoverable=True).doomed


def test_odd_arguments_are_refused_and_nothing_is_stored(store: Store) -> None:
    store.branch("A", agent="a")
    records = len(list(store.log()))
    for wrong in ({"severity": "bad"}, {"upstream": ["a"]}, {"upstream": [""]}, {"ack_within": 0}):
        asked = {"severity": "transient", "reason": "lost", "recoverable": True, **wrong}
        with pytest.raises(OptionsError):
            store.signal_break("A", **asked)  # type: ignore[arg-type]  # Wrong on purpose.
    with pytest.raises(NotFoundError):
        store.signal_break("nobody", severity="transient", reason="lost", recoverable=True)
    assert len(list(store.log())) == records


def test_an_inbox_survives_a_restart_and_loses_what_is_acknowledged(open_store: OpenStore, world: World) -> None:
    store = open_store()
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    world.put(a, "X", 1)
    world.put(b, "Y", 1, reads="X")
    store.signal_break("A", severity="permanent", reason="drift", recoverable=False, upstream="c")
    before = [notice.to_dict() for notice in store.inbox("b")]
    (mine,) = store.inbox("a")
    assert mine.ack().acknowledged
    assert mine.ack().acknowledged
    store.close()
    store = open_store()
    assert told(store, "a", "b", "c") == {"a": 0, "b": 1, "c": 1}
    (notice,) = store.inbox("b")
    assert [notice.to_dict()] == before
    assert not notice.refresh().acknowledged
    assert (notice.kind, notice.branch, notice.recoverable) == ("break", "A", False)
    store.verify()


def test_a_crash_between_signal_and_acknowledgement_loses_neither(open_store: OpenStore, child: Child) -> None:
    signaller = child(
        """
        import os, sys, effectstore
        store = effectstore.open(sys.argv[1])
        store.branch("A", agent="a")
        store.signal_break("A", severity="permanent", reason="drift", recoverable=True, ack_within=3600)
        print([notice.id for notice in store.inbox("a")], flush=True)
        os._exit(9)
        """
    )
    shown = json.loads(signaller.stdout.readline())
    signaller.wait(timeout=60)
    taker = child(
        """
        import os, sys, effectstore
        store = effectstore.open(sys.argv[1])
        for notice in store.inbox("a"):
            notice.ack()
        os._exit(9)
        """
    )
    assert len(shown) == 1
    assert taker.wait(timeout=60) == 9
    store = open_store()
    assert told(store, "a") == {"a": 0}
    assert list(store.alerts()) == []


@pytest.mark.parametrize(("severity", "loud"), [("transient", "warning"), ("catastrophic", "critical")])
def test_an_escalation_is_as_loud_as_the_break_is_bad(timed: Store, clock: FakeClock, severity: str, loud: str) -> None:
    timed.branch("A", agent="a")
    timed.signal_break("A", severity=severity, reason="lost", recoverable=True, ack_within=30)  # type: ignore[arg-type]
    clock.advance(30)
    timed.tick()
    (alert,) = timed.alerts()
    assert (alert.severity, "'a'" in alert.text or '"a"' in alert.text) == (loud, True)
    clock.advance(300)
    timed.tick()
    assert len(list(timed.alerts())) == 1
    (late,) = timed.inbox("a")
    assert late.ack().acknowledged


def test_the_deadline_of_an_acknowledgement_holds_over_a_restart(open_store: OpenStore, clock: FakeClock) -> None:
    store = open_store("timed", clock=clock)
    store.branch("A", agent="a")
    store.signal_break("A", severity="permanent", reason="lost", recoverable=True, ack_within=30)
    store.close()
    clock.advance(31)
    store = open_store("timed", clock=clock)
    store.branch("other")
    assert [alert.severity for alert in store.alerts()] == ["critical"]


def test_upstream_agents_wait_over_a_restart_and_go_on_after_a_repair(open_store: OpenStore, world: World) -> None:
    store = open_store()
    up, down = store.branch("up", agent="up"), store.branch("down", agent="down")
    below, above = world.put(down, "D", 1), world.put(up, "U", 1)
    store.signal_break("down", severity="permanent", reason="lost", recoverable=True, upstream=["up"])
    rollback = up.abort(reason="follows").rollback
    assert rollback is not None
    failed = store.compensate(world.handlers(failing={"D": ValueError("no")}))
    assert [(item.effect, item.by) for item in failed.blocked] == [(above.id, (below.id,))]
    assert not failed.downstream_confirmed
    store.close()
    store = open_store()
    assert store.claim("up") is None
    doomed_by = store.effect(below.id).rollback
    assert doomed_by is not None
    store.rollback(doomed_by).resolve(below.id, by="ops", reason="undone by hand")
    assert store.compensate(world.handlers()).clean
    assert world.undone()[-1] == "U"


def test_inboxes_are_paged_in_id_order(store: Store) -> None:
    for name in range(300):
        store.branch(f"{name}", agent="a")
        store.signal_break(f"{name}", severity="transient", reason="lost", recoverable=False)
    notices = [notice.id for notice in store.inbox("a")]
    assert (len(notices), notices) == (300, sorted(notices))
    assert [notice.id for notice in store.inbox("a", since=notices[9], limit=3)] == notices[10:13]
