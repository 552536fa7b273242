"""Attention of the native forward pass: each token over its trunk and over its own row up to itself.

Up to `QUERIES` queries read what they have in common together. Scores are a line of whole pages, of the trunk and then
of the row, and the values of each page are summed by themselves, so no bit depends on what is read together.
"""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.cache import PAGE
from mcp_rl.inference.native.compiling import compiled
from mcp_rl.inference.native.vectors import (
    BLOCK,
    QUERIES,
    SPAN,
    WIDE,
    at,
    exponentials,
    largest,
    places,
    pointer_to,
    scores_of_1,
    scores_of_4,
    start,
    times,
    values_1_of_1,
    values_8_of_1,
    wide_values_of_1,
    wide_values_of_4,
)

HIDDEN = np.float32(-np.inf)
"""The score of a position that a query does not see."""


@compiled
def _softmax(line, count, sums):
    """Replace `count` scores, a multiple of `BLOCK`, by their softmax. sums: room for one number for each block."""
    blocks = count // BLOCK
    exponentials(line, blocks, largest(line, blocks), line, start(sums))
    total = np.float32(0)
    for block in range(blocks):
        total += sums[block]
    times(line, np.float32(1) / total, blocks)


@compiled
def _score(queries, asked, keys, pages, dim, out):
    """Write the scores of one query or `QUERIES`, at the places `asked`, over pages of keys to lines of out."""
    out, step = out
    for page in range(pages):
        for span in range(0, PAGE, SPAN):
            key, target = at(keys, page * dim * PAGE + span), at(out, page * PAGE + span)
            if len(asked) == QUERIES:
                scores_of_4(queries, places(asked), key, dim, PAGE, target, step)
            else:
                scores_of_1(queries, places(asked), key, dim, PAGE, target, step)


@compiled
def _add_values(weights, count, values, dim, out, targets):
    """Add values [count, dim], weighted by one line or `QUERIES`, to the places `targets` of out, page by page."""
    weights, step = weights
    for begin in range(0, count, PAGE):
        number, weight, page = min(PAGE, count - begin), at(weights, begin), at(values, begin * dim)
        place = 0
        while place + WIDE <= dim:
            value, target = at(page, place), at(out, place)
            if len(targets) == QUERIES:
                wide_values_of_4(target, places(targets), weight, step, number, value, dim)
            else:
                wide_values_of_1(target, places(targets), weight, step, number, value, dim)
            place += WIDE
        while place < dim:
            width = 8 if place + 8 <= dim else 1
            for which in range(len(targets)):
                mine, target = at(weight, which * step), places(targets[which:])
                if width == 8:
                    values_8_of_1(at(out, place), target, mine, step, number, at(page, place), dim)
                else:
                    values_1_of_1(at(out, place), target, mine, step, number, at(page, place), dim)
            place += width


@compiled
def _trunk(trunks, which, head, heads, dim):
    """Return pointers to a trunk's keys and values of one head, and its length: 0 if there is none. head: its number
    among the keys and values of all layers; heads: from keys to values."""
    if which < 0:
        return pointer_to(0), pointer_to(0), 0
    address, capacity, length = trunks[which]
    keys = at(pointer_to(address), head * capacity * dim)
    return keys, at(keys, heads * capacity * dim), length


@compiled
def _common(tokens, packed):
    """Return whether some tokens attend to one trunk, and the number of pages of their own row that all read whole."""
    leader, pages = tokens[0], (packed.own[tokens[0]] + 1) // PAGE
    if len(tokens) < QUERIES:
        return False, 0
    for token in tokens:
        if packed.trunk_of[token] != packed.trunk_of[leader]:
            return False, 0
        same = packed.slots[token] == packed.slots[leader]
        pages = min(pages, (packed.own[token] + 1) // PAGE) if same else 0
    return True, pages


@compiled
def longest_line(tokens, packed, trunks):
    """Return the longest line of scores of some tokens."""
    longest = 0
    for token in tokens:
        length = trunks[packed.trunk_of[token], 2] if packed.trunk_of[token] >= 0 else 0
        longest = max(longest, -(-length // PAGE) + -(-(packed.own[token] + 1) // PAGE))
    return longest * PAGE


@compiled
def attend(weights, cache, packed, layer, queries, tokens, out):
    """Write the attention of some tokens to out [tokens, heads, dim]. queries: those of all, scaled, likewise."""
    heads, shared, dim = weights.heads, weights.shared, weights.dim
    share, own, trunk_of, trunks = heads // shared, packed.own, packed.trunk_of, cache.trunks
    room = cache.capacity * dim
    line = longest_line(tokens, packed, trunks)
    lines, sums = np.empty(QUERIES * line, np.float32), np.empty(line // BLOCK, np.float32)
    together, asked, targets = np.zeros((3, QUERIES), np.int64)
    out[: len(tokens) * heads * dim] = 0
    question, answer, score, numbers = start(queries), start(out), start(lines), start(cache.numbers)
    for head in range(shared):
        of_all = layer * 2 * shared + head
        key_row = (layer * 2 * cache.rows * shared + head) * room
        value_row = key_row + cache.rows * shared * room
        for begin in range(0, len(tokens) * share, QUERIES):
            count = min(QUERIES, len(tokens) * share - begin)
            for which in range(count):
                place, query = (begin + which) // share, head * share + (begin + which) % share
                together[which] = tokens[place]
                asked[which] = (tokens[place] * heads + query) * dim
                targets[which] = (place * heads + query) * dim
            at_once, common = _common(together[:count], packed)
            row = packed.slots[together[0]] * shared * room
            trunk_keys, trunk_values, length = _trunk(trunks, trunk_of[together[0]], of_all, shared, dim)
            before = -(-length // PAGE) * PAGE
            if at_once:
                _score(question, asked, trunk_keys, before // PAGE, dim, (score, line))
                _score(question, asked, at(numbers, key_row + row), common, dim, (at(score, before), line))
            for which in range(count):
                token, mine, one = together[which], which * line, asked[which : which + 1]
                if not at_once:
                    trunk_keys, trunk_values, length = _trunk(trunks, trunk_of[token], of_all, shared, dim)
                    before = -(-length // PAGE) * PAGE
                    _score(question, one, trunk_keys, before // PAGE, dim, (at(score, mine), line))
                seen = own[token] + 1
                pages = -(-seen // PAGE)
                keys = at(numbers, key_row + packed.slots[token] * shared * room + common * PAGE * dim)
                rest = at(score, mine + before + common * PAGE)
                _score(question, one, keys, pages - common, dim, (rest, line))
                lines[mine + length : mine + before] = HIDDEN
                lines[mine + before + seen : mine + before + pages * PAGE] = HIDDEN
                _softmax(at(score, mine), before + pages * PAGE, sums)
                if not at_once:
                    target = targets[which : which + 1]
                    _add_values((at(score, mine), line), length, trunk_values, dim, answer, target)
            if at_once:
                values = at(numbers, value_row + row)
                _add_values((score, line), length, trunk_values, dim, answer, targets)
                _add_values((at(score, before), line), common * PAGE, values, dim, answer, targets)
            for which in range(count):
                token, target = together[which], targets[which : which + 1]
                length = trunks[trunk_of[token], 2] if trunk_of[token] >= 0 else 0
                first = which * line + (-(-length // PAGE) + common) * PAGE
                values = at(numbers, value_row + packed.slots[token] * shared * room + common * PAGE * dim)
                seen = own[token] + 1 - common * PAGE
                _add_values((at(score, first), line), seen, values, dim, answer, target)
