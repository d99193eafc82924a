"""The rollback as a process: the matrix, people, the audit record, what is owed afterwards, metrics, alerts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from effectstore import (
    DEFAULT_RULES,
    AlreadySettledError,
    ApprovalRule,
    Inverse,
    OptionsError,
    Policy,
    ReasonRequiredError,
    Rollback,
    SeparationOfDutiesError,
    Store,
)
from governed import agree, ask, committed
from support import OpenStore
from world import FakeClock, World


def test_a_committed_effect_asks_a_person_even_where_the_matrix_would_not(open_store: OpenStore, world: World) -> None:
    store = open_store(policy=Policy(rules=(ApprovalRule("full", "automatic"),)))
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1)
    assert (rollback.state, store.approval(rollback.approvals[0]).reason_required) == ("awaiting_approval", False)


def test_the_matrix_is_data_and_can_be_replaced(open_store: OpenStore, world: World) -> None:
    rules = (ApprovalRule("full", "automatic", at_most=1), ApprovalRule("full", "person", reason=True))
    store = open_store(policy=Policy(rules=rules))
    one = store.branch("one")
    world.put(one, "X", 1)
    one.abort(reason="contradicted")
    assert store.compensate(world.handlers()).clean
    two = store.branch("two")
    world.put(two, "X", 1)
    world.put(two, "Y", 1)
    two.abort(reason="contradicted")
    (approval,) = store.compensate(world.handlers()).approvals
    with pytest.raises(ReasonRequiredError):
        store.approval(approval).approve(by="ops")
    store.close()
    store = open_store()
    store.approval(approval).approve(by="ops", reason="checked")
    assert store.compensate(world.handlers()).clean


def test_what_no_row_is_about_needs_a_person_and_a_reason(open_store: OpenStore, world: World) -> None:
    store = open_store(policy=Policy(rules=(ApprovalRule("full", "automatic"),)))
    branch = store.branch("A")
    world.put(branch, "X", 1, inverse=world.inverse_of("X", limitation="mail is out"))
    branch.abort(reason="contradicted")
    (approval,) = store.compensate(world.handlers()).approvals
    assert store.approval(approval).reason_required


def test_an_empty_matrix_is_refused(open_store: OpenStore) -> None:
    with pytest.raises(OptionsError):
        open_store(policy=Policy(rules=()))


def test_whoever_asked_may_not_agree_where_the_policy_says_so(open_store: OpenStore, world: World) -> None:
    store = open_store(policy=Policy(separation_of_duties=True))
    e1 = committed(store, world, "X", "A")
    rollback = ask(store, e1, by="alice")
    with pytest.raises(SeparationOfDutiesError):
        agree(store, rollback, by="alice")
    agree(store, rollback, by="bob")
    assert store.compensate(world.handlers()).clean


def test_the_audit_record_of_a_governed_rollback(store: Store, world: World) -> None:
    e1 = committed(store, world, "X", "A")
    e2 = committed(store, world, "Y", "B", reads="X")
    rollback = ask(store, e1, trigger="judge")
    assert [step["status"] for step in rollback.audit()["rollback_steps"]] == ["pending", "pending"]
    agree(store, rollback)
    store.compensate(world.handlers())
    audit = rollback.audit()
    assert (audit["type"], audit["original_action_id"], audit["trigger"]) == ("rollback", e1.id, "judge")
    assert (audit["initiated_by"], audit["approved_by"], audit["clean"]) == ("judge", "ops", True)
    assert [(step["action"], step["id"], step["status"]) for step in audit["rollback_steps"]] == [
        ("put_back", e2.id, "done"),
        ("put_back", e1.id, "done"),
    ]
    assert [known["reason"] for known in audit["approvals"]] == ["agreed"]


def undone(store: Store, world: World, name: str) -> Rollback:
    branch = store.branch(name, agent=name)
    world.put(branch, name, 1)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    assert store.compensate(world.handlers()).clean
    return rollback.refresh()


def test_a_rollback_owes_cause_and_remedy_over_a_restart(open_store: OpenStore, world: World) -> None:
    store = open_store()
    first, second = undone(store, world, "A"), undone(store, world, "B")
    assert [rollback.id for rollback in store.review()] == [first.id, second.id]
    first.record_root_cause("prompt", note="ambiguous date", by="ops", remedy="prompt v7")
    second.waive_remedy(by="ops", reason="one of a kind")
    assert [rollback.id for rollback in store.review()] == [second.id]
    store.close()
    store = open_store()
    closed = store.rollback(first.id)
    assert closed.state == "closed"
    assert closed.root_cause is not None
    assert (closed.root_cause.category, closed.root_cause.remedy) == ("prompt", "prompt v7")
    with pytest.raises(AlreadySettledError):
        closed.record_root_cause("data", note="another", by="ops")
    assert store.rollback(second.id).record_root_cause("tool", note="flaky", by="ops").state == "closed"
    assert list(store.review()) == []
    store.verify()


@pytest.mark.parametrize(
    ("note", "remedy", "agent", "repeated"),
    [
        ("Ambiguous   DATE", None, "B", True),
        ("another", "prompt v7", "B", True),
        ("another", None, "A", True),
        ("another", "prompt v8", "B", False),
    ],
)
def test_a_repeated_root_cause_raises_an_alert(
    open_store: OpenStore, world: World, note: str, remedy: str | None, agent: str, repeated: bool
) -> None:
    store = open_store()
    first = undone(store, world, "A")
    first.record_root_cause("prompt", note="ambiguous date", by="ops", remedy="prompt v7")
    store.close()
    store = open_store()
    branch = store.branch("second", agent=agent)
    world.put(branch, "S", 1)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    store.compensate(world.handlers())
    rollback.record_root_cause("prompt", note=note, by="ops", remedy=remedy)
    told = [alert for alert in store.alerts() if alert.ref == rollback.id]
    assert bool(told) == repeated
    assert all(str(first.id) in alert.text for alert in told)


def test_a_full_rollback_open_for_an_hour_raises_an_alert(open_store: OpenStore, world: World, clock: Any) -> None:
    store = open_store("timed", clock=clock, policy=Policy(auto_keys=0))
    branch = store.branch("A")
    world.put(branch, "X", 1)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    clock.advance(3599)
    store.tick()
    assert [alert for alert in store.alerts() if alert.ref == rollback.id] == []
    store.close()
    store = open_store("timed", clock=clock)
    clock.advance(2)
    store.tick()
    store.tick()
    (alert,) = [alert for alert in store.alerts() if alert.ref == rollback.id]
    assert (alert.severity, "hour" in alert.text) == ("warning", True)
    store.verify()


def test_a_finished_or_partial_rollback_raises_no_alert_after_an_hour(timed: Store, world: World, clock: Any) -> None:
    done = timed.branch("A")
    world.put(done, "X", 1)
    done.abort(reason="contradicted")
    assert timed.compensate(world.handlers()).clean
    partial = timed.branch("B")
    world.put(partial, "Y", 1, inverse=world.inverse_of("Y", limitation="mail is out"))
    partial.abort(reason="contradicted")
    clock.advance(7200)
    timed.tick()
    assert [alert.text for alert in timed.alerts()] == []


def test_the_default_matrix_is_that_of_the_rollback_process(store: Store) -> None:
    assert Policy().rules == DEFAULT_RULES
    rows = [(rule.reach, rule.at_most, rule.approver, rule.reason) for rule in DEFAULT_RULES]
    assert rows == [
        ("full", "auto_keys", "automatic", False),
        ("full", None, "person", False),
        ("partial", None, "person", False),
        ("irreversible", None, "person", True),
        ("not_compensable", None, "person", True),
    ]


def test_separation_of_duties_holds_over_a_restart_and_for_an_agent_that_named_nobody(
    open_store: OpenStore, world: World
) -> None:
    store = open_store(policy=Policy(separation_of_duties=True, auto_keys=0))
    branch = store.branch("A", agent="alice")
    world.put(branch, "X", 1)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    store.close()
    store = open_store()
    with pytest.raises(SeparationOfDutiesError):
        agree(store, store.rollback(rollback.id), by="alice")
    agree(store, store.rollback(rollback.id), by="bob")


def test_a_run_of_what_cannot_be_undone_needs_a_written_reason(store: Store) -> None:
    branch = store.branch("A", agent="a")
    branch.register("send", {}, reversibility="irreversible")
    early = branch.request_approval("pay", {}, by="a", reason="urgent")
    store.commit(branch)
    for approval in store.approvals(state="pending"):
        with pytest.raises(ReasonRequiredError):
            approval.approve(by="ops")
        with pytest.raises(ReasonRequiredError):
            approval.approve(by="ops", reason="  ")
        assert approval.approve(by="ops", reason="checked the text").state == "approved"
    assert (early.refresh().state, store.outbox.claim("a") is not None) == ("approved", True)


def test_what_stays_behind_is_told_before_and_after(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1, inverse=world.inverse_of("X", limitation="copies may remain"))
    full = world.put(branch, "Y", 1)
    rollback = branch.abort(reason="contradicted").rollback
    assert rollback is not None
    assert rollback.impact().limitations == ((effect.id, "copies may remain"),)
    assert rollback.report.limitations == ()
    agree(store, rollback)
    report = store.compensate(world.handlers())
    assert (report.limitations, report.clean) == (((effect.id, "copies may remain"),), True)
    assert (rollback.refresh().report.limitations, full.id in report.completed) == (report.limitations, True)


def test_a_list_of_calls_goes_on_in_the_middle_under_the_key_of_its_place(
    open_store: OpenStore, world: World, clock: FakeClock
) -> None:
    store = open_store("timed", clock=clock)
    branch = store.branch("A", agent="a")
    calls = [Inverse("put_back", {"key": key, "value": None, "label": key}) for key in ("one", "two", "three")]
    effect = branch.register("put", {}, writes="X", inverse=Inverse.steps(calls)).done(None)
    branch.abort(reason="contradicted")
    first = store.claim("a")
    assert first is not None
    world.put_back(first.args, first)
    first.complete()
    second = store.claim("a", lease=60)
    assert second is not None
    store.close()
    clock.advance(61)
    store = open_store("timed", clock=clock)
    assert store.compensate(world.handlers()).completed == (effect.id,)
    keys = {call.label: call.idempotency_key for call in world.calls("inverse")}
    assert world.undone() == ["one", "two", "three"]
    assert [str(key).rsplit("/", 1)[1] for key in keys.values()] == ["0", "1", "2"]
    assert keys["two"] == second.idempotency_key


def test_metrics_of_the_rollback_process(timed: Store, world: World, clock: FakeClock) -> None:
    for number, cause in enumerate(("prompt", "prompt", "tool")):
        branch = timed.branch(f"B{number}", agent="a")
        world.put(branch, f"K{number}", 1, cost=2.5)
        rollback = branch.abort(reason="contradicted").rollback
        assert rollback is not None
        clock.advance(60)
        timed.compensate(world.handlers())
        if number:
            rollback.record_root_cause(cause, note="the same", by="ops", remedy="ticket 7")  # type: ignore[arg-type]
    ask(timed, committed(timed, world, "X", "C"))
    measured = timed.metrics()
    rollbacks, storms = measured.rollbacks, measured.storms
    assert (rollbacks.count, rollbacks.per_month, rollbacks.governed) == (4, 4, 1)
    assert (rollbacks.open, rollbacks.awaiting_approval, rollbacks.in_review) == (1, 1, 1)
    assert (rollbacks.time_to_rollback.median, rollbacks.within_an_hour, rollbacks.attempts) == (60, 1, 3)
    assert {kind: count for kind, count in rollbacks.root_causes.items() if count} == {"prompt": 1, "tool": 1}
    assert (storms.registered, storms.committed, storms.doomed, storms.wasted_cost) == (4, 1, 3, 7.5)
    assert (storms.commit_efficiency, storms.cascade.max, storms.secondary_ratio) == (0.25, 1, 0)
    assert measured.storage.live_effects == 0
    assert measured.to_dict()["rollbacks"]["count"] == 4
    assert "effectstore_rollbacks_time_to_rollback_seconds_max 60" in measured.prometheus()


def test_a_missing_handler_is_no_attempt_whoever_tells_it(store: Store, world: World) -> None:
    """Failure, audit record and metrics agree; the worker that acts for every agent is called that."""
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1)
    rollback = branch.abort(reason="wrong").rollback
    assert rollback is not None
    (failure,) = store.compensate({}).failed
    (step,) = rollback.audit()["rollback_steps"]
    measured = store.metrics().rollbacks
    assert (failure.kind, failure.attempts, step["attempts"]) == ("no_handler", 0, 0)
    assert (measured.attempts, measured.failed_attempts, measured.within_an_hour) == (0, 0, None)
    assert "within_an_hour" not in store.metrics().prometheus()
    store.compensate(world.handlers())
    (step,) = rollback.audit()["rollback_steps"]
    assert (step["id"], step["attempts"], step["by"]) == (effect.id, 1, "any agent's worker, for a")
    measured = store.metrics().rollbacks
    assert (measured.attempts, measured.failed_attempts, measured.within_an_hour) == (1, 0, 1)


def test_the_newest_root_cause_of_a_rollback_counts_and_no_other(store: Store, world: World) -> None:
    branch = store.branch("A", agent="a")
    world.put(branch, "X", 1)
    rollback = branch.abort(reason="wrong").rollback
    assert rollback is not None
    store.compensate(world.handlers())
    rollback.record_root_cause("prompt", note="ambiguous", by="ana")
    rollback.record_root_cause("data", note="old address", by="ana")
    causes = store.metrics().rollbacks.root_causes
    assert {kind: count for kind, count in causes.items() if count} == {"data": 1}


def test_metrics_look_back_thirty_days_and_no_further(timed: Store, world: World, clock: FakeClock) -> None:
    world.put(timed.branch("A"), "X", 1)
    clock.advance(31 * 86_400)
    world.put(timed.branch("B"), "Y", 1)
    assert timed.metrics().storms.registered == 1


def test_metrics_measure_cascades_repeats_and_lag(timed: Store, world: World, clock: FakeClock) -> None:
    a, b = timed.branch("A"), timed.branch("B")
    world.put(a, "X", 1)
    world.put(b, "Y", 1, reads="X")
    a.abort(reason="contradicted")
    timed.compensate(world.handlers())
    again = timed.branch("again")
    world.put(again, "X", 1)
    clock.advance(30)
    timed.commit(again)
    storms = timed.metrics().storms
    assert (storms.cascade.max, storms.secondary_ratio, storms.repeats) == (2, 0.5, 1)
    assert (storms.commit_lag.max, storms.commit_efficiency) == (30, pytest.approx(1 / 3))


def test_alerts_go_to_pythons_log_once_they_are_durable(
    store: Store, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="effectstore")
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    store.compensate(world.handlers({"X": RuntimeError("down")}))
    (alert,) = store.alerts()
    told = [record for record in caplog.records if record.levelno >= logging.CRITICAL]
    assert [record.getMessage() for record in told] == [f"alert {alert.id} on {effect.id}: {alert.text}"]
    assert told[0].name == "effectstore"


def test_an_alert_stays_until_somebody_has_seen_it(open_store: OpenStore, world: World) -> None:
    store = open_store()
    branch = store.branch("A", agent="a")
    world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    store.compensate(world.handlers({"X": RuntimeError("down")}))
    store.close()
    store = open_store()
    (alert,) = store.alerts()
    assert alert.ack(by="ana").acknowledged_by == "ana"
    store.close()
    (seen,) = open_store().alerts()
    assert seen.acknowledged_by == "ana"
