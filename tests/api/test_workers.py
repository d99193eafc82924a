"""Workers of one agent, in any process: limits to confirm, time-outs, probes, errors of any kind, no new work."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from effectstore import (
    Branch,
    CompensationScopeError,
    Inverse,
    LeaseLostError,
    Policy,
    Registration,
    Retry,
    Step,
    Store,
)
from support import Child, OpenStore, rest_of
from world import AT_ONCE, FakeClock, World, ids


def chain(store: Store, world: World) -> list[int]:
    """Three agents, each of which read what the one before wrote; the first one's work is aborted."""
    a, b, c = (store.branch(name, agent=name) for name in "abc")
    effects = [world.put(a, "X", 1), world.put(b, "Y", 1, reads="X"), world.put(c, "Z", 1, reads="Y")]
    a.abort(reason="contradicted")
    return [effect.id for effect in effects]


def aborted(store: Store, world: World, **options: Any) -> int:
    """One effect of agent "a", aborted."""
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1, **options)
    branch.abort(reason="contradicted")
    return effect.id


# Confirmation.


@pytest.fixture
def limited(open_store: OpenStore, clock: FakeClock) -> Store:
    """A store whose downstream agents have ten seconds to confirm."""
    return open_store("limited", clock=clock, policy=Policy(confirm_within=10))


def test_a_silent_downstream_agent_blocks_what_is_upstream(limited: Store, clock: FakeClock, world: World) -> None:
    upper, lower, lowest = chain(limited, world)
    clock.advance(10)
    report = limited.compensate(world.handlers(), agent="a")
    assert [(failure.effect, failure.kind, failure.agent) for failure in report.failed] == [
        (lowest, "unconfirmed", "c")
    ]
    assert ({item.effect for item in report.blocked}, report.downstream_confirmed) == ({upper, lower}, False)
    (alert,) = limited.alerts()
    assert (alert.severity, "'c'" in alert.text or '"c"' in alert.text) == ("critical", True)
    assert world.undone() == [], "a time-out is taken as consent"


def test_a_late_confirmation_resumes(limited: Store, clock: FakeClock, world: World) -> None:
    chain(limited, world)
    clock.advance(11)
    limited.tick()
    for agent in "abc":
        limited.compensate(world.handlers(), agent=agent)
    for agent in "ba":
        report = limited.compensate(world.handlers(), agent=agent)
    assert (world.undone(), report.clean, report.downstream_confirmed) == (["Z", "Y", "X"], True, True)


def test_the_limit_of_a_confirmation_holds_over_a_restart(
    open_store: OpenStore, clock: FakeClock, world: World
) -> None:
    options = {"clock": clock, "policy": Policy(confirm_within=10)}
    store = open_store("limited", **options)
    _, _, lowest = chain(store, world)
    store.close()
    clock.advance(9)
    store = open_store("limited", **options)
    store.tick()
    assert list(store.alerts()) == []
    clock.advance(1)
    store.branch("whoever writes next")
    (rollback,) = store.rollbacks()
    assert [(failure.effect, failure.kind) for failure in rollback.report.failed] == [(lowest, "unconfirmed")]
    store.verify()


def test_agents_in_processes_of_their_own_undo_in_order(open_store: OpenStore, world: World, child: Child) -> None:
    """Each process runs the steps of its agent; the order comes from the store alone."""
    store = open_store()
    chain(store, world)
    store.close()
    workers = [
        child(
            """
            import sys, time, effectstore
            from world import World
            world = World(sys.argv[2])
            until = time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    with effectstore.open(sys.argv[1]) as store:
                        report = store.compensate(world.handlers(), agent=sys.argv[3])
                        if report.clean:
                            break
                except effectstore.StorageError:
                    pass
                time.sleep(0.05)
            print("over", flush=True)
            """,
            agent,
        )
        for agent in "abc"
    ]
    assert [rest_of(worker) for worker in workers] == ["over\n"] * 3
    assert world.undone() == ["Z", "Y", "X"]


# Handler time-outs.


def test_a_handler_that_takes_too_long_is_recorded_as_such(store: Store, world: World) -> None:
    effect = aborted(store, world)
    release = threading.Event()
    report = store.compensate({"put_back": lambda args, step: release.wait(30)}, handler_timeout=0.05)
    release.set()
    assert [(failure.effect, failure.kind, failure.attempts) for failure in report.failed] == [(effect, "timeout", 3)]


def test_an_async_handler_that_takes_too_long_is_cancelled(store: Store, world: World) -> None:
    aborted(store, world)
    ended: list[str] = []

    async def slow(args: Any, step: Step) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append("cancelled")

    report = store.compensate({"put_back": slow}, handler_timeout=0.05)
    assert ([failure.kind for failure in report.failed], ended) == (["timeout"], ["cancelled"] * 3)


@pytest.mark.parametrize("fails", [False, True])
def test_the_outcome_of_an_overrunning_handler_is_refused_and_is_evidence(
    store: Store, world: World, fails: bool
) -> None:
    """The slow inverse of the later writer lands after the earlier one was undone: that one is due again."""
    world["X"] = 0
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    first = world.put(a, "X", 1, label="I1")
    second = world.put(b, "X", 2, label="I2")
    for branch in (b, a):
        branch.abort(reason="contradicted")
    overran = threading.Event()
    landed = threading.Event()
    attempts: list[str] = []

    def put_back(args: Mapping[str, Any], step: Step) -> None:
        attempts.append(args["label"])
        if attempts == ["I2"]:
            overran.wait(30)
            world.put_back(args, step)
            try:
                if fails:
                    raise RuntimeError("halfway")
            finally:
                threading.Timer(0.2, landed.set).start()
            return
        world.put_back(args, step)

    assert store.compensate({"put_back": put_back}, handler_timeout=0.3).clean
    assert world["X"] == 0
    overran.set()
    assert landed.wait(30)
    deadline = time.monotonic() + 20
    while not any(record.kind == "refused" for record in store.log()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert world["X"] == 1, "the late call put a doomed value back"
    report = store.compensate({"put_back": put_back})
    assert (world["X"], report.clean) == (0, True)
    assert attempts.count("I1") == 2
    assert ids(first, second) == {first.id, second.id}


def test_a_claim_whose_lease_is_lost_confirms_nothing(timed: Store, clock: FakeClock, world: World) -> None:
    aborted(timed, world)
    step = timed.claim("a", lease=5)
    assert step is not None
    clock.advance(6)
    for confirm in (step.complete, step.renew, step.release):
        with pytest.raises(LeaseLostError):
            confirm()
    again = timed.claim("a")
    assert again is not None
    assert again.attempt == 2


# Probes.


@pytest.mark.parametrize(("answer", "undone"), [(True, ["X"]), (None, ["X"]), (False, [])])
def test_a_probe_is_asked_whether_the_effect_happened(
    store: Store, world: World, answer: bool | None, undone: list[str]
) -> None:
    effect = aborted(store, world, report=False)
    asked: list[int] = []

    def probe(args: Any, step: Step) -> bool | None:
        asked.append(step.effect.id)
        return answer

    report = store.compensate(world.handlers(), probes={"put_back": probe})
    assert (asked, world.undone()) == ([effect], undone)
    assert ((report.discarded, report.clean) == ((effect,), True)) == (answer is False)
    assert (report.unsettled == (effect,)) == (answer is not False), "its call may yet land"


def test_a_probe_is_not_asked_of_what_is_known(store: Store, world: World) -> None:
    aborted(store, world)
    report = store.compensate(world.handlers(), probes={"put_back": lambda args, step: pytest.fail("asked")})
    assert (report.clean, world.undone()) == (True, ["X"])


def test_an_async_probe_and_one_that_fails_are_attempts_like_others(store: Store, world: World) -> None:
    aborted(store, world, report=False)
    answers: list[BaseException | bool] = [ConnectionError("down"), False]

    async def probe(args: Any, step: Step) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    assert store.compensate(world.handlers(), probes={"put_back": probe}).clean
    assert (answers, world.undone()) == ([], [])


# Errors of any kind.


class UnpicklableError(Exception):
    """Holds what no process can carry over."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()

    def __reduce__(self) -> str:
        raise TypeError("no")


class UnshowableError(Exception):
    """Neither `str` nor `repr` of it works."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Stop(BaseException):
    """What some frameworks cancel with."""


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (UnpicklableError(), "UnpicklableError", "held"),
        (ValueError("x" * 1_000_000), "ValueError", "xxx"),
        (UnshowableError(), "UnshowableError", "cannot be shown"),
        (ValueError("\ud800 odd \x00"), "ValueError", "odd"),
        (ExceptionGroup("several", [ValueError("one"), KeyError("two")]), "ExceptionGroup", "several"),
    ],
)
def test_errors_of_any_kind_are_recorded_as_type_and_shortened_text(
    store: Store, world: World, error: Exception, name: str, text: str
) -> None:
    effect = aborted(store, world)
    (failure,) = store.compensate(world.handlers({"X": error})).failed
    assert (failure.effect, failure.kind, failure.error_type, failure.attempts) == (effect, "error", name, 3)
    assert text in failure.message
    assert len(failure.message) <= 600


def test_an_error_that_is_no_exception_is_recorded_and_passes(store: Store, world: World) -> None:
    """It is not ours to swallow, whatever framework raised it; the attempt counts, and the rollback can go on."""
    effect = aborted(store, world, inverse=world.inverse_of("X", retry=Retry(max_attempts=1)))
    with pytest.raises(Stop):
        store.compensate(world.handlers({"X": Stop("enough")}))
    (rollback,) = store.rollbacks()
    (failure,) = rollback.report.failed
    assert (failure.effect, failure.error_type, failure.message) == (effect, "Stop", "enough")
    rollback.retry(effect, by="ops", reason="again")
    assert store.compensate(world.handlers()).clean


def test_an_async_handler_that_cancels_itself_failed(store: Store, world: World) -> None:
    aborted(store, world)

    async def confused(args: Any, step: Step) -> None:
        task = asyncio.ensure_future(asyncio.sleep(30))
        task.cancel()
        await task

    (failure,) = store.compensate({"put_back": confused}).failed
    assert (failure.kind, failure.error_type) == ("error", "HandlerCancelledError")


def test_cancellation_from_outside_leaves_the_rollback_resumable(store: Store, world: World) -> None:
    effect = aborted(store, world)

    def cancelled(args: Any, step: Step) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        store.compensate({"put_back": cancelled})
    (rollback,) = store.rollbacks()
    assert (rollback.report.pending, rollback.report.failed) == ((effect,), ())
    assert store.compensate(world.handlers()).clean


# No new work inside a compensation scope (I16).


def refused_work(store: Store, other: Branch) -> list[Callable[[], object]]:
    """Everything that would make new work, or read what may still fall."""
    call = Registration("put", {}, branch=other, inverse=Inverse("undo", {}))
    return [
        lambda: other.register("put", {}, inverse=Inverse("undo", {})),
        lambda: store.register_many([call]),
        lambda: other.call("put", {}, lambda: None, inverse=Inverse("undo", {})),
        lambda: other.observe("live"),
        lambda: store.branch("new"),
        lambda: store.compensate({}),
        lambda: store.outbox.claim("a"),
        lambda: store.outbox.run({}),
    ]


def try_all(work: list[Callable[[], object]], rollback: int) -> int:
    """How many of these are refused as they should be."""
    refused = 0
    for one in work:
        with pytest.raises(CompensationScopeError) as refusal:
            one()
        assert refusal.value.rollback == rollback
        refused += 1
    return refused


@pytest.mark.parametrize("where", ["plain", "async", "task", "to_thread", "timed"])
def test_i16_a_handler_makes_no_new_work_wherever_it_runs(store: Store, world: World, where: str) -> None:
    other = store.branch("B", agent="b")
    world.put(other, "live", 1)
    aborted(store, world, inverse=world.inverse_of("X", retry=AT_ONCE))
    work = refused_work(store, other)
    counted: list[int] = []

    def plain(args: Any, step: Step) -> None:
        counted.append(try_all(work, step.rollback))

    async def nested(args: Any, step: Step) -> None:
        if where == "async":
            counted.append(try_all(work, step.rollback))
        elif where == "task":

            async def inner() -> None:
                counted.append(try_all(work, step.rollback))

            await asyncio.create_task(inner())
        else:
            counted.append(await asyncio.to_thread(try_all, work, step.rollback))

    handler = plain if where in {"plain", "timed"} else nested
    report = store.compensate({"put_back": handler}, handler_timeout=30 if where == "timed" else None)
    assert (report.clean, counted) == (True, [len(work)])
    assert len(list(store.effects())) == 2
    assert [branch.name for branch in store.branches()] == ["B", "A"]


def test_i16_the_scope_ends_with_the_handler(store: Store, world: World) -> None:
    """A task that a handler leaves behind is not its code any more, and neither is what follows the call."""
    other = store.branch("B", agent="b")
    aborted(store, world)
    assert store.compensate(world.handlers()).clean
    world.put(other, "Y", 1)
    assert other.observe("Y")
