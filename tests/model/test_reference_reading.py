"""The model against scenes worked out by hand from the semantics: reads, late edges, dirty and busy keys."""

from __future__ import annotations

from .scenes import Scene


def test_the_second_look_adds_what_the_call_may_have_seen() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("r", "A", reads="x")
    scene.run("w", "B", writes="x")
    assert scene.named(scene.model.closure(scene.names["r"])) == set()
    scene.done("r")
    assert scene.named(scene.model.closure(scene.names["r"])) == {"w"}
    scene.start("s", "A", reads="x")
    scene.call("reconcile", (), ("B",))
    assert scene.states("rsw") == "ddd"


def test_a_writer_that_came_and_went_during_the_call_dooms_it() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("r", "A", reads="x")
    scene.run("w", "B", writes="x")
    scene.call("reconcile", (), ("B",))
    assert scene.undo_all() == "w"
    assert scene.states("r") == "l"
    scene.done("r")
    assert scene.states("r") == "d"
    assert scene.model.branches["A"].state == "doomed"


def test_a_late_observation_makes_a_ring_that_commits_or_falls_as_one() -> None:
    for ending in ("commit", "abort"):
        scene = Scene()
        scene.branch("A")
        scene.branch("B")
        scene.start("a", "A", writes="x")
        scene.run("b", "B", reads="x", writes="y")
        scene.call("late_observe", *scene.own("a"), ["y"])
        scene.done("a")
        assert scene.named(scene.model.closure(scene.names["a"])) == {"b"}
        assert scene.named(scene.model.tip("A")) == {"a"}
        fence = scene.call("commit", "A", scene.token("A"), "A")
        assert fence.status == "waiting"
        if ending == "commit":
            scene.call("seal", "B", scene.token("B"))
            assert scene.named(fence.committed) == {"a", "b"}
        else:
            scene.call("abort", "B", scene.token("B"))
            assert fence.status == "aborted"
            assert scene.undo_all() == "ba"


def test_a_ring_within_a_branch_has_its_newest_as_tip() -> None:
    scene = Scene()
    scene.branch("A")
    scene.start("a", "A", writes="x")
    scene.start("b", "A", writes="y")
    scene.call("late_observe", *scene.own("a"), ["y"])
    assert scene.named(scene.model.tip("A")) == {"b"}


def test_writers_in_flight_and_dirty_keys() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.start("a", "A", writes="x")
    scene.refused("KeyBusyError", "register", *scene.words("B", writes="x"))
    scene.call("reconcile", (), (scene.names["a"],))
    scene.refused("DirtyKeyError", "register", *scene.words("B", writes="x"))
    scene.refused("DirtyKeyError", "register", *scene.words("B", reads="x"))
    assert scene.undo_all() == "a"
    scene.refused("DirtyKeyError", "register", *scene.words("B", writes="x"))
    assert scene.report() == {"unsettled": "a"}
    scene.call("close", scene.names["a"])
    assert scene.report() == {"completed": "a"}
    scene.run("b", "B", writes="x")


def test_a_version_of_a_key_that_is_written_must_be_the_newest() -> None:
    scene = Scene()
    scene.branch("A")
    scene.run("a", "A", writes="x")
    scene.run("b", "A", writes="x", reads={"x": "a"})
    scene.refused("KeyBusyError", "register", *scene.words("A", writes="x", reads={"x": "a"}))
    scene.refused("KeyBusyError", "register", *scene.words("A", writes="x", reads={"x": 0}))
    scene.run("c", "A", reads={"x": "a"}, after=())
    assert scene.named(scene.model.direct(scene.names["c"])) == {"a"}


def test_a_refused_branch_observation_is_remembered() -> None:
    scene = Scene()
    scene.branch("A", reads="sealed")
    scene.branch("B")
    scene.run("w", "B", writes="x")
    scene.refused("UncommittedKeyError", "observe", "A", scene.token("A"), {"x": None})
    scene.refused("UncommittedKeyError", "register", *scene.words("A"))
    scene.call("seal", "B", scene.token("B"))
    scene.run("a", "A")
    assert scene.named(scene.model.closure(scene.names["a"])) == {"w"}


def test_a_refused_observation_of_what_is_doomed_later_stops_the_branch() -> None:
    scene = Scene()
    scene.branch("A", reads="committed")
    scene.branch("B")
    scene.run("w", "B", writes="x")
    scene.run("a", "A")
    scene.refused("UncommittedKeyError", "observe", "A", scene.token("A"), {"x": None})
    scene.call("reconcile", (), ("B",))
    assert scene.model.branches["A"].state == "doomed"
    assert scene.states("aw") == "ld", "effects fall by edges only"
    scene.refused("DoomedBranchError", "register", *scene.words("A"))
    scene.call("resume", "A", scene.token("A"))
    scene.run("b", "A")
    assert scene.named(scene.model.closure(scene.names["b"])) == {"a"}


def test_a_dirty_observation_stops_the_branch_at_once_and_a_version_lifts_what_is_held() -> None:
    scene = Scene()
    scene.branch("A")
    scene.branch("B")
    scene.branch("C", reads="committed")
    scene.run("v", "B", writes="x")
    scene.refused("UncommittedKeyError", "observe", "C", scene.token("C"), {"x": None})
    scene.observe("C", {"x": 0})
    scene.run("c", "C")
    assert scene.named(scene.model.closure(scene.names["c"])) == set()
    scene.call("reconcile", (), ("B",))
    scene.refused("DirtyKeyError", "observe", "A", scene.token("A"), {"x": None})
    assert scene.model.branches["A"].state == "doomed"
    assert scene.model.branches["C"].state == "open"


def test_an_observation_brackets_a_read_that_takes_time() -> None:
    scene = Scene()
    for name in "ABC":
        scene.branch(name)
    scene.observe("A", "x")
    since = scene.model.position
    scene.run("w", "B", writes="x")
    scene.call("commit", "B", scene.token("B"), "B")
    scene.run("v", "C", writes="x")
    (seen,) = scene.observe("A", "x", since=since)
    assert scene.named(seen.writers) == {"w", "v"}
    scene.call("reconcile", (), ("C",))
    assert scene.model.branches["A"].state == "doomed"
    scene.call("resume", "A", scene.token("A"))
    assert scene.undo_all() == "v"
    scene.observe("A", "x")
    since = scene.model.position
    scene.run("u", "B", writes="x")
    scene.call("reconcile", (), (scene.names["u"],))
    assert scene.undo_all() == "u"
    scene.refused("DirtyKeyError", "observe", "A", scene.token("A"), {"x": None}, since=since)
    assert scene.model.branches["A"].state == "doomed", "the doomed value was there meanwhile, undone or not"


def test_a_void_writer_seen_late_stands_for_what_it_rested_on() -> None:
    scene = Scene()
    for name in "ABC":
        scene.branch(name)
    scene.run("a", "A", writes="y")
    scene.start("r", "C")
    scene.start("w", "B", reads="y", writes="x")
    scene.not_run("w")
    scene.call("reconcile", (), ("A",))
    scene.refused("DirtyKeyError", "late_observe", *scene.own("r"), ["x"])
    assert scene.states("awr") == "dvd"
