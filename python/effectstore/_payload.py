"""Payloads and keys: what Python hands over, as the bytes that the core keeps.

Payloads are deterministic CBOR (`cbor2`, canonical): equal values give equal bytes, whatever the order of a dict's
keys. What would not come back equal is refused before anything is stored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import cbor2

from effectstore._check import optional_count
from effectstore._errors import LimitExceededError, OptionsError, PayloadError

Key: TypeAlias = str | bytes
"""A resource of the outside world. Text is UTF-8; bytes decide equality."""

Keys: TypeAlias = Key | Iterable[Key]
"""One key, or several."""

Reads: TypeAlias = Keys | Mapping[Key, int | None]
"""Keys that are read; a mapping gives the versions that the caller vouches for."""

Encode: TypeAlias = Callable[[Any], Any]
"""Turns a value that is no payload into one, or raises `TypeError`."""

MAX_DEPTH = 200
"""Deepest nesting of a payload. cbor2 reads back 400, and other readers of the log have limits of their own."""

MAX_BYTES = 1 << 24
"""Most bytes of a payload, whatever the limits of the store."""

_SCALARS = frozenset({type(None), bool, int, float, bytes, UUID})
_MINUTE_S = 60
_Path: TypeAlias = "tuple[_Path, object] | None"


def _path_text(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, step = path
        parts.append(
            f"[{step!r}]" if isinstance(step, int) else f".{step!s}".encode(errors="backslashreplace").decode()
        )
    return "".join(reversed(parts)).removeprefix(".")


def _refuse(path: _Path, root: str, reason: str) -> PayloadError:
    inner = _path_text(path)
    where = root if not inner else f"{root}{inner}" if inner.startswith("[") else f"{root}.{inner}"
    return PayloadError(f"{where}: {reason}; nothing was stored", path=where, reason=reason)


def _size(item: Any) -> int:
    """Bytes that a scalar takes at least, beyond the first; a container's content is counted by itself."""
    if isinstance(item, str | bytes):
        return len(item)
    return item.bit_length() >> 3 if type(item) is int else 0


def _too_big(root: str, least: int, limit: int) -> LimitExceededError:
    message = f"{root}: payload_bytes would be {least} or more, the limit is {limit}; nothing was stored"
    return LimitExceededError(message, limit="payload_bytes", value=least, allowed=limit, wait_for=())


@dataclass(slots=True)
class _Frame:
    """A list or dict that is being copied, so that the copy needs no recursion."""

    items: Iterator[tuple[Any, Any]]
    target: list[Any] | dict[str, Any]
    path: _Path
    source: Any  # Kept alive, so that its id names nothing else meanwhile.


class Codec:
    """Encodes payloads, with the caller's hook for values of other types."""

    __slots__ = ("_encode", "_limit")

    def __init__(self, encode: Encode | None = None, limit: Callable[[], int] = lambda: MAX_BYTES) -> None:
        self._encode = encode
        self._limit = limit

    def dump(self, value: Any, root: str) -> bytes:
        """The bytes of a payload. `root` names it in errors, such as `args`.

        Raises `PayloadError` with the path of the first value that would not come back equal.
        """
        if value is None:
            return b"\xf6"
        if type(value) in _CONTAINERS and _needs_no_check(value):
            return cbor2.dumps(value, canonical=True)
        return cbor2.dumps(self._copy(value, root), canonical=True)

    def _copy(self, value: Any, root: str) -> Any:
        holder: list[Any] = []
        stack = [_Frame(iter([(None, value)]), holder, None, holder)]
        open_ids: set[int] = set()
        limit = self._limit()
        least = 0
        while stack:
            frame = stack[-1]
            entry = next(frame.items, None)
            if entry is None:
                stack.pop()
                open_ids.discard(id(frame.source))
                continue
            step, item = entry
            path = frame.path if frame.target is holder else (frame.path, step)
            least += 1 + _size(item) + (len(step) if type(step) is str else 0)
            if least > limit:
                raise _too_big(root, least, limit)
            if isinstance(frame.target, dict) and type(step) is not str:
                raise _refuse(frame.path, root, f"a key of type {type(step).__name__}; dicts take text keys only")
            if isinstance(frame.target, dict):
                _check_text(step, path, root)
            copied, opened = self._value(item, path, root)
            if isinstance(frame.target, dict):
                frame.target[step] = copied
            else:
                frame.target.append(copied)
            if opened is not None:
                if len(stack) > MAX_DEPTH or id(opened.source) in open_ids:
                    raise _refuse(None, root, f"nested deeper than {MAX_DEPTH}, or in itself")
                open_ids.add(id(opened.source))
                stack.append(opened)
        return holder[0]

    def _value(self, item: Any, path: _Path, root: str) -> tuple[Any, _Frame | None]:
        """The item as a payload, and the frame of what it contains."""
        kind = type(item)
        if kind not in _KNOWN and self._encode is not None:
            try:
                item = self._encode(item)
            except TypeError as error:
                raise _refuse(path, root, f"{kind.__name__} is no payload and encode= refused it") from error
            kind = type(item)
        if kind in _SCALARS:
            return item, None
        if kind is str:
            return _check_text(item, path, root), None
        if kind is dict:
            made: dict[str, Any] = {}
            return made, _Frame(iter(list(item.items())), made, path, item)
        if kind is list or kind is tuple:
            listed: list[Any] = []
            return listed, _Frame(iter(list(enumerate(item))), listed, path, item)
        if kind is datetime:
            return _check_moment(item, path, root), None
        if kind is Decimal:
            return _check_decimal(item, path, root), None
        raise _refuse(path, root, f"{kind.__name__} is no payload; convert it, or give open(encode=)")


_CONTAINERS = frozenset({dict, list, tuple})
_QUICK_BYTES = 1 << 20


def _needs_no_check(value: Any) -> bool:  # noqa: C901, PLR0911, PLR0912  # One loop, for speed.
    """Whether a container holds only what CBOR gives back equal; level by level, and quickly.

    This spares most payloads the copy. `False` decides nothing: the copy looks again, and says what is wrong.
    """
    level = [value]
    left = _QUICK_BYTES
    for _ in range(MAX_DEPTH):
        below = []
        for container in level:
            children = container
            left -= len(container)
            if left < 0:
                return False
            if type(container) is dict:
                for name in container:
                    if type(name) is not str or not name.isascii():
                        return False
                children = container.values()
            for child in children:
                kind = type(child)
                if kind is str:
                    left -= len(child)
                    if not child.isascii():
                        return False
                elif kind is bytes:
                    left -= len(child)
                elif kind is int:
                    left -= child.bit_length() >> 3
                elif kind in _CONTAINERS:
                    below.append(child)
                elif kind not in _SCALARS:
                    return False
        if left < 0:
            return False
        if not below:
            return True
        level = below
    return False


_KNOWN = _SCALARS | {str, dict, list, tuple, datetime, Decimal}


def _check_text(text: str, path: _Path, root: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _refuse(path, root, "text with a lone surrogate has no UTF-8 form") from None
    return text


def _check_decimal(value: Decimal, path: _Path, root: str) -> Decimal:
    if not value.is_finite():
        raise _refuse(path, root, "a Decimal that is not finite would come back as a float")
    if value.is_zero() and value.is_signed():
        raise _refuse(path, root, "a negative Decimal zero would come back as a positive one")
    return value


def _check_moment(when: datetime, path: _Path, root: str) -> datetime:
    offset = when.utcoffset()
    if offset is None:
        raise _refuse(path, root, "a naive datetime names no moment; give it a timezone")
    if offset.total_seconds() % _MINUTE_S:
        raise _refuse(path, root, "a datetime whose offset is not whole minutes would not come back equal")
    return when


def load(data: bytes, root: str) -> Any:
    """The value of a stored payload.

    Raises `PayloadError` for bytes that another program stored and that Python cannot read.
    """
    try:
        return cbor2.loads(data)
    except (cbor2.CBORDecodeError, ValueError, OverflowError) as error:
        reason = f"these {len(data)} bytes are no CBOR that Python can read"
        raise PayloadError(f"{root}: {reason}; use {root}_cbor", path=root, reason=reason) from error


def load_header(data: bytes) -> Any:
    """The header of a log record. Marks of payloads become a dict of length and hash."""
    return cbor2.loads(data, tag_hook=_payload_mark)


_PAYLOAD_TAG = 0x6573


def _payload_mark(tag: cbor2.CBORTag, immutable: bool) -> Any:  # noqa: FBT001  # cbor2 calls it by position.
    del immutable
    if tag.tag == _PAYLOAD_TAG and isinstance(tag.value, list | tuple):
        length, digest = tag.value
        return {"payload_bytes": length, "blake3": digest}
    return tag


def key_bytes(key: Key, what: str) -> bytes:
    """A key's bytes. Text that came out of a store goes back to the same bytes (`surrogateescape`)."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            reason = "a key with a lone surrogate has no bytes"
            raise PayloadError(f"{what}: {reason}; nothing was stored", path=what, reason=reason) from None
    message = f"{what} takes str or bytes, not {type(key).__name__}"
    raise TypeError(message)


def optional_key_bytes(key: Key | None, what: str) -> bytes | None:
    """A key's bytes, if there is one."""
    return None if key is None else key_bytes(key, what)


def key_text(key: bytes) -> str:
    """A key as text, like `os.fsdecode`."""
    return key.decode("utf-8", "surrogateescape")


def keys_bytes(keys: Keys, what: str) -> list[bytes]:
    """The bytes of one key or several; one that is named twice counts once."""
    if isinstance(keys, str | bytes):
        return [key_bytes(keys, what)]
    if not isinstance(keys, Iterable):
        message = f"{what} takes a key or several, not {type(keys).__name__}"
        raise TypeError(message)
    return list(dict.fromkeys(key_bytes(key, what) for key in keys))


def reads_raw(reads: Reads, what: str = "reads") -> list[tuple[bytes, int | None]]:
    """Reads as the core takes them: key and version."""
    if isinstance(reads, Mapping):
        return [(key_bytes(key, what), optional_count(version, "version")) for key, version in reads.items()]
    return [(key, None) for key in keys_bytes(reads, what)]


def text(value: str, what: str) -> str:
    """A name or a reason. Raises `OptionsError` for text that has no UTF-8 form."""
    if not isinstance(value, str):
        message = f"{what} takes str, not {type(value).__name__}"
        raise TypeError(message)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise OptionsError(f"{what}: text with a lone surrogate has no UTF-8 form", option=what) from None
    return value


def optional_text(value: str | None, what: str) -> str | None:
    """A name or a reason, if there is one."""
    return None if value is None else text(value, what)
