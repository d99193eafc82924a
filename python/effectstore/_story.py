"""The tale of a story, for people: what each record says, without payloads."""

from collections.abc import Iterator
from itertools import islice
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
        if record.kind in _TIMERS:
            continue
        when = record.time.strftime("%Y-%m-%d %H:%M:%S")
        about = "" if record.ref in {None, story.ref} else f" of {record.ref}"
        named = ", ".join(dict.fromkeys(_names(record)))
        lines.append(f"  {record.seq:>8}  {when}  {_kind(record)}{about}{': ' if named else ''}{named}")
    return "\n".join(lines)


_TIMERS = frozenset({"confirm_by"})
"""Records that set a moment and say nothing that a person did or must know."""


def _kind(record: "LogRecord") -> str:
    if record.kind == "approval_answered":
        event = record.body.get(_WHAT) if isinstance(record.body, dict) else None
        return "denied" if event is not None and False in event[1] else "approved"
    return record.kind.replace("_", " ")


def _names(record: "LogRecord") -> Iterator[str]:
    """The texts and keys of a record's event, in their order; walked without recursion, for headers can nest."""
    body = record.body
    stack: list[Any] = [body.get(_WHAT, body) if isinstance(body, dict) else body]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            yield _shown(item)
        elif _is_set(item, record.kind):
            yield _ids(item)
        elif isinstance(item, bytes) and item and len(item) not in _ID_BYTES:
            yield _shown(key_text(item))
        elif isinstance(item, dict) and "blake3" not in item:
            stack.extend(reversed(list(item.values())))
        elif isinstance(item, list | tuple):
            stack.extend(reversed(item))


_DECISIONS = frozenset({"fenced", "doomed", "voted", "intended"})
"""Records that name effects by a member set; no other list in them looks like one."""

_MOST_IDS = 8
_SEVEN_BITS = 0x7F


def _is_set(item: Any, kind: str) -> bool:
    """Whether it is a member set: form and bytes, for a bitmap with the first id between them."""
    if kind not in _DECISIONS or not isinstance(item, list | tuple) or len(item) not in {2, 3}:
        return False
    return isinstance(item[-1], bytes) and all(isinstance(part, int) for part in item[:-1])


def _ids(form: Any) -> str:
    """The effects of a member set (FORMAT.md, section 4.4), the first of many."""
    found = list(islice(_members(form), _MOST_IDS + 1))
    more = ", …" if len(found) > _MOST_IDS else ""
    return f"effects {', '.join(map(str, found[:_MOST_IDS]))}{more}"


def _members(form: Any) -> Iterator[int]:
    if form[0] == 1:
        first, bits = form[1], form[2]
        yield from (first + at for at in range(len(bits) * 8) if bits[at // 8] >> at % 8 & 1)
        return
    numbers, last = _numbers(form[1]), -1
    for gap in numbers:
        # Runs are parted by an id at least, and each says how many ids follow its first one.
        first = last + 1 + gap + (1 if form[0] == 0 and last >= 0 else 0)
        last = first + (next(numbers, 0) if form[0] == 0 else 0)
        yield from range(first, last + 1)


def _numbers(data: bytes) -> Iterator[int]:
    """Unsigned LEB128."""
    value = shift = 0
    for byte in data:
        value |= (byte & _SEVEN_BITS) << shift
        shift += 7
        if byte <= _SEVEN_BITS:
            yield value
            value = shift = 0


def _shown(text: str) -> str:
    cut = text if len(text) <= SHORT else text[:SHORT] + "…"
    return cut if cut.isprintable() and cut else repr(cut)
