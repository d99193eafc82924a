"""I9 to I11: tokens only rise, the log tells the same story again, and nobody's unvoted work is settled."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import effectstore
from effectstore import FenceClosureError, Policy, StaleTokenError, Store
from random_work import RandomWork
from support import OpenStore
from world import World, ids, states


def test_i09_ids_and_tokens_rise_over_restarts(open_store: OpenStore, world: World) -> None:
    given, tokens = [], []
    for round_ in range(5):
        store = open_store()
        branch = store.branch(f"B{round_}")
        tokens.append(branch.token)
        effect = world.put(branch, "X", round_, reads="X")
        tokens.append(effect.token)
        given.append(effect.id)
        branch.abort(reason="contradicted")
        store.compensate(world.handlers())
        store.close()
    assert given == sorted(set(given))
    known = [token for token in tokens if token is not None]
    assert len(known) == 10
    assert all(early < late for early, late in itertools.pairwise(known))


def test_i09_a_restored_backup_hands_out_no_token_again(open_store: OpenStore, world: World, tmp_path: Path) -> None:
    """An operator restores last night's copy; a worker of the lost day presents a token that is still "current"."""
    store = open_store()
    old = store.branch("A")
    store.backup(tmp_path / "copy")
    later = store.takeover("A").token
    lost = world.put(store.branch("B"), "X", 1)
    store.close()

    copy = open_store("copy")
    fresh = copy.branch("C")
    effect = world.put(fresh, "Y", 1)
    assert fresh.token is not None
    assert old.token is not None
    assert later is not None
    assert fresh.token > old.token
    assert fresh.token > later, "the copy repeats the tokens of the lost day"
    assert lost.token is not None
    assert effect.token is not None
    assert effect.token > lost.token
    with pytest.raises(StaleTokenError):
        copy.join("A", later).seal()
    with pytest.raises(StaleTokenError):
        copy.join("A", old.token).seal()
    copy.verify()


def picture(store: Store) -> dict[str, Any]:
    """Everything that the reading calls show."""
    return {
        "effects": [effect.to_dict(payloads=True) for effect in store.effects()],
        "branches": [branch.to_dict() for branch in store.branches()],
        "fences": [fence.to_dict() for fence in store.fences()],
        "rollbacks": [rollback.to_dict() for rollback in store.rollbacks()],
        "alerts": [alert.to_dict() for alert in store.alerts()],
    }


@pytest.mark.parametrize("way", ["reopen", "export and import"])
@pytest.mark.parametrize("seed", range(4))
def test_i10_replay_gives_the_same_tables(
    open_store: OpenStore, world: World, tmp_path: Path, seed: int, way: str
) -> None:
    work = RandomWork(open_store(policy=Policy(auto_keys=1000)), world, seed, blind=bool(seed % 2))
    for _ in range(100):
        work.step()
    before, chain = picture(work.store), [(record.seq, record.hash) for record in work.store.log()]
    if way == "export and import":
        work.store.export(tmp_path / "moved.cborseq")
        work.store.close()
        effectstore.import_store(tmp_path / "moved.cborseq", tmp_path / "moved")
        store = open_store("moved")
    else:
        work.store.close()
        store = open_store()
    assert picture(store) == before
    assert [(record.seq, record.hash) for record in store.log()][: len(chain)] == chain
    store.verify()


def test_i11_a_closure_is_committed_only_with_every_vote(store: Store, world: World) -> None:
    a, b, c = store.branch("A"), store.branch("B"), store.branch("C")
    e1 = world.put(a, "X", 1)
    e2 = world.put(b, "Y", 1, reads="X")
    e3 = world.put(c, "Z", 1, reads="Y")
    fence = store.commit(c)
    assert {(blocker.effect, blocker.reason) for blocker in fence.blockers} == {(e1.id, "no_vote"), (e2.id, "no_vote")}
    b.seal()
    fence = fence.refresh()
    assert (fence.status, [blocker.effect for blocker in fence.blockers]) == ("waiting", [e1.id])
    a.seal()
    assert set(fence.refresh().committed) == ids(e1, e2, e3)


def test_i11_a_vote_does_not_cover_what_is_registered_after_it(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    world.put(a, "X", 1)
    a = a.seal()
    later = world.put(a, "Y", 1)
    world.put(b, "Z", 1, reads="Y")
    fence = store.commit(b)
    assert [(blocker.effect, blocker.reason) for blocker in fence.blockers] == [(later.id, "no_vote")]


def test_i11_an_override_is_recorded_with_its_name(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1, e2 = world.put(a, "X", 1), world.put(b, "Y", 1, reads="X")
    with pytest.raises((TypeError, ValueError, effectstore.RefusedError)):
        store.reconcile(commit=b, closure=True)
    assert states(store, e1, e2) == ["live", "live"]
    answer = store.reconcile(commit=b, closure=True, by="judge-7")
    assert answer.fence is not None
    assert (set(answer.committed), answer.fence.by) == (ids(e1, e2), "judge-7")
    assert "judge-7" in str(store.explain(e1))


def test_i11_not_even_the_authority_commits_an_unknown_outcome(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    e1 = world.put(a, "X", 1, report=False)
    e2 = world.put(b, "Y", 1, reads="X")
    with pytest.raises(FenceClosureError):
        store.reconcile(commit=b, closure=True, by="judge", escalate="never")
    answer = store.reconcile(commit=b, closure=True, by="judge")
    assert answer.committed == ()
    assert states(store, e1, e2) == ["live", "live"]
    e1.done(None, durable=True)
    assert states(store, e1, e2) == ["committed", "committed"]


def test_i11_the_authority_never_votes_for_another_owners_deferred_effect(store: Store, world: World) -> None:
    a, b = store.branch("A"), store.branch("B")
    mail = a.register("send", {}, reversibility="irreversible")
    e2 = b.register("put", {}, after=mail, inverse=world.inverse_of("Y"))
    assert e2.mode == "deferred"
    answer = store.reconcile(commit=b, closure=True, by="judge")
    assert answer.committed == ()
    assert states(store, mail, e2) == ["live", "live"]
