"""The scenario of `effectstore demo`: three agents and a deploy, without the fence, then with it."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import effectstore

Say = Callable[[str], None]

POOL = "config/pool_size"
RELEASE = "cluster/release"
CHANGELOG = "docs/changelog"
BROKEN_PREMISE = "the database cannot take 50 connections"


@dataclass(slots=True)
class Cluster:
    """The shared world: what the three agents read and change through their tools."""

    pool_size: int = 10
    release: str = "v1, built for a pool of 10"
    changelog: str = ""
    mails: list[str] = field(default_factory=list)

    def show(self, say: Say) -> None:
        """Print the world."""
        say(f"    pool size  {self.pool_size}")
        say(f"    release    {self.release}")
        say(f"    changelog  {self.changelog or '(empty)'}")
        say(f"    mails      {'; '.join(self.mails) or '(none sent)'}")

    @property
    def sound(self) -> bool:
        """Whether the running release was built for the configuration that holds."""
        return self.release.endswith(f"a pool of {self.pool_size}")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How both halves ended. `clean`: with the fence everything was undone, and the world is sound."""

    store: str
    sound_without_fence: bool
    sound_with_fence: bool
    committed: tuple[int, ...]
    doomed: tuple[int, ...]
    undone: tuple[int, ...]
    mails_without_fence: int
    mails_with_fence: int
    clean: bool

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        return asdict(self)


def play(path: str, say: Say) -> DemoResult:
    """Play both halves on worlds that start alike; the second one leaves its store at `path`."""
    say("Three agents share a cluster: a planner tunes the configuration, a deployer")
    say("ships what fits it, a scribe keeps the changelog. Nobody waits for anybody.")
    say("")
    without = _without_fence(say)
    say("")
    cluster = Cluster()
    result = _with_fence(path, cluster, say, without)
    say("")
    _say_next(path, say)
    return result


def _without_fence(say: Say) -> Cluster:
    """A runtime with an undo list per agent, and nothing that knows who read what."""
    say("1. Without the fence: every agent keeps an undo list of its own")
    cluster = Cluster()
    planner_undo = [cluster.pool_size]
    cluster.pool_size = 50
    say("  planner   sets the pool size to 50, to see how it goes")
    cluster.release = f"v2, built for a pool of {cluster.pool_size}"
    say("  deployer  reads 50, ships v2 for it")
    cluster.mails.append("v2 is live")
    say("  deployer  is content: commits, forgets its undo list, mails everybody")
    cluster.changelog = "pool sizes are now documented"
    say("  scribe    writes the changelog")
    say(f"  planner   learns that {BROKEN_PREMISE},")
    while planner_undo:
        cluster.pool_size = planner_undo.pop()
    say("            and rolls back what is its own")
    cluster.show(say)
    say("  The deploy rests on a value that is gone, and nothing is left to undo it with.")
    return cluster


def _with_fence(path: str, cluster: Cluster, say: Say, without: Cluster) -> DemoResult:
    say("2. With the fence: the same calls, each registered before it runs")
    with effectstore.open(path) as store:
        planner = store.branch("tune-pool", agent="planner")
        deployer = store.branch("ship-v2", agent="deployer")
        scribe = store.branch("write-docs", agent="scribe")
        _register(store, cluster, (planner, deployer, scribe), say)

        fence = store.commit(deployer)
        say(f"  deployer  asks for the commit: {fence.status} (fence {fence.id})")
        for blocker in fence.blockers:
            say(f"            blocked by effect {blocker.effect} of {blocker.branch}: {_WHY[blocker.reason]}")
        say(f"  planner   learns that {BROKEN_PREMISE}")
        answer = store.reconcile(commit=scribe, abort=planner, by="release-lead", reason=BROKEN_PREMISE)
        say("  judge     one decision: commit the scribe, abort the planner")
        say(
            f"            committed {_ids(answer.committed)}; doomed {_ids(answer.doomed)};"
            f" dragged along {_ids(answer.cascaded)}"
        )
        undone: list[int] = []
        report = store.compensate(_handlers(cluster, undone, say))
        say(
            f"  rollback  {_ids(report.completed)} undone, {_ids(report.discarded)} never ran;"
            f" {'clean' if report.clean else 'NOT clean'}"
        )
    cluster.show(say)
    say("  The deploy fell with the value that it rested on; the mail was never sent;")
    say("  the scribe's work, which rested on neither, is committed.")
    return DemoResult(
        store=path,
        sound_without_fence=without.sound,
        sound_with_fence=cluster.sound,
        committed=tuple(answer.committed),
        doomed=tuple(sorted({*answer.doomed, *answer.cascaded})),
        undone=tuple(undone),
        mails_without_fence=len(without.mails),
        mails_with_fence=len(cluster.mails),
        clean=report.clean and cluster.sound and not cluster.mails,
    )


_WHY = {"no_vote": "its owner has not voted for it", "unknown": "its outcome is not known yet"}


def _register(
    store: effectstore.Store,
    cluster: Cluster,
    branches: tuple[effectstore.Branch, effectstore.Branch, effectstore.Branch],
    say: Say,
) -> None:
    """The same calls as without the fence: each is made durable with its inverse, then runs, then is reported."""
    planner, deployer, scribe = branches
    tune = planner.register(
        "set_pool_size",
        {"value": 50},
        reads=POOL,
        writes=POOL,
        inverse=effectstore.Inverse("set_pool_size", {"value": cluster.pool_size}),
    )
    cluster.pool_size = 50
    tune.done(None)
    say(f"  planner   effect {tune.id}: sets the pool size to 50")

    release = f"v2, built for a pool of {cluster.pool_size}"
    ship = deployer.register(
        "ship",
        {"release": release},
        reads=POOL,
        writes=RELEASE,
        inverse=effectstore.Inverse("ship", {"release": cluster.release}),
    )
    cluster.release = release
    ship.done(None)
    rests = [effect for effect in store.decide(ship).closure if effect != ship.id]
    say(f"  deployer  effect {ship.id}: reads 50, ships v2; rests on {_ids(rests)}")
    mail = deployer.register("send_mail", {"text": "v2 is live"}, reversibility="irreversible")
    say(f"  deployer  effect {mail.id}: no mail can be unsent; it waits for the fence ({mail.mode})")

    line = "pool sizes are now documented"
    document = scribe.register(
        "write_changelog",
        {"text": line},
        writes=CHANGELOG,
        inverse=effectstore.Inverse("write_changelog", {"text": cluster.changelog}),
    )
    cluster.changelog = line
    document.done(None)
    say(f"  scribe    effect {document.id}: writes the changelog")


def _handlers(cluster: Cluster, undone: list[int], say: Say) -> Mapping[str, Callable[..., None]]:
    """The tools as the undo calls them; each sets a value, so that a repeated undo is harmless."""

    def handler(attribute: str, argument: str) -> Callable[..., None]:
        def undo(args: Mapping[str, Any], step: effectstore.Step) -> None:
            setattr(cluster, attribute, args[argument])
            undone.append(step.effect.id)
            say(f"  undo      effect {step.effect.id}: {step.tool}({args[argument]!r})")

        return undo

    return {
        "set_pool_size": handler("pool_size", "value"),
        "ship": handler("release", "release"),
        "write_changelog": handler("changelog", "text"),
    }


def _say_next(path: str, say: Say) -> None:
    place = shlex.quote(path)
    say(f"The store lies at {path}. Look at it:")
    say(f"    export EFFECTSTORE_PATH={place}")
    say("    effectstore status")
    say("    effectstore log")
    say("    effectstore explain ship-v2")
    say("    effectstore graph")


def _ids(effects: Any) -> str:
    return ", ".join(str(effect) for effect in effects) or "none"
