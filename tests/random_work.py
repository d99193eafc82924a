"""Random speculative work on a few branches and keys, and the rules that hold after every step of it."""

from __future__ import annotations

import random

from effectstore import Branch, Effect, RefusedError, Store
from world import World


class RandomWork:
    """Agents that write, read, vote, commit and abort in turn; everything that a rule needs is noted outside."""

    def __init__(self, store: Store, world: World, seed: int, *, blind: bool) -> None:
        self.store, self.world, self.blind = store, world, blind
        self.chance = random.Random(seed)
        self.keys = ["W", "X", "Y", "Z"]
        self.branches: list[Branch] = []
        self.opened = 0
        self.effects: list[Effect] = []
        self.closures: dict[int, tuple[int, ...]] = {}
        self.seen: dict[int, str] = {}
        self.values: dict[str, list[tuple[int, int]]] = {key: [] for key in self.keys}
        for _ in range(4):
            self.open_branch()

    def open_branch(self) -> None:
        number = self.opened  # Counts those that have left the list too: a name is never free again.
        self.opened += 1
        self.branches.append(self.store.branch(f"B{number}", agent=f"agent{number % 3}"))

    def step(self) -> None:
        """One random step; a refusal is a legal answer and changes nothing that the rules look at."""
        place = self.chance.randrange(len(self.branches))
        branch = self.branches[place]
        verb = self.chance.choices(
            ["write", "seal", "commit", "abort", "abort one", "new branch"], [12, 2, 3, 2, 1, 1]
        )[0]
        try:
            if verb == "write":
                self.write(branch)
            elif verb == "seal":
                branch.seal()
            elif verb == "commit":
                self.store.commit(branch)
            elif verb == "abort":
                self.store.reconcile(abort=branch, reason="random")
            elif verb == "abort one" and self.effects:
                self.store.reconcile(abort=self.chance.choice(self.effects), reason="random")
            else:
                self.open_branch()
        except RefusedError:
            self.store.compensate(self.world.handlers())
            self.open_branch()
            self.branches.pop(place)

    def write(self, branch: Branch) -> None:
        key, number = self.chance.choice(self.keys), len(self.effects) + 1
        reads = {self.chance.choice(self.keys)} if self.blind else {key, self.chance.choice(self.keys)}
        undo = self.world.inverse_of(key, str(number))
        effect = branch.register("put", {"n": number}, reads=sorted(reads), writes=key, inverse=undo)
        self.closures[effect.id] = self.store.decide(effect).closure
        self.world[key] = number
        self.values[key].append((effect.id, number))
        self.effects.append(effect.done(None))

    def check(self) -> None:
        """I4, I5, I6 and T1 as an outsider sees them."""
        now = {effect.id: self.store.effect(effect.id).state for effect in self.effects}
        for effect, closure in self.closures.items():
            below = {now[ancestor] for ancestor in closure if ancestor in now and ancestor != effect}
            if now[effect] == "committed":
                assert below <= {"committed", "void"}, f"I4: {effect} is committed on top of {below}"
            if "doomed" in below:
                assert now[effect] == "doomed", f"I5: {effect} is {now[effect]} on something doomed"
        for effect, before in self.seen.items():
            assert before in ("live", now[effect]), f"I6: {effect} went from {before} to {now[effect]}"
        self.seen = dict(now)
        for rollback in self.store.rollbacks():
            states = {now[effect] for effect in rollback.effects}
            assert states <= {"doomed"}, f"T1: rollback {rollback.id} holds {states}"

    def surviving_world(self) -> dict[str, int]:
        """What the surviving effects alone would have made of an empty world."""
        made: dict[str, int] = {}
        for key, writes in self.values.items():
            for effect, value in writes:
                if self.store.effect(effect).state != "doomed":
                    made[key] = value
        return made
