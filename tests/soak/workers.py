"""The processes that the soak tool starts, kills and stops: writers with random commands, and readers.

A writer tells the oracle of every acknowledgement by one `write` to its own file, after the call returned. What was
told before a kill is in the file: it is the kernel's, not the process's.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import effectstore
from effectstore import (
    Branch,
    DirtyKeyError,
    Effect,
    EffectStoreError,
    Inverse,
    RefusedError,
    Store,
    StoreBusyError,
)

KEYS = [f"key/{number}" for number in range(60)]


class Writer:
    """One process that registers, reports, votes, commits, aborts, reconciles and compensates until it is killed."""

    def __init__(self, store: Store, told: Path, seed: int) -> None:
        self.store, self.chance, self.seed = store, random.Random(seed), seed
        self.file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.number = 0
        self.branch = self.open_branch()
        self.effects: list[Effect] = []
        self.longest: dict[str, float] = {}

    def tell(self, *what: Any) -> None:
        os.write(self.file, (json.dumps(what) + "\n").encode())

    def open_branch(self) -> Branch:
        self.number += 1
        made = self.store.branch(f"w{self.seed}.{self.number}", agent=f"w{self.seed}")
        self.tell("branch", made.id, made.name)
        self.effects = []
        return made

    def forget(self, earlier: str) -> None:
        """Give up what the writer that was killed before this one has left."""
        for branch in self.store.branches(state="open"):
            if branch.name.startswith(earlier + "."):
                self.drop(branch.name)

    def drop(self, name: str) -> None:
        done = self.store.reconcile(abort=name, reason="given up")
        self.tell("doomed", done.doomed + done.cascaded, name)

    def step(self) -> None:
        verbs = ["register", "many", "settle", "not_run", "commit", "reconcile", "abort", "undo", "observe", "alien"]
        verb = self.chance.choices(verbs, [30, 3, 30, 2, 8, 3, 2, 12, 4, 2])[0]
        began = time.monotonic()
        try:
            getattr(self, verb)()
            took = time.monotonic() - began
            if took > self.longest.get(verb, 0.0):
                self.longest[verb] = took
                self.tell("took", verb, took)
        except StoreBusyError:
            self.tell("busy")
        except RefusedError as refused:
            self.tell("refused", refused.code)
            if isinstance(refused, DirtyKeyError):
                self.clean(refused.rollback)
            elif refused.code not in ("key_busy", "uncommitted_key", "lease_lost"):
                self.drop(self.branch.name)
                self.branch = self.open_branch()

    def call(self) -> dict[str, Any]:
        self.number += 1
        reads = self.chance.sample(KEYS, self.chance.randrange(3))
        writes = self.chance.choice(KEYS)
        return {
            # Mostly it rests on who wrote the key before it; a blind write makes conflicts.
            "reads": [*reads, writes] if self.chance.random() < 0.9 else reads,
            "writes": writes,
            "inverse": Inverse("unset", {"key": writes}, agent="*"),
            "idempotency_key": f"{self.seed}/{self.number}",
        }

    def register(self) -> None:
        call = self.call()
        effect = self.branch.register("set", {"n": self.number}, **call)
        self.tell("effect", effect.id, call["idempotency_key"], self.branch.name)
        self.effects.append(effect)

    def many(self) -> None:
        calls = [self.call() for _ in range(self.chance.randrange(2, 6))]
        listed = [effectstore.Registration("set", {}, branch=self.branch, **call) for call in calls]
        for call, effect in zip(calls, self.store.register_many(listed), strict=True):
            self.tell("effect", effect.id, call["idempotency_key"], self.branch.name)
            self.effects.append(effect)

    def settle(self) -> None:
        if self.effects:
            effect = self.effects.pop(0)
            effect.done(self.number)
            self.tell("done", effect.id)

    def not_run(self) -> None:
        if self.effects:
            effect = self.effects.pop()
            effect.not_run("it was not worth it")
            self.tell("not_run", effect.id)

    def commit(self) -> None:
        while self.effects:
            self.settle()
        fence = self.store.commit(self.branch)
        self.tell("fence", fence.id, fence.status, fence.committed)

    def reconcile(self) -> None:
        """Settle for everybody: win with the own closure, whoever owns it."""
        while self.effects:
            self.settle()
        done = self.store.reconcile(commit=self.branch, closure=True, by="soak", on_conflict="abort")
        self.tell("doomed", done.doomed + done.cascaded, None)
        if done.committed:
            self.tell("fence", done.fence.id if done.fence is not None else None, "committed", done.committed)

    def abort(self) -> None:
        self.drop(self.branch.name)
        self.branch = self.open_branch()

    def alien(self) -> None:
        """Decide against somebody else's branch, while its owner works on it."""
        names = [branch.name for branch in self.store.branches(state="open") if branch.name != self.branch.name]
        if names:
            self.drop(self.chance.choice(names))

    def undo(self) -> None:
        step = self.store.claim("*", lease=30)
        if step is None:
            return
        self.tell("claimed", step.effect.id, step.attempt)
        try:
            step.complete()
        except RefusedError as refused:  # A writer that was stopped may have lost its lease.
            self.tell("refused", refused.code)
        else:
            self.tell("completed", step.effect.id)

    def clean(self, number: int | None) -> None:
        """Undo what is due, and say as a person would what only a person can know."""
        self.undo()
        if number is None:
            return
        rollback = self.store.rollback(number)
        for unknown in rollback.report.unsettled:
            # Its holder was killed, or is told so: a report that comes all the same is evidence.
            self.store.effect(unknown).close(by="soak", reason="its worker is gone")
            self.tell("closed", unknown)
        for failure in rollback.report.failed:
            try:
                rollback.resolve(failure.step, by="soak", reason="looked at it")
            except RefusedError as refused:  # Somebody else was first.
                self.tell("refused", refused.code)
            else:
                self.tell("resolved", failure.effect)

    def observe(self) -> None:
        self.branch.observe(self.chance.sample(KEYS, 2))
        self.tell("observed")


def write(store: Store, told: Path, seed: int, earlier: str) -> None:
    """Work until somebody ends it."""
    writer = Writer(store, told, seed)
    try:
        writer.forget(earlier)
    except EffectStoreError as error:
        writer.tell("refused", error.code)
    while True:
        writer.step()


def read(store: Store, seed: int) -> None:
    """Look at decisions as they come: whoever sees one member of a decision sees all of it."""
    chance = random.Random(seed)
    since = 0
    while True:
        records = [record for record, _ in zip(store.log(since, timeout=0.2), range(200), strict=False)]
        for before, record in zip([since, *[one.seq for one in records]], records, strict=False):
            if record.seq != before + 1:
                sys.exit(f"record {record.seq} follows {before}")
        since = records[-1].seq if records else since
        fences = [record.seq for record in records if record.kind == "fenced"]
        dooms = [record.seq for record in records if record.kind == "doomed"]
        for fence in chance.sample(fences, min(2, len(fences))):
            half(store, store.fence(fence).committed if known(store, fence) else (), "committed")
        for doom in chance.sample(dooms, min(2, len(dooms))):
            try:
                members = store.rollback(doom).effects
            except RefusedError:  # Nothing of it had to be undone.
                continue
            half(store, members, "doomed")
        for effect in chance.sample(range(1, since + 1), min(3, since)):
            look(store, effect)
        time.sleep(0.01)


def known(store: Store, fence: int) -> bool:
    """A fence that fulfils an intent has the intent's id."""
    try:
        store.fence(fence)
    except RefusedError:
        return False
    return True


def look(store: Store, number: int) -> None:
    try:
        effect = store.effect(number)
    except RefusedError:
        return
    if effect.state == "committed" and effect.fence is not None:
        members = store.fence(effect.fence).committed
        if number not in members:
            sys.exit(f"{number} is committed by fence {effect.fence}, which does not name it")
        half(store, members, "committed")


def half(store: Store, members: tuple[int, ...], state: str) -> None:
    for member in members[:20]:
        found = store.effect(member).state
        if found != state:
            sys.exit(f"half a decision: {member} is {found} and not {state}, of {members}")


def run(role: str, path: Path, told: Path, seed: int, earlier: str) -> None:
    """Be one of the processes."""
    with effectstore.open(path, busy_timeout=5) as store:
        if role == "write":
            write(store, told, seed, earlier)
        else:
            read(store, seed)
