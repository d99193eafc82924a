"""`explain`: every line is a sentence with labelled parts, and each story tells how it went and how it ended."""

from __future__ import annotations

import re

from effectstore import PermanentError, Store
from governed import agree, ask, committed
from world import World


def told(store: Store, ref: int | str) -> list[str]:
    """The heading and the sentences of a story."""
    heading, *lines = str(store.explain(ref)).splitlines()
    return [heading, *(re.sub(r"^ +\d+  [-\d]+ [:\d]+  ", "", line) for line in lines)]


def test_a_rollbacks_story_names_its_answer_every_step_and_its_alerts(store: Store, world: World) -> None:
    effect = committed(store, world, "X", "A")
    rollback = ask(store, effect)
    agree(store, rollback)
    store.compensate(world.handlers({"X": PermanentError("the ledger is closed")}))
    (alert,) = store.alerts()
    alert.ack(by="ana")
    rollback.refresh().retry(effect, by="ana", reason="it is open again")
    assert store.compensate(world.handlers()).clean
    reason = 'reason: "the advice was wrong"'
    alert_text = alert.text.replace('"', '\\"')
    named, approval = f"effect {effect.id} (put)", rollback.approvals[0]
    assert told(store, rollback.id) == [
        f"The story of rollback {rollback.id}: in review",
        f"rollback {rollback.id} of {named} was asked for by judge (members: 1, committed: 1); {reason}",
        f"approval {approval} for rollback {rollback.id} was asked for by judge; {reason}",
        f'approval {approval} was approved by ops; reason: "agreed"',
        f"rollback {rollback.id} began",
        f"a worker for any agent began to undo {named}",
        f'the undo of {named} failed (permanent): PermanentError: "the ledger is closed"; not tried again by itself',
        f'critical alert {alert.id}: "{alert_text}"',
        f"alert {alert.id} was seen by ana",
        f'ana wants the undo of {named} tried again; reason: "it is open again"',
        f"a worker for any agent began to undo {named}",
        f"a call of the undo of {named} succeeded",
        f"rollback {rollback.id} is finished: 1 undone, 0 never ran",
    ]


def test_a_dooms_sentence_tells_who_was_named_who_was_dragged_along_and_who_stopped(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("release-lead")
    first = world.put(a, "X", 1)
    second = world.put(b, "Y", 1, reads="X")
    rollback = store.reconcile(abort=first, by="judge", reason="wrong").rollback
    assert rollback is not None
    line = told(store, rollback.id)[1]
    assert line == (
        f"decided against by judge: effect {first.id} (put); dragged along: effect {second.id} (put);"
        f' stopped: branch A, branch release-lead; rollback {rollback.id} undoes them; reason: "wrong"'
    )


def test_a_branchs_story_tells_outcomes_and_the_commit(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    done = world.put(branch, "X", 1)
    void = world.put(branch, "Y", 1, report=False)
    void.not_run("refused")
    fence = store.commit(branch)
    lines = told(store, "A")
    assert lines[0] == "The story of branch A, of a: open"
    assert f"effect {done.id} (put) is done" in lines
    assert f'effect {void.id} (put) did not run: NotRunError: "refused"' in lines
    assert f"fence {fence.id} committed effect {done.id} (put)" in lines


def test_a_waiting_fences_story_names_what_is_in_its_way_and_then_its_end(store: Store, world: World) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B")
    below = world.put(a, "X", 1)
    above = world.put(b, "Y", 1, reads="X")
    fence = store.commit(b)
    assert fence.id is not None
    assert repr(fence) == f"<Fence {fence.id}: waiting for 1 blocker, 0 committed>"
    heading = f"The story of fence {fence.id}: waiting for effect {below.id} on branch A, of a, has no vote"
    assert told(store, fence.id)[0] == heading
    a.seal()
    lines = told(store, fence.id)
    assert lines[0] == f"The story of fence {fence.id}: committed"
    assert lines[-1] == f"fence {fence.id} committed effects {below.id} (put), {above.id} (put)"


def test_an_approvals_story_tells_the_answer(store: Store, world: World) -> None:
    rollback = ask(store, committed(store, world, "X", "A"))
    (approval,) = rollback.approvals
    store.approval(approval).deny(by="ops", reason="it was right")
    lines = told(store, approval)
    assert lines[0] == f"The story of approval {approval} for rollback {rollback.id}: denied"
    assert lines[-1] == f'approval {approval} was denied by ops; reason: "it was right"'
