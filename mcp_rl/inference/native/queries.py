"""Parts of attention that sampling and updates both call: gathering the queries of a key head, and softmax."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled_inner
from mcp_rl.inference.native.vectors import BLOCK, at, copied, exponentials, largest, start, times

HIDDEN = np.float32(-np.inf)
"""The score of a position that a query does not see."""
_SCORES = 1 << 16
"""Scores that are computed together; they stay in the processor's cache."""
_LEAST, _MOST = 12, 48
"""Queries that are computed together."""


@compiled_inner
def tokens_at_once(line, share):
    """Return the number of tokens whose queries are computed together: `share` of each, with `line` scores each."""
    return max(min(max(_SCORES // line, _LEAST), _MOST) // share, 1)


@compiled_inner
def pack(source, width, lines, begin, count, out):
    """Copy `count` numbers from `begin` of some lines of a matrix, a pointer to lines of `width` numbers, to
    out [lines, count]."""
    target = 0
    for line in lines:
        copied(at(source, line * width + begin), count, at(start(out), target))
        target += count


@compiled_inner
def unpack(packed, width, lines, begin, count, out):
    """Undo `pack`."""
    source = 0
    for line in lines:
        copied(at(start(packed), source), count, at(out, line * width + begin))
        source += count


@compiled_inner
def softmax(scores, count, sums):
    """Replace `count` scores, a multiple of `BLOCK`, by their softmax; return the logarithm of the sum of their
    exponentials. scores: a pointer; sums: room for one number for each block."""
    blocks = count // BLOCK
    top = largest(scores, blocks)
    exponentials(scores, blocks, top, scores, start(sums))
    total = np.float32(0)
    for block in range(blocks):
        total += sums[block]
    times(scores, np.float32(1) / total, blocks)
    return top + np.log(total)
