"""Input that makes no sense gets a typed error that names the argument, before anything happens."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import (
    ApprovalRule,
    Branch,
    Inverse,
    LimitExceededError,
    Limits,
    OptionsError,
    PayloadError,
    Policy,
    Registration,
    Retry,
    StaleTokenError,
    Store,
    StoreClosedError,
)
from support import OpenStore
from world import FakeClock, World

UNDO = Inverse("undo", {})
NONSENSE_SPANS = [math.nan, math.inf, -math.inf, -1, -0.001, threading.TIMEOUT_MAX * 2, timedelta(seconds=-1), 10**400]


def aborted(store: Store, world: World) -> int:
    """The id of an effect whose undo is due."""
    branch = store.branch("A", agent="a")
    effect = world.put(branch, "K", 1)
    branch.abort(reason="contradicted")
    return effect.id


@pytest.mark.parametrize("span", NONSENSE_SPANS, ids=str)
@pytest.mark.parametrize("option", ["handler_timeout", "timeout", "lease"])
def test_a_span_that_makes_no_sense_is_refused_before_an_inverse_runs(
    store: Store, world: World, option: str, span: Any
) -> None:
    aborted(store, world)
    with pytest.raises(ValueError, match=option):
        store.compensate(world.handlers(), **{option: span})
    assert world.undone() == []


@pytest.mark.parametrize("span", NONSENSE_SPANS, ids=str)
def test_every_other_span_is_looked_at_as_well(store: Store, span: Any) -> None:
    branch = store.branch("A")
    for call in (
        lambda: store.branch("B", lease=span),
        lambda: store.claim("a", lease=span),
        lambda: store.claim("a", timeout=span),
        lambda: store.outbox.claim("a", lease=span),
        lambda: branch.register("t", inverse=UNDO, timeout=span),
        lambda: branch.observe("K", timeout=span),
        lambda: store.commit(branch, timeout=span),
        lambda: store.configure(by="ops", policy=Policy(confirm_within=span)),
        lambda: store.compensate({}, retry=Retry(delay=span)),
        lambda: store.log(timeout=span),
    ):
        with pytest.raises(ValueError, match="seconds"):
            call()
    assert [found.name for found in store.branches()] == ["A"]


def test_a_lease_of_nothing_is_refused(store: Store, world: World) -> None:
    aborted(store, world)
    for call in (
        lambda: store.branch("B", lease=0),
        lambda: store.claim("a", lease=0),
        lambda: store.outbox.claim("a", lease=0),
        lambda: store.compensate(world.handlers(), lease=0),
    ):
        with pytest.raises(OptionsError, match="lease"):
            call()
    step = store.claim("a")
    assert step is not None
    with pytest.raises(OptionsError, match="lease"):
        step.renew(lease=0)


def test_a_lease_below_nothing_is_refused_in_the_same_words(store: Store) -> None:
    texts = set()
    for lease in (-1, 0, float("nan")):
        with pytest.raises(OptionsError, match="above 0") as refused:
            store.branch("B", lease=lease)
        texts.add(str(refused.value).split(", not ")[0])
    assert len(texts) == 1


@pytest.mark.parametrize("argument", ["writes", "reads"])
def test_an_argument_that_is_no_key_is_named(a: Branch, argument: str) -> None:
    with pytest.raises(TypeError, match=f"^{argument} takes a key or several, not int"):
        a.register("t", inverse=UNDO, **{argument: 3})


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Limits(keys=-1), "keys"),
        (lambda: Limits(batch_records=0), "batch_records"),
        (lambda: Policy(on_failure="foo"), "on_failure"),  # type: ignore[arg-type]
        (lambda: Policy(authority="nobody"), "authority"),  # type: ignore[arg-type]
        (lambda: Policy(auto_keys=-1), "auto_keys"),
        (lambda: ApprovalRule("x", "person"), "reach"),  # type: ignore[arg-type]
        (lambda: ApprovalRule("full", "y"), "approver"),  # type: ignore[arg-type]
        (lambda: ApprovalRule("full", "person", at_most=-1), "at_most"),
    ],
)
def test_settings_that_no_store_takes_are_refused_where_they_are_written(make: Callable[[], object], what: str) -> None:
    with pytest.raises(OptionsError, match=what) as refused:
        make()
    assert refused.value.option == what


def test_a_stale_handle_of_the_parent_makes_no_child(store: Store) -> None:
    stale = store.branch("parent")
    current = store.takeover("parent")
    with pytest.raises(StaleTokenError):
        store.branch("child", parent=stale)
    assert [record.kind for record in store.log()][-1] == "refused"
    assert store.branch("child", parent=current).parent == "parent"
    assert store.branch("other", parent="parent").parent == "parent"


@pytest.mark.parametrize("refs", [b"\x02\x03", bytearray(b"\x02"), {2: 3}], ids=["bytes", "bytearray", "dict"])
def test_bytes_are_no_ids(store: Store, refs: Any) -> None:
    branch = store.branch("A")
    effect = branch.register("t", inverse=UNDO)
    for call in (
        lambda: store.reconcile(abort=refs),
        lambda: store.reconcile(commit=refs),
        lambda: branch.register("t", inverse=UNDO, after=refs),
        lambda: store.claim("a", tools=refs),
    ):
        with pytest.raises(TypeError):
            call()
    assert effect.refresh().state == "live"


@pytest.mark.parametrize(
    "retry",
    [Retry(max_attempts=0), Retry(backoff=math.nan), Retry(backoff=0.5), Retry(jitter=2), Retry(max_attempts=-1)],
    ids=repr,
)
def test_a_rule_of_retry_is_looked_at_wherever_it_is_given(store: Store, world: World, retry: Retry) -> None:
    aborted(store, world)
    branch = store.branch("B")
    for call in (
        lambda: store.compensate(world.handlers(), retry=retry),
        lambda: branch.register("t", inverse=Inverse("undo", {}, retry=retry)),
        lambda: store.configure(by="ops", policy=Policy(retry=retry)),
    ):
        with pytest.raises(OptionsError):
            call()
    assert world.undone() == []
    assert list(branch.effects()) == []


def test_a_second_open_with_another_clock_is_refused(tmp_path: Path) -> None:
    clock = FakeClock()
    with effectstore.open(tmp_path / "s", clock=clock) as first:
        with pytest.raises(OptionsError, match="clock"):
            effectstore.open(tmp_path / "s")
        with pytest.raises(OptionsError, match="clock"):
            effectstore.open(tmp_path / "s", clock=time.time)
        with effectstore.open(tmp_path / "s", clock=clock) as second:
            assert second == first
        first.branch("A")
    effectstore.open(tmp_path / "s", clock=time.time).close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_clock_that_asks_the_store_gets_an_error_and_nothing_hangs(tmp_path: Path) -> None:
    told: list[OptionsError] = []
    held: list[Store] = []

    def clock() -> float:
        for mine in held:
            for ask in (
                mine.tick,
                mine.verify,
                lambda: list(held[0].effects()),
                lambda: held[0].branch("of the clock"),
            ):
                try:
                    ask()
                except OptionsError as error:
                    told.append(error)
        return 1_800_000_000.0

    store = effectstore.open(tmp_path / "s", clock=clock)
    held.append(store)
    store.branch("A")
    held.clear()
    assert {error.option for error in told} == {"clock"}
    assert len(told) >= 2
    assert [branch.name for branch in store.branches()] == ["A"]
    store.close()


def test_a_copy_does_not_go_into_the_store_itself(store: Store, tmp_path: Path) -> None:
    own = Path(store.path)
    before = sorted(path.name for path in own.iterdir())
    for place in (own / "copy", own / "deep" / "copy", own):
        with pytest.raises(OptionsError):
            store.backup(place)
        with pytest.raises(OptionsError):
            store.export(place)
    assert sorted(path.name for path in own.iterdir()) == before
    store.backup(tmp_path / "copy")


def test_a_huge_nested_payload_is_refused_before_it_is_walked(store: Store) -> None:
    bomb: Any = [1] * 1000
    for _ in range(12):
        bomb = [bomb] * 1000
    branch = store.branch("A")
    began = time.monotonic()
    with pytest.raises(LimitExceededError) as refused:
        branch.register("t", bomb, inverse=UNDO)
    assert (refused.value.limit, refused.value.allowed) == ("payload_bytes", 1 << 20)
    with pytest.raises(LimitExceededError):
        branch.register("t", {"text": "x" * (8 << 20)}, inverse=UNDO)
    assert time.monotonic() - began < 30
    assert list(branch.effects()) == []


def test_a_long_flat_payload_within_the_limit_comes_back(store: Store) -> None:
    effect = store.branch("A").register("t", list(range(100_000)), inverse=UNDO)
    assert store.effect(effect.id).args == list(range(100_000))


def test_an_approval_is_refused_where_none_is_needed(store: Store) -> None:
    branch = store.branch("A")
    approval = branch.request_approval("mail", {}, by="a", reason="urgent")
    for options in ({}, {"reversibility": "irreversible", "mode": "deferred"}):
        with pytest.raises(OptionsError, match="approval"):
            branch.register("mail", {}, inverse=UNDO, approval=approval, **options)
    assert list(branch.effects()) == []


@pytest.mark.parametrize("cost", [math.nan, math.inf, -1, "3", True], ids=str)
def test_a_cost_is_a_number_from_zero(store: Store, cost: Any) -> None:
    branch = store.branch("A")
    with pytest.raises((OptionsError, TypeError), match="cost"):
        branch.register("t", inverse=UNDO, cost=cost)
    assert list(branch.effects()) == []


def test_a_filter_that_no_item_can_have_is_refused(store: Store) -> None:
    lists: list[Any] = [
        lambda: store.branches(state="x"),  # type: ignore[arg-type]
        lambda: store.effects(state="x"),  # type: ignore[arg-type]
        lambda: store.effects(outcome="x"),  # type: ignore[arg-type]
        lambda: store.fences(status="x"),  # type: ignore[arg-type]
        lambda: store.rollbacks(state="x"),  # type: ignore[arg-type]
        lambda: store.approvals(state="x"),  # type: ignore[arg-type]
        lambda: store.approvals(kind="x"),  # type: ignore[arg-type]
        lambda: store.alerts(severity="x"),  # type: ignore[arg-type]
    ]
    for listed in lists:
        with pytest.raises(OptionsError):
            listed()


@pytest.mark.parametrize("name", ["branches", "effects", "fences", "rollbacks", "approvals", "alerts", "log"])
def test_pages_are_counted_from_zero(store: Store, name: str) -> None:
    listed = getattr(store, name)
    for options in ({"limit": -1}, {"since": -1}, {"since": 1 << 70}):
        with pytest.raises(OptionsError):
            listed(**options)
    with pytest.raises(TypeError):
        listed(limit=1.5)
    assert list(listed(limit=0)) == []


@pytest.mark.parametrize("text", ["", "  ", "x" * (10 << 20)], ids=["empty", "blank", "huge"])
def test_names_and_reasons_say_something_and_are_bounded(store: Store, text: str) -> None:
    branch = store.branch("A")
    effect = branch.register("t", inverse=UNDO)
    head = store.verify().head
    calls: list[Any] = [
        lambda: store.branch(text),
        lambda: store.branch("B", agent=text),
        lambda: branch.register(text, inverse=UNDO),
        lambda: branch.register("t", inverse=Inverse(text, {})),
        lambda: branch.register("t", inverse=Inverse.manual(text)),
        lambda: branch.register("t", inverse=Inverse("u", {}, limitation=text)),
        lambda: store.freeze(by=text, reason="r"),
        lambda: store.freeze(by="ops", reason=text),
        lambda: branch.abort(reason=text),
        lambda: branch.abort(reason="r", by=text),
        lambda: store.reconcile(abort=branch, reason=text),
        lambda: store.takeover("A", by=text),
        lambda: store.claim(text),
        lambda: effect.exposed(text),
        lambda: effect.close(by="ops", reason=text),
        lambda: store.configure(by=text, limits=Limits()),
        lambda: branch.request_approval("t", {}, by="a", reason=text),
    ]
    for call in calls:
        with pytest.raises((OptionsError, LimitExceededError)):
            call()
    assert store.verify().head == head


def test_the_agent_that_stands_for_all_has_no_branch(store: Store) -> None:
    with pytest.raises(OptionsError, match="every agent"):
        store.branch("A", agent="*")
    assert list(store.branches()) == []


def test_a_value_of_another_type_is_a_type_error(store: Store, open_store: OpenStore) -> None:
    branch = store.branch("A")
    calls: list[Any] = [
        lambda: branch.register("t", inverse=3),
        lambda: branch.register("t", inverse=UNDO).done(None, inverse=3),
        lambda: store.configure(by="ops", limits=3),
        lambda: store.configure(by="ops", policy=3),
        lambda: store.configure(by="ops", policy=Policy(retry=3)),
        lambda: store.register_many([3]),
        lambda: store.register_many(3),
        lambda: store.register_many(Registration("t", branch=branch, inverse=UNDO)),
        lambda: store.compensate(["u"]),
        lambda: store.compensate({"u": 3}),
        lambda: store.compensate({}, probes=["u"]),
        lambda: store.compensate({}, progress=3),
        lambda: store.compensate({}, retry=3),
        lambda: store.outbox.run(["u"]),
        lambda: Inverse.steps([3]),
        lambda: branch.register("t", inverse=UNDO, approval="x"),
        lambda: store.fence("x"),
        lambda: effectstore.open(None, limits=3),  # type: ignore[arg-type]
        lambda: effectstore.open(None, clock=3),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("value", [-1, 0, 1 << 70], ids=str)
def test_a_limit_names_itself(store: Store, value: int) -> None:
    with pytest.raises(OptionsError, match="live_effects") as refused:
        store.configure(by="ops", limits=Limits(live_effects=value))
    assert refused.value.option == "live_effects"


@pytest.mark.parametrize("noun", ["effect", "fence", "rollback", "approval"])
@pytest.mark.parametrize("value", [-1, 1 << 70], ids=str)
def test_an_id_is_a_number_from_zero(store: Store, noun: str, value: int) -> None:
    with pytest.raises(OptionsError, match=noun):
        getattr(store, noun)(value)


def test_a_negative_decimal_zero_is_no_payload(store: Store) -> None:
    branch = store.branch("A")
    with pytest.raises(PayloadError) as refused:
        branch.register("t", {"n": Decimal("-0")}, inverse=UNDO)
    assert refused.value.path == "args.n"


def test_a_store_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="map_size"):
        effectstore.open(tmp_path / "s", map_size=1 << 50)
    assert list(tmp_path.iterdir()) == []
    for path in ("", b""):
        with pytest.raises((OptionsError, TypeError), match="path"):
            effectstore.open(path)  # type: ignore[arg-type]


def test_a_closed_store_is_not_entered(tmp_path: Path) -> None:
    store = effectstore.open(tmp_path / "s")
    store.close()
    with pytest.raises(StoreClosedError), store:
        pytest.fail("the block of a closed store ran")


def test_a_batch_beyond_its_limit_is_refused_before_it_is_read_to_its_end(store: Store) -> None:
    store.configure(by="ops", limits=Limits(batch_records=10))
    branch = store.branch("A")

    def endless() -> Any:
        while True:
            yield Registration("t", branch=branch, inverse=UNDO)

    with pytest.raises(LimitExceededError, match="batch_records"):
        store.register_many(endless())
    assert list(branch.effects()) == []


def test_a_call_of_the_right_shape_still_works(a: Branch) -> None:
    assert a.register("t", {"n": Decimal("0.10")}, inverse=UNDO, cost=0).cost == 0


def test_a_story_shows_effects_and_no_bytes(store: Store, world: World) -> None:
    effect = aborted(store, world)
    told = str(store.explain(effect))
    assert f"effect {effect}" in told
    assert "\\x" not in told
