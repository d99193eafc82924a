"""The tale of a story, for people: what each record says, without payloads."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from effectstore._payload import key_text

if TYPE_CHECKING:
    from effectstore._values import LogRecord, Story

SHORT = 80
"""Longest text shown of one field, in characters."""

_ID_BYTES = frozenset({16, 32})
"""Sizes of ids of stores and commands, and of hashes; other bytes in a header are keys."""

_WHAT = 4
"""The field of a record's header that holds its event."""


def tell(story: "Story") -> str:
    """One line for each record: its number, its time, what it is, and the names that it holds."""
    lines = [f"The story of {story.about or story.ref}"]
    for record in story.records:
        when = record.time.strftime("%Y-%m-%d %H:%M:%S")
        about = "" if record.ref in {None, story.ref} else f" of {record.ref}"
        named = ", ".join(dict.fromkeys(_names(record)))
        lines.append(f"  {record.seq:>8}  {when}  {record.kind.replace('_', ' ')}{about}{': ' if named else ''}{named}")
    return "\n".join(lines)


def _names(record: "LogRecord") -> Iterator[str]:
    """The texts and keys of a record's event, in their order; walked without recursion, for headers can nest."""
    body = record.body
    stack: list[Any] = [body.get(_WHAT, body) if isinstance(body, dict) else body]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield _shown(item)
        elif isinstance(item, bytes) and item and len(item) not in _ID_BYTES:
            yield _shown(key_text(item))
        elif isinstance(item, dict) and "blake3" not in item:
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))


def _shown(text: str) -> str:
    cut = text if len(text) <= SHORT else text[:SHORT] + "…"
    return cut if cut.isprintable() and cut else repr(cut)
