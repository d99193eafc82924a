"""Commands to try the store with: `run` plays a recorded trace, `demo` a scenario of our own."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import effectstore
from effectstore.cli import demo
from effectstore.cli.common import CLEAN, REFUSED, WAITS, Commands, UsageError, add_json, natural
from effectstore.cli.output import Progress, emit, note, pairs, plain_text, say, table, wrapped
from effectstore.play import (
    Call,
    Plan,
    PlanError,
    Player,
    PlayResult,
    add_blind_writes,
    choose_losers,
    interleave,
    read_trace,
)
from effectstore.play.schedule import branches_of

PLAYER = "effectstore run"
"""In whose name a play approves and decides."""

NARRATION_INDENT = len("registered ")

_FIELDS = """\
fields of a call (a JSON object on a line of its own):
  run, branch, agent, tool  texts; calls of one run are played together, a branch belongs to one agent
  seq                       whole number that rises within a run: the order of the calls
  args                      object, the arguments (default {})
  reads, writes             lists of keys (default [])
  result                    what the call gave back (default null)
  inverse                   {"tool": NAME, "args": {"set": {KEY: VALUE}, "unset": [KEY]}}: what puts the keys back
  redo                      {"set": {KEY: VALUE}, "unset": [KEY]}: what the call left; its keys are those of writes
  class                     full (default), partial or irreversible
"""


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    run = commands.add_parser(
        "run",
        help="play a recorded multi-branch tool trace and show the decisions",
        description="Plays every run of TRACE (or one), decides by the plan, compensates, and proves that the world is"
        " what the surviving calls alone would have made.",
        epilog=_FIELDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("trace", metavar="TRACE", help="a JSONL file, one tool call a line")
    run.add_argument("--run", default=None, metavar="ID", help="only this run of the file")
    run.add_argument(
        "--abort",
        nargs="+",
        default=["random"],
        metavar="BRANCH",
        help="branches to abort; 'random' chooses by --seed (default), 'none' aborts nothing",
    )
    run.add_argument(
        "--commit",
        default="all",
        metavar="BRANCH[,BRANCH...]",
        help="branches to commit with all they rest on; 'all' that survive (default), 'none' leaves them undecided",
    )
    run.add_argument("--seed", type=natural, default=0, metavar="SEED", help="seed of --abort random (default 0)")
    run.add_argument("--interleave", type=natural, default=None, metavar="SEED", help="merge the branches at random")
    run.add_argument("--blind", type=natural, default=None, metavar="SEED", help="add random writes without reads")
    run.add_argument(
        "--on-failure",
        choices=("halt", "continue"),
        default=None,
        help="what an inverse that cannot run holds up: what its call rested on, or nothing but earlier writers of its"
        " keys (default: as the store's policy says)",
    )
    run.add_argument("--store", default=None, metavar="DIR", help="keep the store here (default: a new directory)")
    add_json(run)
    run.set_defaults(handler=run_trace)

    show = commands.add_parser("demo", help="a rollback storm without the fence, then the same with it")
    show.add_argument("--store", default=None, metavar="DIR", help="leave the store here (default: a new directory)")
    add_json(show)
    show.set_defaults(handler=run_demo)


def run_demo(arguments: argparse.Namespace) -> int:
    """Tell the scenario and leave its store for inspection."""
    path = arguments.store or tempfile.mkdtemp(prefix="effectstore-demo-")
    if Path(path).exists() and (not Path(path).is_dir() or any(Path(path).iterdir())):
        raise UsageError(f"{path} is not empty; the demo starts in a store of its own")
    lines: list[str] = []
    outcome = demo.play(path, lines.append if arguments.json else say)
    if arguments.json:
        emit(outcome.to_dict())
    return CLEAN if outcome.clean else REFUSED


def run_trace(arguments: argparse.Namespace) -> int:
    """Play, decide, compensate, prove; the worst run gives the exit code."""
    runs = _chosen(read_trace(arguments.trace), arguments.run)
    plans = _plans(arguments, runs)
    path = arguments.store or tempfile.mkdtemp(prefix="effectstore-run-")
    narrated = len(runs) == 1 and not arguments.json
    progress = Progress(sum(len(calls) for calls in plans.values()), "playing")
    results = []
    with effectstore.open(path) as store:
        scopes = _scopes(store, plans)
        for run, calls in plans.items():
            player = Player(
                store,
                calls,
                scope=scopes[run],
                by=PLAYER,
                on_failure=arguments.on_failure,
                show=_narrate if narrated else None,
                on_call=None if narrated else progress.step,
            )
            results.append(player.run(_plan(arguments, calls)))
        progress.close()
    if arguments.json:
        for result in results:
            emit({"store": path, **result.to_dict()})
    else:
        _summarise(results, path)
    return max((_exit_code(result) for result in results), key=_SEVERITY.index)


def _narrate(line: str) -> None:
    """One thing that happened; what is longer than the terminal is wide goes on below its first word."""
    say(wrapped(plain_text(line), NARRATION_INDENT))


_SEVERITY = [CLEAN, WAITS, REFUSED]


def _exit_code(result: PlayResult) -> int:
    if result.differences or result.failed:
        return REFUSED
    if result.waiting:
        return WAITS
    return CLEAN if result.clean else REFUSED


def _chosen(runs: Mapping[str, list[Call]], wanted: str | None) -> Mapping[str, list[Call]]:
    if wanted is None:
        return runs
    if wanted not in runs:
        some = ", ".join(list(runs)[:5])
        raise UsageError(f"no run {wanted!r} in the file; it holds {len(runs)}: {some}{', …' if len(runs) > 5 else ''}")
    return {wanted: runs[wanted]}


def _plans(arguments: argparse.Namespace, runs: Mapping[str, list[Call]]) -> dict[str, list[Call]]:
    """The calls of each run in the order to play. The whole plan is checked before anything is played."""
    ordered = {}
    for run, recorded in runs.items():
        calls: Sequence[Call] = recorded
        if arguments.interleave is not None:
            calls = interleave(calls, f"{arguments.interleave} {run}")
        if arguments.blind is not None:
            calls = add_blind_writes(calls, f"{arguments.blind} {run}")
        ordered[run] = list(calls)
    known = {branch for calls in ordered.values() for branch in branches_of(calls)}
    both = Plan(tuple(_named(arguments.abort, ("random", "none"))), _commit_side(arguments.commit))
    both.check(known)
    return ordered


def _plan(arguments: argparse.Namespace, calls: Sequence[Call]) -> Plan:
    """The plan for one run: of the branches that the command line names, those that the run has."""
    here = branches_of(calls)
    if "random" in arguments.abort:
        abort = choose_losers(calls, f"{arguments.seed} {calls[0].run}")
    else:
        abort = tuple(branch for branch in here if branch in _named(arguments.abort, ("none",)))
    commit = _commit_side(arguments.commit)
    return Plan(
        abort, None if commit is None else tuple(branch for branch in commit if branch in set(here) - set(abort))
    )


def _named(words: Sequence[str], choices: Sequence[str]) -> list[str]:
    """The branches that a list of words names, commas allowed; a choice stands alone."""
    names = [name for word in words for name in word.split(",") if name]
    if any(choice in names for choice in choices):
        if len(names) > 1:
            raise PlanError(f"{', '.join(choices)}: cannot be combined with names of branches")
        return []
    return names


def _commit_side(text: str) -> tuple[str, ...] | None:
    if text == "all":
        return None
    return tuple(_named([text], ("none", "all")))


def _scopes(store: effectstore.Store, plans: Mapping[str, Sequence[Call]]) -> dict[str, str]:
    """What is put before names, so that neither another run nor an earlier play in this store is met."""
    taken = {branch.name for branch in store.branches()}
    if not taken and len(plans) == 1:
        return dict.fromkeys(plans, "")
    scopes = {}
    for run, calls in plans.items():
        number = 1
        scope = f"{run}/"
        while any(f"{scope}{branch}" in taken for branch in branches_of(calls)):
            number += 1
            scope = f"{run}#{number}/"
        scopes[run] = scope
    return scopes


def _summarise(results: Sequence[PlayResult], path: str) -> None:
    if len(results) == 1:
        say("")
        say(pairs(_summary(results[0])))
    else:
        head = ("RUN", "BRANCHES", "EFFECTS", "FELL", "UNDONE", "CONFLICTS", "WORLD")
        say(table(head, [_row(result) for result in results]))
        proved = sum(not result.differences for result in results)
        conflicting = sum(bool(result.conflicts) for result in results)
        say(
            f"\n{len(results)} runs, {sum(result.effects for result in results)} effects;"
            f" {proved} worlds proved, {conflicting} runs with a conflict"
        )
        if any(result.exempt for result in results):
            say("* but for the keys of steps in conflict, and of steps blocked behind them")
    wrong = [result.run for result in results if result.differences]
    if wrong:
        note(f"the world is not what the surviving effects make: {', '.join(wrong)}")
    say(plain_text(f"store      {path}"))


def _row(result: PlayResult) -> tuple[object, ...]:
    return (
        result.run,
        result.branches,
        result.effects,
        len(result.doomed) + len(result.cascaded),
        len(result.undone),
        len(result.conflicts),
        "WRONG" if result.differences else "proved*" if result.exempt else "proved",
    )


def _world(result: PlayResult) -> str:
    if result.differences:
        return "WRONG"
    return f"proved but for {len(result.exempt)}" if result.exempt else "proved"


def _summary(result: PlayResult) -> list[tuple[str, object]]:
    resting = [f"{name} on {', '.join(others)}" for name, others in result.resting.items() if others]
    conflicts = [
        f"{effect} (overwritten by {writer})" if writer is not None else str(effect)
        for effect, writer in result.conflicts.items()
    ]
    return [
        ("run", result.run),
        ("branches", f"{result.branches}; resting: {'; '.join(resting) or 'none'}"),
        ("effects", result.effects),
        ("committed", len(result.committed)),
        ("doomed", f"{len(result.doomed)} by the plan, {len(result.cascaded)} dragged along"),
        ("undone", f"{len(result.undone)} inverses ran"),
        ("conflicts", ", ".join(conflicts) or "none"),
        ("blocked", ", ".join(str(effect) for effect in result.blocked) or "none"),
        ("waiting", ", ".join(str(effect) for effect in result.waiting) or "none"),
        (
            "approvals",
            f"{result.early_approvals} for early irreversible calls, {result.rollback_approvals} for rollbacks",
        ),
        ("world", _world(result)),
    ]
