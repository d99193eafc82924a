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
from effectstore.cli import act, look, try_out
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
    act.add_commands(commands)
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
    except KeyboardInterrupt:
        return _fail(arguments, INTERRUPTED, "interrupted", "interrupted; what was decided stays decided")
    except (UsageError, TraceError, PlanError) as error:
        return _fail(arguments, USAGE, "usage", str(error))
    except MissingStoreError as error:
        return _fail(arguments, STORAGE, "missing_store", str(error))
    except effectstore.StorageError as error:
        return _fail(arguments, STORAGE, error.code, str(error))
    except effectstore.EffectStoreError as error:
        return _fail(arguments, REFUSED, error.code, str(error))
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _fail(arguments, STORAGE, "os", f"{error.strerror or type(error).__name__}{place}")
    return code


def _fail(arguments: argparse.Namespace, code: int, name: str, message: str) -> int:
    if arguments.json:
        print(json.dumps({"error": str(name), "message": message}), file=sys.stderr)
    else:
        print(f"effectstore {arguments.command}: {plain_text(message)}", file=sys.stderr)
    return code
