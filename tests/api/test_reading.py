"""Reading: lazy lists in id order with pages and filters, the log, stories, alerts, and verify."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from effectstore import Effect, Inverse, Policy, Store
from support import OpenStore
from world import World, ids

UNDO = Inverse("undo", {})


@pytest.fixture
def filled(open_store: OpenStore, world: World) -> Store:
    """Five branches of five effects: committed, doomed, void, live, and a mixed one."""
    store = open_store("filled", policy=Policy(auto_keys=1000))
    for place, fate in enumerate(["committed", "doomed", "void", "live", "mixed"]):
        branch = store.branch(fate, agent=f"agent{place % 2}")
        for number in range(5):
            effect = world.put(branch, f"{fate}/{number}", number, report=fate not in ("void", "mixed"))
            if fate == "void" or (fate == "mixed" and number % 2):
                effect.not_run("refused")
        if fate == "committed":
            store.commit(branch)
        elif fate == "doomed":
            branch.abort(reason="contradicted")
    return store


LISTS: dict[str, Callable[[Store], Callable[..., Any]]] = {
    "effects": lambda store: store.effects,
    "fences": lambda store: store.fences,
    "rollbacks": lambda store: store.rollbacks,
    "alerts": lambda store: store.alerts,
    "approvals": lambda store: store.approvals,
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_pages_join_to_the_whole_list(store: Store, world: World, name: str, size: int) -> None:
    for number in range(5):
        branch = store.branch(f"B{number}", agent="x")
        world.put(branch, f"K{number}", 1)
        if number % 2:
            branch.register("send", {}, reversibility="irreversible")
            store.commit(branch)
        else:
            branch.abort(reason="contradicted")
    store.compensate({}, missing="fail")
    listing = LISTS[name](store)
    whole = [item.id for item in listing()]
    assert whole == sorted(set(whole))
    pages: list[int] = []
    last = 0
    while page := list(listing(since=last, limit=size)):
        assert len(page) <= size
        pages += [item.id for item in page]
        last = page[-1].id
    assert pages == whole


FILTERS: list[tuple[dict[str, Any], Callable[[Effect], bool]]] = [
    ({"state": "committed"}, lambda effect: effect.state == "committed"),
    ({"state": "doomed"}, lambda effect: effect.state == "doomed"),
    ({"state": "void"}, lambda effect: effect.state == "void"),
    ({"outcome": "unknown"}, lambda effect: effect.outcome == "unknown"),
    ({"branch": "mixed"}, lambda effect: effect.branch == "mixed"),
    ({"agent": "agent1"}, lambda effect: effect.agent == "agent1"),
    ({"branch": "mixed", "state": "live"}, lambda effect: effect.branch == "mixed" and effect.state == "live"),
    ({"tool": "put"}, lambda effect: True),
    ({"tool": "nothing"}, lambda effect: False),
]


@pytest.mark.parametrize(("fields", "holds"), FILTERS, ids=[str(fields) for fields, _ in FILTERS])
def test_filters_answer_what_a_full_read_answers(
    filled: Store, fields: dict[str, Any], holds: Callable[[Effect], bool]
) -> None:
    expected = [effect.id for effect in filled.effects() if holds(effect)]
    assert [effect.id for effect in filled.effects(**fields)] == expected
    assert [effect.id for effect in filled.effects(**fields, limit=2)] == expected[:2]


def test_an_unknown_filter_or_choice_is_refused(filled: Store) -> None:
    with pytest.raises((TypeError, ValueError)):
        list(filled.effects(no_such_field=1))
    with pytest.raises((TypeError, ValueError)):
        list(filled.effects(state="dooomed"))


def test_branches_are_listed_with_their_state(filled: Store) -> None:
    found = {branch.name: branch.state for branch in filled.branches()}
    assert found == {"committed": "open", "doomed": "closed", "void": "open", "live": "open", "mixed": "open"}
    assert all(branch.token is None for branch in filled.branches())
    assert [branch.name for branch in filled.branches(state="closed")] == ["doomed"]


def test_a_list_is_lazy_and_holds_nothing_while_the_store_goes_on(store: Store) -> None:
    branch = store.branch("A")
    for number in range(10):
        branch.register("put", {"n": number}, inverse=UNDO)
    reading = store.effects()
    first = next(reading)
    for number in range(10, 500):
        branch.register("put", {"n": number}, inverse=UNDO, after=())
    rest = list(reading)
    assert [effect.id for effect in (first, *rest)][:10] == [effect.id for effect in store.effects(limit=10)]
    store.close()


def test_the_log_is_numbered_chained_and_pages_by_number(filled: Store) -> None:
    records = list(filled.log())
    numbers = [record.seq for record in records]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len({record.hash for record in records}) == len(records)
    middle = numbers[len(numbers) // 2]
    assert [record.seq for record in filled.log(since=middle)] == [seq for seq in numbers if seq > middle]
    assert {effect.id for effect in filled.effects()} <= set(numbers)
    assert all(record.kind for record in records)


def test_the_log_can_be_followed(store: Store) -> None:
    branch = store.branch("A")
    last = max(record.seq for record in store.log())
    made: list[int] = []

    def later() -> None:
        time.sleep(0.2)
        made.append(branch.register("put", {}, inverse=UNDO).id)

    writer = threading.Thread(target=later)
    writer.start()
    record = next(iter(store.log(since=last, timeout=30)))
    writer.join()
    assert record.seq == made[0]
    start = time.monotonic()
    list(store.log(since=10**9, timeout=0))
    assert time.monotonic() - start < 5


def test_a_story_tells_registration_doom_and_every_attempt(store: Store, world: World) -> None:
    a, b = store.branch("A", agent="a"), store.branch("B", agent="b")
    e1 = world.put(a, "X", 1)
    e2 = world.put(b, "Y", 1, reads="X")
    store.reconcile(abort="A", by="judge-3", reason="contradicted by A")
    store.compensate(world.handlers({"Y": RuntimeError("down")}))
    story = store.explain(e2)
    text = str(story)
    for told in (str(e1.id), "put", "B", "judge-3", "RuntimeError"):
        assert told in text
    assert e2.id in {record.seq for record in story.records}
    assert [record.seq for record in story.records] == sorted(record.seq for record in story.records)
    assert len(story.records) >= 5
    for ref in (e2.id, "B", b):
        assert str(store.explain(ref))


def test_verify_passes_at_every_step_and_knows_an_earlier_head(filled: Store, world: World) -> None:
    head = filled.verify()
    world.put(filled.branch("more"), "more", 1)
    filled.verify()
    filled.verify(from_head=head)


def test_alerts_are_acknowledged_by_name(store: Store, world: World) -> None:
    branch = store.branch("A")
    world.put(branch, "X", 1)
    branch.abort(reason="contradicted")
    store.compensate(world.handlers({"X": RuntimeError("down")}))
    alert = next(iter(store.alerts()))
    assert (alert.acknowledged_by, alert.severity.lower()) == (None, "critical")
    assert alert.ack(by="ops").acknowledged_by == "ops"
    assert [found.acknowledged_by for found in store.alerts() if found.id == alert.id] == ["ops"]


def test_decide_changes_nothing(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1, e2 = world.put(a, "X", 1), world.put(b, "Y", 1, reads="X")
    head = [record.seq for record in store.log()]
    for target in (e2, e2.id, b, "B"):
        decision = store.decide(target)
        assert (decision.kind, set(decision.closure)) == ("escalate", ids(e1)), "what it rests on, without itself"
        assert {blocker.effect: blocker.reason for blocker in decision.blockers} == {
            e1.id: "no_vote", e2.id: "no_vote",
        }  # fmt: skip
    store.commit(a)
    assert store.decide(e1).kind == "commit"
    b.abort(reason="contradicted")
    aborted = store.decide(e2)
    assert (aborted.kind, aborted.cause) == ("abort", e2.id)
    assert [record.seq for record in store.log()][: len(head)] == head
