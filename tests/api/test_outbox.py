"""The outbox: deferred effects run after their fence, in order, at least once, under one key."""

from __future__ import annotations

from typing import Any

import pytest

from effectstore import (
    ApprovalClosedError,
    Branch,
    DirtyKeyError,
    Effect,
    Inverse,
    KeyBusyError,
    LeaseLostError,
    Policy,
    RefusedError,
    StaleTokenError,
    Store,
)
from support import OpenStore
from world import FakeClock, World, states

UNDO = Inverse("undo", {})


def later(branch: Branch, tool: str = "send", **options: Any) -> Effect:
    options.setdefault("inverse", UNDO)
    return branch.register(tool, {"tool": tool}, mode="deferred", **options)


def test_a_deferred_effect_is_handed_out_only_after_its_fence(store: Store, a: Branch) -> None:
    effect = later(a)
    assert (store.outbox.claim("a"), list(store.outbox.pending())) == (None, [])
    assert store.commit(a).committed == (effect.id,), "a deferred one needs no outcome to be committed"
    assert [found.id for found in store.outbox.pending("a")] == [effect.id]
    delivery = store.outbox.claim("a")
    assert delivery is not None
    assert (delivery.effect.id, delivery.attempt) == (effect.id, 1)
    assert delivery.effect.done("sent").result == "sent"
    assert list(store.outbox.pending()) == []


def test_only_its_agent_gets_it(store: Store, a: Branch) -> None:
    later(a)
    store.commit(a)
    assert store.outbox.claim("somebody else") is None
    assert list(store.outbox.pending("somebody else")) == []


def test_program_order_skips_deferred_effects(world: World, a: Branch) -> None:
    first = world.put(a, "X", 1)
    mail = later(a)
    assert mail.after == (first.id,)
    assert world.put(a, "Y", 1).after == (first.id,)


def test_what_names_a_deferred_one_is_deferred_too(a: Branch) -> None:
    mail = later(a)
    follow = a.register("log", {}, inverse=UNDO, after=mail)
    assert (follow.mode, follow.after) == ("deferred", (mail.id,))


def test_it_is_handed_out_in_dependency_order(store: Store, a: Branch) -> None:
    first = later(a, "first")
    second = later(a, "second", after=first)
    store.commit(a)
    delivery = store.outbox.claim("a")
    assert delivery is not None
    assert delivery.effect.id == first.id
    assert store.outbox.claim("a") is None, "the second waits for the report of the first"
    delivery.effect.done(None)
    following = store.outbox.claim("a")
    assert following is not None
    assert following.effect.id == second.id


def test_it_is_handed_out_at_least_once_under_one_key(timed: Store, clock: FakeClock) -> None:
    branch = timed.branch("A", agent="a")
    later(branch)
    timed.commit(branch)
    first = timed.outbox.claim("a", lease=60)
    assert first is not None
    clock.advance(50)
    renewed = first.renew(60)
    clock.advance(50)
    assert timed.outbox.claim("a") is None
    clock.advance(11)
    second = timed.outbox.claim("a")
    assert second is not None
    assert (second.idempotency_key, second.attempt) == (first.idempotency_key, 2)
    with pytest.raises((LeaseLostError, StaleTokenError)):
        renewed.renew(60)
    second.release()
    third = timed.outbox.claim("a")
    assert third is not None
    assert third.idempotency_key == first.idempotency_key


def test_run_calls_handlers_and_reports(store: Store, a: Branch) -> None:
    effects = [later(a, name, after=()) for name in ("one", "two")]
    store.commit(a)
    ran: list[Any] = []

    def send(args: Any, delivery: Any) -> Any:
        ran.append((args["tool"], delivery.attempt))
        return args

    handlers = dict.fromkeys(("one", "two"), send)
    done = store.outbox.run(handlers)
    assert sorted(effect.id for effect in done) == sorted(effect.id for effect in effects)
    assert sorted(ran) == [("one", 1), ("two", 1)]
    assert {effect.outcome for effect in store.effects()} == {"done"}
    assert store.outbox.run(handlers) == ()


def test_an_aborted_deferred_effect_never_runs(store: Store, a: Branch) -> None:
    effect = later(a)
    answer = a.abort(reason="contradicted")
    assert (answer.doomed, answer.rollback) == ((effect.id,), None)
    assert store.outbox.claim("a") is None


def test_from_its_handing_out_it_counts_as_a_writer(store: Store, world: World, a: Branch, b: Branch) -> None:
    effect = later(a, writes="X")
    store.commit(a)
    assert store.outbox.claim("a") is not None
    with pytest.raises(KeyBusyError) as refusal:
        b.register("put", {}, writes="X", inverse=world.inverse_of("X"))
    assert refusal.value.writers == (effect.id,)


def test_it_is_not_handed_out_while_a_key_that_it_writes_is_dirty(store: Store, world: World, a: Branch) -> None:
    b = store.branch("B", agent="b")
    later(a, writes="X")
    world.put(b, "X", 1)
    store.commit(a)
    b.abort(reason="contradicted")
    assert store.outbox.claim("a") is None
    store.compensate(world.handlers())
    assert store.outbox.claim("a") is not None


def test_writing_what_it_reads_is_busy_until_it_reports(store: Store, world: World, a: Branch, b: Branch) -> None:
    later(a, reads="X")
    store.commit(a)
    delivery = store.outbox.claim("a")
    assert delivery is not None
    with pytest.raises((KeyBusyError, DirtyKeyError)):
        b.register("put", {}, writes="X", inverse=world.inverse_of("X"))
    delivery.effect.done(None)
    assert world.put(b, "X", 1).state == "live"


def test_a_failure_for_good_stays_committed_and_blocks_those_behind_it(store: Store, a: Branch) -> None:
    first = later(a, "first")
    second = later(a, "second", after=first)
    store.commit(a)
    delivery = store.outbox.claim("a")
    assert delivery is not None
    delivery.effect.not_run("the address does not exist")
    assert states(store, first, second) == ["committed", "committed"]
    assert store.outbox.claim("a") is None
    asked = [rollback for rollback in store.rollbacks() if second.id in rollback.effects]
    assert asked, "a rollback is requested for what was committed with it and rests on it"


def test_a_denied_approval_blocks_it_for_good(store: Store, a: Branch) -> None:
    mail = a.register("send", {}, reversibility="irreversible")
    store.commit(a)
    (approval,) = store.approvals()
    approval.deny(by="ops", reason="wrong text")
    assert store.outbox.claim("a") is None
    assert states(store, mail) == ["committed"]
    with pytest.raises(ApprovalClosedError) as refusal:
        approval.approve(by="ops", reason="after all")
    assert (refusal.value.approval, refusal.value.state) == (approval.id, "denied")


def test_it_survives_a_reopen(open_store: OpenStore) -> None:
    store = open_store(policy=Policy(irreversible="after-fence"))
    branch = store.branch("A", agent="a")
    mail = branch.register("send", {"to": "all"}, reversibility="irreversible")
    store.commit(branch)
    store.close()
    store = open_store()
    (ran,) = store.outbox.run({"send": lambda args, delivery: args["to"]})
    assert (ran.id, store.effect(mail.id).result) == (mail.id, "all")


def test_reads_without_a_version_are_resolved_when_it_is_handed_out(store: Store, world: World, a: Branch) -> None:
    """A live, uncommitted writer holds the delivery back: what it reads then must be committed."""
    b = store.branch("B", agent="b")
    later(a, reads="X")
    store.commit(a)
    world.put(b, "X", 1)
    assert store.outbox.claim("a") is None
    store.commit(b)
    assert store.outbox.claim("a") is not None


def test_a_doomed_version_given_at_registration_is_refused(store: Store, world: World, a: Branch) -> None:
    b = store.branch("B")
    e1 = world.put(b, "X", 1)
    b.abort(reason="contradicted")
    with pytest.raises(RefusedError):
        later(a, reads={"X": e1.id})
