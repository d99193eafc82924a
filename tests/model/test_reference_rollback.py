"""The model against scenes worked out by hand: undo order, attempts, guard, generations, approvals."""

from __future__ import annotations

from .reference import Inverse, Policy, Retry
from .scenes import UNDO, Scene


def chain(policy: Policy | None = None) -> Scene:
    """C7: one branch with unrelated o, the chain a <- b <- c, and unrelated z."""
    scene = Scene(policy=policy)
    scene.branch("A")
    scene.run("o", "A", after=())
    scene.run("a", "A", after=())
    scene.run("b", "A", after="a")
    scene.run("c", "A", after="b")
    scene.run("z", "A", after=())
    scene.call("abort", "A", scene.token("A"))
    return scene


def fail_always(scene: Scene, name: str, limit: int = 3) -> str:
    """Undo everything; the inverse of one effect fails at every attempt."""
    order = ""
    for _ in range(limit * 4):
        step = scene.claim()
        if step is None:
            scene.model.now += 60
            continue
        order += scene.name_of(step)
        scene.call("fail" if scene.name_of(step) == name else "complete", step)
    return order


def test_halt_blocks_only_what_the_failed_one_rested_on() -> None:
    scene = chain()
    assert sorted(fail_always(scene, "b")) == sorted("zcbbbo")
    assert scene.report() == {"completed": "coz", "failed": {"b": "error"}, "blocked": "a"}
    scene.call("retry", scene.names["b"])
    assert scene.report() == {"completed": "coz", "pending": "ab"}
    assert scene.undo_all() == "ba"
    assert scene.report() == {"completed": "abcoz"}


def test_continue_waives_dependencies_but_not_writers_of_one_key() -> None:
    scene = chain(Policy(on_failure="continue"))
    fail_always(scene, "b")
    assert scene.report() == {"completed": "acoz", "failed": {"b": "error"}}
    scene = Scene(policy=Policy(on_failure="continue"))
    scene.branch("A")
    scene.run("a", "A", writes="x")
    scene.run("b", "A", writes="x")
    scene.call("abort", "A", scene.token("A"))
    fail_always(scene, "b")
    assert scene.report() == {"failed": {"b": "error"}, "blocked": "a"}
    scene.call("resolve", scene.names["b"])
    assert scene.undo_all() == "a"


def test_backoff_and_permanent_failure() -> None:
    scene = chain()
    step = scene.claim()
    scene.call("fail", step, permanent=True)
    assert scene.report()["failed"] == {"z": "permanent"}
    step = scene.claim()
    assert scene.name_of(step) == "c"
    scene.call("fail", step)
    assert scene.name_of(scene.claim()) == "o", "c backs off, b and a wait for it"
    assert scene.claim() is None
    scene.model.now += 0.5
    assert scene.claim() is None
    scene.model.now += 0.5
    again = scene.claim()
    assert again is not None
    assert (scene.name_of(again), again.attempt) == ("c", 2)
    scene.call("fail", again, retry_after=100.0)
    scene.model.now += 99.0
    assert scene.name_of(scene.claim()) == "o", "its lease was over after 60 seconds"
    scene.model.now += 1.0
    assert scene.name_of(scene.claim()) == "c"


def test_a_later_live_writer_blocks_and_decides() -> None:
    for ending in ("commit", "abort"):
        scene = Scene()
        scene.branch("A")
        scene.branch("B")
        scene.run("a", "A", writes="x")
        scene.run("y", "A", writes="y")
        scene.run("b", "B", writes="x")
        scene.call("abort", "A", scene.token("A"))
        assert scene.report() == {"pending": "y", "blocked": "a"}
        assert scene.undo_all() == "y"
        if ending == "commit":
            scene.call("commit", "B", scene.token("B"), "B")
            assert scene.report() == {"completed": "y", "failed": {"a": "conflict"}}
            assert scene.model.undo(scene.names["a"]).writer == scene.names["b"]
        else:
            scene.call("abort", "B", scene.token("B"))
            assert scene.undo_all() == "ba"
            assert scene.report() == {"completed": "aby"}


def test_compare_and_set_runs_in_any_case() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.run("a", "A", writes="x", inverse=Inverse(compare_and_set=True))
    scene.run("b", "B", writes="x")
    scene.call("abort", "A", scene.token("A"))
    assert scene.undo_all() == "a"
    scene.call("abort", "B", scene.token("B"))
    step = scene.claim()
    assert scene.name_of(step) == "b"
    scene.call("complete", step)
    again = scene.claim()
    assert again is not None
    assert (scene.name_of(again), again.generation) == ("a", 2), "b's undo may have put a's value back"


def test_a_compare_and_set_whose_call_reported_late_is_guarded() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("a", "A", writes="x", inverse=Inverse(compare_and_set=True))
    scene.not_run("a")
    scene.run("b", "B", writes="x")
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    assert scene.report() == {"blocked": "a"}
    scene.call("commit", "B", scene.token("B"), "B")
    assert scene.report() == {"failed": {"a": "conflict"}}


def test_a_late_done_opens_a_finished_rollback_again() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("e", "A", writes="x")
    scene.start("a", "A", writes="x")
    scene.call("abort", "A", scene.token("A"))
    assert scene.undo_all() == "ae"
    scene.call("close", scene.names["a"])
    assert scene.report() == {"completed": "ae"}
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    assert scene.report() == {"pending": "ae"}, "the earlier writer's undo may have been overwritten"
    first = scene.claim()
    assert first is not None
    assert (scene.name_of(first), first.generation) == ("a", 2)
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    scene.call("complete", first)
    assert scene.undo_all() == "e"
    assert scene.report() == {"completed": "ae"}


def test_a_late_not_run_discards_only_what_was_not_begun() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A", after=())
    scene.start("b", "A", after=())
    scene.call("abort", "A", scene.token("A"))
    step = scene.claim()
    assert scene.name_of(step) == "b"
    scene.not_run("b")
    scene.not_run("a")
    assert scene.report() == {"discarded": "a", "pending": "b"}
    scene.call("complete", step)
    assert scene.report() == {"discarded": "a", "completed": "b"}


def test_evidence_leaves_the_claim_and_the_step_is_due_when_it_ends() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A", writes="x")
    scene.call("abort", "A", scene.token("A"))
    step = scene.claim()
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    assert scene.claim() is None
    scene.call("complete", step)
    again = scene.claim()
    assert again is not None
    assert (again.generation, again.attempt) == (2, 1)


def test_a_lost_lease_counts_and_its_outcome_is_evidence() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("e", "A", writes="x")
    scene.run("a", "A", writes="x")
    scene.call("abort", "A", scene.token("A"))
    lost = scene.claim(lease=10.0)
    scene.model.now = 10.0
    second = scene.claim()
    assert second is not None
    assert (scene.name_of(second), second.attempt, second.generation) == ("a", 2, 1)
    scene.call("complete", second)
    assert scene.undo_all() == "e"
    scene.refused("LeaseLostError", "complete", lost)
    assert scene.report() == {"completed": "a", "pending": "e"}
    assert scene.undo_all() == "e"


def test_leases_run_out_at_most_as_often_as_attempts_are_allowed() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", inverse=Inverse(retry=Retry(max_attempts=2)))
    scene.call("abort", "A", scene.token("A"))
    for _ in range(2):
        assert scene.claim(lease=10.0) is not None
        scene.model.now += 10.0
    assert scene.claim() is None
    assert scene.report() == {"failed": {"a": "timeout"}}


def test_steps_go_to_the_agent_that_owns_them() -> None:
    scene = Scene()
    scene.branch("A", agent="ann")
    scene.branch("B", agent="bob")
    scene.run("a", "A", writes="x")
    scene.run("b", "B", reads="x")
    scene.run("c", "B", inverse=Inverse(agent="*"))
    scene.call("reconcile", (), ("A",))
    assert scene.name_of(scene.claim("ann")) == "c", "anyone may run this one"
    assert scene.claim("ann") is None, "b comes first and is bob's"
    assert scene.claim("bob") is None, "and b waits for c"


def test_rings_are_undone_as_one_with_what_rests_on_them_first() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.branch("C")
    scene.start("a", "A", writes="x")
    scene.run("b", "B", reads="x", writes="y")
    scene.call("late_observe", *scene.own("a"), ["y"])
    scene.done("a")
    scene.run("c", "C", reads="x")
    scene.call("reconcile", (), ("B",))
    assert scene.undo_all() == "cba"


def test_key_order_over_two_rollbacks() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.run("a", "A", writes="x")
    scene.run("b", "B", writes="x")
    scene.run("c", "A", writes="y")
    scene.call("abort", "B", scene.token("B"))
    scene.call("abort", "A", scene.token("A"))
    assert scene.undo_all() == "cba"


def test_the_branch_of_a_claimed_step_does_no_work() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.run("a", "A", writes="x")
    scene.run("b", "B", writes="y")
    scene.call("reconcile", (), (scene.names["a"],))
    scene.call("resume", "A", scene.token("A"))
    step = scene.claim()
    scene.refused("CompensationScopeError", "register", *scene.words("A"))
    scene.observe("A", "z")
    scene.refused("CompensationScopeError", "observe", "A", scene.token("A"), {"y": None})
    scene.call("complete", step)
    scene.refused("UncommittedKeyError", "register", *scene.words("A"))
    scene.call("commit", "B", scene.token("B"), "B")
    scene.run("c", "A")


def test_five_keys_are_automatic_and_six_are_not() -> None:
    for keys, gate in (("abcde", "automatic"), ("abcdef", "pending")):
        scene = Scene()
        scene.branch("A")
        for key in keys:
            scene.run(key, "A", writes=key, after=())
        scene.call("abort", "A", scene.token("A"))
        (rollback,) = scene.model.rollbacks.values()
        assert rollback.gate == gate


def test_a_claim_gets_nothing_of_a_rollback_that_it_made_itself_and_that_needs_a_person() -> None:
    """What its own timers doom is asked for in the same step, before anything is handed out."""
    scene = Scene()
    scene.branch("A", lease=10.0)
    scene.run("a", "A", inverse=Inverse(partial=True), writes="x")
    scene.model.now += 11.0
    assert scene.claim() is None
    (rollback,) = scene.model.rollbacks.values()
    assert (rollback.gate, len(rollback.approvals)) == ("pending", 1)


def test_a_denial_fails_and_a_new_request_opens() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", inverse=Inverse(partial=True), writes="x")
    scene.run("b", "A", inverse=UNDO)
    scene.call("abort", "A", scene.token("A"))
    (rollback,) = scene.model.rollbacks
    assert scene.claim() is None
    scene.call("deny", rollback)
    assert scene.report() == {"failed": {"a": "denied", "b": "denied"}}
    scene.refused("ApprovalClosedError", "approve", rollback)
    scene.call("request_approval", rollback)
    assert scene.report() == {"pending": "ab"}
    scene.call("approve", rollback)
    assert scene.undo_all() == "ba"


def test_a_changed_plan_needs_a_new_request() -> None:
    scene = Scene(policy=Policy(auto_keys=1))
    scene.branch("A")
    scene.start("a", "A", writes="x", after=())
    scene.run("b", "A", writes="y", after=())
    scene.run("c", "A", writes="z", after=())
    scene.start("d", "A", writes="w", after=())
    scene.call("abort", "A", scene.token("A"))
    (rollback,) = scene.model.rollbacks.values()
    scene.not_run("a")
    assert [a.state for a in rollback.approvals] == ["stale", "pending"]
    scene.call("approve", rollback.id)
    scene.not_run("d")
    assert rollback.gate == "approved", "an approved plan may shrink"
    scene.refused("AlreadySettledError", "done", *scene.own("a"))
    assert rollback.gate == "pending", "but not grow"


def test_a_pending_plan_that_becomes_small_is_automatic() -> None:
    scene = Scene(policy=Policy(auto_keys=1))
    scene.branch("A")
    scene.start("a", "A", writes="x", after=())
    scene.run("b", "A", writes="y", after=())
    scene.call("abort", "A", scene.token("A"))
    assert scene.claim() is None
    scene.not_run("a")
    assert scene.undo_all() == "b"
    assert scene.report() == {"completed": "b", "discarded": "a"}


def test_an_inverse_past_its_window_is_not_attempted() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", inverse=Inverse(deadline=30.0))
    scene.call("abort", "A", scene.token("A"))
    scene.model.now = 30.0
    assert scene.claim() is None
    assert scene.report() == {"failed": {"a": "expired"}}
    scene.call("resolve", scene.names["a"])
    assert scene.report() == {"completed": "a"}


def test_nothing_to_undo_makes_no_rollback() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("m", "A", mode="deferred")
    assert scene.call("abort", "A", scene.token("A")).rollback is None
    assert scene.states("m") == "d"
