"""Strings that match a regular expression, for the `pattern` of a schema.

Look-around is skipped, so a caller checks the string against the schema. The pattern is only parsed, never matched.
"""

from __future__ import annotations

import re
import string
import warnings
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from mcp_rl.toolserver.tools.budgets import LARGEST_DRAWN, LONGEST_PATTERN, Budget, OverBudget

if TYPE_CHECKING:
    import random

_PLAIN = string.ascii_letters + string.digits
_CATEGORIES = {
    op.CATEGORY_DIGIT: string.digits,
    op.CATEGORY_NOT_DIGIT: string.ascii_lowercase,
    op.CATEGORY_WORD: string.ascii_lowercase,
    op.CATEGORY_NOT_WORD: " -",
    op.CATEGORY_SPACE: " ",
    op.CATEGORY_NOT_SPACE: _PLAIN,
}
_MORE = 6
"""Most repetitions beyond the minimum."""


def string_matching(pattern: str, random: random.Random, steps: Budget | None = None) -> str | None:
    """Return a string that probably matches `pattern`, or None where Python cannot parse it (ECMA-262 syntax).

    Raises OverBudget for a pattern that is too long, or asks for more than `steps` or LARGEST_DRAWN characters.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise OverBudget(f"a pattern is longer than {LONGEST_PATTERN} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Generator(random, steps or Budget(LARGEST_DRAWN)).text(parser.parse(pattern))
    except OverBudget:
        raise
    except (re.error, OverflowError, RecursionError, ValueError, IndexError):
        return None


class _Generator:
    def __init__(self, random: random.Random, steps: Budget) -> None:
        self._random, self._steps = random, steps
        self._characters = Budget(LARGEST_DRAWN)
        self._groups: list[str] = []

    def text(self, items: Any) -> str:
        return "".join(self._item(code, value) for code, value in items)

    def _item(self, code: Any, value: Any) -> str:
        self._steps.spend()
        if code is op.LITERAL:
            return chr(value)
        if code is op.NOT_LITERAL:
            return self._random.choice([c for c in _PLAIN if ord(c) != value])
        if code is op.ANY:
            return self._random.choice(string.ascii_lowercase)
        if code is op.IN:
            return self._random.choice(_members(value))
        if code is op.BRANCH:
            return self.text(self._random.choice(value[1]))
        if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
            least, most, inner = value
            times = self._random.randint(least, min(most, least + _MORE))
            self._steps.spend(times)
            return "".join(self.text(inner) for _ in range(times))
        if code is op.SUBPATTERN:
            text = self.text(value[3])
            self._groups.append(text)
            return text
        if code is op.ATOMIC_GROUP:
            return self.text(value)
        if code is op.GROUPREF:
            text = self._groups[int(value) - 1]
            self._characters.spend(len(text))
            return text
        return ""  # anchors and look-around


def _members(items: Any) -> str:
    negated = items[0][0] is op.NEGATE
    members = ""
    for code, value in items:
        if code is op.LITERAL:
            members += chr(value)
        elif code is op.RANGE:
            members += "".join(map(chr, range(value[0], min(value[1], value[0] + 255) + 1)))
        elif code is op.CATEGORY:
            members += _CATEGORIES.get(value, "")
    return "".join(c for c in _PLAIN + "-_." if c not in members) if negated else members
