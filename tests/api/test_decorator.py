"""The decorator: it records what runs, keeps the function's face, and refuses what it cannot mean."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import effectstore
from effectstore import (
    AlreadySettledError,
    Branch,
    Effect,
    Inverse,
    InverseRequiredError,
    NotRunError,
    OutcomeUnknownError,
    Store,
    current_effect,
)
from world import AT_ONCE, World


def test_it_needs_no_store_and_keeps_name_doc_and_signature() -> None:
    @effectstore.tool(inverse=lambda key: Inverse("undo", {"key": key}))
    def write_config_face(key: str, value: int = 3, *, dry: bool = False) -> str:
        """Write one key."""
        return f"{key}={value}"

    assert write_config_face.__name__ == write_config_face.name == "write_config_face"
    assert write_config_face.__doc__ == "Write one key."
    assert (
        str(inspect.signature(write_config_face)) == "(key: 'str', value: 'int' = 3, *, dry: 'bool' = False) -> 'str'"
    )
    assert write_config_face.untracked("k", 4) == "k=4"
    assert not inspect.iscoroutinefunction(write_config_face)


def test_a_call_is_recorded_with_all_parameters_by_name(store: Store, world: World) -> None:
    @effectstore.tool(
        name="decorated_put",
        reads=["R", "S"],
        writes=lambda key: f"config/{key}",
        inverse=lambda key: Inverse("put_back", {"key": key, "value": world[key], "label": key}, retry=AT_ONCE),
        idempotency_key=lambda request: f"call-{request}",
        cost=lambda value: float(value),
        exclude=["session"],
    )
    def put(key: str, value: int = 7, *, request: int = 1, session: object = None) -> dict[str, int]:
        world[key] = value
        return {"was": value}

    branch = store.branch("A", agent="a")
    world["X"] = 0
    with branch.active() as active:
        assert active == branch
        assert put("X", session=object()) == {"was": 7}
    (effect,) = store.effects()
    assert (effect.tool, effect.branch, effect.args) == ("decorated_put", "A", {"key": "X", "value": 7, "request": 1})
    assert (effect.reads, effect.writes) == (("R", "S"), ("config/X",))
    assert (effect.outcome, effect.result, effect.cost) == ("done", {"was": 7}, 7.0)
    assert effect.idempotency_key == "call-1"
    assert effect.inverse is not None
    assert effect.inverse.args == {"key": "X", "value": 0, "label": "X"}
    branch.abort(reason="contradicted")
    assert store.compensate(world.handlers()).clean
    assert world["X"] == 0


def test_the_inverse_is_made_before_the_tool_runs(store: Store) -> None:
    order: list[str] = []

    def undo() -> Inverse:
        order.append("inverse")
        return Inverse("undo", {})

    @effectstore.tool(inverse=undo)
    def ordered_tool() -> None:
        order.append("tool")
        assert [effect.outcome for effect in store.effects()] == ["unknown"]

    with store.branch("A").active():
        ordered_tool()
    assert order == ["inverse", "tool"]


def test_compensate_without_handlers_uses_the_decorated_functions_untracked(store: Store) -> None:
    config = {"X": 0}

    @effectstore.tool(
        writes=lambda key: key, inverse=lambda key: Inverse("self_undoing", {"key": key, "value": config[key]})
    )
    def self_undoing(key: str, value: int) -> None:
        config[key] = value

    branch = store.branch("A")
    with branch.active():
        self_undoing("X", 1)
    assert config == {"X": 1}
    branch.abort(reason="contradicted")
    assert store.compensate().clean
    assert (config, len(list(store.effects()))) == ({"X": 0}, 1)


def test_inverse_after_may_name_the_result(store: Store) -> None:
    @effectstore.tool(
        inverse=Inverse("delete_ticket"),
        inverse_after=lambda result, title: Inverse("delete_ticket", {"id": result["id"], "title": title}),
    )
    def create_ticket(title: str) -> dict[str, int]:
        return {"id": 42}

    with store.branch("A").active():
        create_ticket("broken")
    (effect,) = store.effects()
    assert effect.inverse is not None
    assert effect.inverse.args == {"id": 42, "title": "broken"}


def test_an_unknown_parameter_name_is_refused_at_decoration() -> None:
    with pytest.raises(ValueError, match="no_such"):

        @effectstore.tool(writes=lambda no_such: no_such, inverse=Inverse("undo", {}))
        def misnamed(key: str) -> None: ...

    with pytest.raises(ValueError, match="result"):

        @effectstore.tool(inverse=lambda result: Inverse("undo", {"r": result}))
        def too_early() -> None: ...


def test_a_second_function_of_one_name_is_refused_unless_it_is_the_same_reloaded() -> None:
    def make() -> Any:
        @effectstore.tool(inverse=Inverse("undo", {}))
        def reloaded_tool() -> None: ...

        return reloaded_tool

    make()
    make()
    with pytest.raises(ValueError, match="reloaded_tool"):

        @effectstore.tool(name="reloaded_tool", inverse=Inverse("undo", {}))
        def another() -> None: ...


def test_options_make_a_copy_for_one_call(store: Store) -> None:
    @effectstore.tool(inverse=Inverse("undo", {}))
    def reserve_seat(seat: int) -> int:
        return seat

    a, b = store.branch("A"), store.branch("B")
    turn = a.parallel()
    for seat in range(3):
        assert reserve_seat.options(branch=turn, idempotency_key=f"seat-{seat}")(seat) == seat
    assert [effect.after for effect in store.effects()] == [()] * 3
    with b.active():
        reserve_seat.options(branch=a, cost=2.0)(9)
        reserve_seat(10)
    last_two = list(store.effects())[-2:]
    assert [(effect.branch, effect.cost) for effect in last_two] == [("A", 2.0), ("B", None)]
    assert len(last_two[0].after) == 3


def test_a_known_call_returns_the_recorded_result_and_does_not_run(store: Store) -> None:
    runs: list[int] = []

    @effectstore.tool(inverse=Inverse("undo", {}), idempotency_key=lambda n: f"known-{n}")
    def known_call(n: int) -> list[int]:
        runs.append(n)
        return [n]

    with store.branch("A").active():
        assert known_call(1) == known_call(1) == [1]
        assert known_call(2) == [2]
    assert runs == [1, 2]


def test_a_tool_that_raises_keeps_its_exception_and_says_what_became_of_it(store: Store) -> None:
    @effectstore.tool(inverse=Inverse("undo", {}), not_run_on=(ConnectionRefusedError,))
    def failing_tool(error: str) -> None:
        raise {"refused": ConnectionRefusedError("nobody"), "half": OSError("half"), "said": NotRunError("no")}[error]

    branch = store.branch("A")
    for error, kind, outcome in (
        ("refused", ConnectionRefusedError, "not_run"),
        ("half", OSError, "unknown"),
        ("said", NotRunError, "not_run"),
    ):
        with pytest.raises(kind) as raised, branch.active():
            failing_tool(error)
        effect = list(store.effects())[-1]
        assert (effect.outcome, effect.state) == (outcome, "void" if outcome == "not_run" else "live")
        notes = " ".join(getattr(raised.value, "__notes__", []))
        assert str(effect.id) in notes
        assert outcome in notes


def test_if_unknown_follows_the_declaration(store: Store) -> None:
    runs: list[str] = []

    def body() -> str:
        runs.append("run")
        if len(runs) % 2:
            raise TimeoutError
        return "ok"

    careful = effectstore.tool(name="careful", inverse=Inverse("undo", {}), idempotency_key="c")(body)
    idempotent = effectstore.tool(
        name="idempotent", inverse=Inverse("undo", {}), idempotency_key="i", if_unknown="run"
    )(lambda: body())
    with store.branch("A").active():
        with pytest.raises(TimeoutError):
            careful()
        with pytest.raises(OutcomeUnknownError):
            careful()
        runs.clear()
        with pytest.raises(TimeoutError):
            idempotent()
        assert idempotent() == "ok"
    assert len(list(store.effects())) == 2


def test_a_doomed_call_is_not_run_again(store: Store) -> None:
    @effectstore.tool(inverse=Inverse("undo", {}), idempotency_key="once")
    def doomed_call() -> str:
        return "ran"

    branch = store.branch("A")
    with branch.active():
        doomed_call()
    branch.abort(reason="contradicted")
    with pytest.raises(AlreadySettledError), store.branch("B").active():
        doomed_call()


def test_a_deferred_tool_returns_its_effect_and_runs_from_the_outbox(store: Store) -> None:
    sent: list[str] = []

    @effectstore.tool(mode="deferred", inverse=Inverse("undo", {}))
    def deferred_mail(to: str) -> str:
        sent.append(to)
        return "sent"

    branch = store.branch("A", agent="a")
    with branch.active():
        effect = deferred_mail("all")
    assert isinstance(effect, Effect)
    assert (effect.mode, sent) == ("deferred", [])
    store.commit(branch)
    (ran,) = store.outbox.run()
    assert (ran.id, sent, store.effect(effect.id).result) == (effect.id, ["all"], "sent")


def test_read_only_registers_nothing_but_counts_as_a_read(store: Store, world: World) -> None:
    @effectstore.tool(read_only=True, reads=lambda key: key)
    def read_config_only(key: str) -> Any:
        return world[key]

    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    with b.active():
        assert read_config_only("X") == 1
    assert len(list(store.effects())) == 1
    late = world.put(b, "Y", 1)
    assert a.abort(reason="contradicted").cascaded == (late.id,)


def test_current_effect_gives_key_and_observe_inside_the_tool(store: Store, world: World) -> None:
    keys: list[str] = []

    @effectstore.tool(inverse=Inverse("undo", {}), idempotency_key="vendor-1")
    def asks_itself() -> None:
        keys.append(current_effect().idempotency_key)
        current_effect().observe("X")

    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    with b.active():
        asks_itself()
    (effect,) = store.effects(branch="B")
    assert keys
    assert keys[0]
    assert a.abort(reason="contradicted").cascaded == (effect.id,)
    with pytest.raises((LookupError, RuntimeError)):
        current_effect()


def test_an_async_tool_may_have_async_callables(store: Store) -> None:
    async def undo(key: str) -> Inverse:
        await asyncio.sleep(0)
        return Inverse("undo", {"key": key})

    @effectstore.tool(writes=lambda key: key, inverse=undo)
    async def async_put(key: str) -> str:
        await asyncio.sleep(0)
        return key

    assert inspect.iscoroutinefunction(async_put)

    async def main() -> str:
        with store.branch("A").active():
            return await async_put("X")

    assert asyncio.run(main()) == "X"
    (effect,) = store.effects()
    assert effect.inverse is not None
    assert (effect.outcome, effect.inverse.args) == ("done", {"key": "X"})


def test_a_cancelled_async_tool_stays_unknown(store: Store) -> None:
    @effectstore.tool(inverse=Inverse("undo", {}))
    async def slow_async() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with store.branch("A").active():
            await asyncio.wait_for(slow_async(), 0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert [(effect.state, effect.outcome) for effect in store.effects()] == [("live", "unknown")]


def test_the_way_out_of_a_missing_inverse_is_in_its_refusal(a: Branch) -> None:
    """An inverse that only the outcome completes must be there at the registration, too."""

    @effectstore.tool(name="hold-seat", inverse_after=lambda result: Inverse("release", {"id": result}))
    def hold() -> int:
        return 7

    with a.active(), pytest.raises(InverseRequiredError, match=r"inverse_after=, done\(inverse=\)"):
        hold()

    @effectstore.tool(
        name="hold-room", inverse=Inverse("release"), inverse_after=lambda result: Inverse("release", {"id": result})
    )
    def hold_room() -> int:
        return 8

    with a.active():
        hold_room()
    (effect,) = a.effects()
    assert effect.inverse is not None
    assert effect.inverse.args == {"id": 8}


def test_a_tool_without_declarations_says_how_to_write_them() -> None:
    with pytest.raises(TypeError, match=r"@effectstore\.tool\(inverse=\.\.\.\)"):

        @effectstore.tool  # type: ignore[call-overload]
        def bare() -> None: ...
