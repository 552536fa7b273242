"""Identifiers as words."""

import re


def words_of(name: str) -> str:
    """Return the words of an identifier: "get sum" for `get-sum`, `getSum` and `get_sum`."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)).strip().lower() or name
