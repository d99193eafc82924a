"""The inbox of an agent on the command line."""

import argparse

from effectstore.cli.common import CLEAN, Commands, add_store, open_store, positive
from effectstore.cli.output import emit, moment, say, table


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    inbox = commands.add_parser("inbox", help="what an agent has still to take note of")
    inbox.add_argument("agent", metavar="AGENT", help="the agent's name; * for every agent")
    add_store(inbox)
    inbox.add_argument("--ack", action="store_true", help="take note of all that is shown, in the agent's name")
    inbox.add_argument("--limit", type=positive, default=1000, metavar="N", help="at most so many notices (1000)")
    inbox.set_defaults(handler=run_inbox)


def run_inbox(arguments: argparse.Namespace) -> int:
    """List the notices that are not acknowledged, and acknowledge them if asked."""
    with open_store(arguments, read_only=not arguments.ack) as store:
        notices = list(store.inbox(arguments.agent, limit=arguments.limit))
        if arguments.ack:
            notices = [notice.ack() for notice in notices]
    if arguments.json:
        for notice in notices:
            emit(notice.to_dict())
        return CLEAN
    rows = [
        (
            notice.id,
            notice.agent,
            notice.branch,
            notice.severity,
            "yes" if notice.recoverable else "no",
            moment(notice.ack_by),
            "yes" if notice.acknowledged else "no",
            notice.reason,
        )
        for notice in notices
    ]
    head = ("ID", "TO", "BRANCH", "SEVERITY", "RESUMES?", "ACK BY", "ACKED", "WHY")
    say(table(head, rows) if rows else "no notices")
    return CLEAN
