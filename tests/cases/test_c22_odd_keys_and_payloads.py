"""C22: whatever the text and its length, it is stored exactly or refused before the tool runs; no two keys meet."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest

import effectstore
from effectstore import (
    EffectStoreError,
    Inverse,
    LimitExceededError,
    PayloadError,
    Registration,
    Store,
)
from support import OpenStore
from world import World, ids

Key = str | bytes

KEYS: dict[str, Key] = {
    "empty": "",
    "nul": "\0",
    "a-nul-b": "a\0b",
    "a": "a",
    "b": "b",
    "a-nul": "a\0",
    "ab": "ab",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "newline": "a\nb",
    "slash": "a/b",
    "emoji": "\U0001f9ea",
    "raw": b"\xff\xfe\x00\x80",
    "raw-80": b"\x80",
    "510": "k" * 510,
    "511": "k" * 511,
    "512": "k" * 512,
    "10000-x": "k" * 9_999 + "x",
    "10000-y": "k" * 9_999 + "y",
    "600-prefix": "k" * 600,
    "digits": "17",
    "space": " ",
    "upper": "A",
    "lone-surrogate": "\ud800",
}


def as_bytes(key: Key) -> bytes:
    return key if isinstance(key, bytes) else os.fsencode(key)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_c22_a_key_is_stored_exactly_or_refused_before_the_tool_runs(store: Store, world: World, key: Key) -> None:
    branch = store.branch("A")
    ran: list[int] = []
    try:
        branch.call("put", {}, lambda: ran.append(1), reads=[key], writes=[key], inverse=Inverse("put_back", {}))
    except EffectStoreError:
        assert ran == []
        assert list(store.effects()) == []
        return
    (effect,) = store.effects()
    assert (len(effect.writes), len(effect.reads)) == (1, 1)
    assert as_bytes(effect.writes[0]) == as_bytes(effect.reads[0]) == as_bytes(key)


def test_c22_no_two_keys_meet_in_an_abort(store: Store) -> None:
    written, read = {}, {}
    for name, key in KEYS.items():
        try:
            effect = store.branch(f"write {name}").register("put", writes=[key], inverse=Inverse("put_back", {}))
        except EffectStoreError:
            continue
        written[name] = effect.done(None)
    for name in written:
        effect = store.branch(f"read {name}").register("use", reads=[KEYS[name]], inverse=Inverse("nothing", {}))
        read[name] = effect.done(None)
    assert len(written) >= len(KEYS) - 2, "at most the empty key and what is not text may be refused"
    for name in written:
        answer = store.reconcile(abort=f"write {name}", reason="contradicted")
        assert answer.doomed == (written[name].id,)
        assert answer.cascaded == (read[name].id,), name


@pytest.mark.parametrize(("one", "two"), [("a\0b", "a"), ("\u00e9", "e\u0301"), ("k" * 511, "k" * 512)])
def test_c22_a_pair_of_keys_is_not_its_join(store: Store, one: str, two: str) -> None:
    pair = store.branch("pair").register("put", writes=[one, two], inverse=Inverse("put_back", {})).done(None)
    joined = [one + two, two + one, f"{one}\0{two}", f"{one},{two}", f"{one}/{two}"]
    strangers = [
        store.branch(f"stranger {place}").register("use", reads=[key], inverse=Inverse("nothing", {})).done(None)
        for place, key in enumerate(dict.fromkeys(joined))
        if key not in (one, two)
    ]
    answer = store.reconcile(abort=pair, reason="contradicted")
    assert answer.cascaded == ()
    assert all(store.effect(effect.id).state == "live" for effect in strangers)


NAMES = ["n" * 600, "\u00e9" * 300, "e\u0301" * 200, "a\0b", "\U0001f9ea" * 100, "0", "17", "n" * 1024]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_c22_names_and_idempotency_keys_of_600_bytes(open_store: OpenStore, name: str) -> None:
    store = open_store()
    branch = store.branch(name, agent=name)
    effect = branch.register(name, writes="X", idempotency_key=name, inverse=Inverse(name, {})).done(None)
    store.close()
    store = open_store()
    found = store.effect(effect.id)
    assert (found.branch, found.agent, found.tool, found.idempotency_key) == (name, name, name, name)
    again = store.takeover(name).register(name, writes="X", idempotency_key=name, inverse=Inverse(name, {}))
    assert (again.id, again.created) == (effect.id, False)


def test_c22_a_name_beyond_the_limit_is_refused_with_nothing_stored(store: Store) -> None:
    with pytest.raises(LimitExceededError):
        store.branch("n" * 1025)
    assert list(store.branches()) == []


ARGUMENTS: dict[str, Any] = {
    "nul": {"text": "a\0b"},
    "emoji": {"text": "\U0001f9ea\U0001f468\u200d\U0001f469\u200d\U0001f467"},
    "raw bytes": {"data": bytes(range(256))},
    "normal forms": {"\u00e9": 1, "e\u0301": 2},
    "large": {"data": b"\xa5" * ((1 << 20) - 100)},
    "deep": {"v": [[[[[[[[[[1]]]]]]]]]]},
    "long list": {"v": list(range(50_000))},
    "empty": {},
    "none": None,
    "lone surrogate": {"text": "\ud800"},
    "escaped byte": {"text": "\udcff"},
    "32 MiB": {"data": b"\0" * (32 << 20)},
    "32 MiB text": {"text": "x" * (32 << 20)},
    "very deep": {"v": None},
}
ARGUMENTS["very deep"] = {}
for _ in range(100_000):
    ARGUMENTS["very deep"] = [ARGUMENTS["very deep"]]
MUST_REFUSE = {"32 MiB", "32 MiB text", "very deep"}
MUST_STORE = {"nul", "emoji", "raw bytes", "normal forms", "large", "deep", "long list", "empty", "none"}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("place", ["args", "inverse", "result"])
def test_c22_a_payload_comes_back_exactly_or_is_refused(open_store: OpenStore, name: str, place: str) -> None:
    value, store, ran = ARGUMENTS[name], open_store(), []
    branch = store.branch("A")
    try:
        args = value if place == "args" else {}
        inverse = Inverse("undo", value if place == "inverse" else {})

        def run() -> Any:
            ran.append(1)
            return None if place != "result" else value

        branch.call("put", args, run, inverse=inverse, writes="X")
    except (PayloadError, LimitExceededError):
        assert name not in MUST_STORE
        assert ran == ([1] if place == "result" else [])
        if place == "result":  # The tool has run: its outcome is not known to the store, and nobody may say otherwise.
            assert [effect.outcome for effect in store.effects()] == ["unknown"]
        return
    assert name not in MUST_REFUSE
    store.close()
    (effect,) = open_store().effects()
    stored = {"args": effect.args, "inverse": effect.inverse.args if effect.inverse else None, "result": effect.result}
    assert stored[place] == value


def test_c22_an_abort_with_5000_readers_is_complete_and_exact(store: Store) -> None:
    writers = {
        key: store.branch(f"w {place}").register("put", writes=key, inverse=Inverse("put_back", {})).done(None)
        for place, key in enumerate(["k" * 9_999 + "x", "k" * 9_999 + "y"])
    }
    hot, cold = writers
    calls = []
    for place, (key, count) in enumerate([(hot, 50), (cold, 5)]):
        for number in range(count):
            branch = store.branch(f"reader {place}/{number}")
            calls.append(
                [
                    Registration("use", {}, branch=branch, reads=key, after=(), inverse=Inverse("nothing", {}))
                    for _ in range(100)
                ]
            )
    registered = [store.register_many(batch) for batch in calls]
    of_hot = set(itertools.chain.from_iterable(([e.id for e in batch]) for batch in registered[:50]))
    of_cold = [effect for batch in registered[50:] for effect in batch]
    answer = store.reconcile(abort=writers[hot], reason="contradicted")
    assert answer.doomed == (writers[hot].id,)
    assert set(answer.cascaded) == of_hot
    assert len(answer.cascaded) == 5000
    assert {store.effect(effect.id).state for effect in of_cold} == {"live"}
    second = store.reconcile(abort=writers[cold], reason="contradicted")
    assert set(second.cascaded) == ids(*of_cold)


def test_c22_an_abort_survives_a_reopen_with_odd_keys(open_store: OpenStore) -> None:
    store = open_store()
    keys: list[Key] = [key for name, key in KEYS.items() if name not in ("empty", "lone-surrogate")]
    effect = store.branch("A").register("put", writes=keys, inverse=Inverse("put_back", {})).done(None)
    store.close()
    store = open_store()
    store.verify()
    assert {as_bytes(key) for key in store.effect(effect.id).writes} == {as_bytes(key) for key in keys}
    reader = store.branch("B").register("use", reads=keys[0], inverse=Inverse("nothing", {})).done(None)
    assert store.reconcile(abort=effect.id, reason="contradicted").cascaded == (reader.id,)
    assert isinstance(store, effectstore.Store)
