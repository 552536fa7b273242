"""Identifiers as words."""

import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def words_of(name: str) -> str:
    """Return the words of an identifier: "get sum" for `get-sum`, `getSum` and `get_sum`."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).strip().lower() or name


HANDLE_WORDS = frozenset({"handle", "id", "key", "name", "number", "ref", "token", "uuid"})
"""Words by which a name says that it stands for a thing, not how the thing is called."""


def noun_of(words: str) -> str:
    """Return the words of a name without one that only says that it is a handle: "basket" for "basket id"."""
    thing, _, last = words.rpartition(" ")
    return thing if thing and last in HANDLE_WORDS else words
