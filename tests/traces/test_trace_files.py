"""Reading traces, and the schedules made of them. None of this needs a store."""

import json
from pathlib import Path
from typing import Any

import pytest

from effectstore.play import Call, Delta, TraceError, World, add_blind_writes, choose_losers, interleave, read_trace
from effectstore.play.schedule import branches_of
from effectstore.play.trace import parse_trace

GOOD: dict[str, Any] = {
    "run": "r",
    "branch": "t0",
    "agent": "a",
    "seq": 0,
    "tool": "T.set",
    "args": {"v": 1},
    "reads": ["k"],
    "writes": ["k"],
    "result": None,
    "inverse": {"tool": "T.restore", "args": {"set": {"k": 0}, "unset": []}},
    "redo": {"set": {"k": 1}, "unset": []},
    "class": "full",
}


def _raw(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_own_trace(own_runs: dict[str, list[Call]]) -> None:
    assert {run: len(calls) for run, calls in own_runs.items()} == {"kitchen": 5, "garden": 4}
    order = own_runs["kitchen"][2]
    assert order.reversibility == "irreversible"
    assert order.before == Delta({"orders/#": []}, ("orders/1",))
    assert own_runs["garden"][1].redo.empty


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not UTF-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b"[1]", "is not a JSON object"),
        (_raw(v=1).replace(b'"v": 1}', b'"v": NaN}'), "NaN"),
        (_raw(run=""), "'run'"),
        (_raw(branch=None), "'branch'"),
        (_raw(agent=7), "'agent'"),
        (_raw(tool=[]), "'tool'"),
        (_raw(seq=-1), "'seq'"),
        (_raw(seq=True), "'seq'"),
        (_raw(seq="0"), "'seq'"),
        (_raw(args=[]), "'args'"),
        (_raw(reads="k"), "'reads'"),
        (_raw(reads=["k", "k"]), "twice"),
        (_raw(writes=["other"]), "'writes'"),
        (_raw(inverse=None), "same keys"),
        (_raw(inverse={"args": {}}), "'tool'"),
        (_raw(redo={"set": {"k": 1}, "unset": ["k"]}), "both sets and removes"),
        (_raw(redo=5), "'redo'"),
        (_raw(**{"class": "odd"}), "'class'"),
        (_raw(seq=0), "not above 0"),
        (_raw(seq=1, agent="b"), "another agent"),
    ],
)
def test_a_bad_line_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace([_raw(), b"", line], "f.jsonl")
    assert caught.value.line == 3
    assert caught.value.path == "f.jsonl"
    assert reason in caught.value.reason
    assert str(caught.value).startswith("f.jsonl:3: ")


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"\n\n")
    with pytest.raises(TraceError, match="holds no call"):
        read_trace(empty)


def test_interleaving_keeps_each_branch_in_order(own_runs: dict[str, list[Call]]) -> None:
    calls = own_runs["kitchen"]
    orders = set()
    for seed in range(200):
        merged = interleave(calls, seed)
        assert merged == interleave(calls, seed)
        for branch in branches_of(calls):
            assert [c for c in merged if c.branch == branch] == [c for c in calls if c.branch == branch]
        orders.add(tuple(call.seq for call in merged))
    # 5 calls, two of them on one branch: 60 merges in all. 200 draws miss few of them.
    assert 45 <= len(orders) <= 60


def test_blind_writes_overwrite_without_reading(own_runs: dict[str, list[Call]]) -> None:
    calls = own_runs["kitchen"]
    hosts = set()
    for seed in range(100):
        played = add_blind_writes(calls, seed)
        assert played == add_blind_writes(calls, seed)
        assert [call for call in played if call.tool != "Blind.write"] == calls
        assert 1 <= len(played) - len(calls) <= 3
        for place, call in enumerate(played):
            if call.tool == "Blind.write":
                assert call.reads == ()
                assert any(set(call.writes) & set(earlier.writes) for earlier in played[:place])
                hosts.add(call.branch in branches_of(calls))
    assert hosts == {True, False}


def test_losers_are_some_but_never_all(own_runs: dict[str, list[Call]]) -> None:
    calls = own_runs["kitchen"]
    drawn = {choose_losers(calls, seed) for seed in range(100)}
    assert all(1 <= len(losers) < 4 for losers in drawn)
    assert len(drawn) > 5
    assert choose_losers(calls[:1], 0) == ("t0",)


def test_the_world_before_comes_from_the_calls_alone(own_runs: dict[str, list[Call]]) -> None:
    assert World.before(own_runs["kitchen"]).values == {"menu": "soup", "pantry/beef": 10, "orders/#": []}


def test_an_inverse_puts_back_what_is_there_now() -> None:
    world = World({"a": 1, "b": None})
    change = Delta({"a": 2, "c": 3}, ("b", "d"))
    inverse = world.inverse_of(change)
    assert inverse == Delta({"a": 1, "b": None}, ("c", "d"))
    world.apply(change)
    assert world.values == {"a": 2, "c": 3}
    world.apply(inverse)
    world.apply(inverse)
    assert world.values == {"a": 1, "b": None}


def test_worlds_differ_by_type_and_by_absence() -> None:
    world = World({"same": [1, {"x": 2}], "type": 1, "none": None, "deep": [{"x": 1}]})
    other = World({"same": [1, {"x": 2}], "type": 1.0, "deep": [{"x": True}]})
    assert world.differences(other) == ("deep", "none", "type")
    assert world.differences(other, but_for=["deep", "type"]) == ("none",)
