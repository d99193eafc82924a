"""What README.md and .ci/run say is so: every example runs, every command and limit exists."""

import re
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import effectstore
from effectstore.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_every_python_example_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(blocks("python")[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def commands() -> list[list[str]]:
    parts = [part for block in blocks("sh") for line in block.splitlines() for part in line.split("&&")]
    return [shlex.split(part) for part in parts if part.strip()]


def test_there_are_examples_and_commands() -> None:
    assert len(blocks("python")) >= 2
    assert len(commands()) >= 10


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_shell_command_exists(command: list[str]) -> None:
    match command:
        case ["python3", "-m", "venv", ".venv"]:
            pass
        case [".venv/bin/pip", "install", "." | ".[test]"]:
            assert (ROOT / "pyproject.toml").exists()
        case [".venv/bin/python", "-m", "pytest"]:
            assert 'testpaths = ["tests"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        case [".venv/bin/effectstore" | "effectstore", *arguments]:
            # The parser ends the program at what it does not know.
            assert build_parser().parse_args(arguments).command == arguments[0]
        case _:
            pytest.fail(f"nobody knows whether this works: {shlex.join(command)}")


def test_the_checks_call_the_test_command_of_the_readme() -> None:
    assert ".venv/bin/python -m pytest\n" in README
    assert re.search(r'^part "pytest" "\$VENV/bin/python" -m pytest$', CI, re.MULTILINE)


def test_the_table_of_limits_is_the_interfaces() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+|none) \|", README, re.MULTILINE)
    shown = {name: None if value == "none" else int(value) for name, value in rows}
    assert shown == asdict(effectstore.Limits())


def test_every_command_is_in_the_changelog_and_every_named_file_exists() -> None:
    listed = re.findall(r"^    ([\w-]+) ", build_parser().format_help(), re.MULTILINE)
    assert "verify" in listed
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not [name for name in listed if f"`{name}`" not in changes]
    for name in re.findall(r"`((?:rust|python|tests|benches)/[\w/.]+)`", README):
        assert (ROOT / name).exists() or name.startswith("benches/"), name
