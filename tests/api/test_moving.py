"""Backup, export and import: a moved store is the same store, and a damaged file is an error, never a wrong value."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import EffectStoreError, Inverse, Store
from support import OpenStore
from world import World


def work(store: Store, world: World) -> int:
    """Something of everything; answers the id of the rollback that is still open."""
    a, b, c = (store.branch(name, agent=name.lower()) for name in "ABC")
    world.put(a, "X", 1)
    store.commit(a)
    world.put(b, "Y", {"text": "é\0\U0001f9ea"}, reads="X")
    rollback = b.abort(reason="contradicted").rollback
    world.put(c, "Z", 1, idempotency_key="z", report=False)
    assert rollback is not None
    return rollback.id


def picture(store: Store) -> dict[str, Any]:
    return {
        "effects": [effect.to_dict(payloads=True) for effect in store.effects()],
        "branches": [branch.to_dict() for branch in store.branches()],
        "fences": [fence.to_dict() for fence in store.fences()],
        "rollbacks": [rollback.to_dict() for rollback in store.rollbacks()],
    }


def moved(store: Store, tmp_path: Path, way: str) -> Path:
    """Move a copy of the store to a new directory in one of the ways."""
    target = tmp_path / "moved"
    if way == "backup":
        store.backup(target)
    elif way == "file":
        store.export(tmp_path / "store.cborseq")
        effectstore.import_store(tmp_path / "store.cborseq", target)
    else:
        buffer = io.BytesIO()
        store.export(buffer)
        buffer.seek(0)
        effectstore.import_store(buffer, target)
    return target


@pytest.mark.parametrize("way", ["backup", "file", "file object"])
def test_a_moved_store_tells_the_same_and_goes_on(
    open_store: OpenStore, world: World, tmp_path: Path, way: str
) -> None:
    store = open_store()
    rollback = work(store, world)
    before = picture(store)
    target = moved(store, tmp_path, way)
    store.close()
    copy = open_store(target.name)
    copy.verify()
    assert picture(copy) == before
    assert copy.compensate(world.handlers(), rollback=rollback).clean
    branch = copy.takeover("C", worker_gone=True, by="ops")
    again = branch.register("put", {"key": "Z", "value": 1}, writes="Z", idempotency_key="z", inverse=Inverse("u", {}))
    assert again.created is False
    copy.verify()


def test_a_backup_of_a_running_store_is_whole(open_store: OpenStore, world: World, tmp_path: Path) -> None:
    store = open_store()
    branch = store.branch("A")
    for number in range(5):
        for place in range(20):
            branch.register("put", {"n": place}, inverse=Inverse("undo", {}), after=())
        store.backup(tmp_path / f"copy{number}")
    for number in range(5):
        copy = open_store(f"copy{number}")
        copy.verify()
        assert len(list(copy.effects())) == 20 * (number + 1)
        copy.close()


@pytest.mark.parametrize("way", ["backup", "import"])
def test_an_existing_target_is_never_overwritten(open_store: OpenStore, world: World, tmp_path: Path, way: str) -> None:
    store, other = open_store(), open_store("other")
    work(store, world)
    other.branch("precious")
    if way == "import":
        store.export(tmp_path / "store.cborseq")
        other.close()
    source = tmp_path / "store.cborseq"
    overwrite = store.backup if way == "backup" else lambda target: effectstore.import_store(source, target)
    with pytest.raises((EffectStoreError, FileExistsError)):
        overwrite(tmp_path / "other")
    assert [branch.name for branch in open_store("other").branches()] == ["precious"]


def test_a_damaged_export_gives_a_typed_error_and_no_store(open_store: OpenStore, world: World, tmp_path: Path) -> None:
    store = open_store()
    work(store, world)
    buffer = io.BytesIO()
    store.export(buffer)
    good = buffer.getvalue()
    chance = random.Random(12)
    for round_ in range(300):
        bad = bytearray(good)
        if round_ % 3 == 0:
            del bad[chance.randrange(len(bad)) :]
        else:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        target = tmp_path / f"bad{round_}"
        with pytest.raises(EffectStoreError):
            effectstore.import_store(io.BytesIO(bytes(bad)), target)
        assert not target.exists(), f"round {round_} left a store behind"


HOSTILE = {
    "empty": b"",
    "deep": b"\x81" * 1_000_000,
    "long": b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
    "long array": b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
    "duplicate keys": b"\xa2\x61a\x01\x61a\x02",
    "indefinite": b"\x9f" * 1000,
    "text": b"this is no store",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_gives_a_typed_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(EffectStoreError):
        effectstore.import_store(io.BytesIO(content), tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_cut_tail_is_found_by_an_earlier_head(open_store: OpenStore, world: World, tmp_path: Path) -> None:
    """An old copy is whole in itself; only the head that somebody kept shows that records are missing."""
    store = open_store()
    world.put(store.branch("A"), "X", 1)
    store.backup(tmp_path / "old")
    world.put(store.branch("B"), "Y", 1)
    head = store.verify()
    store.close()
    old = open_store("old")
    old.verify()
    with pytest.raises(EffectStoreError):
        old.verify(from_head=head)
