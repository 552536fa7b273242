"""Attention over a prefix tree, forward and backward: each row sees the path to its node, and its node up to itself.

A task is some rows in the children of one node, so the keys and values of the path to them are packed once. Scores are
recomputed in the backward pass from the logarithm of their sum (Dao et al., FlashAttention, 2022). What is computed of
a row, and the order in which gradients are added, depend on the tree alone, not on the number of threads.
"""

from __future__ import annotations

import numpy as np

from mcp_rl.inference.native.compiling import compiled, compiled_inner
from mcp_rl.inference.native.layers import multiply
from mcp_rl.inference.native.queries import HIDDEN, pack, softmax, tokens_at_once, unpack
from mcp_rl.inference.native.vectors import BLOCK, WIDE, at, copied, exponentials, filled, scattered, start
from mcp_rl.learning.native.records import END, FIRST, LAST, PATH, PRIVATE


@compiled_inner
def _room(count):
    return np.empty(count, np.float32)


@compiled_inner
def _end_of_node(tree, row, last):
    """Return one past the last row, up to `last`, in the node of a row."""
    stop = row + 1
    while stop < last and tree.starts[stop] == tree.starts[row]:
        stop += 1
    return stop


@compiled_inner
def _most_keys(tree, task):
    """Return the most keys that a row of a task sees."""
    row, most = task[FIRST], 0
    while row < task[LAST]:
        row = _end_of_node(tree, row, task[LAST])
        most = max(most, tree.rows[row - 1] + 1 - tree.starts[row - 1])
    return task[END] - task[PATH] + most


@compiled_inner
def _take_rows(source, width, begin, positions, dim, place, out):
    """Copy `dim` numbers from `begin` of some lines of a matrix, a pointer to lines of `width` numbers, to
    out [keys, dim], from a place on."""
    for index in range(len(positions)):
        copied(at(source, positions[index] * width + begin), dim, at(start(out), (place + index) * dim))


@compiled_inner
def _take_panels(source, width, begin, positions, dim, place, out):
    """Copy the same to out [keys / WIDE, dim, WIDE]."""
    for index in range(len(positions)):
        key = place + index
        target = at(start(out), key // WIDE * WIDE * dim + key % WIDE)
        scattered(at(source, positions[index] * width + begin), dim, target, np.int64(WIDE))


@compiled_inner
def _hide(rows, share, before, padded, scores, line):
    """Write -inf to the scores of positions that a row does not see, up to `padded`. before: what to take from a row's
    flat position for the place of its last key; share: lines of scores for each row."""
    for row in range(len(rows)):
        seen = rows[row] + 1 - before
        for query in range(row * share, (row + 1) * share):
            filled(at(start(scores), query * line + seen), padded - seen, HIDDEN)


@compiled_inner
def _over_keys(lines, panels, sizes, nothing, out, step):
    """Write the products of packed lines [count, dim] with packed keys or values to lines of out, `step` apart. sizes:
    count, dim, and the number of keys; nothing: zeros, as many as keys."""
    count, dim, keys = sizes
    x, weights = (start(lines), dim, np.int64(1)), (start(panels), np.int64(dim * WIDE), np.int64(WIDE))
    multiply(x, weights, (count, dim, -(-keys // WIDE) * WIDE), (start(nothing), np.int64(0)), (start(out), step))


@compiled_inner
def _weighted(weights, step, rows, sizes, nothing, out):
    """Write the sums of rows [keys, dim], weighted by lines that are `step` apart, to out [count, dim]. sizes as
    above."""
    count, dim, keys = sizes
    x, values = (start(weights), step, np.int64(1)), (start(rows), np.int64(WIDE), dim)
    multiply(x, values, (count, keys, dim), (start(nothing), np.int64(0)), (start(out), dim))


@compiled
def attend(shape, tree, qkv, attended, logs, chosen):
    """Write the attention of the rows of some tasks, each for one key head. chosen: [n, 2] tasks and heads."""
    share, dim, width = shape.heads // shape.shared, shape.dim, qkv.shape[1]
    source, out, none = start(qkv), start(attended), np.int64(0)
    for number in range(len(chosen)):
        task, head = tree.tasks[chosen[number, 0]], chosen[number, 1]
        path = tree.paths[task[PATH] : task[END]]
        line = -(-_most_keys(tree, task) // BLOCK) * BLOCK
        keys, values = np.zeros(line * dim, np.float32), np.zeros(line * dim, np.float32)
        at_once = tokens_at_once(line, share)
        queries, answers = _room(at_once * share * dim), _room(at_once * share * dim)
        scores, sums, nothing = _room(at_once * share * line), _room(line // BLOCK), np.zeros(line, np.float32)
        first_query = head * share * dim
        key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
        _take_panels(source, width, key, path, dim, none, keys)
        _take_rows(source, width, value, path, dim, none, values)
        row = task[FIRST]
        while row < task[LAST]:
            stop, first = _end_of_node(tree, row, task[LAST]), tree.starts[row]
            own = np.arange(first, tree.rows[stop - 1] + 1)
            _take_panels(source, width, key, own, dim, len(path), keys)
            _take_rows(source, width, value, own, dim, len(path), values)
            while row < stop:
                rows = tree.rows[row : min(row + at_once, stop)]
                count, used = len(rows) * share, len(path) + rows[-1] + 1 - first
                pack(source, width, rows, first_query, share * dim, queries)
                padded = -(-used // BLOCK) * BLOCK
                _over_keys(queries, keys, (count, dim, used), nothing, scores, line)
                _hide(rows, share, first - len(path), padded, scores, line)
                for query in range(count):
                    found = softmax(at(start(scores), query * line), padded, sums)
                    logs[row + query // share, head * share + query % share] = found
                _weighted(scores, line, values, (count, dim, used), nothing, answers)
                unpack(answers, shape.heads * dim, np.arange(row, row + len(rows)), first_query, share * dim, out)
                row += len(rows)


@compiled
def attend_back(shape, tree, kept, of_attended, deltas, private, of_qkv, chosen):
    """Write the gradients of the scaled queries of the rows of some tasks to of_qkv, and add those of keys and values
    to the tasks' own places in private [shared, 2, places, dim].

    of_attended: the gradient of the attention's output; deltas [R, heads]: its products with that output.
    """
    share, dim, width = shape.heads // shape.shared, shape.dim, kept.qkv.shape[1]
    source, gradients, out = start(kept.qkv), start(of_attended), start(of_qkv)
    none, one, wide = np.int64(0), np.int64(1), np.int64(WIDE)
    for number in range(len(chosen)):
        task, head = tree.tasks[chosen[number, 0]], chosen[number, 1]
        path = tree.paths[task[PATH] : task[END]]
        line = -(-_most_keys(tree, task) // BLOCK) * BLOCK
        keys, values = np.zeros(line * dim, np.float32), np.zeros(line * dim, np.float32)
        at_once = tokens_at_once(line, share)
        key_lines, of_queries = _room(line * dim), _room(at_once * share * dim)
        queries, answers = _room(at_once * share * dim), _room(at_once * share * dim)
        scores, slopes = _room(at_once * share * line), _room(at_once * share * line)
        sums, nothing = _room(line // BLOCK), np.zeros(line, np.float32)
        first_query = head * share * dim
        key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
        _take_panels(source, width, key, path, dim, none, keys)
        _take_rows(source, width, key, path, dim, none, key_lines)
        _take_panels(source, width, value, path, dim, none, values)
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
                pack(source, width, rows, first_query, share * dim, queries)
                mine = np.arange(row, row + len(rows))
                pack(gradients, shape.heads * dim, mine, first_query, share * dim, answers)
                padded = -(-used // BLOCK) * BLOCK
                _over_keys(queries, keys, (count, dim, used), nothing, scores, line)
                _hide(rows, share, first - len(path), padded, scores, line)
                _over_keys(answers, values, (count, dim, used), nothing, slopes, line)
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
                _weighted(slopes, line, key_lines, (count, dim, used), nothing, of_queries)
                unpack(of_queries, width, rows, first_query, share * dim, out)
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


@compiled_inner
def _add_line(shape, head, private, place, line, dim):
    key, value = (shape.heads + head) * dim, (shape.heads + shape.shared + head) * dim
    for number in range(dim):
        line[key + number] += private[head, 0, place, number]
        line[value + number] += private[head, 1, place, number]
