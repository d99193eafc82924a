"""Objects are snapshots: equal by store and id, short in print, without a truth value, and never pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from effectstore import Branch, Effect, Inverse, NotFoundError, Retry, StaleTokenError, Store
from support import OpenStore
from world import World

SECRET = "canary-5b1d"


def everything(store: Store, world: World) -> dict[str, Any]:
    """One object of each kind that a store hands out."""
    a, b, c = store.branch("A", agent="a"), store.branch("B", agent="b"), store.branch("C", agent="c")
    args = {"token": SECRET}
    undo = Inverse("undo", {"token": SECRET})
    first = a.register("first", args, writes="X", inverse=undo).done(SECRET)
    second = b.register("second", args, writes="Y", inverse=undo).done(SECRET)
    mail = c.register("mail", args, reversibility="irreversible")
    fence = store.commit(a)
    mail_fence = store.commit(c)
    reconciliation = b.abort(reason="contradicted")
    step = store.claim("b")
    found = {
        "branch": a.refresh(),
        "effect": second,
        "read effect": store.effect(first.id),
        "mail": mail,
        "fence": fence,
        "other fence": mail_fence,
        "decision": store.decide(first),
        "reconciliation": reconciliation,
        "rollback": reconciliation.rollback,
        "step": step,
        "approval": next(iter(store.approvals())),
        "log record": next(iter(store.log())),
        "inverse": undo,
        "retry": Retry(),
    }
    assert all(value is not None for value in found.values())
    return found


def test_repr_is_one_line_without_payloads(store: Store, world: World) -> None:
    for name, value in everything(store, world).items():
        text = repr(value)
        assert "\n" not in text, name
        assert SECRET not in text, name
        assert len(text) < 400, name


def test_repr_of_an_effect_names_id_tool_branch_and_state(a: Branch) -> None:
    effect = a.register("deploy", {"v": 1}, inverse=Inverse("undo", {})).done(None)
    assert repr(effect) == f"<Effect {effect.id} deploy on A: live, done>"


def test_repr_of_odd_names_stays_one_line(store: Store) -> None:
    branch = store.branch("a\nb\x1b[31m")
    effect = branch.register("x\ny", {}, inverse=Inverse("undo", {}))
    for value in (branch, effect):
        assert "\n" not in repr(value)
        assert "\x1b" not in repr(value)


def test_results_have_no_truth_value(store: Store, world: World) -> None:
    found = everything(store, world)
    report = store.compensate({"undo": lambda args, step: None})
    for value in (found["fence"], found["decision"], found["reconciliation"], report):
        with pytest.raises(TypeError):
            bool(value)
        with pytest.raises(TypeError):
            assert not value


def test_equality_and_hash_go_by_store_and_id_not_by_state(open_store: OpenStore) -> None:
    store, other = open_store("one"), open_store("two")
    made = [where.branch("A").register("put", {}, inverse=Inverse("undo", {})) for where in (store, other)]
    effect, stranger = made
    late = effect.done(None)
    assert (effect.outcome, late.outcome) == ("unknown", "done")
    assert effect == late == store.effect(effect.id)
    assert hash(effect) == hash(late)
    assert {effect: 1}[late] == 1
    assert effect != stranger
    number: object = effect.id
    assert effect != number


def test_branches_are_equal_only_with_the_same_token(store: Store) -> None:
    old = store.branch("A")
    assert old == old.refresh() == old.parallel()
    new = store.takeover("A")
    assert old != new
    assert new == store.join("A", new.token)


def test_a_snapshot_holds_what_was_true_and_refresh_fetches_what_is(store: Store, a: Branch) -> None:
    effect = a.register("put", {}, inverse=Inverse("undo", {}))
    newer = effect.done("result")
    store.commit(a)
    assert (effect.state, effect.outcome) == ("live", "unknown")
    assert (newer.state, newer.outcome, newer.result) == ("live", "done", "result")
    now = effect.refresh()
    assert (now.state, now.outcome, now.result, now.sealed) == ("committed", "done", "result", True)
    for name in ("state", "outcome", "anything"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(effect, name, "other")


def test_objects_bound_to_a_store_refuse_to_pickle_and_say_what_to_carry(store: Store, world: World) -> None:
    found = everything(store, world)
    for name in ("branch", "effect", "fence", "rollback", "step", "approval"):
        carried = found[name].name if name == "branch" else found[name].id
        with pytest.raises(TypeError, match=str(carried)):
            pickle.dumps(found[name])


@pytest.mark.parametrize("payloads", [False, True])
def test_to_dict_is_plain_and_hides_payloads_unless_asked(store: Store, world: World, payloads: bool) -> None:
    found = everything(store, world)
    for name, value in found.items():
        plain = value.to_dict(payloads=payloads)
        assert isinstance(plain, dict), name
        if not payloads:
            assert SECRET not in repr(plain), name
    assert (SECRET in repr(found["effect"].to_dict(payloads=True))) is True


PLAIN: dict[str, Callable[[], Any]] = {
    "inverse": lambda: Inverse("undo", {"n": [1, b"x"]}, compare_and_set=True, deadline=timedelta(hours=1)),
    "steps": lambda: Inverse.steps([Inverse("a", {}), Inverse("b", {})]),
    "manual": lambda: Inverse.manual("ring"),
    "retry": lambda: Retry(max_attempts=2, delay=0.5),
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN.keys())
def test_plain_values_pickle_and_compare_by_value(make: Callable[[], Any]) -> None:
    assert pickle.loads(pickle.dumps(make())) == make()


def test_decisions_and_reports_pickle(store: Store, world: World, a: Branch) -> None:
    world.put(a, "X", 1)
    decision = store.decide(a)
    a.abort(reason="contradicted")
    report = store.compensate(world.handlers())
    for value in (decision, report):
        assert pickle.loads(pickle.dumps(value)).to_dict() == value.to_dict()


def test_what_comes_from_the_store_is_for_reading(store: Store, a: Branch) -> None:
    effect = a.register("put", {}, inverse=Inverse("undo", {}))
    read = store.effect(effect.id)
    assert (read.token, effect.token is not None) == (None, True)
    verbs: list[Callable[[Effect], Any]] = [
        lambda e: e.done(None),
        lambda e: e.not_run("x"),
        lambda e: e.observe("X"),
        lambda e: e.exposed("customer"),
        lambda e: store.commit(e),
    ]
    for verb in verbs:
        with pytest.raises(StaleTokenError) as refusal:
            verb(read)
        assert refusal.value.held is None
    read.close(by="ops", reason="known to be gone")
    assert a.effect(effect.id).done(None).outcome == "done"
    assert all(found.token is not None for found in a.effects())
    assert all(found.token is None for found in store.effects())


def test_done_needs_its_result(a: Branch) -> None:
    effect = a.register("put", {}, inverse=Inverse("undo", {}))
    with pytest.raises(TypeError):
        effect.done()  # type: ignore[call-arg]
    assert effect.done(None).outcome == "done"


def test_a_branch_is_no_context_manager(a: Branch) -> None:
    with pytest.raises((TypeError, AttributeError)):
        a.__enter__()  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", ["effect", "fence", "rollback", "approval"])
def test_an_unknown_id_is_not_found(store: Store, verb: str) -> None:
    with pytest.raises(NotFoundError) as refusal:
        getattr(store, verb)(10**9)
    assert refusal.value.ref == 10**9
    assert isinstance(refusal.value, LookupError)


def test_an_id_of_another_kind_is_not_found(store: Store, a: Branch) -> None:
    effect = a.register("put", {}, inverse=Inverse("undo", {}))
    for look in (store.fence, store.rollback, store.approval):
        with pytest.raises(NotFoundError):
            look(effect.id)
    with pytest.raises(NotFoundError):
        store.takeover("nobody")


def test_times_are_aware_and_utc(store: Store, world: World, a: Branch) -> None:
    world.put(a, "X", 1, inverse=world.inverse_of("X", deadline=timedelta(hours=1)))
    a.abort(reason="contradicted")
    step = store.claim("a")
    assert step is not None
    times: list[datetime | None] = [step.lease_until, step.deadline, next(iter(store.log())).time]
    for time in times:
        assert time is not None
        assert time.utcoffset() == timedelta(0)
