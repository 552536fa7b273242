"""The tasks of attention over a prefix tree, and their division among threads."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mcp_rl.learning.native.records import END, FIRST, LAST, PATH, PRIVATE, TreeArrays

if TYPE_CHECKING:
    from mcp_rl.learning.forward.tree import PrefixTree

ROWS = 512
"""Most rows of a task."""
PLACES = 1 << 15
"""Keys whose gradients are kept apart for each task that reads them, until they are added."""


@dataclass(frozen=True)
class AttentionTasks:
    """Attention of some rows over a tree."""

    tree: TreeArrays
    costs: Any
    """For each task about how many scores it computes."""
    waves: list[range]
    """The tasks in parts of at most `PLACES` keys, or of one task."""
    places: int
    """The most keys of a part."""

    @staticmethod
    def of(tree: PrefixTree, rows: Any) -> AttentionTasks:
        """Make them for rows at these flat positions, in ascending order."""
        nodes = tree.nodes
        first_of_node = np.array([node.start for node in nodes])
        starts = first_of_node[np.searchsorted(first_of_node, rows, side="right") - 1]
        seen = tree.positions[rows] + 1
        tasks: list[list[int]] = []
        paths: list[Any] = []
        costs: list[int] = []
        length = places = most = 0
        begins = [0]
        for parent, children in [(-1, range(1)), *enumerate(tree.children)]:
            if not children:
                continue
            path = tree.path(parent)
            low, high = np.searchsorted(rows, (nodes[children[0]].start, nodes[children[-1]].stop))
            for first in range(low, high, ROWS):
                last = min(first + ROWS, high)
                ends = np.flatnonzero(np.append(np.diff(starts[first:last]), 1)) + first
                keys = len(path) + int((rows[ends] + 1 - starts[ends]).sum())
                if places and places + keys > PLACES:
                    begins.append(len(tasks))
                    places = 0
                task = [0] * 5
                task[FIRST], task[LAST], task[PATH], task[END] = first, last, length, length + len(path)
                task[PRIVATE] = places
                places += keys
                most = max(most, places)
                tasks.append(task)
                costs.append(int(seen[first:last].sum()))
            if high > low:
                paths.append(path)
                length += len(path)
        joined = np.concatenate([np.empty(0, np.int64), *paths])
        waves = [range(*bounds) for bounds in pairwise([*begins, len(tasks)])]
        return AttentionTasks(
            TreeArrays(rows, starts, joined, np.array(tasks).reshape(-1, 5)), np.array(costs), waves, most
        )

    def divided(self, heads: int, some: range | None = None) -> list[tuple[Any]]:
        """Return all tasks, or some, each once for every key head, for each of torch's threads: [n, 2] tasks and
        heads."""
        chosen = np.arange(len(self.costs)) if some is None else np.array(some)
        parts = torch.get_num_threads()
        found: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        load = [0] * parts
        for task in chosen[np.argsort(-self.costs[chosen], kind="stable")].tolist():
            for head in range(heads):
                least = load.index(min(load))
                found[least].append((task, head))
                load[least] += int(self.costs[task])
        return [(np.array(part, np.int64).reshape(-1, 2),) for part in found]
