"""Attention over a prefix tree, forward and backward: each row sees the path to its node, and its node up to itself.

A task is some rows in the children of one node, so the keys and values of the path to them are packed once. Scores are
recomputed in the backward pass from the logarithm of their sum (Dao et al., FlashAttention, 2022). What is computed of
a row, and the order in which gradients are added, depend on the tree alone, not on the number of threads.
"""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled
from mcp_rl.inference.native.layers import multiply
from mcp_rl.inference.native.vectors import BLOCK, WIDE, at, dot, exponentials, largest, start, times
from mcp_rl.learning.native.records import END, FIRST, LAST, PATH, PRIVATE

HIDDEN = np.float32(-np.inf)
"""The score of a position that a row does not see."""
SCORES = 1 << 16
"""Scores that are computed together; they stay in the processor's cache."""
LEAST, MOST = 12, 48
"""Queries that are computed together."""


@compiled
def _room(count):
    return np.empty(count, np.float32)


@compiled
def _end_of_node(tree, row, last):
    """Return one past the last row, up to `last`, in the node of a row."""
    stop = row + 1
    while stop < last and tree.starts[stop] == tree.starts[row]:
        stop += 1
    return stop


@compiled
def _most_keys(tree, task):
    """Return the most keys that a row of a task sees."""
    row, most = task[FIRST], 0
    while row < task[LAST]:
        row = _end_of_node(tree, row, task[LAST])
        most = max(most, tree.rows[row - 1] + 1 - tree.starts[row - 1])
    return task[END] - task[PATH] + most


@compiled
def _take_rows(source, width, begin, positions, dim, place, out):
    """Copy `dim` numbers from `begin` of some lines of a matrix to out [keys, dim], from a place on."""
    for index in range(len(positions)):
        first, target = positions[index] * width + begin, (place + index) * dim
        for number in range(dim):
            out[target + number] = source[first + number]


@compiled
def _take_panels(source, width, begin, positions, dim, place, out):
    """Copy the same to out [keys / WIDE, dim, WIDE]."""
    for index in range(len(positions)):
        first, key = positions[index] * width + begin, place + index
        target = key // WIDE * WIDE * dim + key % WIDE
        for number in range(dim):
            out[target + number * WIDE] = source[first + number]


@compiled
def _pack(source, width, lines, head, share, dim, out):
    """Copy the numbers of the query heads of one key head, in some lines of a matrix, to out [lines share, dim]."""
    target = 0
    for line in lines:
        first = line * width + head * share * dim
        for number in range(share * dim):
            out[target + number] = source[first + number]
        target += share * dim


@compiled
def _hide(rows, share, before, padded, scores, line):
    """Write -inf to the scores of positions that a row does not see, up to `padded`. before: what to take from a row's
    flat position for the place of its last key; share: lines of scores for each row."""
    for row in range(len(rows)):
        for query in range(row * share, (row + 1) * share):
            scores[query * line + rows[row] + 1 - before : query * line + padded] = HIDDEN


@compiled
def attend(shape, tree, qkv, attended, logs, chosen):
    """Write the attention of the rows of some tasks, each for one key head. chosen: [n, 2] tasks and heads."""
    share, dim, one, none = shape.heads // shape.shared, shape.dim, np.int64(1), np.int64(0)
    width, source, wide = qkv.shape[1], qkv.reshape(-1), np.int64(WIDE)
    for number in range(len(chosen)):
        task, head = tree.tasks[chosen[number, 0]], chosen[number, 1]
        path = tree.paths[task[PATH] : task[END]]
        line = -(-_most_keys(tree, task) // BLOCK) * BLOCK
        keys, values = np.zeros(line * dim, np.float32), np.zeros(line * dim, np.float32)
        at_once = max(min(max(SCORES // line, LEAST), MOST) // share, 1)
        queries, answers = _room(at_once * share * dim), _room(at_once * share * dim)
        scores, sums, nothing = _room(at_once * share * line), _room(line // BLOCK), np.zeros(line, np.float32)
        key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
        _take_panels(source, width, key, path, dim, 0, keys)
        _take_rows(source, width, value, path, dim, 0, values)
        row = task[FIRST]
        while row < task[LAST]:
            stop, first = _end_of_node(tree, row, task[LAST]), tree.starts[row]
            own = np.arange(first, tree.rows[stop - 1] + 1)
            _take_panels(source, width, key, own, dim, len(path), keys)
            _take_rows(source, width, value, own, dim, len(path), values)
            while row < stop:
                rows = tree.rows[row : min(row + at_once, stop)]
                count, used = len(rows) * share, len(path) + rows[-1] + 1 - first
                _pack(source, width, rows, head, share, dim, queries)
                padded = -(-used // BLOCK) * BLOCK
                multiply(
                    (start(queries), dim, one),
                    (start(keys), np.int64(dim * WIDE), wide),
                    (count, dim, -(-used // WIDE) * WIDE),
                    (start(nothing), none),
                    (start(scores), line),
                )
                _hide(rows, share, first - len(path), padded, scores, line)
                for query in range(count):
                    here = at(start(scores), query * line)
                    top = largest(here, padded // BLOCK)
                    exponentials(here, padded // BLOCK, top, here, start(sums))
                    total = np.float32(0)
                    for block in range(padded // BLOCK):
                        total += sums[block]
                    times(here, np.float32(1) / total, padded // BLOCK)
                    logs[row + query // share, head * share + query % share] = top + np.log(total)
                multiply(
                    (start(scores), line, one),
                    (start(values), wide, dim),
                    (count, used, dim),
                    (start(nothing), none),
                    (start(answers), dim),
                )
                for query in range(count):
                    target = attended[row + query // share]
                    place = (head * share + query % share) * dim
                    for position in range(dim):
                        target[place + position] = answers[query * dim + position]
                row += len(rows)


@compiled
def attend_back(shape, tree, kept, of_attended, deltas, private, of_qkv, chosen):
    """Write the gradients of the scaled queries of the rows of some tasks to of_qkv, and add those of keys and values
    to the tasks' own places in private [shared, 2, places, dim].

    of_attended: the gradient of the attention's output; deltas [R, heads]: its products with that output.
    """
    share, dim, one, none = shape.heads // shape.shared, shape.dim, np.int64(1), np.int64(0)
    width, source, gradients = kept.qkv.shape[1], kept.qkv.reshape(-1), of_attended.reshape(-1)
    wide = np.int64(WIDE)
    for number in range(len(chosen)):
        task, head = tree.tasks[chosen[number, 0]], chosen[number, 1]
        path = tree.paths[task[PATH] : task[END]]
        line = -(-_most_keys(tree, task) // BLOCK) * BLOCK
        keys, values = np.zeros(line * dim, np.float32), np.zeros(line * dim, np.float32)
        at_once = max(min(max(SCORES // line, LEAST), MOST) // share, 1)
        key_lines, of_queries = _room(line * dim), _room(at_once * share * dim)
        queries, answers = _room(at_once * share * dim), _room(at_once * share * dim)
        scores, slopes = _room(at_once * share * line), _room(at_once * share * line)
        sums, nothing = _room(line // BLOCK), np.zeros(line, np.float32)
        key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
        _take_panels(source, width, key, path, dim, 0, keys)
        _take_rows(source, width, key, path, dim, 0, key_lines)
        _take_panels(source, width, value, path, dim, 0, values)
        of_keys, of_values = start(private[head, 0]), start(private[head, 1])
        before, place, row = task[PRIVATE] * dim, (task[PRIVATE] + len(path)) * dim, task[FIRST]
        while row < task[LAST]:
            stop, first = _end_of_node(tree, row, task[LAST]), tree.starts[row]
            own = np.arange(first, tree.rows[stop - 1] + 1)
            _take_panels(source, width, key, own, dim, len(path), keys)
            _take_rows(source, width, key, own, dim, len(path), key_lines)
            _take_panels(source, width, value, own, dim, len(path), values)
            while row < stop:
                rows = tree.rows[row : min(row + at_once, stop)]
                count, used = len(rows) * share, len(path) + rows[-1] + 1 - first
                _pack(source, width, rows, head, share, dim, queries)
                _pack(gradients, shape.heads * dim, np.arange(row, row + len(rows)), head, share, dim, answers)
                padded = -(-used // BLOCK) * BLOCK
                multiply(
                    (start(queries), dim, one),
                    (start(keys), np.int64(dim * WIDE), wide),
                    (count, dim, -(-used // WIDE) * WIDE),
                    (start(nothing), none),
                    (start(scores), line),
                )
                _hide(rows, share, first - len(path), padded, scores, line)
                multiply(
                    (start(answers), dim, one),
                    (start(values), np.int64(dim * WIDE), wide),
                    (count, dim, -(-used // WIDE) * WIDE),
                    (start(nothing), none),
                    (start(slopes), line),
                )
                for query in range(count):
                    at_row, at_head = row + query // share, head * share + query % share
                    here = at(start(scores), query * line)
                    exponentials(here, padded // BLOCK, kept.logs[at_row, at_head], here, start(sums))
                    weight, slope = scores[query * line :], slopes[query * line :]
                    delta = deltas[at_row, at_head]
                    for position in range(used):
                        slope[position] = weight[position] * (slope[position] - delta)
                for begin, end, target in ((0, len(path), before), (len(path), used, place)):
                    size = end - begin, count, dim
                    to_values, to_keys = (at(of_values, target), dim), (at(of_keys, target), dim)
                    weights, slope = at(start(scores), begin), at(start(slopes), begin)
                    multiply((weights, one, line), (start(answers), wide, dim), size, to_values, to_values)
                    multiply((slope, one, line), (start(queries), wide, dim), size, to_keys, to_keys)
                multiply(
                    (start(slopes), line, one),
                    (start(key_lines), wide, dim),
                    (count, used, dim),
                    (start(nothing), none),
                    (start(of_queries), dim),
                )
                for query in range(count):
                    target = of_qkv[rows[query // share]]
                    column = (head * share + query % share) * dim
                    for position in range(dim):
                        target[column + position] = of_queries[query * dim + position]
                row += len(rows)
            place += len(own) * dim


@compiled
def gather_back(shape, tree, private, of_qkv, head, begin, end):
    """Add the gradients of some tasks' keys and values of one key head to of_qkv [T, (heads + 2 shared) dim], task by
    task."""
    dim = shape.dim
    for number in range(begin, end):
        task = tree.tasks[number]
        place = task[PRIVATE]
        for position in tree.paths[task[PATH] : task[END]]:
            _add_line(shape, head, private, place, of_qkv[position], dim)
            place += 1
        row = task[FIRST]
        while row < task[LAST]:
            row = _end_of_node(tree, row, task[LAST])
            for position in range(tree.starts[row - 1], tree.rows[row - 1] + 1):
                _add_line(shape, head, private, place, of_qkv[position], dim)
                place += 1


@compiled
def _add_line(shape, head, private, place, line, dim):
    key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
    for number in range(dim):
        line[key + number] += private[head, 0, place, number]
        line[value + number] += private[head, 1, place, number]


@compiled
def products_with(shape, attended, of_attended, deltas, span):
    """Write the products of attention's outputs and their gradients, head by head, to deltas [R, heads]."""
    for row in range(span[0], span[1]):
        for head in range(shape.heads):
            one, other = at(start(attended[row]), head * shape.dim), at(start(of_attended[row]), head * shape.dim)
            deltas[row, head] = dot(one, other, shape.dim)
