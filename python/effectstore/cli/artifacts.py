"""Commands about artifacts and the runs of their compensations: looks, and what a person says of a pair."""

import argparse
from typing import get_args

import effectstore
from effectstore._choices import ArtifactState
from effectstore.cli.common import CLEAN, Commands, UsageError, add_json, add_store, natural, open_store, person
from effectstore.cli.output import emit, moment, pairs, say, table


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    listed = commands.add_parser("artifacts", help="executable artifacts and how far they are")
    add_store(listed)
    listed.add_argument("--state", default=None, choices=get_args(ArtifactState))
    listed.set_defaults(handler=run_artifacts)

    one = commands.add_parser(
        "artifact",
        help="one artifact with its compensation, its review and its run; or a verb for a pair",
        usage=f"effectstore artifact [{'|'.join(_VERBS)}] ID [STORE] [options]",
    )
    one.add_argument(
        "words",
        nargs="+",
        metavar="[VERB] ID [STORE]",
        help=f"the number of either artifact of a pair, to look at it; or first one of {', '.join(_VERBS)}",
    )
    add_json(one)
    one.add_argument("--by", metavar="NAME", default=None, help="who acts (default: the login name)")
    one.add_argument("--reason", metavar="TEXT", default=None, help="why, for the audit trail")
    one.add_argument("--run-id", metavar="TEXT", default=None, help="the name of the run that failed")
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


_VERBS = ("submit", "approve", "reject", "promote", "start", "complete", "fail")
_NEED_A_REASON = frozenset({"reject", "fail"})
_TAKE_A_REASON = _NEED_A_REASON | {"approve"}


def run_artifact(arguments: argparse.Namespace) -> int:
    """Show one pair in full, after a verb where one is given."""
    words = list(arguments.words)
    verb = words.pop(0) if words[0] in _VERBS else None
    if not words:
        raise UsageError(f"{verb} which? name the number of an artifact")
    try:
        number = natural(words.pop(0))
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{error}; a verb is one of {', '.join(_VERBS)}") from None
    arguments.store = words.pop(0) if words else None
    if words:
        raise UsageError(f"{words[0]!r} is too much")
    _check_options(arguments, verb)
    with open_store(arguments, read_only=verb is None) as store:
        pair = store.artifacts.get(number)
        if verb is not None:
            pair = _act(store.artifacts, verb, pair, arguments)
    return _show(arguments, pair)


def _check_options(arguments: argparse.Namespace, verb: str | None) -> None:
    if verb in _NEED_A_REASON and not arguments.reason:
        raise UsageError(f"{verb} needs --reason")
    for option, given, fits in (
        ("--reason", arguments.reason, verb in _TAKE_A_REASON),
        ("--run-id", arguments.run_id, verb == "fail"),
        ("--by", arguments.by, verb is not None),
    ):
        if given is not None and not fits:
            raise UsageError(f"{option} does not go with {verb or 'a look'}")


def _act(
    artifacts: effectstore.Artifacts, verb: str, pair: effectstore.ArtifactPair, arguments: argparse.Namespace
) -> effectstore.ArtifactPair:
    by = person(arguments)
    if verb == "fail":
        return artifacts.fail(pair, by=by, reason=arguments.reason, run_id=arguments.run_id)
    if verb in _TAKE_A_REASON:
        acted: effectstore.ArtifactPair = getattr(artifacts, verb)(pair, by=by, reason=arguments.reason)
        return acted
    plain: effectstore.ArtifactPair = getattr(artifacts, verb)(pair, by=by)
    return plain


def _show(arguments: argparse.Namespace, pair: effectstore.ArtifactPair) -> int:
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
