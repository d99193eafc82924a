"""FORMAT.md names every kind, field and place that the source can write, and none besides."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "rust" / "core"
MODEL = sorted((CORE / "src" / "model").glob("*.rs"))

Place = tuple[int, str, int | None, str]
"""Index and name of a variant, place and name of a field; a struct's field has the place in front and no other."""


def _types() -> dict[str, str]:
    """The source of each type of the model that is written, by name."""
    found: dict[str, str] = {}
    for module in MODEL:
        source = module.read_text(encoding="utf-8")
        # rustfmt puts a type's closing brace at the start of a line, and its attributes right above it.
        pattern = r"^#\[derive\(([^\n]*)\)\]\n(?:#\[[^\n]*\n)*pub (?:struct|enum) (\w+) \{\n(.*?)^\}"
        types = re.findall(pattern, source, re.MULTILINE | re.DOTALL)
        found |= {name: body for head, name, body in types if "Encode" in head}
    return found


def _source_places(body: str) -> Iterator[Place]:
    variant: tuple[int, str] | None = None
    index: int | None = None
    fields = 0
    for line in body.splitlines():
        indent, text = len(line) - len(line.lstrip()), line.strip()
        attribute = re.match(r"#\[(?:cbor\()?n\((\d+)\)", text)
        if attribute and text.endswith("]"):
            index = int(attribute[1])
            continue
        field = re.match(r"(?:pub )?(\w+): ", text)
        if field and index is not None:
            yield (index, field[1], None, "") if indent == 4 else (*_known(variant), index, field[1])
            fields += 1
            continue
        opened = re.match(r"(\w+)(.*)", text) if indent == 4 and index is not None else None
        if opened and not text.startswith("#"):
            variant, fields = (index or 0, opened[1]), 0
            places = [int(place) for place in re.findall(r"n\((\d+)\)", opened[2])]
            for place in places:
                yield *variant, place, "—"
            if not places and "{" not in opened[2]:
                yield *variant, None, ""


def _known(variant: tuple[int, str] | None) -> tuple[int, str]:
    assert variant is not None
    return variant


def _sections() -> dict[str, list[list[str]]]:
    """The rows of the tables of FORMAT.md, by the type that they describe."""
    titles = {"### 4.8 Commands": "Command", "### 4.9 Events": "Event"}
    rows: dict[str, list[list[str]]] = {}
    name = ""
    for line in (CORE / "FORMAT.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            quoted = re.match(r"#### `(\w+)`", line)
            name = quoted[1] if quoted else titles.get(line, "")
        elif name and line.startswith("|") and not line.startswith("|---"):
            rows.setdefault(name, []).append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        choice = re.match(r"\| `([A-Z]\w+)` \| (.*) \|$", line)
        if choice and not name:
            names = [cell.strip() for cell in choice[2].split("|")]
            rows[choice[1]] = [[str(place), text] for place, text in enumerate(names) if text]
    return rows


def _document_places(rows: list[list[str]]) -> Iterator[Place]:
    variant: tuple[int, str] | None = None
    for row in rows:
        if row[0] in {"key", "index"}:
            continue
        if len(row) < 7:
            yield int(row[0]), row[1], None, ""
            continue
        if row[0]:
            variant = (int(row[0]), row[1])
        yield (*_known(variant), int(row[3]), row[4]) if row[3] else (*_known(variant), None, "")


STATES_OF_VIEWS = {"EffectState", "BranchState", "RollbackState", "ApprovalState"}
"""Computed by looks, never written."""
TYPES = {name: body for name, body in _types().items() if name not in STATES_OF_VIEWS | {"Token"}}


def test_the_tables_of_the_document_are_found() -> None:
    places = list(_document_places(_sections()["Event"]))
    assert (9, "Registered", 0, "—") in places
    assert (25, "StepFailed", 3, "again_ms") in places
    assert len(TYPES) > 35


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_kind_and_field_is_documented(name: str) -> None:
    written = sorted(_source_places(TYPES[name]), key=str)
    assert written, f"no place of {name} was found in the source"
    assert written == sorted(_document_places(_sections().get(name, [])), key=str)


def test_nothing_is_documented_that_is_not_written() -> None:
    assert set(_sections()) == set(TYPES)
