"""Times of day in results, which are others each time."""

from __future__ import annotations

import re

_DATED = re.compile(
    r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?|\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?"
)


def is_dated(text: str) -> bool:
    """Return whether a result holds a time of day, with a date or to the second, and so may change."""
    return _DATED.search(text) is not None


def undated(text: str) -> str:
    """Return the text with each such time replaced, so that results differing only in times are equal."""
    return _DATED.sub("<time>", text)
