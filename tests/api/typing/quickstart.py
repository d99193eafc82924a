"""The quickstart as a program for the type checker: the names, arguments and fields of the whole cycle."""

from __future__ import annotations

import tempfile
from typing import assert_type

import effectstore
from effectstore import (
    Branch,
    CompensationReport,
    Decision,
    Effect,
    Fence,
    Inverse,
    Observation,
    Reconciliation,
    Rollback,
    Step,
    Store,
)

config: dict[str, int] = {"X": 0}
live: list[int] = [1]


@effectstore.tool(
    writes=lambda key: f"config/{key}",
    inverse=lambda key: Inverse("write_config", {"key": key, "value": config[key]}),
)
def write_config(key: str, value: int) -> None:
    config[key] = value


@effectstore.tool(reads="config/X", inverse=lambda: Inverse("deploy", {"version": live[-1]}))
def deploy(version: int) -> int:
    live.append(version)
    return version


def main() -> None:
    with effectstore.open(tempfile.mkdtemp()) as store:
        assert_type(store, Store)
        planner, deployer = store.branch("plan-B"), store.branch("plan-C", agent="c", reads="sealed")
        assert_type(planner, Branch)
        with planner.active() as active:
            assert_type(active, Branch)
            write_config("X", value=1)
        with deployer.active():
            assert_type(deploy(2), int)
        fence = store.commit(deployer, escalate="wait", timeout=0.5)
        assert_type(fence, Fence)
        assert_type(store.decide("plan-C"), Decision)
        reconciliation = store.reconcile(abort=planner, reason="A contradicted B")
        assert_type(reconciliation, Reconciliation)
        assert_type(reconciliation.rollback, Rollback | None)
        report = store.compensate()
        assert_type(report, CompensationReport)
        ok: bool = report.clean
        failed: list[str] = [failure.kind for failure in report.failed]
        print(ok, failed)


def by_hand(store: Store) -> None:
    branch = store.branch("by-hand", parent="plan-C", overwrite="depend", lease=60)
    effect = branch.register("put", {"n": 1}, writes=[b"raw", "text"], reads={"X": 0}, inverse=Inverse("undo"))
    assert_type(effect, Effect)
    assert_type(effect.done({"id": 1}, inverse=Inverse("undo", {"id": 1})), Effect)
    assert_type(branch.observe("X"), tuple[Observation, ...])
    number: int = effect.id
    store.effect(number).close(by="ops", reason="gone")
    for found in branch.effects(state="live", limit=10):
        assert_type(found, Effect)

    def undo(args: dict[str, int], step: Step) -> None:
        print(args["id"], step.idempotency_key, step.attempt)

    async def undo_later(args: dict[str, int], step: Step) -> None:
        undo(args, step)

    store.compensate({"undo": undo, "undo_later": undo_later}, rollback="due", workers=2, on_failure="continue")
    step = store.claim("by-hand", tools=["undo"], lease=30)
    if step is not None:
        step.renew().complete()
