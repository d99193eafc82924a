"""What the reference model remembers, and the graph questions it answers by walking everything anew each time.

The model keeps the full history: nothing is ever removed, settled effects stay in the same dictionaries as live ones.
Positions are the numbers of the model's steps (one writing verb is one step); they order events, seconds do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

AUTHORITY = "*"


class Refused(Exception):
    """A rule said no; `kind` is the name of the error class that the public API raises."""

    def __init__(self, kind: str, **attributes: object) -> None:
        super().__init__(f"{kind} {attributes}")
        self.kind = kind
        self.attributes = attributes


@dataclass(frozen=True)
class Retry:
    """Bounded attempts with backoff, in seconds; jitter is left out so that due times are exact."""

    max_attempts: int = 5
    delay: float = 1.0
    backoff: float = 2.0
    max_delay: float = 60.0

    def wait(self, failures: int) -> float:
        """Seconds from the n-th counted failure to the next attempt."""
        return min(self.max_delay, self.delay * self.backoff ** (failures - 1))


@dataclass(frozen=True)
class Inverse:
    """The undo of an effect as far as the rules look at it; `deadline` is in seconds of store time."""

    deadline: float | None = None
    compare_and_set: bool = False
    agent: str | None = None
    retry: Retry | None = None
    partial: bool = False


@dataclass(frozen=True)
class Policy:
    """The part of the policy that changes decisions."""

    require_inverse: bool = True
    auto_keys: int = 5
    authority: str = "owner"
    on_failure: str = "halt"
    retry: Retry = Retry()


@dataclass(frozen=True)
class Limits:
    """Limits on what is live; `None` is no limit."""

    live_effects: int | None = None
    live_writers_per_key: int | None = None
    closure: int | None = None


@dataclass
class Seen:
    """One observation of a branch.

    `kind` is plain, version, held, lookup or inherited; `rule` says what a held one waits for.
    """

    kind: str
    key: str | None
    writers: set[int]
    position: int
    rule: str = "speculative"
    error: str | None = None

    def copy(self) -> Seen:
        """A copy for another branch, since each branch drops observations by itself."""
        return Seen(self.kind, self.key, set(self.writers), self.position, self.rule, self.error)


@dataclass
class Branch:
    """A line of work; `own` are the effects that are its own now, `handed` those its parent had when it began."""

    name: str
    agent: str
    parent: str | None
    rule: str
    overwrite: str
    token: int
    lease: float | None = None
    lease_until: float | None = None
    state: str = "open"
    closed_by: str | None = None
    cause: int | None = None
    handed: set[int] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)


@dataclass
class Undo:
    """Progress of one effect's inverse: due, claimed, completed, resolved, failed or discarded."""

    status: str
    generation: int = 1
    kind: str | None = None
    writer: int | None = None
    attempt: int = 0
    failures: int = 0
    begun: int = 0
    not_before: float = 0.0
    token: int | None = None
    lease_until: float = 0.0
    claimed_position: int = 0
    finished_position: int | None = None
    evidence_pending: bool = False


@dataclass
class Effect:
    """One tool call as recorded, with everything that ever happened to it."""

    id: int
    branch: str
    agent: str
    tool: str
    args: str
    reads: dict[str, int | None]
    writes: tuple[str, ...]
    mode: str
    reversibility: str
    inverse: Inverse | None
    key: str | None
    token: int
    registered: int
    deps: dict[int, set[str]] = field(default_factory=dict)
    state: str = "live"
    outcome: str = "unknown"
    votes: set[str] = field(default_factory=set)
    settled: int | None = None
    sealed_then: bool | None = None
    frozen_deps: frozenset[int] | None = None
    read_window: int | None = None
    fence: int | None = None
    rollback: int | None = None
    undo: Undo | None = None
    evidence: bool = False
    late: bool = False
    was_void: bool = False
    voided: int | None = None
    closed: bool = False


@dataclass
class Fence:
    """A commit that was asked for, or the record of one that was decided."""

    id: int
    targets: tuple[int, ...]
    status: str
    committed: tuple[int, ...] = ()
    position: int | None = None


@dataclass
class Approval:
    """One request to run one plan."""

    id: int
    rollback: int
    reason_required: bool
    state: str = "pending"


@dataclass
class Rollback:
    """One set of doomed effects; `gate` is automatic, pending, approved or denied."""

    id: int
    members: tuple[int, ...]
    position: int
    gate: str = "automatic"
    grown: bool = False
    approvals: list[Approval] = field(default_factory=list)


class World:
    """State and graph; every question is answered from the full history, nothing is cached."""

    def __init__(self, policy: Policy | None = None, limits: Limits | None = None) -> None:
        self.policy = policy or Policy()
        self.limits = limits or Limits()
        self.now = 0.0
        self.position = 0
        self.last_id = 0
        self.last_token = 0
        self.branches: dict[str, Branch] = {}
        self.effects: dict[int, Effect] = {}
        self.fences: dict[int, Fence] = {}
        self.rollbacks: dict[int, Rollback] = {}
        self.keys: dict[str, int] = {}
        self.dirty_spans: list[tuple[str, int, int, int | None]] = []
        self.starts: list[tuple[int, int, int]] = []
        self.alerts: list[tuple[int, tuple[int, ...]]] = []
        self.approved_plans: dict[int, frozenset[int]] = {}
        self.frozen = False

    def new_id(self) -> int:
        """The next number of the one sequence of ids."""
        self.last_id += 1
        return self.last_id

    def new_token(self) -> int:
        """The next token; tokens rise strictly (I9)."""
        self.last_token += 1
        return self.last_token

    # Graph

    def direct(self, effect: int) -> set[int]:
        """What the effect rests on directly; a void dependency is replaced by what it rested on (I1)."""
        found: set[int] = set()
        passed: set[int] = set()
        todo = [(effect, on) for on in self.effects[effect].deps]
        while todo:
            holder, dependency = todo.pop()
            record = self.effects[dependency]
            if record.state != "void" and not self.past(holder, dependency):
                found.add(dependency)
            # What was inherited stays so when evidence comes that the void one ran after all.
            if (record.state == "void" or record.was_void) and dependency not in passed:
                passed.add(dependency)
                todo.extend((dependency, on) for on in record.deps)
        return found - {effect}

    def past(self, holder: int, dependency: int) -> bool:
        """Whether a void effect only ever rested on what stood for the other, which was void before it (C68)."""
        void, other = self.effects[holder], self.effects[dependency]
        return void.state == "void" and other.voided is not None and other.voided < void.registered

    def expand(self, ids: Iterable[int]) -> set[int]:
        """The ids with void ones replaced by what they rested on, which stays when one of these ran after all (I1)."""
        found: set[int] = set()
        for item in ids:
            record = self.effects[item]
            found |= set() if record.state == "void" else {item}
            found |= self.direct(item) if record.state == "void" or record.was_void else set()
        return found

    def reach(self, effect: int) -> set[int]:
        """All that the effect rests on, transitively, not looking beyond what is committed; itself left out."""
        found: set[int] = set()
        todo = [effect]
        while todo:
            for dependency in self.direct(todo.pop()):
                if dependency not in found:
                    found.add(dependency)
                    if self.effects[dependency].state != "committed":
                        todo.append(dependency)
        return found - {effect}

    def closure(self, effect: int) -> set[int]:
        """The live ancestors of the effect, without itself."""
        return {e for e in self.reach(effect) if self.effects[e].state == "live"}

    def live(self) -> list[int]:
        """All live effects, in order of id."""
        return [e.id for e in self.effects.values() if e.state == "live"]

    def cascade(self, roots: Iterable[int]) -> set[int]:
        """The live effects that rest on one of the roots, transitively; roots left out."""
        targets = set(roots)
        return {e for e in self.live() if e not in targets and self.reach(e) & targets}

    # Branches

    def above(self, name: str) -> list[str]:
        """The branch and those above it, nearest first."""
        chain: list[str] = []
        current: str | None = name
        while current is not None:
            chain.append(current)
            current = self.branches[current].parent
        return chain

    def below(self, name: str) -> list[str]:
        """The branch and the unfinished ones below it, in order of creation."""
        return [b.name for b in self.branches.values() if b.name == name or name in self.above(b.name)[1:]]

    def own(self, name: str) -> list[int]:
        """All effects that are the branch's now, whatever their state."""
        return [e.id for e in self.effects.values() if e.branch == name]

    def own_live(self, name: str) -> list[int]:
        """The live effects of the branch itself."""
        return [e for e in self.own(name) if self.effects[e].state == "live"]

    def tip(self, name: str) -> set[int]:
        """The live eager effects of the branch that no other of them rests on; of a ring the newest (C16)."""
        branch = self.branches[name]
        held = set(self.own_live(name)) | {e for e in branch.handed if self.effects[e].state == "live"}
        members = {e for e in held if self.effects[e].mode == "eager"}
        reach = {e: self.closure(e) for e in members}

        def covered(old: int) -> bool:
            return any(old in reach[new] and (new not in reach[old] or new > old) for new in members - {old})

        return {e for e in members if not covered(e)}

    def observed(self, name: str) -> set[int]:
        """Every writer that the branch has observed, void ones replaced as well as kept."""
        raw = {w for seen in self.branches[name].seen for w in seen.writers}
        return raw | self.expand(raw)

    def counts(self, effect: int, extra: dict[int, set[str]] | None = None) -> bool:
        """Whether the effect's vote counts: every branch from its owner up, or the authority (C33, C44)."""
        record = self.effects[effect]
        votes = record.votes | (extra or {}).get(effect, set())
        return AUTHORITY in votes or all(b in votes for b in self.above(record.branch))

    # Keys

    def wrote(self, effect: int, key: str) -> bool:
        """Whether the effect counts as a writer of the key at all (C12)."""
        record = self.effects[effect]
        return key in record.writes and record.mode == "eager"

    def live_writers(self, key: str) -> list[int]:
        """The live writers of the key, in order of id."""
        return [e for e in self.live() if self.wrote(e, key)]

    def may_have_run(self, effect: int) -> bool:
        """Whether a doomed effect has an inverse that matters."""
        undo = self.effects[effect].undo
        return undo is not None and undo.status != "discarded"

    def settled_outcome(self, effect: int) -> bool:
        """Whether the outcome of the effect is known or its worker is known to be gone."""
        record = self.effects[effect]
        return record.outcome != "unknown" or record.closed

    def dirty(self, key: str) -> list[int]:
        """The doomed writers whose value the world may still show (C58)."""
        found = []
        for e in self.effects.values():
            if e.undo is None or not self.wrote(e.id, key) or e.undo.status == "discarded":
                continue
            undone = e.undo.status in ("completed", "resolved") and self.settled_outcome(e.id)
            if not undone:
                found.append(e.id)
        return found

    def dirty_since(self, key: str, position: int) -> list[int]:
        """The writers for which the key was dirty at any moment after the position, or is."""
        then = [w for k, w, _, end in self.dirty_spans if k == key and (end is None or end > position)]
        return sorted({*then, *self.dirty(key)})

    def note_dirty(self) -> None:
        """Bring the spans of dirtiness up to the end of this step."""
        keys = sorted({k for e in self.effects.values() for k in e.writes})
        current = {(k, w) for k in keys for w in self.dirty(k)}
        spans = []
        for key, writer, start, end in self.dirty_spans:
            over = end is None and (key, writer) not in current
            spans.append((key, writer, start, self.position if over else end))
        known = {(k, w) for k, w, _, end in spans if end is None}
        spans += [(k, w, self.position, None) for k, w in sorted(current - known)]
        self.dirty_spans = spans

    def writers_since(self, key: str, position: int) -> list[int]:
        """The writers of the key that were live at any moment after the position, settled since or not."""
        return [
            e.id for e in self.effects.values() if self.wrote(e.id, key) and (e.settled is None or e.settled > position)
        ]
