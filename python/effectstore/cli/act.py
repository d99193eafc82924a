"""Commands that answer approvals, and commands that check and keep a store."""

import argparse
import os
from pathlib import Path

import effectstore
from effectstore.cli.common import (
    CLEAN,
    Commands,
    UsageError,
    add_person,
    add_store,
    natural,
    open_store,
    person,
    store_path,
)
from effectstore.cli.output import emit, jsonable, pairs, plain_text, say


def add_commands(commands: Commands) -> None:
    """Add the commands of this module."""
    for name, text, handler in (
        ("approve", "say yes to what an approval asks for", run_approve),
        ("deny", "say no to what an approval asks for", run_deny),
    ):
        answer = commands.add_parser(name, help=text)
        answer.add_argument("id", type=natural, metavar="ID", help="the approval's number")
        add_store(answer)
        add_person(answer, reason_required=name == "deny")
        answer.set_defaults(handler=handler)

    verify = commands.add_parser("verify", help="check chain, indexes and invariants of the whole store")
    add_store(verify)
    verify.set_defaults(handler=run_verify)

    backup = commands.add_parser("backup", help="copy the store while it is in use")
    backup.add_argument("target", metavar="TARGET", help="directory of the copy; must not exist")
    add_store(backup)
    backup.set_defaults(handler=run_backup)

    export = commands.add_parser("export", help="write the store's log to a CBOR sequence file")
    export.add_argument("file", metavar="FILE", help="file to write; must not exist")
    add_store(export)
    export.set_defaults(handler=run_export)

    load = commands.add_parser("import", help="make a new store of an exported file")
    load.add_argument("file", metavar="FILE", help="a file that `export` wrote")
    add_store(load)
    load.set_defaults(handler=run_import)


def run_approve(arguments: argparse.Namespace) -> int:
    """Approve exactly the plan that was asked about."""
    with open_store(arguments, read_only=False) as store:
        answered = store.approval(arguments.id).approve(by=person(arguments), reason=arguments.reason)
    return _show_answer(answered, as_json=arguments.json)


def run_deny(arguments: argparse.Namespace) -> int:
    """Deny; the reason is part of the record."""
    with open_store(arguments, read_only=False) as store:
        answered = store.approval(arguments.id).deny(by=person(arguments), reason=arguments.reason)
    return _show_answer(answered, as_json=arguments.json)


def _show_answer(approval: effectstore.Approval, *, as_json: bool) -> int:
    if as_json:
        emit(approval.to_dict())
    else:
        say(plain_text(f"approval {approval.id} for {approval.about}: {approval.state} by {approval.answered_by}"))
    return CLEAN


def run_verify(arguments: argparse.Namespace) -> int:
    """Walk everything; damage is an error that names the first bad place."""
    with open_store(arguments, read_only=True) as store:
        found = store.verify()
    details = {} if found is None else jsonable(found.to_dict())
    if arguments.json:
        emit({"store": store_path(arguments), "sound": True, **details})
        return CLEAN
    known = [(name, value) for name, value in details.items() if value is not None]
    say(pairs([("store", store_path(arguments)), ("sound", "yes"), *known]))
    return CLEAN


def run_backup(arguments: argparse.Namespace) -> int:
    """Copy the store under a read transaction."""
    _refuse_existing(arguments.target)
    with open_store(arguments, read_only=True) as store:
        store.backup(arguments.target)
    return _show_kept(arguments, "backup", arguments.target)


def run_export(arguments: argparse.Namespace) -> int:
    """Write the log to a file."""
    _refuse_existing(arguments.file)
    with open_store(arguments, read_only=True) as store:
        store.export(arguments.file)
    return _show_kept(arguments, "export", arguments.file)


def run_import(arguments: argparse.Namespace) -> int:
    """Build a store from an exported file."""
    path = store_path(arguments)
    if not Path(arguments.file).is_file():
        raise UsageError(f"no file {arguments.file}")
    target = Path(path)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{path} exists already and is not empty; nothing was imported")
    effectstore.import_store(arguments.file, path)
    return _show_kept(arguments, "import", path)


def _refuse_existing(path: str) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists already; nothing was written")


def _show_kept(arguments: argparse.Namespace, what: str, path: str) -> int:
    if arguments.json:
        emit({"done": what, "path": path})
    else:
        say(plain_text(f"{what}: {path}"))
    return CLEAN
