"""The prefix tree of a training step: what many token sequences share is kept, and computed, once.

Sequences are merged by exact token prefix. Nodes are laid out level by level, so a parent comes before its children and
siblings lie next to each other: the tree is one flat sequence, and attention needs one block for each parent.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

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
    """For each sequence, in the order given, the node that it ends in."""
    unshared_tokens: int
    """Tokens of all sequences together, as a trainer without sharing would forward them."""

    @property
    def saved_share(self) -> float:
        """Share of forwarded tokens that merging saved, 0 to 1."""
        return 1.0 - len(self.tokens) / self.unshared_tokens if self.unshared_tokens else 0.0

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
        """Flat positions from the root to the end of a node, ancestors included."""
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
        """Flat positions of one sequence's tokens, in order."""
        return self.path(self.leaf_of[index])


def build_tree(sequences: Sequence[Sequence[int]], min_shared: int = 8, *, shared: bool = True) -> PrefixTree:
    """Merge sequences by exact prefix. A split is made only where it saves `min_shared` tokens or more per sequence.

    `shared=False` merges nothing: an empty root, and one node for each sequence. Raises ValueError where there is no
    sequence.
    """
    if not sequences:
        raise ValueError("a prefix tree needs at least one sequence")
    arrays = [np.asarray(sequence, np.int64) for sequence in sequences]
    order = list(range(len(arrays)))
    common = [0] * len(arrays)
    if shared:
        order.sort(key=lambda i: tuple(sequences[i]))
        common[1:] = [_common_prefix(arrays[a], arrays[b]) for a, b in pairwise(order)]
    nodes: list[Node] = []
    runs: list[Ints] = []
    leaf_of = [0] * len(arrays)
    queue = deque([(0, len(order), -1, 0)])
    start = 0
    while queue:
        low, high, parent, depth = queue.popleft()
        reach = min(common[low + 1 : high], default=len(arrays[order[low]]))
        run = arrays[order[low]][depth:reach]
        index = len(nodes)
        nodes.append(Node(parent, start, start + len(run), depth))
        runs.append(run)
        start += len(run)
        if high - low == 1:
            leaf_of[order[low]] = index
            continue
        bounds = [low] + [i for i in range(low + 1, high) if common[i] < reach + min_shared] + [high]
        for first, last in pairwise(bounds):
            if all(len(arrays[i]) == reach for i in order[first:last]):
                for i in order[first:last]:
                    leaf_of[i] = index
            else:
                queue.append((first, last, index, reach))
    positions = [np.arange(node.depth, node.depth + node.length) for node in nodes]
    return PrefixTree(
        tokens=np.concatenate(runs),
        positions=np.concatenate(positions),
        nodes=nodes,
        leaf_of=leaf_of,
        unshared_tokens=sum(map(len, arrays)),
    )


def _common_prefix(first: Ints, second: Ints) -> int:
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


def split_by_tokens(sequences: Sequence[Sequence[int]], budget: int | None) -> list[list[int]]:
    """Indices of sequences in parts whose trees hold at most `budget` tokens each; a longer sequence stands alone.

    Neighbours in lexicographic order stay together, since they share most.
    """
    parts: list[list[int]] = []
    stack = [sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))]
    while stack:
        part = stack.pop()
        if budget is None or len(part) <= 1 or len(build_tree([sequences[i] for i in part]).tokens) <= budget:
            parts.append(part)
        else:
            stack += [part[len(part) // 2 :], part[: len(part) // 2]]
    return parts
