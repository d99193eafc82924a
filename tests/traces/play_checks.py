"""Holds one play against the independent verdict."""

from collections.abc import Sequence
from typing import Literal

import effectstore
from effectstore.play import Call, Plan, Played, Player, PlayResult
from trace_checker import Line, Verdict, judge, order_faults, replay


def play_and_check(
    store: effectstore.Store,
    calls: Sequence[Call],
    plan: Plan,
    *,
    scope: str,
    on_failure: Literal["halt", "continue"] = "halt",
) -> tuple[PlayResult, Verdict]:
    """Play one run to its end and assert everything that the verdict says."""
    player = Player(store, calls, scope=scope, on_failure=on_failure)
    initial = dict(player.initial.values)
    result = player.run(plan)
    history = [_line(played) for played in player.history]
    verdict = judge(history, plan.abort, on_failure)
    _check_decision(store, result, verdict)
    _check_steps(result, verdict)
    assert order_faults(history, result.undone) == []
    # There are no late edges in these plays, so the order is plain LIFO.
    assert list(result.undone) == sorted(result.undone, reverse=True)
    _check_world(player, initial, history, verdict)
    assert result.differences == ()
    assert result.rollback_approvals == int(verdict.needs_person)
    assert result.early_approvals == sum(line.reversibility == "irreversible" for line in history)
    assert result.refusals == 0
    return result, verdict


def _line(played: Played) -> Line:
    call = played.call
    return Line(
        effect=played.effect,
        branch=call.branch,
        reads=frozenset(call.reads),
        writes=frozenset(call.writes),
        reversibility=call.reversibility,
        values=call.redo.values,
        removed=frozenset(call.redo.removed),
    )


def _check_decision(store: effectstore.Store, result: PlayResult, verdict: Verdict) -> None:
    assert frozenset(result.doomed) | frozenset(result.cascaded) == verdict.doomed
    assert frozenset(result.committed) == verdict.survivors
    assert result.waiting == ()
    members = {effect for rollback in result.rollbacks for effect in store.rollback(rollback).effects}
    # T1, from the rollbacks themselves: no committed effect is in one; and each doomed one is.
    assert members == verdict.doomed
    assert {effect: store.effect(effect).state for effect in members} == dict.fromkeys(members, "doomed")


def _check_steps(result: PlayResult, verdict: Verdict) -> None:
    assert len(set(result.undone)) == len(result.undone)
    assert frozenset(result.undone) == verdict.undone
    # A step that is both overwritten and behind another stuck one may be told either way; every other has one name.
    conflicts = frozenset(result.conflicts)
    assert verdict.surely <= conflicts <= frozenset(verdict.overwritten)
    assert frozenset(result.failed) == conflicts
    assert conflicts | frozenset(result.blocked) == verdict.stuck
    assert not conflicts & frozenset(result.blocked)
    for effect, writer in result.conflicts.items():
        assert writer in verdict.overwritten[effect]
    assert result.clean == (not verdict.stuck)


def _check_world(player: Player, initial: dict[str, object], history: Sequence[Line], verdict: Verdict) -> None:
    left = {key for line in history if line.effect in verdict.stuck for key in line.writes}
    expected = replay(initial, history, verdict.survivors)
    actual = dict(player.world.values)
    for key in left:
        expected.pop(key, None)
        actual.pop(key, None)
    assert actual == expected
