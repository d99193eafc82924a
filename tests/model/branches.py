"""Branches: tokens, observations, stopping and resuming, children, and the verbs that go through a branch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .fence import Decision, Fences, Reconciliation, Ref, verb
from .world import Branch, Fence, Refused, Seen


class Branches(Fences):
    """Rules of section 3 on branches and of section 4 on what a branch reads."""

    # Guards

    def guard_token(self, name: str, token: int) -> Branch:
        """The branch, if the caller's token is the current one (I9)."""
        branch = self.branches.get(name)
        if branch is None:
            raise Refused("NotFoundError", ref=name)
        if branch.token != token:
            raise Refused("StaleTokenError", branch=name)
        return branch

    def guard_open(self, branch: Branch) -> None:
        """Refuse what a closed or stopped branch may not do."""
        if branch.state == "closed":
            raise Refused("BranchClosedError", branch=branch.name)
        if branch.state == "doomed":
            raise Refused("DoomedBranchError", branch=branch.name, cause=branch.cause)

    def compensating(self, name: str) -> bool:
        """Whether an inverse of one of the branch's effects is claimed (I16)."""
        undos = (self.effects[e].undo for e in self.own(name))
        return any(u is not None and u.status == "claimed" for u in undos)

    # Life of a branch

    @verb
    def branch(
        self,
        name: str,
        *,
        agent: str,
        parent: str | None = None,
        reads: str = "speculative",
        overwrite: str = "guard",
        lease: float | None = None,
    ) -> Branch:
        """Create a branch; a child starts with what its parent holds, has observed and was refused."""
        if parent is not None and parent not in self.branches:
            raise Refused("NotFoundError", ref=parent)
        if name in self.branches:
            raise Refused("BranchExistsError", branch=name)
        branch = Branch(name, agent, parent, reads, overwrite, 0, lease)
        if parent is not None:
            above = self.branches[parent]
            self.guard_open(above)
            branch.handed = {e for e in {*self.own(parent), *above.handed} if self.effects[e].state == "live"}
            branch.seen = [s.copy() for s in above.seen]
        branch.token = self.new_token()
        branch.lease_until = None if lease is None else self.now + lease
        self.branches[name] = branch
        return branch

    @verb
    def takeover(self, name: str, *, worker_gone: bool = False) -> int:
        """Hand out new tokens for the branch and its effects (C21, C32)."""
        if name not in self.branches:
            raise Refused("NotFoundError", ref=name)
        branch = self.branches[name]
        branch.token = self.new_token()
        branch.lease_until = None if branch.lease is None else self.now + branch.lease
        for effect in self.own(name):
            self.effects[effect].token = branch.token
            if worker_gone and self.effects[effect].outcome == "unknown":
                self.effects[effect].closed = True
        return branch.token

    @verb
    def resume(self, name: str, token: int) -> int:
        """Go on from what survives: doomed observations are dropped, held ones too, live ones stay (C21)."""
        branch = self.guard_token(name, token)
        if branch.state == "closed":
            raise Refused("BranchClosedError", branch=name)
        kept = []
        for seen in branch.seen:
            if seen.kind == "version" and any(self.effects[w].state == "void" for w in seen.writers):
                seen.kind = "inherited"  # What stands for a named version was not named itself.
            seen.writers = {w for w in self.expand(seen.writers) if self.effects[w].state != "doomed"}
            if seen.writers and seen.kind != "held":
                kept.append(seen)
        branch.handed = {e for e in self.expand(branch.handed) if self.effects[e].state == "live"}
        branch.seen, branch.state, branch.cause = kept, "open", None
        branch.token = self.new_token()
        branch.lease_until = None if branch.lease is None else self.now + branch.lease
        return branch.token

    @verb
    def heartbeat(self, name: str, token: int) -> None:
        """Renew the lease."""
        branch = self.guard_token(name, token)
        self.guard_open(branch)
        branch.lease_until = None if branch.lease is None else self.now + branch.lease

    @verb
    def merge(self, name: str, token: int) -> None:
        """The child's vote: it is finished, and its effects and observations are its parent's from now on."""
        child = self.guard_token(name, token)
        self.guard_open(child)
        assert child.parent is not None
        parent = self.branches[child.parent]
        self.guard_open(parent)
        for effect in self.own(name):
            record = self.effects[effect]
            if record.state == "live":
                record.votes.add(name)
            record.branch = parent.name
        parent.seen += [s.copy() for s in child.seen]
        for branch in self.branches.values():
            if branch.parent == name:
                branch.parent = parent.name
        child.state, child.closed_by = "closed", "merge"

    # Observations

    def blocking(self, branch: Branch, seen: Seen) -> bool:
        """Whether a held observation still waits for one of its writers (C20)."""
        return seen.kind == "held" and any(self.offends(branch, seen.rule, w) for w in seen.writers)

    def offends(self, branch: Branch, rule: str, writer: int) -> bool:
        """Whether resting on the writer breaks the read rule."""
        record = self.effects[writer]
        if rule == "speculative" or record.state != "live" or record.branch in self.above(branch.name):
            return False
        return rule == "committed" or not self.counts(writer)

    def check_version(self, branch: Branch, key: str, version: int) -> set[int]:
        """The writer that a version names, if it may be named (C7)."""
        if version == 0:
            return set()
        if version not in self.effects or not self.wrote(version, key):
            raise Refused("NotFoundError", ref=version)
        if self.effects[version].state in ("doomed", "void"):
            raise Refused("DoomedDependencyError", dependency=version, key=key)
        if self.offends(branch, branch.rule, version):
            raise Refused("UncommittedKeyError", key=key, writers=(version,))
        return {version}

    def check_read(self, branch: Branch, key: str) -> set[int]:
        """The live writers of a key read without a version, if they may be rested on."""
        if self.dirty(key):
            raise Refused("DirtyKeyError", key=key, writers=self.dirty(key))
        writers = self.live_writers(key)
        if any(self.offends(branch, branch.rule, w) for w in writers):
            raise Refused("UncommittedKeyError", key=key, writers=writers)
        return set(writers)

    def see(self, branch: Branch, key: str, version: int | None, since: int | None) -> Refused | None:
        """Record one observation of one key, admitted or refused; the read has happened in any case (I12)."""
        compensating = self.compensating(branch.name)
        try:
            if version is not None:
                writers = self.check_version(branch, key, version)
                if compensating and any(self.effects[w].state == "live" for w in writers):
                    raise Refused("CompensationScopeError", branch=branch.name)
                branch.seen = [s for s in branch.seen if s.kind != "held" or s.key != key]
                branch.seen.append(Seen("version", key, writers, self.position))
                return None
            if since is not None:
                self.check_window(key, since)
            if compensating and self.live_writers(key) and not self.dirty(key):
                raise Refused("CompensationScopeError", branch=branch.name)
            writers = self.check_read(branch, key)
        except Refused as refusal:
            if refusal.kind != "NotFoundError":
                self.hold(branch, key, version, since, refusal)
            return refusal
        if since is not None:
            writers |= set(self.writers_since(key, since))
        branch.seen.append(Seen("plain", key, writers, self.position))
        return None

    def check_window(self, key: str, since: int) -> None:
        """A read that took time must not have seen a doomed value."""
        doomed = [w for w in self.expand(self.writers_since(key, since)) if self.effects[w].state == "doomed"]
        if doomed or self.dirty_since(key, since):
            raise Refused("DirtyKeyError", key=key, writers=sorted({*doomed, *self.dirty_since(key, since)}))

    def hold(self, branch: Branch, key: str, version: int | None, since: int | None, refusal: Refused) -> None:
        """Remember a refused observation; if it saw something doomed, the branch stops at once (C19, C20)."""
        writers = set(self.live_writers(key)) if version is None else {version}
        if version is None and since is not None:
            writers |= set(self.writers_since(key, since))
        if refusal.kind in ("DirtyKeyError", "DoomedDependencyError"):
            seen = {version} if version is not None else {*self.dirty(key), *self.dirty_since(key, self.position)}
            branch.state = "doomed"
            branch.cause = next(iter(seen), None)
        scope = refusal.kind == "CompensationScopeError"
        rule, error = ("committed", "UncommittedKeyError") if scope else (branch.rule, refusal.kind)
        branch.seen.append(Seen("held", key, writers, self.position, rule, error))

    @verb
    def observe(self, name: str, token: int, keys: dict[str, int | None], *, since: int | None = None) -> list[Seen]:
        """Record that the branch has read the keys; the first refusal is raised after all were recorded (C18)."""
        branch = self.guard_token(name, token)
        self.guard_open(branch)
        refusals = [self.see(branch, key, version, since) for key, version in keys.items()]
        for refusal in refusals:
            if refusal is not None:
                raise refusal
        return branch.seen[-len(keys) :]

    # Votes and decisions through a branch

    @verb
    def seal(self, name: str, token: int) -> None:
        """Vote for all that the branch and those below have registered so far (C39)."""
        branch = self.guard_token(name, token)
        self.guard_open(branch)
        self.give({e: {name} for e in self.scope(name)})

    @verb
    def commit(self, name: str, token: int, target: Ref, *, escalate: str = "wait") -> Fence:
        """Vote and ask for the commit of the branch, or of one of its effects."""
        branch = self.guard_token(name, token)
        if self.policy.authority == "reconcile":
            raise Refused("CommitReservedError", target=target)
        decision: Decision = self.decide(target)
        if decision.kind != "abort":
            settled = isinstance(target, int) and self.effects[target].state == "committed"
            if not settled:
                self.guard_open(branch)
        return self.commit_votes(target, escalate)

    @verb
    def abort(self, name: str, token: int) -> Reconciliation:
        """Abort the branch by name; on a stopped or closed one it answers what was decided (C40)."""
        self.guard_token(name, token)
        return self.reconcile_sides((), (name,), closure=False, on_conflict="raise", escalate="wait")

    @verb
    def reconcile(
        self,
        commit: Sequence[Ref] = (),
        abort: Collection[Ref] = (),
        *,
        closure: bool = False,
        on_conflict: str = "raise",
        escalate: str = "wait",
    ) -> Reconciliation:
        """The merge authority's verb; it looks at no token."""
        return self.reconcile_sides(commit, abort, closure=closure, on_conflict=on_conflict, escalate=escalate)
