"""compensate: who runs which step, what a handler may say, deadlines, approvals, root causes and the audit record."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from effectstore import (
    ApprovalClosedError,
    Branch,
    Effect,
    Inverse,
    PermanentError,
    Policy,
    ReasonRequiredError,
    Retry,
    RetryLaterError,
    Rollback,
    SeparationOfDutiesError,
    Store,
)
from effectstore.testing import check_inverse
from support import OpenStore
from world import AT_ONCE, FakeClock, World, ids, members


def aborted(store: Store, world: World, count: int = 1, **options: Any) -> tuple[list[Effect], Rollback]:
    """A branch of `count` effects on keys of their own, aborted."""
    branch = store.branch("A", agent="a")
    effects = [world.put(branch, f"K{number}", number, **options) for number in range(count)]
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    return effects, rollback


@pytest.mark.parametrize("missing", ["fail", "leave"])
def test_a_step_without_a_handler_fails_or_stays_and_counts_no_attempt(
    store: Store, world: World, missing: Any
) -> None:
    (effect,), _ = aborted(store, world)
    report = store.compensate({"other": lambda args, step: None}, missing=missing)
    if missing == "fail":
        assert [(failure.effect, failure.kind, failure.attempts) for failure in report.failed] == [
            (effect.id, "no_handler", 0)
        ]
    else:
        assert (report.pending, report.failed) == ((effect.id,), ())
    assert report.clean is False
    assert store.compensate(world.handlers()).clean
    assert [call.attempt for call in world.calls("inverse")] == [1]


def test_a_rollback_of_none_is_a_type_error_and_never_means_everything(store: Store, world: World) -> None:
    aborted(store, world)
    with pytest.raises(TypeError):
        store.compensate(world.handlers(), rollback=None)  # type: ignore[arg-type]
    assert world.undone() == []


@pytest.mark.parametrize("given", ["id", "object"])
def test_one_rollback_leaves_the_others_alone(store: Store, world: World, given: str) -> None:
    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    world.put(b, "Y", 1)
    first = a.abort(reason="contradicted").rollback
    b.abort(reason="contradicted")
    assert first is not None
    store.compensate(world.handlers(), rollback=first if given == "object" else first.id)
    assert world.undone() == ["X"]


def test_an_agent_runs_its_own_steps_and_those_that_anyone_may_run(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    world.put(branch, "mine", 1, after=())
    world.put(branch, "bob", 1, after=(), inverse=world.inverse_of("bob", agent="b"))
    world.put(branch, "any", 1, after=(), inverse=world.inverse_of("any", agent="*"))
    branch.abort(reason="contradicted")
    assert store.claim("c", tools=["other"]) is None
    store.compensate(world.handlers(), agent="c")
    assert world.undone() == ["any"]
    store.compensate(world.handlers(), agent="a")
    assert world.undone() == ["any", "mine"]
    assert store.compensate(world.handlers()).clean
    assert world.undone() == ["any", "mine", "bob"]


def test_claim_takes_only_the_named_tools(store: Store, world: World) -> None:
    (effect,), _ = aborted(store, world)
    assert store.claim("a", tools=["other"]) is None
    assert store.claim("somebody else") is None
    step = store.claim("a", tools="put_back")
    assert step is not None
    assert (step.effect.id, step.tool, step.attempt) == (effect.id, "put_back", 1)
    assert store.claim("a") is None


def test_async_handlers_and_plain_ones_mix(store: Store) -> None:
    branch = store.branch("A")
    for tool in ("plain", "later"):
        branch.register("put", {}, inverse=Inverse(tool, {"n": 1})).done(None)
    branch.abort(reason="contradicted")
    ran: list[str] = []

    async def later(args: Any, step: Any) -> None:
        ran.append("later")

    assert store.compensate({"plain": lambda args, step: ran.append("plain"), "later": later}).clean
    assert ran == ["later", "plain"]


def test_retry_later_waits_as_long_as_it_says(timed: Store, clock: FakeClock, world: World) -> None:
    aborted(timed, world)
    step = timed.claim("a")
    assert step is not None
    step.fail("busy", retry_after=100)
    clock.advance(99)
    timed.tick()
    assert timed.claim("a") is None
    clock.advance(2)
    timed.tick()
    again = timed.claim("a")
    assert again is not None
    assert again.attempt == 2


def test_a_handler_may_say_later_or_never(store: Store, world: World) -> None:
    aborted(store, world, count=2)
    said: list[str] = []

    def handler(args: Any, step: Any) -> None:
        said.append(args["label"])
        if args["label"] == "K1" and said.count("K1") == 1:
            raise RetryLaterError(0.01)
        if args["label"] == "K0":
            raise PermanentError("gone")

    report = store.compensate({"put_back": handler}, timeout=10)
    assert said == ["K1", "K1", "K0"]
    assert [(failure.kind, failure.attempts) for failure in report.failed] == [("permanent", 1)]


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_are_bounded_by_the_inverse_then_the_call(store: Store, world: World, attempts: int) -> None:
    by_inverse = Retry(max_attempts=attempts, delay=0, jitter=0)
    aborted(store, world, inverse=world.inverse_of("K0", retry=by_inverse))
    report = store.compensate(world.handlers({"K0": RuntimeError("down")}))
    assert [failure.attempts for failure in report.failed] == [attempts]
    assert len(world.undone()) == attempts


def test_an_inverse_past_its_window_is_not_attempted(timed: Store, clock: FakeClock, world: World) -> None:
    branch = timed.branch("A", agent="a")
    effect = world.put(branch, "X", 1, inverse=world.inverse_of("X", deadline=timedelta(hours=1)))
    assert timed.decide(branch).expired == ()
    clock.advance(3601)
    timed.tick()
    assert timed.decide(branch).expired == (effect.id,)
    assert list(timed.alerts())
    branch.abort(reason="too late")
    report = timed.compensate(world.handlers())
    assert [(failure.effect, failure.kind, failure.attempts) for failure in report.failed] == [
        (effect.id, "expired", 0)
    ]
    assert world.undone() == []


def test_a_list_of_calls_runs_in_order_with_a_key_for_each_place(store: Store) -> None:
    branch = store.branch("A", agent="a")
    calls = [Inverse(name, {"n": place}, retry=AT_ONCE) for place, name in enumerate(["one", "two", "three"])]
    effect = branch.register("put", {}, inverse=Inverse.steps(calls)).done(None)
    branch.abort(reason="contradicted")
    ran: list[tuple[str, str]] = []

    def handler(args: Any, step: Any) -> None:
        ran.append((step.tool, step.idempotency_key))
        if [tool for tool, _ in ran].count("two") == 1 and step.tool == "two":
            raise RuntimeError("once")

    report = store.compensate(dict.fromkeys(("one", "two", "three"), handler))
    assert [tool for tool, _ in ran] == ["one", "two", "two", "three"]
    assert len({key for _, key in ran}) == 3
    assert (report.completed, report.clean) == ((effect.id,), True)


APPROVALS = [
    ({"count": 5}, False, False),
    ({"count": 6}, True, False),
    ({"count": 1, "limitation": "copies may remain"}, True, False),
    ({"count": 1, "reversibility": "partial"}, True, False),
]


@pytest.mark.parametrize(("effects", "person", "reason"), APPROVALS)
def test_the_default_policy_asks_a_person_where_it_should(
    store: Store, world: World, effects: dict[str, Any], person: bool, reason: bool
) -> None:
    branch = store.branch("A", agent="a")
    for number in range(effects["count"]):
        undo = world.inverse_of(f"K{number}", limitation=effects.get("limitation"))
        world.put(branch, f"K{number}", 1, inverse=undo, reversibility=effects.get("reversibility"))
    branch.abort(reason="contradicted")
    report = store.compensate(world.handlers())
    assert (bool(report.approvals), world.undone() == []) == (person, person)
    if person:
        approval = store.approval(report.approvals[0])
        assert (approval.kind, approval.state, approval.reason_required) == ("rollback", "pending", reason)
        approval.approve(by="ops")
        assert store.compensate(world.handlers()).clean


def test_six_effects_on_one_key_are_one_key(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    for number in range(6):
        world.put(branch, "X", number)
    branch.abort(reason="contradicted")
    assert store.compensate(world.handlers()).clean


def waiting(store: Store, world: World) -> tuple[list[Effect], Rollback, int]:
    effects, rollback = aborted(store, world, count=6)
    (approval,) = store.compensate(world.handlers()).approvals
    return effects, rollback, approval


def test_asking_twice_makes_one_request_that_survives_a_restart(open_store: OpenStore, world: World) -> None:
    store = open_store()
    _, rollback, approval = waiting(store, world)
    for _ in range(3):
        assert store.compensate(world.handlers()).approvals == (approval,)
        store.close()
        store = open_store()
    assert [found.id for found in store.approvals()] == [approval]
    assert store.rollback(rollback.id).state == "awaiting_approval"


def test_a_denial_fails_the_steps_and_a_new_request_can_be_made(store: Store, world: World) -> None:
    effects, rollback, approval = waiting(store, world)
    store.approval(approval).deny(by="ops", reason="keep it")
    report = store.compensate(world.handlers())
    assert {failure.kind for failure in report.failed} == {"denied"}
    assert (members(report), report.clean) == (sorted(ids(*effects)), False)
    with pytest.raises(ApprovalClosedError):
        store.approval(approval).approve(by="ops", reason="changed my mind")
    renewed = rollback.refresh().request_approval(by="a", reason="please")
    assert renewed.id != approval
    renewed.approve(by="ops", reason="all right")
    assert store.compensate(world.handlers()).clean


def test_an_irreversible_step_needs_a_written_reason(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    early = branch.request_approval("send", {}, by="a", reason="urgent").approve(by="ops", reason="go")
    branch.register(
        "send", {}, reversibility="irreversible", mode="eager", approval=early, inverse=world.inverse_of("mail")
    ).done(None)
    branch.abort(reason="contradicted")
    (waiting_for,) = store.compensate(world.handlers()).approvals
    approval = store.approval(waiting_for)
    assert approval.reason_required
    with pytest.raises(ReasonRequiredError) as refusal:
        approval.approve(by="ops")
    assert refusal.value.approval == approval.id
    assert world.undone() == []
    approval.approve(by="ops", reason="a correction must go out")
    assert store.compensate(world.handlers()).clean


def test_whoever_caused_the_rollback_may_not_approve_it_where_the_policy_says_so(
    open_store: OpenStore, world: World
) -> None:
    store = open_store(policy=Policy(separation_of_duties=True, auto_keys=0))
    branch = store.branch("A", agent="a")
    world.put(branch, "X", 1)
    branch.abort(reason="contradicted", by="alice")
    (approval,) = store.compensate(world.handlers()).approvals
    with pytest.raises(SeparationOfDutiesError) as refusal:
        store.approval(approval).approve(by="alice", reason="mine")
    assert (refusal.value.approval, refusal.value.by) == (approval, "alice")
    store.approval(approval).approve(by="bob", reason="checked")
    assert store.compensate(world.handlers()).clean


def test_the_audit_record_names_action_steps_and_people(store: Store, world: World) -> None:
    effects, rollback, approval = waiting(store, world)
    store.approval(approval).approve(by="ops", reason="go")
    store.compensate(world.handlers())
    audit = rollback.refresh().audit()
    assert audit["type"] == "rollback"
    assert {"original_action_id", "rollback_steps", "initiated_by", "approved_by"} <= set(audit)
    assert audit["approved_by"] == "ops" or "ops" in audit["approved_by"]
    assert len(audit["rollback_steps"]) == len(effects)
    assert all({"action", "id", "status"} <= set(step) for step in audit["rollback_steps"])


def test_a_rollback_stays_in_review_until_cause_and_remedy_are_given(store: Store, world: World) -> None:
    _, rollback = aborted(store, world)
    store.compensate(world.handlers())
    assert rollback.refresh().state == "in_review"
    rollback.record_root_cause("prompt", note="ambiguous", by="ops")
    assert rollback.refresh().state == "in_review"
    rollback.waive_remedy(by="ops", reason="one of a kind")
    assert rollback.refresh().state == "closed"


def test_plan_and_impact_say_what_will_happen(store: Store, world: World) -> None:
    effects, rollback = aborted(store, world, count=3)
    plan, impact = rollback.plan(), rollback.impact()
    assert [step.effect for step in plan.steps] == [effect.id for effect in reversed(effects)]
    assert {step.tool for step in plan.steps} == {"put_back"}
    assert (set(impact.effects), set(impact.keys)) == (ids(*effects), {"K0", "K1", "K2"})
    assert (impact.agents, impact.reversibility, impact.not_compensable) == (("a",), "full", ())


def test_exposed_makes_an_effect_at_least_partial(store: Store, world: World, a: Branch) -> None:
    effect = world.put(a, "X", 1)
    assert effect.reversibility == "full"
    assert effect.exposed("customer 12").reversibility == "partial"
    a.abort(reason="contradicted")
    assert store.compensate(world.handlers()).approvals


def test_progress_and_handler_timeout_report_what_happens(store: Store, world: World) -> None:
    aborted(store, world, count=3)
    told: list[Any] = []
    assert store.compensate(world.handlers(), progress=told.append).clean
    assert len(told) >= 3


def test_check_inverse_finds_an_inverse_that_is_not_idempotent(world: World) -> None:
    """It runs the inverse twice and compares what the world shows after each."""

    def good(args: Any, step: Any) -> None:
        world["X"] = args["value"]

    def bad(args: Any, step: Any) -> None:
        world["X"] = world["X"] - 1

    world["X"] = 5
    check_inverse(good, {"value": 4}, world.facts)
    with pytest.raises(AssertionError):
        check_inverse(bad, {"value": 4}, world.facts)
