"""The prefix tree of a training step: tokens that many sequences share are kept, and computed, once.

Sequences are merged by exact token prefix. Nodes are laid out level by level, so a parent comes before its children and
siblings lie next to each other: the tree is one flat sequence, and attention needs one block for each parent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Node:
    """A run of tokens, `start` to `stop` in the flat sequence, that the same sequences pass through."""

    parent: int
    """Index of the parent node; -1 for the root."""
    start: int
    stop: int
    depth: int
    """Position, in its sequences, of the node's first token."""

    @property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class PrefixTree:
    """N sequences merged into T flat tokens."""

    tokens: Ints
    """[T] token ids."""
    positions: Ints
    """[T] position of each token in its own sequence."""
    nodes: list[Node]
    """Parents before children, siblings contiguous; the first is the root. A node may be empty."""
    leaf_of: list[int]
    """For each sequence, in the given order, the index of the node that it ends in."""
    unshared_tokens: int
    """Tokens of all sequences together, as many as a trainer without sharing computes."""

    @cached_property
    def children(self) -> list[range]:
        """For each node the range of its children's node indices."""
        ranges = [range(0, 0)] * len(self.nodes)
        for index, node in enumerate(self.nodes):
            if node.parent >= 0:
                known = ranges[node.parent]
                ranges[node.parent] = range(known.start if known else index, index + 1)
        return ranges

    @cached_property
    def _paths(self) -> dict[int, Ints]:
        return {-1: np.empty(0, np.int64)}

    def path(self, index: int) -> Ints:
        """Return the flat positions from the root to the end of a node."""
        missing = []
        while index not in self._paths:
            missing.append(index)
            index = self.nodes[index].parent
        path = self._paths[index]
        for index in reversed(missing):
            node = self.nodes[index]
            path = np.concatenate([path, np.arange(node.start, node.stop)])
            self._paths[index] = path
        return path

    def sequence(self, index: int) -> Ints:
        """Return the flat positions of a sequence's tokens, in order."""
        return self.path(self.leaf_of[index])


def build_tree(sequences: Sequence[Sequence[int]], min_shared: int = 8, *, shared: bool = True) -> PrefixTree:
    """Merge sequences by exact prefix. A node is split only where that saves at least `min_shared` tokens per sequence.

    `shared=False` merges nothing: an empty root, and one node for each sequence. Raises ValueError without a sequence.
    """
    if not sequences:
        raise ValueError("a prefix tree needs at least one sequence")
    line = _Line.of(sequences, shared=shared)
    nodes: list[Node] = []
    runs: list[Ints] = []
    leaf_of = [0] * len(sequences)
    start = 0
    for branch in line.branches(0, len(sequences), min_shared):
        run = line.arrays[branch.first][branch.depth : branch.reach]
        for place in branch.ending:
            leaf_of[line.order[place]] = len(nodes)
        nodes.append(Node(branch.parent, start, start + len(run), branch.depth))
        runs.append(run)
        start += len(run)
    positions = [np.arange(node.depth, node.depth + node.length) for node in nodes]
    return PrefixTree(
        tokens=np.concatenate(runs),
        positions=np.concatenate(positions),
        nodes=nodes,
        leaf_of=leaf_of,
        unshared_tokens=sum(map(len, line.arrays)),
    )


def split_by_tokens(
    sequences: Sequence[Sequence[int]], budget: int | None, min_shared: int = 8, *, shared: bool = True
) -> list[list[int]]:
    """Return indices of sequences in parts whose trees hold at most `budget` tokens; a longer sequence stands alone.

    Neighbours in lexicographic order stay together, since they share most, and each part takes as many as fit.
    """
    line = _Line.of(sequences, shared=shared)
    parts: list[list[int]] = []
    low, end = 0, len(sequences)
    while low < end:
        fits, too_far = low + 1, end + 1
        middle = end  # usually all of them fit
        while too_far - fits > 1:
            if budget is None or line.count(low, middle, min_shared) <= budget:
                fits = middle
            else:
                too_far = middle
            middle = (fits + too_far) // 2
        parts.append(line.order[low:fits])
        low = fits
    return parts


def split_evenly(sequences: Sequence[Sequence[int]], parts: int, *, shared: bool = True) -> list[list[int]]:
    """Return indices of sequences in exactly `parts` parts, some of them empty if there are fewer sequences.

    The largest part has as few tokens in its tree as cuts between lexicographic neighbours allow, so shared prefixes
    stay together: groups, else branches of a group. Each part is in ascending order.
    """
    line = _Line.of(sequences, shared=shared)
    lengths = [len(array) for array in line.arrays]

    def cuts(budget: int) -> list[int]:
        """Return the places where parts of at most `budget` tokens begin."""
        found, used = [], budget + 1
        for place, (length, common) in enumerate(zip(lengths, line.common, strict=True)):
            used += length - common
            if used > budget:
                found.append(place)
                used = length
        return found

    low, high = max(lengths, default=0), sum(lengths)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(cuts(middle)) <= parts else (middle + 1, high)
    bounds = [*cuts(low), len(lengths)]
    even = [sorted(line.order[first:last]) for first, last in pairwise(bounds)]
    return even + [[] for _ in range(parts - len(even))]


@dataclass(frozen=True)
class _Branch:
    """A future node: tokens `depth` to `reach` of the sequence at place `first`."""

    first: int
    parent: int
    depth: int
    reach: int
    ending: range | list[int]
    """Places of the sequences that end here."""


@dataclass(frozen=True)
class _Line:
    """Sequences in a line, those with most in common next to each other."""

    arrays: list[Ints]
    order: list[int]
    """For each place the index of its sequence."""
    common: list[int]
    """For each place the length of the prefix that its sequence shares with the one before."""

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], *, shared: bool) -> _Line:
        order = list(range(len(sequences)))
        if shared:
            order.sort(key=lambda i: tuple(sequences[i]))
        arrays = [np.asarray(sequences[i], np.int64) for i in order]
        common = [_common_prefix(a, b) if shared else 0 for a, b in pairwise(arrays)]
        return _Line(arrays, order, [0, *common])

    def branches(self, low: int, high: int, min_shared: int) -> Iterator[_Branch]:
        """Yield the nodes of the tree of some neighbours, level by level."""
        queue = deque([(low, high, -1, 0)])
        for index in count():
            if not queue:
                return
            low, high, parent, depth = queue.popleft()
            reach = min(self.common[low + 1 : high], default=len(self.arrays[low]))
            if high - low == 1:
                yield _Branch(low, parent, depth, reach, range(low, high))
                continue
            bounds = [low] + [i for i in range(low + 1, high) if self.common[i] < reach + min_shared] + [high]
            ending: list[int] = []
            for first, last in pairwise(bounds):
                if all(len(self.arrays[i]) == reach for i in range(first, last)):
                    ending += range(first, last)
                else:
                    queue.append((first, last, index, reach))
            yield _Branch(low, parent, depth, reach, ending)

    def count(self, low: int, high: int, min_shared: int) -> int:
        """Return the number of tokens in the tree of some neighbours."""
        return sum(branch.reach - branch.depth for branch in self.branches(low, high, min_shared))


def _common_prefix(first: Ints, second: Ints) -> int:
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
