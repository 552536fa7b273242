"""Attention of the native forward pass: each token over its trunk and over its own row up to itself.

Tokens that follow each other and have one trunk read it together, and those of one row read that row together. Scores
are a line of whole pages, of the trunk and then of the row, and the values of each page are summed by themselves, so no
bit depends on what is read together.
"""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import PAGE, compiled_inner, hold
from mcp_rl.inference.native.layers import multiply
from mcp_rl.inference.native.queries import HIDDEN, pack, softmax, tokens_at_once, unpack
from mcp_rl.inference.native.vectors import BLOCK, WIDE, at, fetched, filled, pointer_to, start


@compiled_inner
def _score(queries, count, keys, positions, dim, nothing, out):
    """Write the scores of packed queries [count, dim] over the first positions of keys in panels, rounded up to whole
    panels, to lines of out."""
    scores = -(-positions // WIDE) * WIDE
    multiply((queries, dim, np.int64(1)), (keys, dim * WIDE, np.int64(WIDE)), (count, dim, scores), nothing, out)


@compiled_inner
def _add_values(weights, queries, count, values, dim, out):
    """Add values [count, dim], weighted by lines, to packed answers [queries, dim], page by page."""
    weights, line = weights
    for begin in range(0, count, PAGE):
        size = queries, min(np.int64(PAGE), count - begin), dim
        page = at(values, begin * dim), np.int64(WIDE), dim
        multiply((at(weights, begin), line, np.int64(1)), page, size, (out, dim), (out, dim))


@compiled_inner
def _trunk(trunks, which, head, heads, dim):
    """Return pointers to a trunk's keys and values of one head, and its length: 0 if there is none. head: its number
    among the keys and values of all layers; heads: from keys to values."""
    if which < 0:
        return pointer_to(0), pointer_to(0), 0
    address, capacity, length = trunks[which]
    keys = at(pointer_to(address), head * capacity * dim)
    return keys, at(keys, heads * capacity * dim), length


@compiled_inner
def _end(tokens, begin, most, of_token):
    """Return one past the last of at most so many tokens, from one on, that have the same entry in an array."""
    end = begin + 1
    while end < min(begin + most, len(tokens)) and of_token[tokens[end]] == of_token[tokens[begin]]:
        end += 1
    return end


@compiled_inner
def _last_of_row(tokens, begin, end, own):
    """Return the largest place in their row of some tokens."""
    last = own[tokens[begin]]
    for place in range(begin + 1, end):
        last = max(last, own[tokens[place]])
    return last


@compiled_inner
def longest_line(tokens, packed, trunks):
    """Return the longest line of scores of some tokens, which may be read together."""
    longest = trunk = 0
    for token in tokens:
        longest = max(longest, packed.own[token] + 1)
        if packed.trunk_of[token] >= 0:
            trunk = max(trunk, trunks[packed.trunk_of[token], 2])
    return (-(-trunk // PAGE) - (-longest // PAGE)) * PAGE


@compiled_inner
def attend(weights, cache, packed, layer, queries, tokens, out):
    """Write the attention of some tokens to out [tokens, heads, dim]. queries: those of all, scaled, likewise."""
    heads, shared, dim = weights.heads, weights.shared, weights.dim
    share, own, trunks = heads // shared, packed.own, cache.trunks
    room, line = cache.capacity * dim, longest_line(tokens, packed, trunks)
    most = tokens_at_once(line, share)
    lines, sums = np.empty(most * share * line, np.float32), np.empty(line // BLOCK, np.float32)
    asked, answers = np.empty(most * share * dim, np.float32), np.empty(most * share * dim, np.float32)
    zeros, numbers = np.zeros(line, np.float32), start(cache.numbers)
    nothing, every = (start(zeros), np.int64(0)), np.arange(len(tokens))
    begin = np.int64(0)  # a plain 0 is a type of its own, for which what is called would be compiled again
    while begin < len(tokens):
        end = _end(tokens, begin, most, packed.trunk_of)
        count = (end - begin) * share
        for head in range(shared):
            pack(start(queries), heads * dim, tokens[begin:end], head * share * dim, share * dim, asked)
            filled(start(answers), count * dim, np.float32(0))
            of_all = layer * 2 * shared + head
            key_row = (layer * 2 * cache.rows * shared + head) * room
            value_row = key_row + cache.rows * shared * room
            which = packed.trunk_of[tokens[begin]]
            trunk_keys, trunk_values, length = _trunk(trunks, which, of_all, shared, dim)
            before = -(-length // PAGE) * PAGE
            _score(start(asked), count, trunk_keys, length, dim, nothing, (start(lines), line))
            for query in range(count):
                filled(at(start(lines), query * line + length), before - length, HIDDEN)
            row = begin
            while row < end:
                stop = min(_end(tokens, row, most, packed.slots), end)
                last = _last_of_row(tokens, row, stop, own)
                padded = before + (last // PAGE + 1) * PAGE
                keys = at(numbers, key_row + packed.slots[tokens[row]] * shared * room)
                if stop < end:
                    ahead = at(numbers, key_row + packed.slots[tokens[stop]] * shared * room)
                    fetched(ahead, min(np.int64(PAGE), own[tokens[stop]] + WIDE) * dim)
                first, some = (row - begin) * share, (stop - row) * share
                target = at(start(lines), first * line + before), line
                _score(at(start(asked), first * dim), some, keys, last + 1, dim, nothing, target)
                for query in range(first, first + some):
                    seen = before + own[tokens[begin + query // share]] + 1
                    scores = at(start(lines), query * line)
                    filled(at(scores, seen), padded - seen, HIDDEN)
                    softmax(scores, padded, sums)
                row = stop
            _add_values((start(lines), line), count, length, trunk_values, dim, start(answers))
            row = begin
            while row < end:
                stop = min(_end(tokens, row, most, packed.slots), end)
                seen = _last_of_row(tokens, row, stop, own) + 1
                values = at(numbers, value_row + packed.slots[tokens[row]] * shared * room)
                if stop < end:
                    ahead = at(numbers, value_row + packed.slots[tokens[stop]] * shared * room)
                    fetched(ahead, min(np.int64(PAGE), own[tokens[stop]] + 1) * dim)
                first, some = (row - begin) * share, (stop - row) * share
                mine = at(start(lines), first * line + before), line
                _add_values(mine, some, seen, values, dim, at(start(answers), first * dim))
                row = stop
            unpack(answers, heads * dim, every[begin:end], head * share * dim, share * dim, start(out))
        begin = end
    hold(zeros)
