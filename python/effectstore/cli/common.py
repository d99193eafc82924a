"""What all commands share: exit codes, the store to open, the person who acts."""

import argparse
import getpass
import os
from pathlib import Path
from typing import Any

import effectstore

CLEAN = 0
REFUSED = 1
USAGE = 2
WAITS = 3
STORAGE = 4
INTERRUPTED = 130

Commands = Any
"""What `add_subparsers` returns; argparse keeps the name of its type private."""


class UsageError(Exception):
    """The command line asks for something that makes no sense; nothing was done."""


class MissingStoreError(Exception):
    """There is no store at the path, so there was nothing to open."""


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the arguments STORE and --json."""
    parser.add_argument("store", nargs="?", metavar="STORE", help="directory of the store (default: EFFECTSTORE_PATH)")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs: one object, or one a line")


def add_person(parser: argparse.ArgumentParser, *, reason_required: bool) -> None:
    """Add --by and --reason."""
    parser.add_argument("--by", metavar="NAME", default=None, help="who answers (default: the login name)")
    parser.add_argument("--reason", metavar="TEXT", required=reason_required, help="why, for the audit trail")


def store_path(arguments: argparse.Namespace) -> str:
    """The path of the store that the command line or the environment names. Raises `UsageError` without one."""
    path = arguments.store or os.environ.get("EFFECTSTORE_PATH")
    if not path:
        raise UsageError("no store given: name its directory, or set EFFECTSTORE_PATH")
    return str(path)


def open_store(arguments: argparse.Namespace, *, read_only: bool) -> effectstore.Store:
    """Open the store that is there; a look at a mistyped path must not create one."""
    path = store_path(arguments)
    if not Path(path).exists():
        raise MissingStoreError(f"no store at {path}")
    return effectstore.open(path, create=False, read_only=read_only)


def person(arguments: argparse.Namespace) -> str:
    """Who acts: --by, else the login name, else the number of the user."""
    if arguments.by:
        return str(arguments.by)
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def positive(text: str) -> int:
    """An argument that is a whole number from 1."""
    number = natural(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return number


def natural(text: str) -> int:
    """An argument that is a whole number from 0, in plain digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)
