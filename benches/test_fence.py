"""What the Python interface costs, beside U: one 432-byte record in one durable LMDB transaction.

``python -m pytest benches --benchmark-group-by=func`` from the project's root. Every operation waits for the disk, so
only ratios to the ``unit`` of the same run say anything. ``--basetemp`` chooses the file system; a tmpfs has no flush.
"""

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import effectstore
from effectstore import Branch, Effect, Inverse, Policy, Registration, Store

ROUNDS = int(os.environ.get("EFFECTSTORE_BENCH_ROUNDS", "200"))
RECORD = b"\x5a" * 432
WINDOW = 256


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with effectstore.open(tmp_path / "store", policy=Policy(auto_keys=100_000)) as opened:
        yield opened


def call(branch: Branch, number: int, after: list[Effect | Registration] | None = None) -> Registration:
    """A call with some 430 bytes of arguments, its own's and its inverse's."""
    return Registration(
        "write_config",
        {"key": f"config/{number}", "value": "v" * 270},
        branch=branch,
        inverse=Inverse("write_config", {"key": f"config/{number}", "value": "v" * 100}),
        writes=[f"config/{number}"],
        after=() if after is None else after,
    )


def graph(branch: Branch, count: int, degree: int, first: int) -> list[Registration]:
    """Calls of which each rests on so many of the 256 before it."""
    chance = random.Random(first)
    calls: list[Registration] = []
    for number in range(count):
        near = calls[-WINDOW:]
        calls.append(call(branch, first + number, list(chance.sample(near, min(degree, len(near))))))
    return calls


def test_unit(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "unit"), map_size=1 << 30)
    keys = itertools.count()

    def once() -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(next(keys).to_bytes(8, "big"), RECORD, append=True)

    benchmark.pedantic(once, rounds=ROUNDS, warmup_rounds=5)
    assert environment.stat()["entries"] == ROUNDS + 5
    environment.close()


@pytest.mark.parametrize("degree", [0, 8])
def test_register(benchmark: BenchmarkFixture, store: Store, degree: int) -> None:
    branch = store.branch("work")
    numbers = itertools.count()
    recent: list[Effect] = []

    def prepare() -> tuple[tuple[()], dict[str, object]]:
        number = next(numbers)
        return (), {"number": number, "after": recent[-degree:] if degree else []}

    def once(number: int, after: list[Effect]) -> None:
        recent.append(
            branch.register(
                "write_config",
                {"key": f"config/{number}", "value": "v" * 270},
                inverse=Inverse("write_config", {"key": f"config/{number}", "value": "v" * 100}),
                writes=[f"config/{number}"],
                after=after,
            )
        )

    benchmark.pedantic(once, setup=prepare, rounds=ROUNDS, warmup_rounds=5)
    assert all(effect.created for effect in recent)


def test_register_many(benchmark: BenchmarkFixture, store: Store) -> None:
    branch = store.branch("work")
    numbers = itertools.count(step=1_000)

    def prepare() -> tuple[tuple[list[Registration]], dict[str, object]]:
        return (graph(branch, 1_000, 8, next(numbers)),), {}

    def once(calls: list[Registration]) -> None:
        assert len(store.register_many(calls)) == 1_000

    benchmark.pedantic(once, setup=prepare, rounds=max(5, ROUNDS // 10))


@pytest.mark.parametrize("count", [100, 1_000])
def test_fence(benchmark: BenchmarkFixture, store: Store, count: int) -> None:
    branch = store.branch("work")
    numbers = itertools.count(step=count)

    def prepare() -> tuple[tuple[()], dict[str, object]]:
        for effect in store.register_many(graph(branch, count, 8, next(numbers))):
            effect.done(None)
        return (), {}

    def once() -> None:
        assert len(store.commit(branch, escalate="never").committed) == count

    benchmark.pedantic(once, setup=prepare, rounds=max(5, ROUNDS // (count // 5)))


def test_compensation_of_a_hundred_steps(benchmark: BenchmarkFixture, store: Store) -> None:
    numbers = itertools.count(step=100)

    def prepare() -> tuple[tuple[()], dict[str, object]]:
        first = next(numbers)
        branch = store.branch(f"work-{first}")
        for effect in store.register_many([call(branch, first + number) for number in range(100)]):
            effect.done(None)
        branch.abort(reason="bench")
        return (), {}

    def once() -> None:
        report = store.compensate({"write_config": lambda args, step: None})
        assert report.clean
        assert len(report.completed) == 100

    benchmark.pedantic(once, setup=prepare, rounds=max(5, ROUNDS // 20))
