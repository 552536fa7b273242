"""Draw tokens from logits on the CPU, in one compiled function."""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled, compiled_inner
from mcp_rl.inference.native.vectors import BLOCK, exponentials, largest, start

SMALLEST = float(np.log(np.finfo(np.float32).tiny))
"""The log-probability of tokens that are less likely than float32's smallest normal number."""


@compiled_inner
def _line(logits, temperature, room):
    """Return logits / temperature, as they are at temperature 0, with -inf up to a whole block. room: as much."""
    count = len(logits)
    if count == len(room) and (temperature == 0 or temperature == 1):
        return logits
    room[count:] = np.float32(-np.inf)
    divisor = np.float32(temperature) if temperature != 0 else np.float32(1)
    for token in range(count):
        room[token] = logits[token] / divisor
    return room


@compiled_inner
def _powers(line, powers, sums):
    """Write exp(line - its largest) and the sums of its blocks; return the largest, and the sum of all."""
    top = largest(start(line), len(sums))
    exponentials(start(line), len(sums), top, start(powers), start(sums))
    total = 0.0
    for block in range(len(sums)):
        total += sums[block]
    return top, total


@compiled_inner
def draw_one(logits, temperature, uniform, room, powers, sums):
    """Draw a token from logits [V] by inverting the cumulative distribution.

    Temperature 0 takes the first of the likeliest. Returns the token and its natural-log probability under
    softmax(logits / temperature), at temperature 1 if greedy. room, powers: space for a number for each token, up to a
    whole block; sums: for each block.
    """
    count = len(logits)
    line = _line(logits, temperature, room)
    top, total = _powers(line, powers, sums)
    chosen = 0
    if temperature == 0:
        while chosen < count - 1 and line[chosen] != top:
            chosen += 1
    else:
        left, block = uniform * total, 0
        while block < len(sums) - 1 and left >= sums[block]:
            left -= sums[block]
            block += 1
        while block > 0 and not sums[block] > 0:  # sums are rounded: back to what can be drawn
            block -= 1
        for token in range(block * BLOCK, min((block + 1) * BLOCK, count)):
            if powers[token] > 0:
                chosen = token
                left -= powers[token]
                if left < 0:
                    break
    return chosen, max((line[chosen] - top) - np.log(total), SMALLEST)


@compiled
def draw_rows(logits, temperatures, uniforms, ids, logprobs):
    """Draw a token for each row of logits [N, V], as `draw_one` does; write it to ids [N] and its log-probability to
    logprobs [N]. temperatures, uniforms: [N]."""
    blocks = -(-logits.shape[1] // BLOCK)
    room, powers = np.empty(blocks * BLOCK, np.float32), np.empty(blocks * BLOCK, np.float32)
    sums = np.empty(blocks, np.float32)
    for row in range(len(logits)):
        ids[row], logprobs[row] = draw_one(logits[row], temperatures[row], uniforms[row], room, powers, sums)


@compiled
def logprobs_of(logits, temperatures, ids, logprobs):
    """Write the log-probabilities of tokens ids [N, n], as `draw_rows` would, to logprobs [N, n]."""
    blocks = -(-logits.shape[1] // BLOCK)
    room, powers = np.empty(blocks * BLOCK, np.float32), np.empty(blocks * BLOCK, np.float32)
    sums = np.empty(blocks, np.float32)
    for row in range(len(logits)):
        line = _line(logits[row], temperatures[row], room)
        top, total = _powers(line, powers, sums)
        for place in range(ids.shape[1]):
            logprobs[row, place] = max((line[ids[row, place]] - top) - np.log(total), SMALLEST)
