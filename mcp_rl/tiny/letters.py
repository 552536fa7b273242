"""Conversations with signs and letters that English texts lack: accents, other scripts, emoji, colours.

A token that no text holds keeps the same embedding as all others of its kind, so that the model cannot copy it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from mcp_rl.tiny.corpus import TextPiece

_SIGNS = "#&;<`~@$%^|" + "".join(
    map(chr, (
        0x20AC, 0xA3, 0xA5, 0xA7, 0xB0, 0xB2, 0xB7, 0xD7, 0xF7, 0x2013, 0x2014, 0x2026, 0x201C, 0x201D, 0x2018, 0x2019,
        0xAB, 0xBB, 0x2022, 0x2192, 0x2190, 0x2713, 0x2717, 0x2605, 0xA9, 0xAE, 0x2122, 0xB5,
    ))
)  # fmt: skip
"""Signs of ASCII that English texts lack; money, dashes, quotes, arrows, marks."""
_RANGES = (
    (0x00C0, 0x0180), (0x0180, 0x0250), (0x0391, 0x03CA), (0x0410, 0x0450), (0x05D0, 0x05EB), (0x0621, 0x064B),
    (0x0905, 0x093A), (0x0E01, 0x0E2F), (0x3041, 0x3097), (0x30A1, 0x30FB), (0x4E00, 0x9FA6), (0xAC00, 0xD7A4),
    (0x1F300, 0x1F650), (0x2500, 0x2600), (0x2600, 0x2700),
)  # fmt: skip
"""First and last code points of scripts and signs."""
_NAMES = re.compile(r'"name": "[^"]*"|"[^"]*":')
"""Names of tools and of arguments in a call, which may be wrong ones."""
_WORD = re.compile(r"(?<![\w\\])(?!(?:true|false|null)\b)[A-Za-z]{3,}(?!\w)")


def in_strange_letters(rng: random.Random, pieces: Sequence[TextPiece], listing: str) -> list[TextPiece]:
    """Return a conversation with some words of its values, which the tools' `listing` does not hold, written with
    strange signs throughout; as it is where there are no such words."""
    heard: set[str] = set()
    copied: dict[str, None] = {}
    for piece in pieces:
        found = _WORD.findall(piece.text)
        if piece.role == "assistant":
            listing += " ".join(_NAMES.findall(piece.text))
            copied |= dict.fromkeys(word for word in found if word in heard and word not in listing)
        heard.update(found)
    words = list(copied)
    if not words:
        return list(pieces)
    written = {word: _strange(rng, word) for word in rng.sample(words, min(len(words), rng.choice((1, 2, 3))))}
    pattern = re.compile(rf"(?<![\w\\])(?:{'|'.join(map(re.escape, written))})(?!\w)")
    return [replace(piece, text=pattern.sub(lambda match: written[match[0]], piece.text)) for piece in pieces]


def _strange(rng: random.Random, word: str) -> str:
    """Return a word in other letters, or with signs before, in or behind it."""
    kind = rng.random()
    if kind < 0.15:
        return "#" + "".join(rng.choice("0123456789abcdef") for _ in range(6))
    if kind < 0.5:
        sign = rng.choice(_SIGNS)
        return rng.choice(
            (f"{sign}{word}", f"{word}{sign}", f"{word}{sign}{rng.randrange(100)}", f"{sign}{word}{sign}")
        )
    first, last = rng.choice(_RANGES)
    if kind < 0.75:
        letters = list(word)
        for at in rng.sample(range(len(letters)), rng.choice((1, 1, 2))):
            letters[at] = chr(rng.randrange(first, last))
        return "".join(letters)
    return "".join(chr(rng.randrange(first, last)) for _ in range(rng.choice((1, 2, 3, 4))))
