"""Commands that only look: status, log, explain, graph, rollbacks, approvals. They never write to the store."""

import argparse
import re
import sys
from collections import Counter
from typing import Any

import effectstore
from effectstore._choices import RECORD_KINDS
from effectstore.cli import graphs
from effectstore.cli.common import CLEAN, Commands, UsageError, add_store, natural, open_store, positive, store_path
from effectstore.cli.output import emit, jsonable, moment, note, pairs, plain_text, say, table

FOLLOW_SECONDS = 1.0
"""How long `log --follow` waits for the next record before it looks whether it was interrupted."""


_LATER = re.compile(r"unknown_[0-9]+")
"""The kind of a record that a later version wrote."""


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    status = commands.add_parser("status", help="what is live, what waits, what went wrong")
    add_store(status)
    status.set_defaults(handler=run_status)

    log = commands.add_parser("log", help="the records of the log, oldest first")
    add_store(log)
    log.add_argument("--since", type=natural, default=0, metavar="SEQ", help="only records after this one")
    log.add_argument("--limit", type=positive, default=None, metavar="N", help="at most so many records")
    log.add_argument("--kind", default=None, metavar="KIND", help="only records of this kind")
    log.add_argument("--follow", action="store_true", help="go on with new records until interrupted")
    log.set_defaults(handler=run_log)

    explain = commands.add_parser("explain", help="the story of an effect, a branch, a fence or a rollback")
    explain.add_argument("id", metavar="ID", help="a number, or the name of a branch")
    add_store(explain)
    explain.set_defaults(handler=run_explain)

    graph = commands.add_parser("graph", help="who rests on whom")
    add_store(graph)
    graph.add_argument("--format", choices=("tree", "mermaid", "dot"), default="tree")
    graph.add_argument("--branch", default=None, metavar="NAME", help="only effects of this branch")
    graph.add_argument("--state", choices=("live", "committed", "doomed", "void"), default=None)
    graph.add_argument("--since", type=natural, default=0, metavar="ID", help="only effects after this one")
    graph.add_argument("--limit", type=positive, default=500, metavar="N", help="at most so many effects (500)")
    graph.set_defaults(handler=run_graph)

    rollbacks = commands.add_parser("rollbacks", help="rollbacks and how far they are")
    add_store(rollbacks)
    rollbacks.add_argument("--state", default=None, choices=_ROLLBACK_STATES)
    rollbacks.set_defaults(handler=run_rollbacks)

    approvals = commands.add_parser("approvals", help="what a person was asked, and the answers")
    add_store(approvals)
    approvals.add_argument("--state", default=None, choices=("pending", "approved", "denied", "stale"))
    approvals.set_defaults(handler=run_approvals)


_ROLLBACK_STATES = ("awaiting_approval", "due", "running", "blocked", "in_review", "closed")


def run_status(arguments: argparse.Namespace) -> int:
    """Count what is live, what waits and what needs a person."""
    with open_store(arguments, read_only=True) as store:
        live = unknown = 0
        for effect in store.effects(state="live"):
            live += 1
            unknown += effect.outcome == "unknown"
        summary: dict[str, Any] = {
            "store": store_path(arguments),
            "live_effects": live,
            "unknown_outcomes": unknown,
            "branches": dict(Counter(branch.state for branch in store.branches())),
            "waiting_fences": [fence.id for fence in store.fences(status="waiting")],
            "rollbacks": dict(Counter(rollback.state for rollback in store.rollbacks())),
            "pending_approvals": [approval.id for approval in store.approvals(state="pending")],
            "open_notices": [notice.id for notice in store.inbox("*")],
            "open_alerts": [alert.id for alert in store.alerts() if alert.acknowledged_by is None],
        }
    if arguments.json:
        emit(summary)
        return CLEAN
    rows: list[tuple[str, object]] = []
    for name, value in summary.items():
        shown: object = value
        if isinstance(value, dict):
            shown = ", ".join(f"{count} {state}" for state, count in sorted(value.items())) or "none"
        elif isinstance(value, list):
            shown = f"{len(value)} ({', '.join(str(item) for item in value[:8])}{', …' if len(value) > 8 else ''})"
            shown = shown if value else "none"
        rows.append((name.replace("_", " "), shown))
    say(pairs(rows))
    return CLEAN


def run_log(arguments: argparse.Namespace) -> int:
    """Print records one a line, as they come."""
    left = arguments.limit
    last = arguments.since
    if arguments.kind is not None and arguments.kind not in RECORD_KINDS and not _LATER.fullmatch(arguments.kind):
        raise UsageError(f"{arguments.kind!r} is no kind of record; kinds: {', '.join(RECORD_KINDS)}")
    with open_store(arguments, read_only=True) as store:
        while True:
            for record in store.log(since=last, timeout=FOLLOW_SECONDS if arguments.follow else 0):
                last = record.seq
                if arguments.kind is not None and record.kind != arguments.kind:
                    continue
                _print_record(record, as_json=arguments.json)
                if arguments.follow:
                    sys.stdout.flush()
                if left is not None:
                    left -= 1
                    if left == 0:
                        return CLEAN
            if not arguments.follow:
                return CLEAN


def _print_record(record: effectstore.LogRecord, *, as_json: bool) -> None:
    if as_json:
        emit(record.to_dict())
        return
    ref = "" if record.ref is None else record.ref
    line = f"{record.seq:>8}  {moment(record.time)}  {record.kind:<18}  {ref}"
    say(plain_text(line).rstrip())


def run_explain(arguments: argparse.Namespace) -> int:
    """Tell one story."""
    ref: int | str = int(arguments.id) if arguments.id.isascii() and arguments.id.isdigit() else arguments.id
    with open_store(arguments, read_only=True) as store:
        story = store.explain(ref)
        if arguments.json:
            emit(story.to_dict())
        else:
            say(plain_text(str(story).rstrip("\n"), lines=True))
    return CLEAN


def run_graph(arguments: argparse.Namespace) -> int:
    """Draw effects and dependencies."""
    filters = {
        name: value for name, value in (("branch", arguments.branch), ("state", arguments.state)) if value is not None
    }
    with open_store(arguments, read_only=True) as store:
        # One more than asked for tells whether something is left out.
        effects = list(store.effects(since=arguments.since, limit=arguments.limit + 1, **filters))
    if len(effects) > arguments.limit:
        effects = effects[: arguments.limit]
        note(f"only the first {arguments.limit} effects are drawn; go on with --since {effects[-1].id}")
    graph = graphs.Graph.of(effects)
    if arguments.json:
        emit(graph.to_dict())
    else:
        say({"tree": graph.tree, "mermaid": graph.mermaid, "dot": graph.dot}[arguments.format]())
    return CLEAN


def run_rollbacks(arguments: argparse.Namespace) -> int:
    """List rollbacks."""
    filters = {} if arguments.state is None else {"state": arguments.state}
    with open_store(arguments, read_only=True) as store:
        rollbacks = list(store.rollbacks(**filters))
        if arguments.json:
            for rollback in rollbacks:
                emit(rollback.to_dict())
            return CLEAN
        rows = [_rollback_row(rollback) for rollback in rollbacks]
    head = ("ID", "STATE", "DONE", "FAILED", "BLOCKED", "CLEAN", "BY", "REASON")
    say(table(head, rows) if rows else "no rollbacks")
    return CLEAN


def _rollback_row(rollback: effectstore.Rollback) -> tuple[object, ...]:
    report = rollback.report
    # Members that never ran are settled without an inverse.
    settled = len(report.completed) + len(report.discarded)
    return (
        rollback.id,
        rollback.state,
        f"{settled}/{len(rollback.effects)}",
        len(report.failed),
        len(report.blocked),
        "yes" if report.clean else "no",
        rollback.initiated_by or "",
        rollback.reason or "",
    )


def run_approvals(arguments: argparse.Namespace) -> int:
    """List approvals."""
    filters = {} if arguments.state is None else {"state": arguments.state}
    with open_store(arguments, read_only=True) as store:
        approvals = list(store.approvals(**filters))
    if arguments.json:
        for approval in approvals:
            emit(jsonable(approval.to_dict()))
        return CLEAN
    rows = [
        (
            approval.id,
            approval.about,
            approval.state,
            "yes" if approval.reason_required else "no",
            approval.requested_by or "",
            approval.answered_by or "",
            approval.answer_reason or approval.reason or "",
        )
        for approval in approvals
    ]
    head = ("ID", "FOR", "STATE", "REASON?", "ASKED BY", "ANSWERED BY", "WHY")
    say(table(head, rows) if rows else "no approvals")
    return CLEAN
