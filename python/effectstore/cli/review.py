"""Commands about rollbacks: plans, alerts, reviews, metrics; and what a person does about them."""

import argparse
import importlib
import sys
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import effectstore
from effectstore.cli.common import (
    CLEAN,
    REFUSED,
    WAITS,
    Commands,
    UsageError,
    add_json,
    add_person,
    add_store,
    natural,
    open_store,
    person,
)
from effectstore.cli.output import emit, pairs, plain_text, say, table

_CAUSES = ("prompt", "data", "policy", "process", "tool", "other")


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    plan = commands.add_parser("plan", help="what a rollback will do and what it touches")
    plan.add_argument("id", type=natural, metavar="ID", help="the rollback's number")
    add_store(plan)
    plan.set_defaults(handler=run_plan)

    alerts = commands.add_parser("alerts", help="what a person must know")
    add_store(alerts)
    alerts.add_argument("--all", action="store_true", help="also those that somebody has acknowledged")
    alerts.set_defaults(handler=run_alerts)

    review = commands.add_parser("review", help="finished rollbacks that owe a root cause or a remedy")
    add_store(review)
    review.set_defaults(handler=run_review)

    metrics = commands.add_parser("metrics", help="storms, rollbacks and storage, measured over the last 30 days")
    add_store(metrics)
    metrics.add_argument("--prometheus", action="store_true", help="in the text format of Prometheus")
    metrics.set_defaults(handler=run_metrics)

    _add_steps(commands)

    ack = commands.add_parser("ack", help="say that you have seen an alert")
    ack.add_argument("id", type=natural, metavar="ID", help="the alert's number")
    add_store(ack)
    _add_by(ack)
    ack.set_defaults(handler=run_ack)

    cause = commands.add_parser("root-cause", help="say why a rollback was necessary, and what was changed")
    cause.add_argument("id", type=natural, metavar="ID", help="the rollback's number")
    cause.add_argument("words", nargs="*", metavar="[CATEGORY] [STORE]", help=f"one of {', '.join(_CAUSES)}; the store")
    add_json(cause)
    _add_by(cause)
    cause.add_argument("--note", metavar="TEXT", help="the cause in words")
    cause.add_argument("--remedy", metavar="REF", help="what was changed because of it: a commit, a ticket, a prompt")
    cause.add_argument("--waive", metavar="TEXT", help="why nothing is changed because of it")
    cause.set_defaults(handler=run_root_cause)

    compensate = commands.add_parser("compensate", help="run the inverses that are due")
    add_store(compensate)
    compensate.add_argument(
        "--handlers",
        required=True,
        metavar="MODULE[:NAME]",
        help="where the handlers are: a mapping of tools to functions (default name: handlers), or decorated tools",
    )
    compensate.add_argument("--agent", metavar="NAME", help="only this agent's steps")
    compensate.add_argument("--rollback", type=natural, metavar="ID", help="only this rollback")
    compensate.add_argument("--timeout", type=float, default=0.0, metavar="SECONDS", help="how long to wait for others")
    compensate.set_defaults(handler=run_compensate)


def _add_steps(commands: Commands) -> None:
    for name, text, handler in (
        ("resolve", "say that you have undone a step by hand, or a manual one", run_resolve),
        ("retry", "make a failed step due again", run_retry),
    ):
        step = commands.add_parser(name, help=text)
        step.add_argument("id", type=natural, metavar="ID", help="the effect's number, by which its step goes")
        add_store(step)
        step.add_argument(
            "--rollback", type=natural, metavar="ID", help="its rollback (default: the one that holds it)"
        )
        add_person(step, reason_required=True)
        step.set_defaults(handler=handler)
    close = commands.add_parser("close", help="say that an effect's worker is gone, so that no outcome can come")
    close.add_argument("id", type=natural, metavar="ID", help="the effect's number")
    add_store(close)
    add_person(close, reason_required=True)
    close.set_defaults(handler=run_close)


def _add_by(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", metavar="NAME", default=None, help="who acts (default: the login name)")


def run_plan(arguments: argparse.Namespace) -> int:
    """Show what is touched, and the steps in their order."""
    with open_store(arguments, read_only=True) as store:
        rollback = store.rollback(arguments.id)
        impact = rollback.impact()
        steps: tuple[effectstore.PlannedStep, ...] = ()
        digest = ""
        if rollback.state not in ("in_review", "closed"):
            plan = rollback.plan()
            steps, digest = plan.steps, plan.digest
    waits = WAITS if rollback.state == "awaiting_approval" else CLEAN
    if arguments.json:
        emit(
            {
                "rollback": rollback.id,
                "state": rollback.state,
                "approvals": list(rollback.approvals),
                "digest": digest,
                "impact": impact.to_dict(),
                "steps": [step.to_dict() for step in steps],
            }
        )
        return waits
    say(pairs(_impact_rows(rollback, impact)))
    rows = [
        (place, step.effect, step.tool or "(by hand)", step.agent, step.reversibility, step.deadline or "")
        for place, step in enumerate(steps, start=1)
    ]
    head = ("STEP", "EFFECT", "TOOL", "AGENT", "CLASS", "DEADLINE")
    say("\n" + (table(head, rows) if rows else "no steps are left"))
    return waits


def _impact_rows(rollback: effectstore.Rollback, impact: effectstore.Impact) -> list[tuple[str, object]]:
    def listed(ids: tuple[int, ...]) -> str:
        return ", ".join(str(item) for item in ids) or "none"

    rows: list[tuple[str, object]] = [
        ("rollback", f"{rollback.id} ({rollback.state})"),
        ("asked by", rollback.initiated_by or ""),
        ("reason", rollback.reason),
        ("approvals", listed(rollback.approvals)),
        ("done", listed(impact.done)),
        ("rests on it", listed(impact.rests_on)),
        ("keys", ", ".join(impact.keys) or "none"),
        ("agents", ", ".join(impact.agents) or "none"),
        ("class", impact.reversibility),
        ("no inverse", listed(impact.not_compensable)),
        ("expiring", listed(impact.expiring)),
    ]
    rows += [("stays behind", f"of {effect}: {text}") for effect, text in impact.limitations]
    return rows


def run_alerts(arguments: argparse.Namespace) -> int:
    """List alerts."""
    with open_store(arguments, read_only=True) as store:
        alerts = [alert for alert in store.alerts() if arguments.all or alert.acknowledged_by is None]
    if arguments.json:
        for alert in alerts:
            emit(alert.to_dict())
        return CLEAN
    rows = [(alert.id, alert.severity, alert.ref, alert.acknowledged_by or "", alert.text) for alert in alerts]
    say(table(("ID", "SEVERITY", "ON", "SEEN BY", "TEXT"), rows) if rows else "no alerts")
    return CLEAN


def run_review(arguments: argparse.Namespace) -> int:
    """List what is owed."""
    with open_store(arguments, read_only=True) as store:
        rollbacks = list(store.review())
    if arguments.json:
        for rollback in rollbacks:
            emit(rollback.to_dict())
        return CLEAN
    rows = [
        (
            rollback.id,
            "remedy" if rollback.root_cause else "root cause" if rollback.waived_by else "root cause, remedy",
            "yes" if rollback.report.clean else "no",
            rollback.initiated_by or "",
            rollback.reason,
        )
        for rollback in rollbacks
    ]
    say(table(("ID", "OWES", "CLEAN", "BY", "REASON"), rows) if rows else "nothing is owed")
    return CLEAN


def run_metrics(arguments: argparse.Namespace) -> int:
    """Show measures."""
    with open_store(arguments, read_only=True) as store:
        metrics = store.metrics()
    if arguments.prometheus:
        sys.stdout.write(metrics.prometheus())
        return CLEAN
    if arguments.json:
        emit(metrics.to_dict())
        return CLEAN
    for part in ("storms", "rollbacks", "storage"):
        measures: dict[str, Any] = getattr(metrics, part).to_dict()
        rows = [(name.replace("_", " "), _measure(value)) for name, value in measures.items()]
        say(f"{part.upper()}\n{pairs(rows)}\n")
    return CLEAN


def _measure(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_measure(item)}" for name, item in value.items())
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def run_ack(arguments: argparse.Namespace) -> int:
    """Acknowledge one alert."""
    with open_store(arguments, read_only=False) as store:
        found = next(iter(store.alerts(since=max(0, arguments.id - 1), limit=1)), None)
        if found is None or found.id != arguments.id:
            raise effectstore.NotFoundError(f"there is no alert {arguments.id}", ref=arguments.id)
        seen = found.ack(by=person(arguments))
    if arguments.json:
        emit(seen.to_dict())
    else:
        say(plain_text(f"alert {seen.id}: seen by {seen.acknowledged_by}"))
    return CLEAN


def run_root_cause(arguments: argparse.Namespace) -> int:
    """Record a cause, a remedy, or that none is needed."""
    words = list(arguments.words)
    arguments.category = words.pop(0) if words and words[0] in _CAUSES else None
    kinds = f"a kind of cause is one of {', '.join(_CAUSES)}"
    unkind = arguments.category is None and words and not Path(words[0]).exists()
    if unkind and (len(words) > 1 or arguments.waive is None):
        raise UsageError(f"{words[0]!r} is no kind of cause; {kinds}")
    arguments.store = words.pop(0) if words else None
    if words:
        raise UsageError(f"{words[0]!r} is too much; {kinds}")
    if arguments.category is None and arguments.waive is None:
        raise UsageError("say what kind of cause it was, or why the remedy is waived (--waive)")
    if arguments.category is not None and not arguments.note:
        raise UsageError("a root cause needs words: --note")
    if arguments.category is None and (arguments.note or arguments.remedy):
        raise UsageError(f"--note and --remedy belong to a kind of cause: {', '.join(_CAUSES)}")
    with open_store(arguments, read_only=False) as store:
        rollback = store.rollback(arguments.id)
        if arguments.category is not None:
            rollback = rollback.record_root_cause(
                arguments.category, note=arguments.note, by=person(arguments), remedy=arguments.remedy
            )
        if arguments.waive is not None:
            rollback = rollback.waive_remedy(by=person(arguments), reason=arguments.waive)
    if arguments.json:
        emit(rollback.to_dict())
    else:
        say(plain_text(f"rollback {rollback.id}: {_taken(arguments)}{rollback.state.replace('_', ' ')}"))
    return CLEAN


def _taken(arguments: argparse.Namespace) -> str:
    """What was written down: a rollback's state need not change with it."""
    cause = [] if arguments.category is None else [f"root cause {arguments.category} recorded"]
    remedy = [] if arguments.remedy is None else ["remedy recorded"]
    waived = [] if arguments.waive is None else ["remedy waived"]
    return "".join(f"{done}; " for done in (*cause, *remedy, *waived))


def _rollback_of(store: effectstore.Store, arguments: argparse.Namespace) -> effectstore.Rollback:
    wanted = arguments.rollback
    if wanted is None:
        wanted = store.effect(arguments.id).rollback
    if wanted is None:
        raise UsageError(f"effect {arguments.id} is in no rollback")
    return store.rollback(wanted)


def run_resolve(arguments: argparse.Namespace) -> int:
    """A person undid it."""
    with open_store(arguments, read_only=False) as store:
        rollback = _rollback_of(store, arguments)
        rollback = rollback.resolve(arguments.id, by=person(arguments), reason=arguments.reason)
    return _show_rollback(arguments, rollback)


def run_retry(arguments: argparse.Namespace) -> int:
    """A person wants it tried again."""
    with open_store(arguments, read_only=False) as store:
        rollback = _rollback_of(store, arguments)
        rollback = rollback.retry(arguments.id, by=person(arguments), reason=arguments.reason)
    return _show_rollback(arguments, rollback)


def _show_rollback(arguments: argparse.Namespace, rollback: effectstore.Rollback) -> int:
    report = rollback.report
    if arguments.json:
        emit(rollback.to_dict())
    else:
        left = len(report.pending) + len(report.blocked) + len(report.failed) + len(report.unsettled)
        say(plain_text(f"rollback {rollback.id}: {rollback.state.replace('_', ' ')}, {left} steps are left"))
    return CLEAN


def run_close(arguments: argparse.Namespace) -> int:
    """An effect's worker is gone."""
    with open_store(arguments, read_only=False) as store:
        effect = store.effect(arguments.id).close(by=person(arguments), reason=arguments.reason)
    if arguments.json:
        emit(effect.to_dict())
    else:
        say(plain_text(f"effect {effect.id} {effect.tool}: {effect.state}, {effect.outcome}; its worker is gone"))
    return CLEAN


def _handlers(where: str) -> Mapping[str, Any] | None:
    """The handlers that a command line names; `None` where importing the module has decorated its tools."""
    name, _, member = where.partition(":")
    # As for `python -m`: what lies in the working directory can be named.
    sys.path.insert(0, "")
    try:
        module = importlib.import_module(name)
    except Exception as error:
        # Whatever the user's module raises is the user's to mend; the store was not opened.
        raise UsageError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    if not member and not hasattr(module, "handlers"):
        return None
    found = getattr(module, member or "handlers", None)
    if callable(found) and not isinstance(found, Mapping):
        found = found()
    if not isinstance(found, Mapping) or not all(callable(handler) for handler in found.values()):
        raise UsageError(f"{where} is no mapping of tools to functions")
    return found


def run_compensate(arguments: argparse.Namespace) -> int:
    """Run what is due, and say how it ended: 0 clean, 3 others are waited for, 1 something failed."""
    handlers = _handlers(arguments.handlers)
    with open_store(arguments, read_only=False) as store:
        report = store.compensate(
            handlers,
            rollback="due" if arguments.rollback is None else arguments.rollback,
            agent=arguments.agent,
            missing="fail" if arguments.agent is None else "leave",
            timeout=arguments.timeout,
        )
    if arguments.json:
        emit(report.to_dict())
    else:
        _say_report(report)
    if report.clean:
        return CLEAN
    return REFUSED if report.failed or report.blocked else WAITS


def _say_report(report: effectstore.CompensationReport) -> None:
    rows: list[tuple[int, str, str]] = [(effect, "completed", "") for effect in report.completed]
    rows += [(effect, "unsettled", "its call may yet land") for effect in report.unsettled]
    rows += [(item.effect, f"failed: {item.kind}", item.message) for item in report.failed]
    rows += [(item.effect, "blocked", f"by {', '.join(map(str, item.by))}") for item in report.blocked]
    rows += [(effect, "pending", "") for effect in report.pending]
    rows += [(effect, "discarded", "it never ran") for effect in report.discarded]
    rows.sort(key=itemgetter(0))
    say(table(("EFFECT", "STEP", "WHY"), rows) if rows else "nothing was due")
    for approval in report.approvals:
        say(plain_text(f"waits for approval {approval}: effectstore approve {approval} --reason ..."))
    for item in report.failed:
        say(plain_text(f"effect {item.effect} is left to a person: {_way_on(item)}"))
    say("clean" if report.clean else "not clean")


def _way_on(failure: effectstore.Failure) -> str:
    """What a person can do about a failed step."""
    by_hand = f"effectstore resolve {failure.effect} --reason ... once you have undone it by hand"
    if failure.kind == "no_handler":
        return f"compensate again with a handler for {failure.tool}, or {by_hand}"
    if failure.kind == "denied":
        return f"ask for another approval, or {by_hand}"
    if failure.kind in {"conflict", "expired", "not_compensable"}:
        return by_hand
    return f"effectstore retry {failure.effect} --reason ... to run it again, or {by_hand}"
