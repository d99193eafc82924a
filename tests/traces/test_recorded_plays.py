"""All recorded runs, with every branch aborted in turn, and with random plans, orders and blind writes by seed.

`EFFECTSTORE_PLAYS` sets the number of random plays, `EFFECTSTORE_PLAYS_SEED` the number of the first one; a failing
play names its own number, which replays it alone.
"""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import effectstore
from effectstore.play import Call, Plan, add_blind_writes, choose_losers, interleave
from effectstore.play.schedule import branches_of
from play_checks import play_and_check

pytestmark = pytest.mark.traces

PLAYS = int(os.environ.get("EFFECTSTORE_PLAYS", "2000"))
FIRST_PLAY = int(os.environ.get("EFFECTSTORE_PLAYS_SEED", "0"))
PLAYS_PER_STORE = 100
SHARDS = 8
ENOUGH_PLAYS = 100


def test_the_trace_is_the_one_described(recorded_runs: dict[str, list[Call]]) -> None:
    assert len(recorded_runs) == 202
    assert sum(len(calls) for calls in recorded_runs.values()) == 1211


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_branch_aborted_in_turn(recorded_runs: dict[str, list[Call]], tmp_path: Path, shard: int) -> None:
    for number, (run, calls) in enumerate(recorded_runs.items()):
        if number % SHARDS != shard:
            continue
        with effectstore.open(tmp_path / str(number)) as store:
            for branch in branches_of(calls):
                print(f"run {run}, branch {branch} aborted")
                play_and_check(store, calls, Plan((branch,)), scope=f"{branch}:")


def test_nothing_aborted_commits_everything(recorded_runs: dict[str, list[Call]], tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        for run, calls in recorded_runs.items():
            print(f"run {run}, nothing aborted")
            result, _ = play_and_check(store, calls, Plan(), scope=f"{run}:")
            assert len(result.committed) == len(calls)
            assert result.rollbacks == ()


def test_random_plans_orders_and_blind_writes(recorded_runs: dict[str, list[Call]], tmp_path: Path) -> None:
    runs = sorted(recorded_runs)
    in_conflict = 0
    for start in range(FIRST_PLAY, FIRST_PLAY + PLAYS, PLAYS_PER_STORE):
        with effectstore.open(tmp_path / str(start)) as store:
            for number in range(start, min(start + PLAYS_PER_STORE, FIRST_PLAY + PLAYS)):
                print(f"EFFECTSTORE_PLAYS=1 EFFECTSTORE_PLAYS_SEED={number}")
                in_conflict += _random_play(store, recorded_runs, runs, number)
    print(f"{in_conflict} of {PLAYS} plays with a conflict")
    # A few plays picked out to be repeated say nothing about the share.
    if PLAYS >= ENOUGH_PLAYS:
        assert in_conflict >= 0.05 * PLAYS


def _random_play(store: effectstore.Store, runs: dict[str, list[Call]], names: Sequence[str], number: int) -> bool:
    source = random.Random(f"play {number}")
    calls = runs[source.choice(names)]
    if source.random() < 0.7:
        calls = interleave(calls, number)
    if source.random() < 0.7:
        calls = add_blind_writes(calls, number)
    plan = Plan(choose_losers(calls, number))
    result, verdict = play_and_check(
        store, calls, plan, scope=f"{number}:", on_failure=source.choice(["halt", "continue"])
    )
    assert bool(result.conflicts) == bool(verdict.overwritten)
    return bool(result.conflicts)
