"""Fixtures of the command line's tests."""

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import effectstore
from cli_tools import Cli, Ran, Waiting, environment


@pytest.fixture
def cli() -> Cli:
    """Runs one command; whatever the command, it must not end in a traceback."""

    def run(*words: object, **changes: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "effectstore.cli", *(str(word) for word in words)],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environment(**changes),
            timeout=60,
        )
        ran = Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in ran.out + ran.err, ran.err
        return ran

    return run


@pytest.fixture
def terminal() -> Cli:
    """Runs one command on a terminal of 80 columns; what it says on standard error comes with the rest."""

    def run(*words: object, **changes: str) -> Ran:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "effectstore.cli", *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment(**changes),
        )
        os.close(theirs)
        told = b""
        # A terminal whose other end is closed ends in an error, not in an empty read.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 65_536):
                told += piece
        os.close(ours)
        return Ran(process.wait(timeout=60), told.decode().replace("\r\n", "\n"), "")

    return run


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    """One partial effect, aborted: its rollback needs an approval."""
    path = tmp_path / "waiting"
    with effectstore.open(path) as store:
        branch = store.branch("invoice", agent="clerk")
        inverse = effectstore.Inverse("void_invoice", {"number": 7}, limitation="the number stays used")
        effect = branch.register(
            "invoice", {"number": 7}, writes="invoices/7", inverse=inverse, reversibility="partial"
        )
        effect.done(None)
        rollback = store.reconcile(abort="invoice", by="judge", reason="wrong customer").rollback
        assert rollback is not None
        (approval,) = store.approvals(state="pending")
        return Waiting(path, effect.id, rollback.id, approval.id)


@pytest.fixture(scope="session")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that the demo leaves; tests only look at it."""
    path = tmp_path_factory.mktemp("demo") / "store"
    subprocess.run(
        [sys.executable, "-m", "effectstore.cli", "demo", "--store", str(path)],
        check=True,
        capture_output=True,
        env=environment(),
        timeout=60,
    )
    return path
