"""The model against scenes worked out by hand from the semantics: branches, fence, outcomes."""

from __future__ import annotations

from .reference import Limits, Policy
from .scenes import UNDO, Scene


def storm() -> Scene:
    """Section 1: B writes x, C reads it and deploys because of it, A contradicts B."""
    scene = Scene()
    for name in "ABC":
        scene.branch(name)
    scene.run("w", "B", writes="x")
    scene.run("d", "C", reads="x", writes="y")
    scene.run("a", "A", writes="z")
    return scene


def test_the_storm_dooms_write_and_deploy_together() -> None:
    scene = storm()
    fence = scene.call("commit", "C", scene.token("C"), "C")
    assert fence.status == "waiting"
    assert scene.model.decide("C").blockers == {(scene.names["w"], "no_vote")}
    result = scene.call("reconcile", (), ("B",))
    assert scene.named(result.doomed) == {"w"}
    assert scene.named(result.cascaded) == {"d"}
    assert fence.status == "aborted"
    assert (scene.states("wda"), scene.undo_all()) == ("ddl", "dw")
    assert scene.report() == {"completed": "dw"}
    assert [scene.model.branches[b].state for b in "ABC"] == ["open", "closed", "doomed"]


def test_the_other_way_round_the_closure_is_committed_as_one() -> None:
    scene = storm()
    fence = scene.call("commit", "C", scene.token("C"), "C")
    scene.call("seal", "B", scene.token("B"))
    assert fence.status == "committed"
    assert scene.named(fence.committed) == {"w", "d"}
    result = scene.call("reconcile", (), ("B",))
    assert scene.named(result.kept) == {"w"}
    assert result.rollback is None
    assert scene.states("wda") == "ccl"


def diamond() -> Scene:
    """C1: a writes X; b and c read it; d reads both; e is unrelated."""
    scene = Scene()
    for name in "ABCDF":
        scene.branch(name)
    scene.run("a", "A", writes="X")
    scene.run("b", "B", reads="X", writes="Y")
    scene.run("c", "C", reads="X", writes="Z")
    scene.run("d", "D", reads="YZ", writes="Q")
    scene.run("e", "F", reads="K", writes="M")
    return scene


def test_a_diamond_is_one_cascade_and_undone_backwards() -> None:
    scene = diamond()
    result = scene.call("reconcile", (), ("A",))
    assert (scene.named(result.doomed), scene.named(result.cascaded)) == ({"a"}, {"b", "c", "d"})
    again = scene.call("reconcile", (), ("B",))
    assert (again.doomed, again.rollback) == (frozenset(), None)
    assert scene.undo_all() == "dcba"
    assert scene.call("commit", "F", scene.token("F"), "F").status == "committed"


def test_a_diamond_aborted_in_two_parts_keeps_the_order() -> None:
    scene = diamond()
    scene.call("reconcile", (), ("B",))
    first = scene.claim()
    assert scene.name_of(first) == "d"
    scene.call("reconcile", (), ("A",))
    assert scene.claim() is None, "c and b wait for d, which is only claimed"
    scene.call("complete", first)
    assert scene.undo_all() == "cba"


def test_program_order_and_after() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A")
    turn = frozenset(scene.model.tip("A"))
    scene.run("b", "A", base=turn)
    scene.run("c", "A", base=turn)
    assert scene.named(scene.model.tip("A")) == {"b", "c"}
    scene.run("d", "A")
    assert scene.named(scene.model.direct(scene.names["d"])) == {"b", "c"}
    scene.run("e", "A", after=())
    assert scene.named(scene.model.tip("A")) == {"d", "e"}
    scene.run("f", "A", after="a")
    assert scene.named(scene.model.closure(scene.names["f"])) == {"a"}
    assert scene.named(scene.model.tip("A")) == {"d", "e", "f"}


def test_void_hands_on_what_it_rested_on() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.run("a", "A", writes="x")
    scene.start("b", "B", reads="x", writes="y")
    scene.branch("C")
    scene.run("c", "C", reads="y")
    scene.not_run("b")
    assert scene.states("abc") == "lvl"
    assert scene.named(scene.model.closure(scene.names["c"])) == {"a"}
    scene.run("d", "B")
    assert scene.named(scene.model.closure(scene.names["d"])) == {"a"}, "the branch keeps what the failed call saw"
    scene.call("reconcile", (), ("A",))
    assert scene.states("abcd") == "dvdd"


def test_a_version_of_what_never_was_dooms_its_reader() -> None:
    scene = Scene()
    for name in "ABC":
        scene.branch(name)
    scene.start("a", "A", writes="x")
    scene.run("b", "B", reads={"x": "a"})
    scene.run("c", "C", reads="x")
    scene.not_run("a")
    assert scene.states("abc") == "vdl"
    scene.refused("DoomedDependencyError", "register", *scene.words("C", reads={"x": "a"}))


def test_a_void_key_may_be_used_anew() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("a", "A", key="k")
    assert scene.call("register", *scene.words("A", key="k")).created is False
    scene.refused("IdempotencyConflictError", "register", *scene.words("A", key="k", args="other"))
    scene.not_run("a")
    scene.run("b", "A", key="k")
    other = scene.call("register", *scene.words("B", key="k"))
    assert (other.created, other.token) == (False, None)
    scene.run("c", "B")
    assert scene.named(scene.model.closure(scene.names["c"])) == {"b"}, "asking was an observation"


def test_evidence_on_a_void_effect_dooms_its_readers() -> None:
    scene = Scene()
    for name in "ABCD":
        scene.branch(name)
    scene.start("a", "A", writes="x")
    scene.run("b", "B", reads="x")
    scene.run("c", "C", reads="x")
    scene.not_run("a")
    scene.call("commit", "C", scene.token("C"), "C")
    scene.run("d", "D", reads="x")
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    assert scene.states("abcd") == "ddcl"
    assert [(scene.named([e]), scene.named(r)) for e, r in scene.model.alerts] == [({"a"}, {"c"})]
    assert scene.undo_all() == "ba"


def test_nested_votes_count_when_every_branch_above_has_voted() -> None:
    scene = Scene()
    scene.branch("P")
    scene.run("p", "P", writes="x")
    scene.branch("C", parent="P")
    scene.run("c", "C", writes="y")
    assert scene.named(scene.model.closure(scene.names["c"])) == {"p"}
    fence = scene.call("commit", "C", scene.token("C"), "C")
    assert scene.model.blockers(fence.targets) == {(scene.names["c"], "no_vote"), (scene.names["p"], "no_vote")}
    scene.call("seal", "P", scene.token("P"))
    assert scene.named(fence.committed) == {"c", "p"}


def test_merge_hands_effects_and_observations_to_the_parent() -> None:
    scene = Scene()
    scene.branch("P")
    scene.branch("B")
    scene.run("p", "P")
    scene.branch("C", parent="P")
    scene.run("w", "B", writes="x")
    scene.observe("C", "x")
    scene.run("c", "C")
    scene.call("merge", "C", scene.token("C"))
    assert scene.named(scene.model.tip("P")) == {"c"}
    scene.run("q", "P", after=())
    assert scene.named(scene.model.closure(scene.names["q"])) == {"w"}
    scene.refused("BranchClosedError", "register", *scene.words("C"))
    scene.call("reconcile", (), ("B",))
    assert scene.states("pcqw") == "lddd"
    assert scene.model.branches["P"].state == "doomed"


def test_aborting_the_parent_takes_the_children_along() -> None:
    scene = Scene()
    scene.branch("P")
    scene.branch("C", parent="P")
    scene.branch("D", parent="C")
    scene.run("d", "D", after=())
    result = scene.call("abort", "P", scene.token("P"))
    assert scene.named(result.doomed) == {"d"}
    assert {scene.model.branches[b].state for b in "PCD"} == {"closed"}
    scene.refused("BranchClosedError", "branch", "E", agent="E", parent="P")
    scene.refused("BranchClosedError", "resume", "D", scene.token("D"))


def test_takeover_makes_tokens_stale_and_a_stale_done_is_evidence() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A", writes="x")
    old, (effect, effect_token) = scene.token("A"), scene.own("a")
    scene.call("takeover", "A")
    scene.refused("StaleTokenError", "seal", "A", old)
    scene.refused("StaleTokenError", "done", effect, effect_token)
    assert scene.model.effects[effect].outcome == "unknown"
    scene.refused("AlreadySettledError", "not_run", *scene.own("a"))
    scene.done("a")


def test_a_branch_past_its_lease_loses_what_is_unsealed() -> None:
    scene = Scene()
    scene.branch("A", lease=10.0)
    scene.run("a", "A", writes="x")
    scene.call("seal", "A", scene.token("A"))
    scene.run("b", "A", after=())
    scene.model.now = 9.0
    scene.call("heartbeat", "A", scene.token("A"))
    scene.model.now = 18.0
    scene.call("tick")
    assert scene.states("ab") == "ll"
    scene.model.now = 19.0
    scene.refused("DoomedBranchError", "heartbeat", "A", scene.token("A"))
    assert scene.states("ab") == "ld"
    assert scene.model.branches["A"].state == "doomed"


def test_commit_without_waiting_leaves_nothing_behind() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A")
    scene.refused("FenceClosureError", "commit", "A", scene.token("A"), "A", escalate="never")
    assert not scene.model.effects[scene.names["a"]].votes
    scene.done("a")
    assert scene.states("a") == "l"
    assert scene.model.decide(scene.names["a"]).kind == "commit"


def test_an_intent_whose_targets_are_all_void_is_aborted() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A")
    scene.start("b", "A")
    fence = scene.call("commit", "A", scene.token("A"), "A")
    scene.not_run("a")
    assert fence.status == "waiting"
    scene.not_run("b")
    assert fence.status == "aborted"


def test_deferred_effects_need_no_outcome_and_are_no_tip() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", writes="x")
    scene.start("m", "A", reversibility="irreversible", inverse=None, writes="x")
    scene.run("b", "A", writes="x")
    assert scene.named(scene.model.closure(scene.names["b"])) == {"a"}
    scene.start("n", "A", after="m")
    assert scene.model.effects[scene.names["n"]].mode == "deferred"
    fence = scene.call("commit", "A", scene.token("A"), "A")
    assert scene.named(fence.committed) == {"a", "b", "m", "n"}


def test_reconcile_refuses_when_winner_rests_on_loser() -> None:
    scene = storm()
    scene.refused("ReconcileConflictError", "reconcile", ("C",), ("B",))
    assert scene.states("wda") == "lll"
    result = scene.call("reconcile", ("C", "A"), ("B",), on_conflict="abort")
    assert result.fence is None
    assert scene.states("wda") == "ddl"


def test_the_authority_votes_for_a_closure() -> None:
    scene = storm()
    result = scene.call("reconcile", ("C",), (), escalate="wait")
    assert result.fence.status == "waiting"
    scene.refused("FenceClosureError", "reconcile", ("C",), ("A",), escalate="never")
    assert scene.states("wda") == "lll"
    result = scene.call("reconcile", ("C",), ("A",), closure=True)
    assert scene.named(result.committed) == {"w", "d"}
    assert scene.states("wda") == "ccd"


def test_the_authority_does_not_vote_for_others_irreversible_work() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("m", "A", reversibility="irreversible", inverse=None)
    scene.start("n", "B", after="m")
    result = scene.call("reconcile", ("B",), (), closure=True)
    assert scene.model.blockers(result.fence.targets) == {(scene.names["m"], "no_vote")}
    scene.call("seal", "A", scene.token("A"))
    assert scene.states("mn") == "cc"


def test_only_the_authority_commits_where_the_policy_says_so() -> None:
    scene = Scene(policy=Policy(authority="reconcile"))
    scene.branch("A")
    scene.run("a", "A")
    scene.refused("CommitReservedError", "commit", "A", scene.token("A"), "A")
    assert scene.call("reconcile", ("A",), ()).fence.status == "committed"


def test_limits_refuse_with_nothing_changed() -> None:
    scene = Scene(limits=Limits(live_effects=4, live_writers_per_key=2, closure=2))
    for name in "ABC":
        scene.branch(name)
    scene.run("a", "A", writes="x")
    scene.run("b", "B", writes="x")
    refusal = scene.refused("LimitExceededError", "register", *scene.words("C", writes="x"))
    assert refusal.attributes["limit"] == "live_writers_per_key"
    scene.run("c", "B")
    refusal = scene.refused("LimitExceededError", "register", *scene.words("B", reads="x"))
    assert refusal.attributes["limit"] == "closure"
    scene.run("d", "C")
    refusal = scene.refused("LimitExceededError", "register", *scene.words("C"))
    assert refusal.attributes["limit"] == "live_effects"


def test_overwrite_depend_rests_on_what_it_overwrites() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B", overwrite="depend")
    scene.branch("C")
    scene.run("a", "A", writes="x")
    scene.run("c", "C", writes="x")
    scene.run("b", "B", writes="x")
    assert scene.named(scene.model.closure(scene.names["b"])) == {"a", "c"}
    assert scene.named(scene.model.closure(scene.names["c"])) == set(), "a blind write makes no dependency"


def test_many_are_siblings_and_all_or_nothing() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", writes="x")
    items = [(*scene.words("A", writes="y"), None), (*scene.words("A", writes="z"), None)]
    first, second = scene.call("register_many", items)
    assert scene.named(scene.model.closure(first.effect)) == {"a"}
    assert scene.named(scene.model.closure(second.effect)) == {"a"}
    before = dict(scene.model.effects)
    items = [(*scene.words("A", key="k"), None), (*scene.words("A", writes="y"), None)]
    assert scene.refused("KeyBusyError", "register_many", items).attributes["index"] == 1
    assert (scene.model.effects, scene.model.keys) == (before, {})


def test_an_inverse_is_required_unless_declared_away() -> None:
    scene = Scene()
    scene.branch("A")
    scene.refused("InverseRequiredError", "register", *scene.words("A", inverse=None))
    loose = Scene(policy=Policy(require_inverse=False))
    loose.branch("A")
    loose.run("a", "A", inverse=None, writes="x")
    loose.run("b", "A", inverse=UNDO, writes="y")
    loose.call("abort", "A", loose.token("A"))
    assert loose.report() == {"failed": {"a": "not_compensable"}, "pending": "b"}
    rollback = next(iter(loose.model.rollbacks))
    loose.refused("ReasonRequiredError", "approve", rollback)
    loose.call("approve", rollback, reason="seen")
    assert loose.undo_all() == "b"
    assert loose.report() == {"failed": {"a": "not_compensable"}, "completed": "b"}
