"""Opening a store, and making one of an export."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from effectstore import _check
from effectstore import _effectstore as core
from effectstore._approval import log_alert
from effectstore._errors import OptionsError
from effectstore._payload import Codec, Encode
from effectstore._session import Session
from effectstore._store import Store, raw_limits, raw_policy
from effectstore._time import Seconds, clock_ms, to_ms
from effectstore._values import Limits, Policy


def open(  # noqa: A001  # The name of the interface: effectstore.open.
    path: str | os.PathLike[str] | None,
    *,
    create: bool = True,
    read_only: bool = False,
    limits: Limits | None = None,
    policy: Policy | None = None,
    encode: Encode | None = None,
    map_size: int | None = None,
    busy_timeout: Seconds = 10,
    clock: Callable[[], float] | None = None,
) -> Store:
    """Open the store in a directory, which is created if missing; `None` keeps it in memory.

    `limits` and `policy` count at creation only. `encode` turns values that are no payloads into payloads. `map_size`
    is in bytes. A write waits `busy_timeout` seconds for a writer of another process, then raises `StoreBusyError`.
    `clock` returns seconds since the epoch, for tests. A second open in one process shares the store.
    Raises a `StorageError`, or `OptionsError` for other options than the first open had.
    """
    if path is not None and not os.fspath(path):
        raise OptionsError("path is empty; name a directory, or None for a store in memory", option="path")
    _check.hook(encode, "encode")
    handle = core.Handle.open(
        path,
        create=create,
        read_only=read_only,
        limits=raw_limits(limits),
        policy=raw_policy(policy),
        map_size=_check.optional_count(map_size, "map_size"),
        busy_timeout_ms=to_ms(busy_timeout, "busy_timeout"),
        clock=None if clock is None else clock_ms(clock),
        on_alert=log_alert,
    )
    return Store(Session(handle, Codec(encode, lambda: Limits._of(handle.limits()).payload_bytes)))


def import_store(file: str | os.PathLike[str] | BinaryIO, path: str | os.PathLike[str]) -> None:
    """Make a new store at `path` of what `export` wrote: a file's path, or a binary file object open for reading.

    Raises `CorruptedError` with the first bad place; then nothing is stored.
    """
    if isinstance(file, str | os.PathLike):
        core.import_store(file, path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "export"
        with copy.open("wb") as held:
            shutil.copyfileobj(file, held)
        core.import_store(copy, path)
