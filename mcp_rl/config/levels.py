"""Shares of the levels of tasks, as a setting and an option give them: `told=0.4,looked-up=0.6`."""

from __future__ import annotations

import difflib
import math

LEVELS = ("spelled", "told", "looked-up", "worked-out", "brought-about")
"""The levels of tasks, the lowest first."""
MIXED = "spelled=0.2,told=0.2,looked-up=0.2,worked-out=0.25,brought-about=0.15"
"""The shares for a chat model: it has little to learn from calls that are spelled out."""


AUTO = "auto"
"""The shares for the built-in model: all spelled out, and where tasks are made by exploring `explored_levels`."""
_HALVES = "spelled=0.5,told=0.5"


def explored_levels(text: str, *, worded: bool) -> str:
    """Return shares in place of `auto`, for tasks made by exploring: half spelled out and half told, or all spelled out
    if a plugin words them."""
    return text if text.strip() != AUTO else "spelled" if worded else _HALVES


def level_shares(text: str) -> dict[str, float]:
    """Return the share of each level that is named, 1 in all: of `auto`, of `mixed`, or of `told=0.4,looked-up=0.6`.

    Raises ValueError with a sentence that says what is wrong.
    """
    text = {AUTO: "spelled", "mixed": MIXED}.get(text.strip(), text)
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if name not in LEVELS:
            near = difflib.get_close_matches(name, LEVELS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(LEVELS)}, or give auto or mixed."
            raise ValueError(f"there is no level {name!r} of tasks; {hint}".removesuffix("."))
        if name in shares:
            raise ValueError(f"the level {name!r} is named twice")
        try:
            shares[name] = float(number) if equals else 1.0
        except ValueError:
            raise ValueError(f"the share of {name} is {number!r}; give a number from 0 to 1") from None
        if not (math.isfinite(shares[name]) and 0 <= shares[name] <= 1):
            raise ValueError(f"the share of {name} is {number}; give a number from 0 to 1")
    total = sum(shares.values())
    if abs(total - 1) > 0.005:
        raise ValueError(f"the shares of {text!r} add up to {total:g}; make them add up to 1")
    return {name: share / total for name, share in shares.items() if share}
