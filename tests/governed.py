"""Steps of governed rollbacks that tests share: work that is committed, a request, a person's answer."""

from __future__ import annotations

from typing import Any

from effectstore import Branch, Effect, Rollback, Store
from world import World


def committed(store: Store, world: World, key: str, name: str, **options: Any) -> Effect:
    branch = store.branch(name, agent=options.pop("agent", name.lower()))
    effect = world.put(branch, key, name, **options)
    assert store.commit(branch).status == "committed"
    return effect


def ask(store: Store, *targets: Effect | Branch, **options: Any) -> Rollback:
    options.setdefault("by", "judge")
    return store.request_rollback(targets, reason="the advice was wrong", **options)


def agree(store: Store, rollback: Rollback, **options: Any) -> None:
    store.approval(rollback.refresh().approvals[-1]).approve(**{"by": "ops", "reason": "agreed", **options})
