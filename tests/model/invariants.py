"""The invariants of section 10, checked on the model from scratch after every step.

I2, I8, I10 and I19 speak of storage and have no meaning in a model that is never stored.
"""

from __future__ import annotations

from .reference import Model


class Watch:
    """Remembers what must never change from one step to the next."""

    def __init__(self) -> None:
        self.committed: set[int] = set()
        self.doomed: set[int] = set()
        self.void: set[int] = set()
        self.known: set[int] = set()
        self.last_token = 0
        self.started = 0

    def check(self, model: Model) -> None:
        """Assert every invariant; the message names the invariant and the effects."""
        states = {state: {e.id for e in model.effects.values() if e.state == state} for state in STATES}
        assert sum(map(len, states.values())) == len(model.effects), "I6: an effect in no state"
        self.check_history(model, states)
        check_edges(model)
        check_closures(model, states)
        check_decisions(model)
        check_reads(model)
        check_dirty(model)
        self.check_starts(model)
        check_reports(model)

    def check_history(self, model: Model, states: dict[str, set[int]]) -> None:
        """I6, I9 and I16: what is decided stays decided, tokens rise, undo makes no work."""
        assert self.committed <= states["committed"], "I6: committed shrank"
        assert self.doomed <= states["doomed"], "I6: doomed shrank"
        risen = self.void - states["void"]
        assert risen <= states["doomed"], "I6: a void effect came back"
        assert all(model.effects[e].late for e in risen), "I6: void shrank without evidence"
        self.committed, self.doomed, self.void = states["committed"], states["doomed"], states["void"]
        assert model.last_token >= self.last_token, "I9: tokens fell"
        self.last_token = model.last_token
        fresh = set(model.effects) - self.known
        assert not any(model.compensating(model.effects[e].branch) for e in fresh), "I16: work while an undo ran"
        self.known = set(model.effects)
        tokens = [b.token for b in model.branches.values()]
        assert len(tokens) == len(set(tokens)), "I9: two branches share a token"

    def check_starts(self, model: Model) -> None:
        """I13, I14, I17: the step begun last was at the head of the undo order and what it undoes is still there."""
        for _, effect, _ in model.starts[self.started :]:
            record = model.effects[effect]
            undo = model.undo(effect)
            if undo.status != "claimed":
                continue
            ahead = model.held_by(effect, model.before())
            assert not ahead, f"I13: {effect} began before {sorted(ahead)}"
            assert record.state == "doomed", "T1: undo of what is not doomed"
            if model.guarded(effect):
                later = model.later_writers(effect, "live") + model.later_writers(effect, "committed")
                assert not later, f"I17: {effect} would clobber {later}"
        self.started = len(model.starts)


STATES = ("live", "committed", "doomed", "void")


def check_edges(model: Model) -> None:
    """I1, I3 and I5: edges are fixed with the outcome, name what exists, and nothing live rests on the doomed."""
    for e in model.effects.values():
        assert set(e.deps) <= set(model.effects), f"I1: {e.id} rests on what is not there"
        assert e.id not in e.deps, f"I1: {e.id} rests on itself"
        if e.frozen_deps is not None:
            assert e.frozen_deps == set(e.deps), f"I1: the edges of {e.id} moved"
        assert e.inverse is not None or e.reversibility == "irreversible" or not model.policy.require_inverse, "I3"
        assert e.reversibility != "irreversible" or e.mode == "deferred", "I3: irreversible before its fence"


def check_closures(model: Model, states: dict[str, set[int]]) -> None:
    """I4 and I5 on direct edges, which is enough by induction; what evidence broke is in an alert."""
    alerted = {(effect, reader) for effect, readers in model.alerts for reader in readers}
    for e in states["committed"]:
        proved = {d for d in model.direct(e) if model.effects[d].was_void and (d, e) in alerted}
        assert model.direct(e) - proved <= states["committed"], f"I4: {e} rests on what is not committed"
    for e in states["live"]:
        assert not model.direct(e) & states["doomed"], f"I5: {e} is live on something doomed"
        assert model.effects[e].undo is None, f"I5: {e} is live and has a step"
    for branch in model.branches.values():
        if branch.state == "open":
            assert not model.observed(branch.name) & states["doomed"], f"I12: {branch.name} goes on after a doomed read"
            assert not branch.handed & states["doomed"], f"I5: {branch.name} holds something doomed"


def check_decisions(model: Model) -> None:
    """I7, I11, I20 and I21: fences and dooms are whole, voted and made when they can be."""
    for fence in model.fences.values():
        for member in fence.committed:
            record = model.effects[member]
            assert record.settled == fence.position, f"I7: {member} was not committed with its fence"
            assert record.outcome == "done" or record.mode == "deferred", f"I11: {member} has no outcome"
            assert record.sealed_then, f"I11: {member} had no vote"
        if fence.status == "waiting":
            assert model.blockers(fence.targets), f"I21: intent {fence.id} could commit"
    for rollback in model.rollbacks.values():
        positions = {model.effects[m].settled for m in rollback.members}
        assert positions == {rollback.position}, f"I7: rollback {rollback.id} was doomed in parts"
        assert all(model.effects[m].state == "doomed" for m in rollback.members), "T1: an automatic set holds more"
    if model.limits.live_effects is not None:
        assert len(model.live()) <= model.limits.live_effects, "I20"


def check_reads(model: Model) -> None:
    """I12: a declared read rests on every writer that was live at any moment of the call so far looked at."""
    for e in model.effects.values():
        if e.state != "live" or e.mode != "eager":
            continue
        for key in (k for k, v in e.reads.items() if v is None):
            for writer in model.writers_since(key, e.registered - 1):
                record = model.effects[writer]
                known = record.registered <= (e.read_window or e.registered) and writer != e.id
                if known and record.state == "live" and (writer < e.id or e.read_window is not None):
                    assert writer in model.reach(e.id), f"I12: {e.id} may have seen {writer}"


def check_dirty(model: Model) -> None:
    """I5 and I17: what is claimed is doomed and its keys stay dirty."""
    for e in model.effects.values():
        if e.undo is not None and e.undo.status == "claimed":
            assert e.state == "doomed", "I5: a claimed step of a live effect"
            assert all(e.id in model.dirty(k) for k in e.writes if e.mode == "eager"), "I17: claimed and not dirty"


def check_reports(model: Model) -> None:
    """I15 and I18: each member in exactly one place, and clean means that nothing is left."""
    for rollback in model.rollbacks.values():
        report = model.full_report([rollback.id])
        places = [report.completed, report.unsettled, set(report.failed), report.blocked, report.pending]
        everything = [e for place in [*places, report.discarded] for e in place]
        assert sorted(everything) == sorted(rollback.members), f"I18: report of {rollback.id} does not add up"
        if report.clean:
            dirty = [m for m in rollback.members if any(m in model.dirty(k) for k in model.effects[m].writes)]
            assert not dirty, f"I18: clean and dirty: {dirty}"
