"""The command line `effectstore`.

Exit codes: 0 done and clean; 1 refused or not clean; 2 usage; 3 waits for an approval, a vote or another agent; 4 the
store is missing, busy or damaged; 130 interrupted.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence

import effectstore
from effectstore.cli import act, artifacts, look, notices, review, try_out
from effectstore.cli.common import INTERRUPTED, REFUSED, STORAGE, USAGE, MissingStoreError, UsageError
from effectstore.cli.output import plain_text
from effectstore.play import PlanError, TraceError

__all__ = ["build_parser", "main"]

_EPILOG = """\
STORE is the store's directory; without it EFFECTSTORE_PATH is taken.
exit codes: 0 done and clean, 1 refused or not clean, 2 usage, 3 waits for an
approval, a vote or another agent, 4 store missing, busy or damaged, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `handler`, which takes the parsed arguments and returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="effectstore",
        description="Look at a transactional effect store, answer its approvals, keep it, try it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    look.add_commands(commands)
    artifacts.add_commands(commands)
    act.add_commands(commands)
    notices.add_commands(commands)
    review.add_commands(commands)
    try_out.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command (default: the process's arguments) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Names are bytes that agents chose; a terminal that cannot show one is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    arguments = build_parser().parse_args(argv)
    try:
        code: int = arguments.handler(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`effectstore log | head`). What is left in the buffer must go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _EXPECTED as error:
        return _fail(arguments, error)
    return code


_EXPECTED = (
    UsageError,
    TraceError,
    PlanError,
    MissingStoreError,
    effectstore.EffectStoreError,
    OSError,
    KeyboardInterrupt,
)
"""What a user, a disk or another process can bring about. Anything else is a fault of ours and shows its traceback."""


def _meaning(error: BaseException) -> tuple[int, str, str]:
    """The exit code of an error, its stable name, and what to say."""
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted", "interrupted; what was decided stays decided"
        case UsageError() | TraceError() | PlanError():
            return USAGE, "usage", str(error)
        case MissingStoreError():
            return STORAGE, "missing_store", str(error)
        case effectstore.EffectStoreError():
            code = STORAGE if isinstance(error, effectstore.StorageError) else REFUSED
            return code, str(error.code), str(error)
        case _:
            place = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
            return STORAGE, "os", f"{getattr(error, 'strerror', None) or type(error).__name__}{place}"


def _fail(arguments: argparse.Namespace, error: BaseException) -> int:
    code, name, message = _meaning(error)
    if arguments.json:
        print(json.dumps({"error": name, "message": message}), file=sys.stderr)
    else:
        print(f"effectstore {arguments.command}: {plain_text(message)}", file=sys.stderr)
    return code
