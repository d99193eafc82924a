"""register_many: all or nothing, in order, over several branches, in one durable write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effectstore import Branch, Inverse, KeyBusyError, Registration, Store
from world import World

UNDO = Inverse("undo", {})


def test_an_empty_batch_is_an_empty_list(store: Store) -> None:
    head = [record.seq for record in store.log()]
    assert store.register_many([]) == []
    assert [record.seq for record in store.log()] == head


def test_any_iterable_is_taken_once(store: Store, a: Branch) -> None:
    def calls() -> Iterator[Registration]:
        for number in range(5):
            yield Registration("put", {"n": number}, branch=a, inverse=UNDO)

    assert [effect.args["n"] for effect in store.register_many(calls())] == list(range(5))


def test_a_generator_that_raises_stores_nothing(store: Store, a: Branch) -> None:
    def calls() -> Iterator[Registration]:
        yield Registration("put", {}, branch=a, inverse=UNDO)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        store.register_many(calls())
    assert list(store.effects()) == []


def test_items_of_several_branches_are_siblings_of_their_own_branch(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    before = world.put(a, "X", 1)
    calls = [Registration("put", {}, branch=branch, inverse=UNDO) for branch in (a, b, a, b)]
    assert [effect.after for effect in store.register_many(calls)] == [(before.id,), (), (before.id,), ()]


def test_the_next_call_rests_on_the_whole_batch(store: Store, world: World, a: Branch) -> None:
    batch = store.register_many([Registration("put", {}, branch=a, inverse=UNDO) for _ in range(4)])
    for effect in batch:
        effect.done(None)
    assert set(world.put(a, "X", 1).after) == {effect.id for effect in batch}


@pytest.mark.parametrize("named", ["one", "list", "mixed"])
def test_after_may_name_earlier_items(store: Store, world: World, a: Branch, named: str) -> None:
    early = world.put(a, "X", 1)
    first, second = (Registration("put", {"n": n}, branch=a, inverse=UNDO) for n in range(2))
    after: object = {"one": first, "list": [first, second], "mixed": [early, first]}[named]
    last = Registration("put", {"n": 2}, branch=a, inverse=UNDO, after=after)  # type: ignore[arg-type]
    e1, e2, e3 = store.register_many([first, second, last])
    assert set(e3.after) == {"one": {e1.id}, "list": {e1.id, e2.id}, "mixed": {early.id, e1.id}}[named]


def test_after_may_not_name_a_later_item(store: Store, a: Branch) -> None:
    later = Registration("put", {}, branch=a, inverse=UNDO)
    with pytest.raises((ValueError, LookupError)):
        store.register_many([Registration("put", {}, branch=a, inverse=UNDO, after=later), later])
    assert list(store.effects()) == []


def test_two_writers_of_one_key_in_a_batch_are_busy(store: Store, a: Branch, b: Branch) -> None:
    calls = [Registration("put", {}, branch=branch, writes="X", inverse=UNDO) for branch in (a, b)]
    with pytest.raises(KeyBusyError) as refusal:
        store.register_many(calls)
    assert (refusal.value.index, refusal.value.key) == (1, "X")
    assert list(store.effects()) == []


def test_an_equal_key_twice_in_a_batch_is_one_effect(store: Store, a: Branch) -> None:
    calls = [Registration("put", {"n": 1}, branch=a, idempotency_key="k", inverse=UNDO) for _ in range(2)]
    one, two = store.register_many(calls)
    assert (one.id, one.created, two.created) == (two.id, True, False)
    assert len(list(store.effects())) == 1
