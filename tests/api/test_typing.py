"""The package is typed: programs that use it pass `mypy --strict`, mistakes are found, and the stub tells the truth."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

PROGRAMS = Path(__file__).parent / "typing"
PASSING = sorted(path for path in PROGRAMS.glob("*.py") if path.name != "rejected.py")


def mypy(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run mypy from an empty directory, so that it sees the installed package and no project settings."""
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    return subprocess.run(
        [*command, *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )


def test_programs_that_use_the_package_pass_mypy_strict(tmp_path: Path) -> None:
    assert len(PASSING) >= 3
    done = mypy(tmp_path, *PASSING)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_every_marked_mistake_and_no_other(tmp_path: Path) -> None:
    program = PROGRAMS / "rejected.py"
    lines = program.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# REJECT" in line}
    done = mypy(tmp_path, program)
    found = {int(number) for number in re.findall(r"rejected\.py:(\d+): error", done.stdout)}
    assert found == marked, done.stdout + done.stderr
    assert len(marked) == 12


def test_the_package_itself_passes_mypy_strict(tmp_path: Path) -> None:
    done = mypy(tmp_path, "-p", "effectstore")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_of_the_extension_agrees_with_the_extension(tmp_path: Path) -> None:
    extension = importlib.util.find_spec("effectstore._effectstore")
    assert extension is not None
    # The checker is silent about a private module without a stub, so the stub has to be looked for.
    assert (Path(extension.origin or "").parent / "_effectstore.pyi").exists()
    command = [sys.executable, "-m", "mypy.stubtest", "effectstore._effectstore", "--concise"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_is_typed() -> None:
    import effectstore

    assert (Path(effectstore.__file__).parent / "py.typed").exists()
