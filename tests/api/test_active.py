"""The active branch follows tasks, to_thread and runtimes that copy the context; a bare thread has none."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import effectstore
from effectstore import Inverse, NoBranchError, Store
from world import STOPPED

ran: list[str] = []


@effectstore.tool(inverse=Inverse("undo", {}))
def active_note_text(text: str) -> str:
    """Note a text."""
    ran.append(text)
    return text


@effectstore.tool(inverse=Inverse("undo", {}))
async def active_note_text_later(text: str) -> str:
    """Note a text without blocking."""
    await asyncio.sleep(0.001)
    ran.append(text)
    return text


note, note_async = active_note_text, active_note_text_later


@pytest.fixture(autouse=True)
def forget() -> None:
    ran.clear()


def by_branch(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for effect in store.effects():
        found.setdefault(effect.branch, []).append(effect.args["text"])
    return found


def test_without_a_branch_a_tool_is_refused_and_does_not_run(store: Store) -> None:
    with pytest.raises(NoBranchError) as refusal:
        note("untracked")
    assert (refusal.value.tool, ran) == ("active_note_text", [])
    assert isinstance(refusal.value, LookupError)
    assert list(store.effects()) == []


def test_active_blocks_nest_and_settle_nothing(store: Store) -> None:
    a, b = store.branch("A"), store.branch("B")
    with a.active():
        note("1")
        with b.active():
            note("2")
        note("3")
    with pytest.raises(NoBranchError):
        note("4")
    assert by_branch(store) == {"A": ["1", "3"], "B": ["2"]}
    assert {effect.state for effect in store.effects()} == {"live"}
    assert [branch.state for branch in store.branches()] == ["open", "open"]


@pytest.mark.parametrize("leaving", [KeyboardInterrupt, ValueError, asyncio.CancelledError, SystemExit])
def test_leaving_by_exception_dooms_nothing(store: Store, leaving: type[BaseException]) -> None:
    branch = store.branch("A")

    def leave() -> None:
        with branch.active():
            note("1")
            raise leaving

    with pytest.raises(leaving):
        leave()
    assert [(effect.state, effect.sealed) for effect in store.effects()] == [("live", False)]
    assert branch.refresh().state == "open"


def test_each_task_has_the_branch_of_its_own_context(store: Store) -> None:
    async def agent(name: str) -> None:
        with store.branch(name).active():
            for number in range(5):
                await note_async(f"{name}{number}")

    async def main() -> None:
        await asyncio.gather(*(agent(name) for name in "ABCD"))

    asyncio.run(main())
    assert by_branch(store) == {name: [f"{name}{number}" for number in range(5)] for name in "ABCD"}


def test_a_task_that_was_started_inside_keeps_the_branch_after_the_block(store: Store) -> None:
    async def main() -> None:
        with store.branch("A").active():
            late = asyncio.create_task(note_async("late"))
        await late

    asyncio.run(main())
    assert by_branch(store) == {"A": ["late"]}


def test_to_thread_carries_the_branch(store: Store) -> None:
    async def main() -> None:
        with store.branch("A").active():
            await asyncio.gather(*(asyncio.to_thread(note, str(number)) for number in range(8)))

    asyncio.run(main())
    assert sorted(by_branch(store)["A"]) == [str(number) for number in range(8)]


def test_a_copied_context_carries_the_branch(store: Store) -> None:
    with store.branch("A").active():
        context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(note, "copied"))
    thread.start()
    thread.join()
    assert by_branch(store) == {"A": ["copied"]}


def test_a_bare_thread_pool_has_no_branch_and_nothing_runs_untracked(store: Store) -> None:
    with store.branch("A").active(), ThreadPoolExecutor(2) as pool:
        for job in [pool.submit(note, "1"), pool.submit(note, "2")]:
            with pytest.raises(NoBranchError):
                job.result()
    assert (ran, list(store.effects())) == ([], [])


def test_a_bare_thread_pool_works_with_the_branch_given(store: Store) -> None:
    turn = store.branch("A").parallel()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: note.options(branch=turn)(str(number)), range(8)))
    assert [effect.after for effect in store.effects()] == [()] * 8


def test_a_decorator_may_name_the_branch(store: Store) -> None:
    branches = {"x": store.branch("A"), "y": store.branch("B")}

    @effectstore.tool(name="active_routed", inverse=Inverse("undo", {}), branch=lambda text: branches[text])
    def routed(text: str) -> None: ...

    routed("x")
    routed("y")
    assert by_branch(store) == {"A": ["x"], "B": ["y"]}


def test_a_doomed_active_branch_runs_nothing(store: Store) -> None:
    branch = store.branch("A")
    with branch.active():
        note("1")
        branch.abort(reason="contradicted")
        with pytest.raises(STOPPED):
            note("2")
    assert ran == ["1"]


def test_a_parallel_turn_is_active_too(store: Store) -> None:
    branch = store.branch("A")
    with branch.active():
        note("before")
    with branch.parallel().active():
        note("1")
        note("2")
    with branch.active():
        note("after")
    before, one, two, after = store.effects()
    assert (one.after, two.after) == ((before.id,), (before.id,))
    assert set(after.after) == {one.id, two.id}


def graph_of(tools: list[Any]) -> Any:
    """A graph of one node that runs the tool calls of the last message, as an agent's loop does."""
    graph = pytest.importorskip("langgraph.graph", reason="langgraph is not installed")
    prebuilt = pytest.importorskip("langgraph.prebuilt", reason="langgraph is not installed")
    builder = graph.StateGraph(graph.MessagesState)
    builder.add_node("tools", prebuilt.ToolNode(tools))
    builder.add_edge(graph.START, "tools")
    builder.add_edge("tools", graph.END)
    return builder.compile()


def turn_of(tool: str, texts: list[str]) -> dict[str, Any]:
    messages = pytest.importorskip("langchain_core.messages", reason="langgraph is not installed")
    calls = [{"name": tool, "args": {"text": text}, "id": f"id-{text}", "type": "tool_call"} for text in texts]
    return {"messages": [messages.AIMessage("", tool_calls=calls)]}


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_langgraph_tool_node_runs_decorated_tools_on_the_active_branch(store: Store, way: str, kind: str) -> None:
    """The node runs the calls of a turn in its own threads; it copies the context, so the branch goes along."""
    if (way, kind) == ("invoke", "async"):
        pytest.skip("the node cannot run an async tool from a plain invoke")
    langchain = pytest.importorskip("langchain_core.tools", reason="langgraph is not installed")
    decorated: Any = note if kind == "plain" else note_async
    graph = graph_of([langchain.tool(decorated)])
    texts = [str(number) for number in range(6)]
    branch = store.branch("A", agent="planner")
    with branch.parallel().active():
        turn = turn_of(decorated.name, texts)
        answer = asyncio.run(graph.ainvoke(turn)) if way == "ainvoke" else graph.invoke(turn)
    assert [message.content for message in answer["messages"][1:]] == texts
    effects = list(store.effects())
    assert sorted(effect.args["text"] for effect in effects) == texts
    assert {(effect.branch, effect.outcome, effect.after) for effect in effects} == {("A", "done", ())}
    branch.abort(reason="contradicted")
    undone: list[int] = []
    for approval in store.approvals():
        approval.approve(by="ops", reason="more than five")
    store.compensate({"undo": lambda args, step: undone.append(step.effect.id)})
    assert sorted(undone) == [effect.id for effect in effects]


def test_langgraph_schema_is_that_of_the_original_function() -> None:
    langchain = pytest.importorskip("langchain_core.tools", reason="langgraph is not installed")
    built = langchain.tool(note)
    assert (built.name, built.description) == ("active_note_text", "Note a text.")
    assert set(built.args) == {"text"}
    assert built.args["text"]["type"] == "string"


def test_langgraph_tool_node_without_a_branch_runs_nothing(store: Store) -> None:
    langchain = pytest.importorskip("langchain_core.tools", reason="langgraph is not installed")
    graph = graph_of([langchain.tool(note)])
    with pytest.raises(NoBranchError):
        graph.invoke(turn_of("active_note_text", ["1"]))
    assert (ran, list(store.effects())) == ([], [])
