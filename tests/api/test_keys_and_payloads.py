"""Keys and payloads: exact bytes, one item or many, deterministic encoding, and refusals that name the place."""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from effectstore import Branch, Effect, EffectStoreError, Inverse, PayloadError, Store
from support import OpenStore
from world import World

UNDO = Inverse("undo", {})


def put(branch: Branch, args: Any = None, **options: Any) -> Effect:
    return branch.register("put", args, inverse=UNDO, **options)


@pytest.mark.parametrize("key", ["config/X", "é", b"config/X", b"\xff\x00"])
@pytest.mark.parametrize("field", ["reads", "writes"])
def test_a_lone_key_is_one_item_and_never_its_characters(a: Branch, key: str | bytes, field: str) -> None:
    effect = put(a, **{field: key})
    text = key if isinstance(key, str) else os.fsdecode(key)
    assert getattr(effect, field) == (text,)


def test_a_lone_branch_name_is_one_item(store: Store, a: Branch) -> None:
    store.branch("long name")
    effect = store.branch("l").register("put", {}, inverse=UNDO).done(None)
    assert store.reconcile(abort="long name", reason="contradicted").doomed == ()
    assert store.effect(effect.id).state == "live"


def test_a_lone_observed_key_and_a_lone_effect_are_one_item(a: Branch, b: Branch) -> None:
    effect = put(a, writes="config/X").done(None)
    (observation,) = b.observe("config/X")
    assert (observation.key, observation.writers) == ("config/X", (effect.id,))
    assert put(b, after=effect).after == put(b, after=[effect.id]).after == (effect.id,)


@pytest.mark.parametrize("many", [list, tuple, set, frozenset, iter, lambda keys: dict.fromkeys(keys, 0)])
def test_keys_may_be_any_iterable(a: Branch, many: Callable[[list[str]], Any]) -> None:
    effect = put(a, reads=many(["X", "Y"]))
    assert set(effect.reads) == {"X", "Y"}


def test_a_key_is_the_same_as_text_and_as_bytes(store: Store, a: Branch, b: Branch) -> None:
    writer = put(a, writes=b"caf\xc3\xa9").done(None)
    (observation,) = b.observe("café")
    assert observation.writers == (writer.id,)
    assert store.effect(writer.id).writes == ("café",)


@pytest.mark.parametrize("raw", [b"\xff", b"a\x80b", bytes(range(1, 256)), b"\xed\xa0\x80"])
def test_bytes_that_are_no_text_come_back_with_surrogateescape(store: Store, a: Branch, b: Branch, raw: bytes) -> None:
    effect = put(a, writes=raw).done(None)
    (key,) = store.effect(effect.id).writes
    assert isinstance(key, str)
    assert key.encode("utf-8", "surrogateescape") == raw
    assert b.observe(key)[0].writers == (effect.id,)


def test_a_key_named_twice_counts_once(a: Branch) -> None:
    assert put(a, writes=["X", b"X", "X"]).writes == ("X",)


@pytest.mark.parametrize("key", [1, None, 1.5, ["X"], bytearray(b"X")])
def test_what_is_no_key_is_refused_with_nothing_stored(store: Store, a: Branch, key: Any) -> None:
    with pytest.raises((TypeError, EffectStoreError)):
        put(a, writes=[key])
    assert list(store.effects()) == []


VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "zero": 0,
    "big": 2**64,
    "bigger": -(2**200),
    "float": 10.0,
    "tiny": 5e-324,
    "infinity": float("inf"),
    "text": "a\0b \U0001f9ea é",
    "bytes": b"\x00\xff",
    "datetime": datetime(2026, 11, 30, 12, 30, 15, 250_000, tzinfo=UTC),
    "datetime with zone": datetime(2026, 11, 30, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "decimal": Decimal("10.10"),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "list": [1, [2, [3]]],
    "dict": {"b": 1, "a": {"c": [None, True]}},
    "empty": {"list": [], "dict": {}, "text": "", "bytes": b""},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_payloads_come_back_equal_and_of_the_same_type(store: Store, a: Branch, value: Any) -> None:
    effect = a.register("put", {"v": value}, inverse=Inverse("undo", {"v": value})).done(value)
    found = store.effect(effect.id)
    assert found.inverse is not None
    for back in (found.args["v"], found.inverse.args["v"], found.result):
        assert (back, type(back)) == (value, type(value))


def test_nan_and_negative_zero_come_back(store: Store, a: Branch) -> None:
    effect = put(a, {"nan": float("nan"), "minus": -0.0})
    back = store.effect(effect.id).args
    assert back["nan"] != back["nan"]
    assert str(back["minus"]) == "-0.0"


def test_tuples_come_back_as_lists(store: Store, a: Branch) -> None:
    assert store.effect(put(a, {"v": (1, (2,))}).id).args == {"v": [1, [2]]}


def test_later_changes_of_the_object_do_not_count(store: Store, a: Branch) -> None:
    args: dict[str, Any] = {"v": [1]}
    effect = put(a, args)
    args["v"].append(2)
    assert effect.args == store.effect(effect.id).args == {"v": [1]}
    effect.args["v"].append(3)
    assert store.effect(effect.id).args == {"v": [1]}


def test_the_encoding_is_deterministic(store: Store, a: Branch) -> None:
    one, two = put(a, {"b": 1, "a": [1, 2]}), put(a, {"a": [1, 2], "b": 1})
    other = put(a, {"a": [1.0, 2], "b": 1})
    cbor = [store.effect(effect.id).args_cbor for effect in (one, two, other)]
    assert isinstance(cbor[0], bytes)
    assert cbor[0] == cbor[1] != cbor[2]


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int


REFUSED: dict[str, tuple[Any, str]] = {
    "object": ({"x": object()}, "x"),
    "set": ({"a": {"b": {1, 2}}}, "b"),
    "enum": ({"a": [0, Colour.RED]}, "1"),
    "dataclass": ({"deep": [{"point": Point(1)}]}, "point"),
    "naive datetime": ({"when": datetime(2026, 1, 1)}, "when"),
    "key that is no text": ({"m": {1: 2}}, "m"),
    "function": ({"f": len}, "f"),
    "complex": ({"z": 1j}, "z"),
}


@pytest.mark.parametrize(("value", "place"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("where", ["args", "inverse"])
def test_anything_else_is_refused_with_its_path_and_without_its_value(
    store: Store, a: Branch, value: Any, place: str, where: str
) -> None:
    args, undone_with = (value, {}) if where == "args" else ({}, value)
    with pytest.raises(PayloadError) as refusal:
        a.register("put", args, inverse=Inverse("undo", undone_with))
    assert place in refusal.value.path
    assert refusal.value.reason
    assert isinstance(refusal.value, ValueError)
    assert "object at 0x" not in str(refusal.value)
    assert list(store.effects()) == []


def test_encode_is_called_with_what_is_not_plain(open_store: OpenStore) -> None:
    seen: list[Any] = []

    def encode(value: Any) -> Any:
        seen.append(value)
        if isinstance(value, Point):
            return dataclasses.asdict(value)
        if isinstance(value, Colour):
            return value.name
        raise TypeError(type(value).__name__)

    store = open_store(encode=encode)
    branch = store.branch("A")
    effect = branch.register("put", {"p": Point(1), "c": [Colour.RED]}, inverse=UNDO).done(Point(2))
    assert store.effect(effect.id).args == {"p": {"x": 1}, "c": ["RED"]}
    assert store.effect(effect.id).result == {"x": 2}
    assert len(seen) == 3
    with pytest.raises(PayloadError) as refusal:
        branch.register("put", {"o": [object()]}, inverse=UNDO)
    assert "o" in refusal.value.path


def test_a_result_that_cannot_be_stored_leaves_the_outcome_unknown(store: Store, world: World, a: Branch) -> None:
    effect = world.put(a, "X", 1, report=False)
    with pytest.raises(PayloadError):
        effect.done(object())
    assert store.effect(effect.id).outcome == "unknown"
    assert effect.done("shorter").result == "shorter"


def test_errors_are_stored_shortened(store: Store, world: World, a: Branch) -> None:
    effect = world.put(a, "X", 1, report=False)
    effect.not_run(ValueError("x" * 1_000_000))
    told = str(store.explain(effect.id))
    assert "ValueError" in told
    assert len(told) < 100_000


def test_an_empty_key_given_bare_is_a_key_like_any_other(store: Store) -> None:
    """I12: a lone key is one item, the empty one too; dropping it would lose the edge."""
    a, b = store.branch("A-empty"), store.branch("B-empty")
    write = a.register("write", writes="", inverse=Inverse("undo", None))
    write.done(None)
    read = b.register("read", reads="", inverse=Inverse("undo", None))
    assert store.effect(write.id).writes == ("",)
    assert write.id in store.effect(read.id).rests_on
