"""Plays of our own small trace, whose outcomes are written down here by hand."""

import pickle
from pathlib import Path

import pytest

import effectstore
from effectstore.play import Call, Plan, PlanError, Player, TraceError
from play_checks import play_and_check
from trace_checker import Line, judge, order_faults

Runs = dict[str, list[Call]]


def test_an_overwritten_menu_is_a_conflict(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        player = Player(store, own_runs["kitchen"])
        result = player.run(Plan(("t0",)))
    chef, cook, buyer, waiter, overwriter = (played.effect for played in player.history)
    assert result.doomed == (chef,)
    assert sorted(result.cascaded) == [cook, buyer]
    assert sorted(result.committed) == [waiter, overwriter]
    assert result.undone == (buyer, cook)
    assert result.conflicts == {chef: overwriter}
    assert result.exempt == ("menu",)
    assert not result.clean
    assert player.world.values == {"menu": "goulash", "pantry/beef": 10, "orders/#": [], "board": "welcome"}


def test_a_fallen_order_is_undone_with_a_recorded_reason(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        result, _ = play_and_check(store, own_runs["kitchen"], Plan(("t1",)), scope="")
        asked = list(store.approvals())
    assert result.clean
    assert (result.early_approvals, result.rollback_approvals) == (1, 1)
    assert {approval.state for approval in asked} == {"approved"}
    assert all(approval.answered_by == "player" and approval.answer_reason for approval in asked)


def test_the_overwriter_itself_falls_clean(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        player = Player(store, own_runs["kitchen"])
        result = player.run(Plan(("t3",)))
    assert result.clean
    assert player.world.values["menu"] == "stew"
    assert "board" not in player.world.values


def test_an_undecided_overwriter_holds_the_undo_up(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        player = Player(store, own_runs["kitchen"])
        result = player.run(Plan(("t0",), commit=()))
    chef = player.history[0].effect
    assert result.committed == ()
    assert result.conflicts == {}
    assert result.blocked == (chef,)
    assert result.waiting == (chef,)
    assert result.differences == ()


def test_a_winner_takes_along_what_it_rests_on(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        player = Player(store, own_runs["kitchen"])
        result = player.run(Plan((), commit=("t1",)))
    chef, cook, *_ = (played.effect for played in player.history)
    assert sorted(result.committed) == [chef, cook]
    assert result.resting == {"t0": (), "t1": ("t0",), "t2": ("t0", "t1"), "t3": ()}


def test_two_plays_in_one_store_do_not_meet(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        play_and_check(store, own_runs["kitchen"], Plan(("t0",)), scope="a/")
        play_and_check(store, own_runs["kitchen"], Plan(("t1",)), scope="b/")
        play_and_check(store, own_runs["garden"], Plan(("t0",)), scope="c/", on_failure="continue")


def test_a_plan_that_does_not_fit_stores_nothing(own_runs: Runs, tmp_path: Path) -> None:
    with effectstore.open(tmp_path / "store") as store:
        with pytest.raises(PlanError, match="no branch t9"):
            Player(store, own_runs["kitchen"]).run(Plan(("t9",)))
        with pytest.raises(PlanError, match="aborted and committed"):
            Player(store, own_runs["kitchen"]).run(Plan(("t0",), ("t0",)))
        assert list(store.branches()) == []


def test_narration_names_who_rests_on_whom(own_runs: Runs, tmp_path: Path) -> None:
    told: list[str] = []
    with effectstore.open(tmp_path / "store") as store:
        Player(store, own_runs["kitchen"], show=told.append).run(Plan(("t0",)))
    text = "\n".join(told)
    assert "t2   Shop.order  <- rests on t0, t1" in text
    assert "abort side wins" in text
    assert "conflict, overwritten by" in text


def _line(effect: int, branch: str, reads: str = "", writes: str = "") -> Line:
    return Line(effect, branch, frozenset(reads.split()), frozenset(writes.split()), "full", {}, frozenset())


def test_the_oracle_on_cases_known_by_hand() -> None:
    """The oracle judges everything else, so it is itself held against verdicts found with pencil and paper."""
    history = [_line(1, "a", "", "x"), _line(2, "a", "", "y"), _line(3, "b", "", "x"), _line(4, "c", "y", "z")]
    halted = judge(history, ["a"], "halt")
    assert halted.doomed == {1, 2, 4}
    assert halted.overwritten == {1: {3}}
    assert halted.surely == {1}
    assert halted.stuck == {1}
    assert halted.undone == {2, 4}
    late = [_line(1, "a", "", "x"), _line(2, "a", "", "y"), _line(3, "b", "", "y")]
    assert judge(late, ["a"], "halt").stuck == {1, 2}
    assert judge(late, ["a"], "continue").stuck == {2}
    assert order_faults(history, [4, 2, 1]) == []
    assert order_faults(history, [2, 4, 1]) == [(2, 4)]


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(TraceError("f.jsonl", 3, "is not JSON")))
    assert (error.path, error.line, error.reason, str(error)) == ("f.jsonl", 3, "is not JSON", "f.jsonl:3: is not JSON")
