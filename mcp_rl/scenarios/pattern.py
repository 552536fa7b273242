"""Strings that match a regular expression, as far as a schema's `pattern` is made of common parts.

Look-around, back-references and the like are skipped, so a caller checks the result against the schema.
"""

import random
import re
import string
import warnings
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

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
"""Repetitions beyond the least, where a repeat has no upper bound."""


def string_matching(pattern: str, random: random.Random) -> str | None:
    """A string that probably matches `pattern`; None where the pattern cannot be read (ECMA-262 only syntax)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _generate(parser.parse(pattern), random, [])
    except (re.error, OverflowError, RecursionError, ValueError, IndexError):
        return None


def _generate(items: Any, random: random.Random, groups: list[str]) -> str:
    return "".join(_one(code, value, random, groups) for code, value in items)


def _one(code: Any, value: Any, random: random.Random, groups: list[str]) -> str:
    if code is op.LITERAL:
        return chr(value)
    if code is op.NOT_LITERAL:
        return random.choice([c for c in _PLAIN if ord(c) != value])
    if code is op.ANY:
        return random.choice(string.ascii_lowercase)
    if code is op.IN:
        return random.choice(_members(value))
    if code is op.BRANCH:
        return _generate(random.choice(value[1]), random, groups)
    if code in (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT):
        least, most, inner = value
        times = random.randint(least, min(most, least + _MORE))
        return "".join(_generate(inner, random, groups) for _ in range(times))
    if code is op.SUBPATTERN:
        text = _generate(value[3], random, groups)
        groups.append(text)
        return text
    if code is op.ATOMIC_GROUP:
        return _generate(value, random, groups)
    if code is op.GROUPREF:
        return str(groups[value - 1])
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
