"""The one shared world that tools and inverses change in place: a map of keys to values."""

from collections.abc import Iterable, Mapping
from typing import Any

from effectstore.play.trace import Call, Delta

ABSENT = object()
"""Stands for "this key does not exist", which is another thing than the value None."""


class World:
    """Keys and their values. Values are replaced as a whole and never changed in place."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    @classmethod
    def before(cls, calls: Iterable[Call]) -> "World":
        """The world as it was before the first of these recorded calls, as far as the calls changed it later."""
        values: dict[str, Any] = {}
        seen: set[str] = set()
        for call in calls:
            for key in call.redo.keys - seen:
                seen.add(key)
                if key in call.before.values:
                    values[key] = call.before.values[key]
        return cls(values)

    def copy(self) -> "World":
        """A world of its own with the same keys and values."""
        return World(self._values)

    def apply(self, delta: Delta) -> None:
        """Change the world; removing a key that does not exist changes nothing, so that a repeated undo is harmless."""
        self._values.update(delta.values)
        for key in delta.removed:
            self._values.pop(key, None)

    def inverse_of(self, delta: Delta) -> Delta:
        """The change that puts every key that `delta` touches back to what it is now."""
        present = {key: self._values[key] for key in sorted(delta.keys) if key in self._values}
        return Delta(present, tuple(sorted(key for key in delta.keys if key not in self._values)))

    def differences(self, other: "World", *, but_for: Iterable[str] = ()) -> tuple[str, ...]:
        """The keys, sorted, that differ in value or exist in one of the two worlds only, `but_for` left out."""
        mine, others = self.values, other.values
        keys = (mine.keys() | others.keys()) - frozenset(but_for)
        return tuple(sorted(key for key in keys if not _same(mine.get(key, ABSENT), others.get(key, ABSENT))))

    @property
    def values(self) -> Mapping[str, Any]:
        """A copy of all keys and values."""
        return dict(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _same(left: Any, right: Any) -> bool:
    """Equal in value and in type throughout: 1, 1.0 and True are three different values for a tool."""
    pending = [(left, right)]
    while pending:
        one, two = pending.pop()
        if type(one) is not type(two):
            return False
        if isinstance(one, dict):
            if one.keys() != two.keys():
                return False
            pending.extend((one[key], two[key]) for key in one)
        elif isinstance(one, list):
            if len(one) != len(two):
                return False
            pending.extend(zip(one, two, strict=True))
        elif one is not two and one != two:
            return False
    return True
