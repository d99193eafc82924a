"""C16: an irreversible effect in the closure, and the border between what runs by itself and what a person answers."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import (
    ApprovalRequiredError,
    Branch,
    Effect,
    IrreversibleBeforeFenceError,
    ReasonRequiredError,
    Rollback,
    Store,
)
from support import OpenStore
from world import World, blocked_by, ids, states

MAIL = {"to": "all"}

# (a) A mail that rests on what can still fall.


def two_branches(store: Store, world: World) -> tuple[Branch, Effect, Branch]:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    return a, world.put(a, "X", 1, label="I1"), b


def send(b: Branch, **options: Any) -> Effect:
    return b.register("send", MAIL, reads="X", reversibility="irreversible", **options)


@pytest.mark.parametrize("named", ["with its version", "not"])
def test_c16a_without_approval_the_mail_does_not_start_until_its_closure_is_committed(
    store: Store, world: World, named: str
) -> None:
    a, e1, b = two_branches(store, world)
    with pytest.raises(IrreversibleBeforeFenceError):
        send(b, mode="eager")
    asked = b.request_approval("send", MAIL, by="b", reason="the customer waits")
    with pytest.raises(ApprovalRequiredError):
        send(b, mode="eager", approval=asked)
    assert list(store.effects(branch="B")) == [], "a refused start leaves an effect behind"

    mail = send(b) if named == "not" else b.register("send", MAIL, reads={"X": e1.id}, reversibility="irreversible")
    sent: list[Any] = []
    handlers = {"send": lambda args, *_: sent.append(args)}

    def tried() -> list[Any]:
        store.outbox.run(handlers)
        return sent

    assert (mail.mode, store.outbox.claim("b"), tried()) == ("deferred", None, [])
    # A version that is named is an edge now; without one the key is looked at when the mail is handed out.
    fence = store.commit(b)
    assert (fence.status, tried()) == ("committed" if named == "not" else "waiting", [])
    if named == "not":
        approve_run(store, mail)
        assert (store.outbox.claim("b"), tried()) == (None, []), "E1 is speculative: its owner has not voted"
    a.seal()
    if named == "not":
        assert store.outbox.claim("b") is None, "a vote is no commit"
        store.commit(a)
    else:
        assert set(store.fence(fence.id).committed) == ids(e1, mail)
        assert tried() == []
        approve_run(store, mail)
    assert (states(store, e1, mail), tried(), store.effect(mail.id).outcome) == (["committed"] * 2, [MAIL], "done")


def approve_run(store: Store, mail: Effect) -> None:
    (run,) = [one for one in store.approvals(state="pending") if one.subject == mail.id]
    assert (run.kind, run.reason_required) == ("effect", True)
    run.approve(by="ops", reason="read the text")


def test_c16a_a_denied_run_leaves_the_rest_of_the_closure_committed(store: Store, world: World) -> None:
    a, e1, b = two_branches(store, world)
    mail = b.register("send", MAIL, reads={"X": e1.id}, reversibility="irreversible")
    a.seal()
    store.commit(b)
    (run,) = store.approvals(state="pending")
    run.deny(by="ops", reason="wrong recipients")
    assert (states(store, e1, mail), store.outbox.claim("b"), world["X"]) == (["committed"] * 2, None, 1)
    (alert,) = store.alerts()
    assert (alert.severity, alert.ref) == ("critical", mail.id)


def started_early(store: Store, world: World) -> tuple[Effect, Effect, Rollback]:
    """E2 runs under a recorded approval while E1 is speculative; then A is aborted."""
    a, e1, b = two_branches(store, world)
    early = b.request_approval("send", MAIL, by="b", reason="the customer waits")
    early.approve(by="ops", reason="go ahead")
    e2 = send(b, mode="eager", approval=early, inverse=world.inverse_of("correction mail", "I2"))
    world.note("tool", "send", MAIL)
    e2.done("sent")
    answer = a.abort(reason="contradicted", by="judge")
    assert answer.rollback is not None
    assert set(answer.doomed) | set(answer.cascaded) == ids(e1, e2)
    return e1, e2, answer.rollback


def test_c16a_the_correction_waits_for_a_human_and_a_written_reason_and_i1_behind_it(
    open_store: OpenStore, world: World
) -> None:
    store = open_store()
    e1, e2, rollback = started_early(store, world)
    assert (set(rollback.effects), rollback.impact().reversibility) == (ids(e1, e2), "irreversible")
    report = store.compensate(world.handlers())
    assert (world.undone(), report.completed, report.clean) == ([], (), False)
    assert store.claim("a") is None, "I1 goes before the mail that rests on it"
    (waiting,) = report.approvals
    for words in (None, "", "  "):
        with pytest.raises(ReasonRequiredError):
            store.approval(waiting).approve(by="ops", reason=words)
    store.close()
    store = open_store()
    store.approval(waiting).approve(by="ops", reason="a correction must go out")
    report = store.compensate(world.handlers())
    assert (world.undone(), report.clean, set(report.completed)) == (["I2", "I1"], True, ids(e1, e2))
    assert [call.tool for call in world.calls()].count("send") == 1
    original = store.effect(e2.id)
    assert (original.tool, original.args, original.result) == ("send", MAIL, "sent"), "the mail has left the audit"
    assert f"effect {e2.id}" in str(store.explain(e2.id))
    store.verify()


def test_c16a_asking_twice_makes_one_request(open_store: OpenStore, world: World) -> None:
    store = open_store()
    _, _, rollback = started_early(store, world)
    (first,) = rollback.approvals
    for _ in range(3):
        assert store.compensate(world.handlers()).approvals == (first,)
        assert store.reconcile(abort="A", reason="again").rollback is None
        assert rollback.request_approval(by="b", reason="please").id == first
    store.close()
    store = open_store()
    assert store.rollback(rollback.id).request_approval(by="b", reason="please").id == first
    assert [one.id for one in store.approvals() if one.kind == "rollback"] == [first]


def test_c16a_denied_the_mail_has_failed_and_nothing_is_clean(open_store: OpenStore, world: World) -> None:
    store = open_store()
    e1, e2, rollback = started_early(store, world)
    store.approval(rollback.approvals[0]).deny(by="ops", reason="no correction goes out")
    store.close()
    store = open_store()
    report = store.compensate(world.handlers())
    assert e2.id in [failure.effect for failure in report.failed if failure.kind == "denied"]
    assert (report.clean, report.completed, world.undone()) == (False, (), [])
    left = {failure.effect for failure in report.failed} | set(blocked_by(report))
    assert left == ids(e1, e2), "something of the set is forgotten"
    assert (store.effect(e2.id).result, world["X"]) == ("sent", 1)


# (b) The border: five entities, then six; and one that can be undone in part only.


def doomed_over(store: Store, world: World, keys: int, *, shape: str) -> Rollback:
    """`keys` entities hit by what one abort dooms, though it names one branch."""
    a = store.branch("A", agent="a")
    if shape == "one effect":
        names = [f"K{number}" for number in range(keys)]
        world.put(a, names[0], 1, writes=names)
    elif shape == "one branch":
        for number in range(keys):
            world.put(a, f"K{number}", 1)
    elif shape == "a cascade":
        world.put(a, "K0", 1)
        for number in range(1, keys):
            world.put(store.branch(f"B{number}"), f"K{number}", 1, reads="K0")
    else:
        for number in [*range(keys), *range(keys)]:
            world.put(a, f"K{number}", 1)
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    return rollback


@pytest.mark.parametrize("shape", ["one effect", "one branch", "a cascade", "each twice"])
@pytest.mark.parametrize(("keys", "alone"), [(5, True), (6, False)])
def test_c16b_five_entities_run_without_a_human_and_six_need_one(
    store: Store, world: World, shape: str, keys: int, alone: bool
) -> None:
    rollback = doomed_over(store, world, keys, shape=shape)
    assert (len(rollback.impact().keys), rollback.impact().reversibility) == (keys, "full")
    report = store.compensate(world.handlers())
    assert (report.clean, report.approvals == (), bool(world.undone())) == (alone, alone, alone)
    if not alone:
        (waiting,) = report.approvals
        assert not store.approval(waiting).reason_required
        store.approval(waiting).approve(by="ops")
        assert store.compensate(world.handlers()).clean
    assert world.facts() == {}


@pytest.mark.parametrize("how", ["declared", "exposed"])
def test_c16b_one_effect_that_can_be_undone_in_part_needs_a_human(store: Store, world: World, how: str) -> None:
    a = store.branch("A", agent="a")
    limitation = "copies may remain" if how == "declared" else None
    effect = world.put(a, "X", 1, inverse=world.inverse_of("X", limitation=limitation))
    if how == "exposed":
        effect.exposed("a customer")
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    assert rollback.impact().reversibility == "partial"
    (waiting,) = store.compensate(world.handlers()).approvals
    assert (world.undone(), store.approval(waiting).state) == ([], "pending")
    store.approval(waiting).approve(by="ops")
    assert store.compensate(world.handlers()).clean


def test_c16b_the_class_of_the_set_is_that_of_its_worst_member_wherever_it_stands(store: Store, world: World) -> None:
    """The abort names a branch of reversible work; what makes a person necessary lies two readers further."""
    a, b, c = (store.branch(name) for name in "ABC")
    world.put(a, "X", 1)
    world.put(b, "Y", 1, reads="X", inverse=world.inverse_of("Y", limitation="a log line stays"))
    world.put(c, "Z", 1, reads="Y")
    rollback = a.abort(reason="contradicted").rollback
    assert rollback is not None
    assert rollback.impact().reversibility == "partial"
    assert (len(store.compensate(world.handlers()).approvals), world.undone()) == (1, [])
