"""Budgets for what servers send: strangers write it, and none of it may take all memory or hold the event loop.

Sizes are in characters of JSON, roughly. One message has at most `connection.stdio.LONGEST_MESSAGE` bytes.
"""

import re
from typing import Any

MOST_VALUES = 250_000
"""Values in one message, such as a list's items: each takes a hundred bytes or more, and some of them two in JSON."""
MOST_UNREAD = 256
"""Answers to a server's requests that may wait for the server to read them. Until then nothing more of it is read."""
UNREAD_SECONDS = 5.0
"""Seconds in which the server must read one of them, before its session is ended."""
LARGEST_REQUEST = 2**12
"""Size of the parameters of a server's request; larger ones are dropped, since no request that we serve has them."""
LARGEST_FORM = 2**16
"""Size of the parameters of a request for input (elicitation), the only one of a server that has large ones."""
LONGEST_LISTING = 8 * 2**20
"""Size of a whole listing of tools, resources or prompts, over all of its pages with their cursors."""
LONGEST_CURSOR = 2**16
"""Characters of the cursor of a page, which is sent back with the request for the next one."""
LARGEST_EXPANSION = 2**18
"""Size that the references of one tool's schema may expand to; further ones become `{}`."""
LARGEST_EXPANSIONS = 2**20
"""Size that the references of all schemas of a server may expand to."""
DEEPEST_EXPANSION = 50
"""Depth of schemas within schemas at which a reference is still expanded."""
LARGEST_CHECKED = 2**18
"""Size of a schema, or of a value, that is checked here."""
MOST_STEPS = 12_000
"""Steps of checking one value; each keyword of the schema that is applied is a step or more, of up to 20 µs."""
MOST_SCHEMA_STEPS = 40_000
"""Steps of checking that a schema is one, some 25 for each schema in it."""
LARGEST_DRAWN = 2**16
"""Size of the arguments that are drawn from a schema; a schema that asks for more gives none."""
MOST_DRAWING_STEPS = 20_000
"""Steps of drawing arguments for one call, with all further tries."""
LONGEST_PATTERN = 2000
"""Characters of a pattern from which strings are drawn."""
_MARKS = (b",", b"[", b"{")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_NODE = 50
"""Size of an object or a list, apart from its content."""


class OverBudget(ValueError):
    """A budget was exceeded."""


class Budget:
    """An amount that can be spent."""

    def __init__(self, amount: int) -> None:
        self.left = amount

    def spend(self, amount: int = 1) -> None:
        """Raise OverBudget if more is spent than there was."""
        self.left -= amount
        if self.left < 0:
            raise OverBudget("it is too large or too complex")


def has_too_many_values(content: bytes) -> bool:
    """Return whether the JSON in some bytes, or its beginning, has more than MOST_VALUES values; nothing is parsed."""
    if sum(content.count(mark) for mark in _MARKS) <= MOST_VALUES:
        return False
    if content.count(b'"') - content.count(b'\\"') > 4 * MOST_VALUES:
        return True
    outside = _STRING.sub(b"", content)
    return sum(outside.count(mark) for mark in _MARKS) > MOST_VALUES


def json_size(value: Any, most: int | None = None) -> int:
    """Return the size of a JSON value; counting ends above `most`."""
    size, stack = 0, [value]
    while stack and (most is None or size <= most):
        below = stack.pop()
        if isinstance(below, str):
            size += len(below) + 2
        elif isinstance(below, dict):
            size += _NODE + sum(len(key) + 4 if isinstance(key, str) else 8 for key in below)
            stack.extend(below.values())
        elif isinstance(below, list):
            size += _NODE
            stack.extend(below)
        elif isinstance(below, int):
            size += 8 + below.bit_length() // 3
        else:
            size += 8
    return size
