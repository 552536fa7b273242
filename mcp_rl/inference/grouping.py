"""Split the rows of a forward pass into groups of similar length, each of which attends at the cost of its longest.

Only speed depends on the split: a token's result is the same, bit by bit, in every group (`attention`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

NARROW = 64
"""Positions of the shortest rows' group; every further group is twice as wide."""
GROUP = 2048
"""Row positions that a group of its own must save in decoding, against the calls that it costs."""
SORT = 16384
"""Row positions above which sorting the rows by length is worth moving them."""
WASTE = 8192
"""Pairs of a given token and a position that a group may always waste by padding."""
PAIRS = 1 << 17
"""Most pairs of a token and a position in a group, so that its scores stay in the processor's cache."""
ALONE = 1 << 14
"""Pairs from which on the tokens of one row are a group."""
FEW = 32
"""Number of tokens of one row below which they get no matrix products of their own."""


def width(length: int) -> int:
    """Return the group width of a row: `NARROW` times a power of 2."""
    return NARROW << max((length - 1) // NARROW, 0).bit_length()


def decoding_groups(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Split rows, side by side as they are: first and one past the last row of each group."""
    groups: list[tuple[int, int, int]] = []
    widest, stop = 0, len(lengths)
    for row in reversed(range(len(lengths))):
        wide = width(lengths[row])
        if wide > widest and widest:
            groups.append((row + 1, stop, widest))
            stop = row + 1
        widest = max(widest, wide)
    groups.append((0, stop, widest))
    joined = [groups.pop()]
    while groups:
        start, stop, wide = groups.pop()
        first, _, widest = joined[-1]
        if (stop - start) * (widest - wide) < GROUP:
            joined[-1] = first, stop, widest
        else:
            joined.append((start, stop, wide))
    return [(start, stop) for start, stop, _ in joined]


def in_order(lengths: Sequence[int]) -> list[int] | None:
    """Return the rows from long to short, or None if that would hardly make their groups cheaper."""
    widths = [width(length) for length in lengths]
    cost = sum((stop - start) * max(widths[start:stop]) for start, stop in decoding_groups(lengths))
    if cost - sum(widths) < SORT:
        return None
    order = sorted(range(len(lengths)), key=lambda row: -widths[row])
    better = [lengths[row] for row in order]
    after = sum((stop - start) * width(better[start]) for start, stop in decoding_groups(better))
    return order if cost - after >= SORT else None


def is_alone(extent: tuple[int, int, int]) -> bool:
    """Return whether a piece of so many tokens, which read so many positions of their row and its trunk, is a group of
    its own."""
    tokens, length, trunk = extent
    return tokens >= FEW and tokens * (length + trunk) >= ALONE


def given_groups(extents: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Split pieces (see `is_alone`): first and one past the last piece."""
    groups: list[tuple[int, int]] = []
    start = used = most = longest = pairs = 0
    for place, (tokens, length, trunk) in enumerate(extents):
        sizes = max(most, tokens), max(longest, length)
        waste = (place + 1 - start) * sizes[0] * sizes[1] - used - tokens * length
        used, pairs = used + tokens * length, pairs + tokens * (length + trunk)
        if place > start and (waste > max(WASTE, used // 4) or pairs > PAIRS or is_alone(extents[place])):
            groups.append((start, place))
            start, used, sizes, pairs = place, tokens * length, (tokens, length), tokens * (length + trunk)
        most, longest = sizes
    return [*groups, (start, len(extents))]
