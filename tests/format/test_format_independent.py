"""A closed store is read by LMDB, CBOR and blake3 alone, in a process of its own, following FORMAT.md."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import Inverse, Registration, Store

READER = Path(__file__).with_name("read_store.py")
LARGE = b"l" * 150_000
SETTLES = 4_200
"""More than the 4,096 after which the liveness table is folded."""


def undo(value: int) -> Inverse:
    return Inverse("put", {"value": value})


def read(store: Path, export: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(READER), str(store), *([str(export)] if export else [])]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def counts(store: Path, export: Path | None = None) -> dict[str, Any]:
    answer = read(store, export)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def work(store: Store) -> None:
    """One of most things that a log can say, and enough settled effects to fold the liveness table."""
    planner = store.branch("planner", agent="p")
    reader = store.branch("réader", agent="r", lease=600)
    write = planner.register("put", {"value": 1}, writes=["X", b"\xff\x00"], inverse=undo(0), idempotency_key="once")
    write.done({"large": LARGE})
    reader.observe("X")
    reader.register("deploy", {"large": LARGE}, reads="X", writes="live", inverse=undo(0)).done(None)
    store.commit(reader)
    void = planner.register("put", {"value": 2}, writes="Y", inverse=undo(1), idempotency_key="free again")
    void.not_run("refused by the tool")
    child = store.branch("child", parent=planner)
    child.register("put", {"value": 3}, inverse=Inverse.steps([undo(2), undo(1)])).done(None)
    child.merge()
    stale = planner.token
    assert stale is not None
    store.takeover("planner", worker_gone=True, by="operator")
    with pytest.raises(effectstore.StaleTokenError):
        store.join("planner", stale)
    store.reconcile(abort="planner", reason="contradicted", by="judge")
    store.compensate({"put": lambda args, step: None})


def settle_many(store: Store) -> None:
    many = store.branch("many", agent="m")
    calls = [
        Registration("put", {"value": place}, branch=many, inverse=undo(0), after=(), idempotency_key=f"call {place}")
        for place in range(SETTLES)
    ]
    for effect in store.register_many(calls[: SETTLES // 2]):
        assert effect.created
    store.reconcile(abort=many, reason="too many")
    other = store.branch("other", agent="m")
    for place, effect in enumerate(other.register("put", {"n": n}, inverse=undo(0), after=()) for n in range(4)):
        effect.done(None) if place % 2 else effect.not_run("no")
    store.commit(other)


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A closed store with a little of everything."""
    with effectstore.open(tmp_path / "store") as store:
        work(store)
    return tmp_path / "store"


def test_a_store_is_read_by_its_format_alone(tmp_path: Path, closed: Path) -> None:
    with effectstore.open(closed) as store:
        store.export(tmp_path / "export.cbor")
        checked = store.verify()
    found = counts(closed, tmp_path / "export.cbor")
    assert (found["records"], found["head"]) == (checked.head, checked.head_hash)
    assert found["branches"] == 3
    assert (found["keys"], found["void"], found["doomed"]) == (1, 1, 3)
    assert found["chunks"] == 3, "two equal payloads share three chunks"
    assert len(found["kinds"]) >= 12


def test_the_liveness_table_is_read_too(tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        work(store)
        settle_many(store)
        more = store.branch("more", agent="m")
        effects = store.register_many(
            Registration("put", {"value": n}, branch=more, inverse=undo(0), after=()) for n in range(SETTLES)
        )
        for effect in effects[:3]:
            effect.not_run("no")
        store.reconcile(abort=more, reason="too many")
        store.verify()
    found = counts(tmp_path / "store")
    assert found["liveness_rows"] >= found["void"] >= 6
    assert found["doomed"] > SETTLES


def test_several_segments_are_read(tmp_path: Path) -> None:
    filler = b"s" * 60_000
    with effectstore.open(tmp_path / "store") as store:
        branch = store.branch("wide")
        for _ in range(3):
            store.register_many(
                Registration("put", {"n": n, "filler": filler}, branch=branch, inverse=undo(0), after=())
                for n in range(400)
            )
    found = counts(tmp_path / "store")
    assert found["records"] == 1_202
    assert found["segments"] == 2, "a segment ends at 64 MiB"


def test_an_imported_store_and_a_backup_are_stores(tmp_path: Path, closed: Path) -> None:
    with effectstore.open(closed) as store:
        store.export(tmp_path / "export.cbor")
        store.backup(tmp_path / "backup")
    effectstore.import_store(tmp_path / "export.cbor", tmp_path / "imported")
    heads = {counts(path)["head"] for path in (closed, tmp_path / "backup", tmp_path / "imported")}
    assert len(heads) == 1


def stored(store: Path) -> dict[str, bytes]:
    """The bytes of every value, read in a process of its own."""
    code = (
        "import sys, lmdb, json\n"
        "env = lmdb.open(sys.argv[1], readonly=True, lock=False, max_dbs=64)\n"
        "with env.begin() as txn:\n"
        "    for name in ('log.0', 'branches', 'idempotency_keys', 'blobs'):\n"
        "        for key, value in txn.cursor(env.open_db(name.encode(), txn, create=False)):\n"
        "            print(json.dumps([name, key.hex(), value.hex()]))\n"
    )
    answer = subprocess.run([sys.executable, "-c", code, str(store)], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in answer.stdout.splitlines()]
    return {f"{name} {key}": bytes.fromhex(key) + bytes.fromhex(value) for name, key, value in rows}


def flipped(store: Path, target: bytes, place: int, bit: int) -> bool:
    """Flip a bit of a stored value wherever the file holds it: pages are copied, and old copies may remain."""
    data = store / "data.mdb"
    content = bytearray(data.read_bytes())
    at = content.find(target)
    if at < 0:
        return False
    while at >= 0:
        content[at + place] ^= 1 << bit
        at = content.find(target, at + len(target))
    data.write_bytes(content)
    return True


def test_a_flipped_bit_of_a_record_or_a_chunk_is_found(closed: Path) -> None:
    rows = stored(closed)
    chance = random.Random(11)
    original = (closed / "data.mdb").read_bytes()
    found = 0
    for name, row in rows.items():
        table, key = name.split()
        value = row[len(bytes.fromhex(key)) :]
        # A value in overflow pages is kept apart from its key; a short one is found by both together.
        target = value if len(value) > 64 else row
        for _ in range(2):
            place, bit = chance.randrange(len(target)), chance.randrange(8)
            if not flipped(closed, target, place, bit):
                continue
            answer = read(closed)
            assert answer.returncode == 1, f"{table} {key}: byte {place}, bit {bit} was not noticed"
            found += 1
            (closed / "data.mdb").write_bytes(original)
    assert found > len(rows), "the values were not found in the file"
    assert read(closed).returncode == 0


@pytest.mark.parametrize("gone", ["the last record", "a name", "an idempotency key", "a blob"])
def test_a_missing_or_cut_row_is_found(closed: Path, gone: str) -> None:
    code = (
        "import sys, lmdb\n"
        "env = lmdb.open(sys.argv[1], max_dbs=64, map_size=1 << 30)\n"
        "with env.begin(write=True) as txn:\n"
        "    cursor = txn.cursor(env.open_db(sys.argv[2].encode(), txn, create=False))\n"
        "    assert cursor.first() if sys.argv[3] == 'first' else cursor.prev() or cursor.last()\n"
        "    cursor.delete()\n"
    )
    table, end = {
        "the last record": ("log.0", "last"),
        "a name": ("branches", "first"),
        "an idempotency key": ("idempotency_keys", "first"),
        "a blob": ("blobs", "first"),
    }[gone]
    whole = counts(closed)
    subprocess.run([sys.executable, "-c", code, str(closed), table, end], check=True)
    if gone == "the last record":
        cut = read(closed)
        # A tail that was cut at the end of a command leaves a good chain: only a head kept elsewhere tells.
        assert cut.returncode == 1 or json.loads(cut.stdout)["head"] != whole["head"]
    else:
        assert read(closed).returncode == 1


def test_the_table_of_artifacts_is_read_too(tmp_path: Path, closed: Path) -> None:
    with effectstore.open(closed) as store:
        fix = effectstore.ArtifactSpec("script", "fix", content=LARGE)
        undo = effectstore.ArtifactSpec("script", "undo", content=b"drop")
        for last in ("create", "submit", "approve", "promote", "fail"):
            pair = store.artifacts.create(fix, undo, by="ana", idempotency_key=f"fix until {last}")
            for verb in ("submit", "approve", "promote"):
                if last == "create":
                    break
                getattr(store.artifacts, verb)(pair, by="ben")
                if verb == last:
                    break
            if last == "fail":
                store.artifacts.fail(pair, by="runner", reason="exit code 1", run_id="run-7")
                store.compensate({"script": lambda args, step: None})
        store.export(tmp_path / "export.cbor")
        checked = store.verify()
    found = counts(closed, tmp_path / "export.cbor")
    assert (found["records"], found["head"]) == (checked.head, checked.head_hash)
    assert found["artifacts"] == 5
    assert {64, 65, 66, 67} <= set(found["kinds"])
