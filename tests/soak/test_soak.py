"""The short form of the soak: some kills of three writers. The long form is in the README."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KILLS = os.environ.get("EFFECTSTORE_SOAK_KILLS", "6")
ACKS = os.environ.get("EFFECTSTORE_SOAK_ACKS", "600")


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    tool = Path(__file__).with_name("effectstore_soak.py")
    command = [sys.executable, str(tool), "--kills", KILLS, "--acks", ACKS, "--store", str(tmp_path / "soak" / "store")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "nothing lost, nothing twice, nothing half" in done.stdout
