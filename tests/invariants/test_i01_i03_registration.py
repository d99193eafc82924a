"""I1 to I3: edges are fixed, the intent is durable before the tool may act, and every effect says how it is undone."""

from __future__ import annotations

import signal

import pytest

from effectstore import (
    ApprovalRequiredError,
    DoomedDependencyError,
    Inverse,
    InverseRequiredError,
    IrreversibleBeforeFenceError,
    NotFoundError,
    Policy,
    RefusedError,
    Store,
)
from support import Child, OpenStore
from world import World, ids, states


def test_i01_edges_are_fixed_once_the_outcome_is_known(store: Store, world: World) -> None:
    """A deploy has ended; a later writer of what it read cannot become its ancestor any more."""
    config, deploy, late = store.branch("config"), store.branch("deploy"), store.branch("late")
    e1 = world.put(config, "X", 1)
    e2 = world.put(deploy, "D", 2, reads="X")
    closure = store.decide(e2).closure
    e3 = world.put(late, "X", 9, reads="X")
    assert store.decide(e2).closure == closure
    with pytest.raises(RefusedError):
        e2.observe("X")
    assert store.reconcile(abort=late, reason="contradicted").doomed == (e3.id,)
    assert states(store, e1, e2, e3) == ["live", "live", "doomed"]


def test_i01_every_edge_names_an_effect_that_exists(store: Store) -> None:
    branch = store.branch("A")
    for missing in (10**12, [10**12, 10**13]):
        with pytest.raises((NotFoundError, DoomedDependencyError)):
            branch.register("put", {}, after=missing, inverse=Inverse("undo", {}))
    with pytest.raises(RefusedError):
        branch.register("put", {}, reads={"X": 10**12}, inverse=Inverse("undo", {}))
    assert list(store.effects()) == []


def test_i01_a_void_effect_leaves_its_place_to_what_it_rested_on(store: Store, world: World) -> None:
    """B rested on A's failed call; it now rests on what A had before, and falls with that."""
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1)
    e2 = world.put(a, "Y", 1, report=False)
    e3 = world.put(b, "Z", 1, after=e2)
    e2.not_run("refused by the server")
    assert states(store, e2, e3) == ["void", "live"]
    assert store.reconcile(abort=e1, reason="contradicted").cascaded == (e3.id,)


def test_i01_whoever_named_the_version_of_a_void_effect_is_doomed(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Z", 1, reads={"X": e1.id})
    e1.not_run("refused by the server")
    assert states(store, e1, e2) == ["void", "doomed"]


REGISTER_AND_DIE = """
    import os, signal, sys
    import effectstore
    from effectstore import Inverse

    store = effectstore.open(sys.argv[1])
    branch = store.branch(sys.argv[3])
    first = branch.register("put", {"n": 0}, writes="X" + sys.argv[3], inverse=Inverse("undo", {"n": 0}))
    second = branch.register("put", {"n": 1}, reads="X" + sys.argv[3], inverse=Inverse("undo", {"n": 1}))
    os.write(1, f"{first.id} {second.id}".encode())
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_i02_what_lets_the_tool_act_is_already_durable(open_store: OpenStore, child: Child) -> None:
    """The process dies right after register has answered: effect, edge and inverse are there."""
    for round_ in range(15):
        process = child(REGISTER_AND_DIE, f"B{round_}")
        output, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, errors
        first, second = map(int, output.split())
        store = open_store()
        found = store.effect(second)
        assert (found.args, found.after, found.outcome) == ({"n": 1}, (first,), "unknown")
        assert found.inverse is not None
        assert (found.inverse.tool, found.inverse.args) == ("undo", {"n": 1})
        assert store.reconcile(abort=first, reason="crashed").cascaded == (second,)
        store.close()


def test_i03_an_effect_without_inverse_is_refused_unless_declared(store: Store) -> None:
    branch = store.branch("A")
    with pytest.raises(InverseRequiredError) as refusal:
        branch.register("send", {})
    assert refusal.value.tool == "send"
    declared = branch.register("send", {}, reversibility="irreversible")
    assert (declared.reversibility, declared.mode) == ("irreversible", "deferred")


def test_i03_the_policy_may_waive_the_inverse_and_the_report_says_so(open_store: OpenStore) -> None:
    store = open_store(policy=Policy(require_inverse=False))
    branch = store.branch("A")
    effect = branch.register("send", {}).done(None)
    answer = branch.abort(reason="contradicted")
    assert answer.rollback is not None
    approval = answer.rollback.refresh().approvals
    for waiting in approval:  # No inverse: a person, with a written reason.
        assert store.approval(waiting).reason_required
        store.approval(waiting).approve(by="ops", reason="nothing can be done")
    report = store.compensate({})
    assert [(failure.effect, failure.kind) for failure in report.failed] == [(effect.id, "not_compensable")]
    assert report.clean is False


def test_i03_an_irreversible_effect_acts_only_after_its_fence_and_an_approval(store: Store, world: World) -> None:
    """A mail waits for the commit of what it speaks of, and then for a person."""
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1)
    mail = b.register("send", {"to": "all"}, after=e1, reversibility="irreversible")
    sent: list[int] = []
    handlers = {"send": lambda args, *_: sent.append(1)}
    assert store.outbox.run(handlers) == ()
    a.seal()
    fence = store.commit(b)
    assert fence.status == "committed"
    assert set(fence.committed) == ids(e1, mail)
    assert store.outbox.run(handlers) == ()
    assert sent == []
    (approval,) = store.approvals()
    assert (approval.kind, approval.subject, approval.state) == ("effect", mail.id, "pending")
    approval.approve(by="ops", reason="checked the text")
    assert [effect.id for effect in store.outbox.run(handlers)] == [mail.id]
    assert (sent, store.effect(mail.id).outcome, store.effect(e1.id).state) == ([1], "done", "committed")


def test_i03_an_irreversible_effect_starts_early_only_under_an_approval(store: Store) -> None:
    branch = store.branch("A", agent="a")
    with pytest.raises(IrreversibleBeforeFenceError):
        branch.register("send", {"n": 1}, reversibility="irreversible", mode="eager")
    approval = branch.request_approval("send", {"n": 1}, by="a", reason="urgent")
    with pytest.raises(ApprovalRequiredError):
        branch.register("send", {"n": 1}, reversibility="irreversible", mode="eager", approval=approval)
    approval.approve(by="ops", reason="go")
    early = branch.register("send", {"n": 1}, reversibility="irreversible", mode="eager", approval=approval)
    assert (early.mode, early.state) == ("eager", "live")


def test_i03_an_approval_for_one_call_does_not_cover_another(store: Store) -> None:
    branch = store.branch("A", agent="a")
    approval = branch.request_approval("send", {"n": 1}, by="a", reason="urgent").approve(by="ops", reason="go")
    with pytest.raises(RefusedError):
        branch.register("send", {"n": 2}, reversibility="irreversible", mode="eager", approval=approval)
    assert list(store.effects()) == []


def test_i03_the_policy_may_waive_the_approval_by_name(open_store: OpenStore) -> None:
    store = open_store(policy=Policy(irreversible="after-fence"))
    branch = store.branch("A", agent="a")
    mail = branch.register("send", {}, reversibility="irreversible")
    assert store.outbox.claim("a") is None
    store.commit(branch)
    delivery = store.outbox.claim("a")
    assert delivery is not None
    assert delivery.effect.id == mail.id
