"""Reads a closed store by FORMAT.md alone: LMDB, CBOR and blake3, and nothing of this project.

Run as `read_store.py STORE [EXPORT]`. Prints one JSON object with what was counted; ends with 1 and one line that names
the first place that does not fit.
"""

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
import cbor2
import lmdb

MARK = 25971
INLINE = CHUNK = 65_536
ROW_RECORDS = 16_384
FOLD_SETTLES = 4_096
TABLES = ["branches", "idempotency_keys", "blobs", "liveness", "artifacts", "meta"]
BRANCH_CREATED, BRANCH_TAKEN, BRANCH_RESUMED, BRANCH_MERGED = 4, 5, 6, 7
REGISTERED, NOT_RUN, FENCED, DOOMED, RECALLED, RESTORED = 9, 14, 20, 22, 33, 44
ARTIFACT_CREATED = 64
ARTIFACT_CHANGED = {65, 66, 67}


class FaultError(Exception):
    """A place that does not fit the format."""


def need(fits: bool, place: str) -> None:
    if not fits:
        raise FaultError(place)


def number(data: bytes, place: str) -> int:
    need(len(data) == 8, f"{place}: a number has 8 bytes")
    return int.from_bytes(data, "big")


def digest(data: bytes) -> bytes:
    return bytes(blake3.blake3(data).digest())


@dataclass
class Payload:
    length: int
    hash: bytes


def marks(item: Any) -> Iterator[Payload]:
    """The payload marks of a header, in the order in which they stand, without recursion."""
    left = [item]
    while left:
        now = left.pop()
        if isinstance(now, cbor2.CBORTag) and now.tag == MARK:
            length, name = now.value
            yield Payload(length, name)
        elif isinstance(now, dict):
            left.extend(part for pair in reversed(list(now.items())) for part in reversed(pair))
        elif isinstance(now, (list, tuple)):
            left.extend(reversed(now))


def items(value: bytes, place: str) -> list[tuple[bytes, Any]]:
    """The items of a CBOR sequence, each with its own bytes."""
    found, at = [], 0
    while at < len(value):
        stream = io.BytesIO(value[at:])
        try:
            item = cbor2.load(stream)
        except cbor2.CBORDecodeError as error:
            raise FaultError(f"{place}: {error}") from error
        used = len(value) - at - len(stream.read())
        found.append((value[at : at + used], item))
        at += used
    return found


def member_set(form: list[Any], place: str) -> list[int]:
    """The ids of a member set, from any of its three forms."""
    if form[0] == 1:
        _, first, bits = form
        return [first + place for place in range(len(bits) * 8) if bits[place // 8] >> place % 8 & 1]
    numbers, value, shift = [], 0, 0
    for byte in form[1]:
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    need(shift == 0 and form[0] in (0, 2), f"{place}: a member set")
    found: list[int] = []
    if form[0] == 2:
        for gap in numbers:
            found.append(found[-1] + 1 + gap if found else gap)
        return found
    for gap, more in zip(numbers[::2], numbers[1::2], strict=True):
        first = found[-1] + 2 + gap if found else gap
        found.extend(range(first, first + more + 1))
    return found


@dataclass
class Told:
    """What the log says that the side tables must repeat."""

    names: dict[str, int] = field(default_factory=dict)
    merged: set[int] = field(default_factory=set)
    tokens: dict[int, tuple[int, int]] = field(default_factory=dict)
    incarnation: int = 1
    keys: dict[bytes, int] = field(default_factory=dict)
    key_of: dict[int, bytes] = field(default_factory=dict)
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    doomed: dict[int, int] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    artifacts: dict[int, list[int]] = field(default_factory=dict)
    settled_at: list[int] = field(default_factory=list)
    kinds: dict[int, int] = field(default_factory=dict)
    last_command: int = 0

    def hear(self, seq: int, event: list[Any]) -> None:
        kind, fields = event
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if kind == BRANCH_CREATED:
            self.names[fields[0]] = seq
            self.tokens[seq] = (self.incarnation, seq)
        elif kind in {BRANCH_TAKEN, BRANCH_RESUMED}:
            self.tokens[fields[0]] = (self.incarnation, seq)
        elif kind == RESTORED:
            self.incarnation = fields[0]
        elif kind == BRANCH_MERGED:
            self.merged.add(fields[0])
        elif kind == REGISTERED:
            key = fields[0][2].get(8)
            if key is not None:
                self.keys[key] = seq
                self.key_of[seq] = key
        elif kind == NOT_RUN and fields[0] not in self.committed and fields[0] not in self.doomed:
            self.void.add(fields[0])
            self.settled_at.append(seq)
            if fields[0] in self.key_of:
                self.keys.pop(self.key_of[fields[0]], None)
        elif kind == FENCED:
            members = member_set(fields[1], f"record {seq}")
            self.committed.update(members)
            self.settled_at.extend([seq] * len(members))
        elif kind == DOOMED:
            members = member_set(fields[0][0], f"record {seq}")
            self.doomed.update(dict.fromkeys(members, seq))
            self.settled_at.extend([seq] * len(members))
        elif kind == RECALLED:
            self.void.difference_update(one[0] for one in fields[0] if 5 not in one)
        elif kind == ARTIFACT_CREATED:
            self.artifacts.setdefault(seq if len(fields) < 2 or fields[1] is None else fields[1], []).append(seq)
            if len(fields) > 3 and fields[3] is not None:
                self.keys[fields[3]] = seq
        elif kind in ARTIFACT_CHANGED:
            self.artifacts[fields[0]].append(seq)


class Store:
    """A closed store, opened for reading without locks."""

    def __init__(self, path: Path) -> None:
        env = lmdb.open(str(path), readonly=True, lock=False, max_dbs=4096, create=False)
        self.txn = env.begin()
        self.main = {bytes(key) for key, _ in self.txn.cursor()}
        self.db = {name: env.open_db(name.encode(), self.txn, create=False) for name in TABLES}
        self.env = env
        self.records = 0
        self.head = bytes(32)
        self.told = Told()

    def rows(self, table: str) -> dict[bytes, bytes]:
        return {bytes(key): bytes(value) for key, value in self.txn.cursor(self.db[table])}

    def format_record(self) -> dict[str, Any]:
        value = self.rows("meta").get(b"storage.format")
        need(value is not None, "meta: no format record")
        record = cbor2.loads(value or b"")
        need(record["magic"] == "effectstore" and record["min_reader"] <= 0, "meta: format record")
        names = list(record)
        need(names == sorted(names, key=lambda name: (len(name), name)), "meta: order of the format record")
        need(record["lmdb_data_version"] == 1 and len(record["store_id"]) == 16, "meta: format record")
        return dict(record)

    def segments(self) -> list[int]:
        prefix = b"storage.segment."
        found = [(key, value) for key, value in self.rows("meta").items() if key.startswith(prefix)]
        firsts = []
        for place, (key, value) in enumerate(found):
            need(number(key[len(prefix) :], "meta") == place, f"meta: segment {place}")
            firsts.append(number(value, f"meta: segment {place}"))
        need(firsts[:1] == [1] and firsts == sorted(set(firsts)), "meta: first numbers of segments")
        logs = {f"log.{place}".encode() for place in range(len(firsts))}
        need(self.main == logs | {name.encode() for name in TABLES}, "the list of tables")
        return firsts

    def read_log(self, record_limit: int, byte_limit: int) -> None:
        firsts, more = self.segments(), 0
        for place, first in enumerate(firsts):
            need(first == self.records + 1, f"segment {place}: first number")
            size = count = 0
            log = self.env.open_db(f"log.{place}".encode(), self.txn, create=False)
            for key, value in self.txn.cursor(log):
                need(count < record_limit and size < byte_limit, f"segment {place}: its end")
                seq = number(bytes(key), f"segment {place}")
                need(seq == self.records + 1, f"record {self.records + 1} is missing")
                more = self.record(seq, bytes(value), more)
                count, size = count + 1, size + len(value)
            last = place == len(firsts) - 1
            need(last or count >= record_limit or size >= byte_limit, f"segment {place}: ends early")
        need(more == 0, "the last command is not whole")

    def record(self, seq: int, value: bytes, more: int) -> int:
        place = f"record {seq}"
        parts = items(value, place)
        header_bytes, header = parts[0]
        self.head = digest(self.head + seq.to_bytes(8, "big") + header_bytes)
        need(parts[-1][1] == self.head, f"{place} does not fit the chain")
        need(list(header) == sorted(header) and header.keys() <= {0, 1, 2, 3, 4}, f"{place}: its header")
        need((1 in header) == (more == 0), f"{place}: its command")
        need(more == 0 or header.get(2, 0) == more - 1, f"{place}: the count of records that follow")
        named = list({mark.hash: mark for mark in marks(header)}.values())
        need(len(parts) == len(named) + 2, f"{place}: payloads")
        for mark, (_, item) in zip(named, parts[1:-1], strict=True):
            self.payload(place, mark, item)
        if 1 in header:
            self.told.last_command = seq
        self.told.hear(seq, header[4])
        self.records = seq
        return int(header.get(2, 0))

    def payload(self, place: str, mark: Payload, item: Any) -> None:
        if item is None:
            return
        data = item
        if item is True:
            need(mark.length > INLINE, f"{place}: a short payload in blobs")
            keys = [mark.hash + chunk.to_bytes(4, "big") for chunk in range(-(-mark.length // CHUNK))]
            chunks = {key: bytes(self.txn.get(key, db=self.db["blobs"]) or b"") for key in keys}
            self.told.chunks.update(chunks)
            data = b"".join(chunks.values())
        need(isinstance(data, bytes) and len(data) == mark.length, f"{place}: length of a payload")
        need(digest(data) == mark.hash, f"{place}: hash of a payload")

    def side_tables(self) -> None:
        told = self.told
        branches = {b"\0" + digest(name.encode()): seq.to_bytes(8, "big") for name, seq in told.names.items()}
        for seq in told.names.values():
            row = b"".join(part.to_bytes(8, "big") for part in told.tokens[seq]) + bytes([seq in told.merged])
            branches[b"\1" + seq.to_bytes(8, "big")] = row
        keys = {digest(key): seq.to_bytes(8, "big") for key, seq in told.keys.items()}
        stored = self.rows("branches")
        need({key: row[:17] if key[0] == 1 else row for key, row in stored.items()} == branches, "table branches")
        causes = {number(row[17:], "table branches") for key, row in stored.items() if key[0] == 1}
        need(causes <= {0, *told.doomed}, "table branches: causes")
        for table, rows in (("idempotency_keys", keys), ("blobs", told.chunks)):
            need(self.rows(table) == rows, f"table {table}")
        pairs = {
            primary.to_bytes(8, "big"): b"".join(seq.to_bytes(8, "big") for seq in records)
            for primary, records in told.artifacts.items()
        }
        need(self.rows("artifacts") == pairs, "table artifacts")

    def liveness(self) -> None:
        told, mark = self.told, self.rows("meta").get(b"liveness")
        rows = self.rows("liveness")
        void = {number(key[1:], "liveness") for key in rows if key[0] == 0xFF and len(key) == 9}
        need(void == told.void, "table liveness: void rows")
        maps = {number(key, "liveness"): row for key, row in rows.items() if len(key) == 8}
        need(len(maps) + len(void) == len(rows), "table liveness: keys")
        need(all(len(row) == ROW_RECORDS // 4 for row in maps.values()), "table liveness: rows")
        folded = number(mark[:8], "meta: liveness") if mark else 0
        settled = sum(seq <= folded for seq in told.settled_at)
        need(not mark or number(mark[8:], "meta: liveness") == settled, "meta: liveness: settles")
        due = len(told.settled_at) // FOLD_SETTLES
        waits = due > 0 and told.settled_at[due * FOLD_SETTLES - 1] >= told.last_command
        need(settled // FOLD_SETTLES >= due - waits, "meta: liveness: a fold is missing")
        bits: dict[int, set[int]] = {1: set(), 2: set()}
        for place, row in maps.items():
            for byte, value in enumerate(row):
                for slot in range(4):
                    for bit in bits:
                        if value >> slot * 2 & bit:
                            bits[bit].add(place * ROW_RECORDS + byte * 4 + slot)
        need(bits[2] == {one for one, seq in told.doomed.items() if seq <= folded}, "table liveness: doomed")
        need(all(1 <= seq <= folded for seq in bits[1]), "table liveness: needed")

    def export(self, file: Path) -> None:
        parts = items(file.read_bytes(), "the export file")
        need(parts[0][1] == "effectstore export 0", "the export file: its first item")
        rest = iter(parts[1:])
        for place in range(len(self.segments())):
            log = self.env.open_db(f"log.{place}".encode(), self.txn, create=False)
            for key, value in self.txn.cursor(log):
                where = f"the export file: record {number(bytes(key), 'log')}"
                need(next(rest, (b"", None))[1] == bytes(value), where)
                inside = items(bytes(value), where)
                named = list({mark.hash: mark for mark in marks(inside[0][1])}.values())
                for mark, (_, item) in zip(named, inside[1:-1], strict=True):
                    need(item is not True or digest(next(rest)[1]) == mark.hash, f"{where}: blob")
        need(next(rest, None) is None, "the export file: more than the log")


def main() -> None:
    store = Store(Path(sys.argv[1]))
    record = store.format_record()
    store.read_log(record["segment_records"], record["segment_bytes"])
    store.side_tables()
    store.liveness()
    if len(sys.argv) > 2:
        store.export(Path(sys.argv[2]))
    told = store.told
    counts = {
        "records": store.records,
        "head": store.head.hex(),
        "segments": len(store.segments()),
        "branches": len(told.names),
        "keys": len(told.keys),
        "chunks": len(told.chunks),
        "doomed": len(told.doomed),
        "void": len(told.void),
        "artifacts": len(told.artifacts),
        "liveness_rows": len(store.rows("liveness")),
        "kinds": sorted(told.kinds),
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    try:
        main()
    except FaultError as fault:
        sys.exit(f"does not fit: {fault}")
