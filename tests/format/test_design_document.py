"""DESIGN.md names tests, files and choices; each of them must exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "rust" / "core"
DESIGN = (CORE / "DESIGN.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    named = {name for name in re.findall(r"\btest_\w+", DESIGN) if f"`tests/format/{name}.py`" not in DESIGN}
    assert len(named) > 30
    missing = {name for name in named if f"def {name}(" not in sources and not list(ROOT.rglob(f"{name}.py"))}
    assert not missing


def test_every_named_source_file_exists() -> None:
    named = set(re.findall(r"`((?:decide|state|graph|log|store|model|storage)/\w+\.rs)`", DESIGN))
    assert len(named) > 20
    assert not {name for name in named if not (CORE / "src" / name).exists()}


def test_every_choice_of_the_model_is_folded_in() -> None:
    choices = (ROOT / "tests" / "model" / "CHOICES.md").read_text(encoding="utf-8")
    numbers = {int(number) for number in re.findall(r"\*\*C(\d+)\*\*", choices)}
    covered: set[int] = set()
    section = DESIGN.split("## 10.")[1].split("## 11.")[0]
    for first, last in re.findall(r"C(\d+)(?: to C(\d+))?", section):
        covered |= set(range(int(first), int(last or first) + 1))
    assert len(numbers) >= 60
    assert numbers <= covered


def test_every_invariant_has_its_row() -> None:
    rows = DESIGN.split("## 13.")[1].split("## 14.")[0]
    for number in range(1, 22):
        assert re.search(rf"^\|.*\bI{number}\b.*\|", rows, re.MULTILINE), f"I{number}"
