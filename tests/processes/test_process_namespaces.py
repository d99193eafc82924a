"""Containers that share a store but count their processes apart."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

OPEN = textwrap.dedent("""
    import os, sys
    import effectstore

    try:
        with effectstore.open(sys.argv[1]) as store:
            print("open", os.getpid(), flush=True)
            sys.stdin.read()
    except effectstore.StorageError as error:
        print(error, flush=True)
""")


def start(path: Path) -> subprocess.Popen[str]:
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", OPEN, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs the right to make a process namespace",
)
def test_two_containers_with_one_process_number_are_told_so_in_words(tmp_path: Path) -> None:
    first = start(tmp_path / "store")
    assert first.stdout is not None
    assert first.stdout.readline() == "open 1\n"
    said, _ = start(tmp_path / "store").communicate()
    assert "process number 1 has the store open already" in said
    assert "two containers" in said
    assert "process namespace" in said
    first.communicate()
    # Gone, it is in nobody's way.
    assert start(tmp_path / "store").communicate()[0] == "open 1\n"
