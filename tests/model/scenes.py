"""A short way to write scenes for the model: names instead of ids, every step followed by all invariants."""

from __future__ import annotations

from typing import Any

from .invariants import Watch
from .reference import Call, Claimed, Inverse, Model, Refused, Retry

UNDO = Inverse(retry=Retry(max_attempts=3, delay=1.0, backoff=2.0, max_delay=30.0))


class Scene:
    """A model, its invariants, and the branches and effects by name."""

    def __init__(self, **settings: Any) -> None:
        self.model = Model(**settings)
        self.watch = Watch()
        self.names: dict[str, int] = {}

    def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Run a verb and check every invariant, also after a refusal."""
        try:
            return getattr(self.model, verb)(*arguments, **options)
        finally:
            self.watch.check(self.model)

    def refused(self, kind: str, verb: str, *arguments: Any, **options: Any) -> Refused:
        """Run a verb that must be refused with this class."""
        try:
            answer = self.call(verb, *arguments, **options)
        except Refused as refusal:
            assert refusal.kind == kind, f"{refusal.kind} instead of {kind}"
            return refusal
        raise AssertionError(f"{verb} was answered: {answer}")

    def branch(self, name: str, **options: Any) -> None:
        """Create a branch whose agent has its name."""
        self.call("branch", name, agent=options.pop("agent", name), **options)

    def token(self, name: str) -> int:
        """The branch's current token."""
        return self.model.branches[name].token

    def words(self, branch: str, **options: Any) -> tuple[str, int, Call]:
        """Arguments of `register`; keys may be given as one string of letters, effects by name."""
        reads = options.pop("reads", "")
        options["reads"] = self.versions(reads)
        options["writes"] = tuple(options.pop("writes", ""))
        if options.get("after") is not None:
            options["after"] = tuple(self.names[a] for a in options["after"])
        options.setdefault("inverse", UNDO)
        return branch, self.token(branch), Call("tool", **options)

    def start(self, name: str, branch: str, *, base: frozenset[int] | None = None, **options: Any) -> int:
        """Register an effect under a name; it has not reported yet."""
        effect: int = self.call("register", *self.words(branch, **options), base=base).effect
        self.names[name] = effect
        return effect

    def run(self, name: str, branch: str, **options: Any) -> int:
        """Register an effect and report it done."""
        effect = self.start(name, branch, **options)
        self.done(name)
        return effect

    def own(self, name: str) -> tuple[int, int]:
        """An effect and its token."""
        effect = self.names[name]
        return effect, self.model.effects[effect].token

    def done(self, name: str) -> None:
        """Report that the call ran."""
        self.call("done", *self.own(name))

    def not_run(self, name: str) -> None:
        """Report that the call did not run."""
        self.call("not_run", *self.own(name))

    def observe(self, branch: str, keys: Any, **options: Any) -> Any:
        """A branch reads keys; versions by effect name."""
        return self.call("observe", branch, self.token(branch), self.versions(keys), **options)

    def versions(self, keys: str | dict[str, str | int]) -> dict[str, int | None]:
        """Keys read without a version, one letter each, or with versions given as names of effects."""
        if isinstance(keys, str):
            return dict.fromkeys(keys)
        return {k: self.names[v] if isinstance(v, str) else v for k, v in keys.items()}

    def states(self, names: str) -> str:
        """First letters of the states of effects with one-letter names: l, c, d, v."""
        return "".join(self.model.effects[self.names[n]].state[0] for n in names)

    def named(self, effects: Any) -> set[str]:
        """Effects by name."""
        return {name for name, effect in self.names.items() if effect in set(effects)}

    def undo_all(self) -> str:
        """One worker runs all that is due; the order by name."""
        order = ""
        while (step := self.claim()) is not None:
            self.call("complete", step)
            order += self.name_of(step)
        return order

    def claim(self, agent: str = "*", **options: Any) -> Claimed | None:
        """Take the next step."""
        step: Claimed | None = self.call("claim", agent, **options)
        return step

    def name_of(self, step: Claimed | None) -> str:
        """The name of the step's effect."""
        assert step is not None
        return next(name for name, effect in self.names.items() if effect == step.effect)

    def report(self) -> dict[str, Any]:
        """Where every member of every rollback is, by name; empty places left out."""
        report = self.model.full_report(self.model.rollbacks)
        places: dict[str, Any] = {
            place: "".join(sorted(self.named(getattr(report, place))))
            for place in ("completed", "unsettled", "blocked", "pending", "discarded")
        }
        places["failed"] = {next(iter(self.named([e]))): kind for e, kind in report.failed.items()}
        return {place: members for place, members in places.items() if members}
