"""Lazy lists: pages in id order, so that no read transaction outlives a page."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from effectstore._check import count, optional_count

_T = TypeVar("_T")

PAGE = 256
"""Items fetched at a time."""


def pages(
    fetch: Callable[[int, int], list[_T]],
    last: Callable[[_T], int],
    *,
    since: int,
    limit: int | None,
    keep: Callable[[_T], bool] | None = None,
) -> Iterator[_T]:
    """Items with an id beyond `since`, at most `limit`, fetched page by page. `keep` filters before `limit` counts."""
    return _pages(fetch, last, count(since, "since"), optional_count(limit, "limit"), keep)


def _pages(
    fetch: Callable[[int, int], list[_T]],
    last: Callable[[_T], int],
    since: int,
    left: int | None,
    keep: Callable[[_T], bool] | None,
) -> Iterator[_T]:
    while left is None or left > 0:
        size = PAGE if left is None or keep is not None else min(PAGE, left)
        page = fetch(since, size)
        for item in page:
            since = last(item)
            if keep is not None and not keep(item):
                continue
            yield item
            if left is not None:
                left -= 1
                if left == 0:
                    return
        if len(page) < size:
            return


def matches(**wanted: Any) -> Callable[[Any], bool] | None:
    """A filter by field; `None` where nothing is asked for. A field that is not given does not count."""
    asked = {name: value for name, value in wanted.items() if value is not None}
    if not asked:
        return None
    return lambda item: all(getattr(item, name) == value for name, value in asked.items())
