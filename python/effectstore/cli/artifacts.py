"""Commands that look at artifacts and the runs of their compensations. They never write to the store."""

import argparse
from typing import get_args

import effectstore
from effectstore._choices import ArtifactState
from effectstore.cli.common import CLEAN, Commands, add_store, natural, open_store
from effectstore.cli.output import emit, moment, pairs, say, table


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    listed = commands.add_parser("artifacts", help="executable artifacts and how far they are")
    add_store(listed)
    listed.add_argument("--state", default=None, choices=get_args(ArtifactState))
    listed.set_defaults(handler=run_artifacts)

    one = commands.add_parser("artifact", help="one artifact with its compensation, its review and its run")
    one.add_argument("id", type=natural, metavar="ID", help="the number of either artifact of a pair")
    add_store(one)
    one.set_defaults(handler=run_artifact)


def run_artifacts(arguments: argparse.Namespace) -> int:
    """List pairs."""
    with open_store(arguments, read_only=True) as store:
        found = list(store.artifacts.list(state=arguments.state))
    if arguments.json:
        for pair in found:
            emit(pair.to_dict())
        return CLEAN
    rows = [
        (pair.id, pair.state, pair.primary.type, pair.primary.name, pair.compensation.name, _approver(pair))
        for pair in found
    ]
    head = ("ID", "STATE", "TYPE", "NAME", "COMPENSATION", "APPROVED BY")
    say(table(head, rows) if rows else "no artifacts")
    return CLEAN


def _approver(pair: effectstore.ArtifactPair) -> str:
    return next((moved.by or "" for moved in pair.moves if moved.state == "approved"), "")


def run_artifact(arguments: argparse.Namespace) -> int:
    """Show one pair in full."""
    with open_store(arguments, read_only=True) as store:
        pair = store.artifacts.get(arguments.id)
    if arguments.json:
        emit(pair.to_dict())
        return CLEAN
    rows: list[tuple[str, object]] = [("state", pair.state), ("created by", pair.created_by)]
    for what, one in (("primary", pair.primary), ("compensation", pair.compensation)):
        place = one.content_ref or f"{one.size} bytes held here"
        rows.append((what, f"{one.id} {one.name} ({one.type}, {one.reversibility}): {one.state}"))
        rows.append(("  content", f"{place}, {one.content_hash}"))
    if pair.failure is not None:
        run = "" if pair.failure.run_id is None else f", run {pair.failure.run_id}"
        rows.append(("failed", f"{pair.failure.reason} (told by {pair.failure.by}{run})"))
    if pair.run is not None:
        rows.append(("compensation run", _run_text(pair.run)))
    rows.extend(
        (moment(moved.time), f"{moved.state} by {moved.by or 'the store'}{': ' + moved.reason if moved.reason else ''}")
        for moved in pair.moves
    )
    say(pairs(rows))
    return CLEAN


def _run_text(run: effectstore.ArtifactRun) -> str:
    place = f"step {run.id} of rollback {run.rollback}"
    if run.ended is None:
        return f"{place}: due or under way"
    how = "completed" if run.completed else f"failed ({run.kind})"
    return f"{place}: {how} by {run.by or 'nobody'} after {run.attempts} attempts, approved by {run.approved_by}"
