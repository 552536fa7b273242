"""A radix tree of the ids whose keys and values are stored, including rows whose episode is over.

A path from a root spells ids; every node knows the entries whose ids pass through it. Each trunk is a root of its own,
since keys after a trunk are computed differently from keys without one. An entry is valid only for the policy version
that it is stamped with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.errors import CanaryError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.inference.cache import KvStore

REMEMBERED = 2_000_000
"""Most ids that `SeenPrefixes` remembers."""


@dataclass(eq=False)
class Entry:
    """Keys and values of `ids`, stored at positions 0, 1, … of a slot. Compared by identity."""

    store: KvStore
    slot: int
    version: int
    root: Sequence[int]
    """Ids of the trunk before them."""
    ids: list[int]


@dataclass(eq=False)
class _Node:
    label: list[int]
    children: dict[int, _Node] = field(default_factory=dict)
    entries: dict[Entry, None] = field(default_factory=dict)
    """In the order in which they were added."""


class PrefixIndex:
    """Finds the longest stored beginning of given ids."""

    def __init__(self) -> None:
        self._roots: dict[tuple[int, ...], _Node] = {}

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        node = self._roots.setdefault(tuple(entry.root), _Node([]))
        at = 0
        while at < len(entry.ids):
            child = node.children.get(entry.ids[at])
            if child is None:
                child = node.children[entry.ids[at]] = _Node(entry.ids[at:])
            common = common_length(child.label, entry.ids, at)
            if common < len(child.label):
                child = self._split(node, child, common)
            child.entries[entry] = None
            node, at = child, at + common

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        node = self._roots.get(tuple(entry.root))
        at = 0
        while node is not None and at < len(entry.ids):
            parent, node = node, node.children.get(entry.ids[at])
            if node is not None:
                node.entries.pop(entry, None)
                if not node.entries:
                    del parent.children[entry.ids[at]]
                at += len(node.label)

    def find(self, root: Sequence[int], ids: Sequence[int], version: int) -> tuple[Entry | None, int]:
        """Return an entry with the longest common beginning, and the length of that beginning.

        Raises CanaryError if another policy version computed it.
        """
        node = self._roots.get(tuple(root))
        found: Entry | None = None
        at = 0
        while node is not None and at < len(ids) and (node := node.children.get(ids[at])) is not None:
            found = next(iter(node.entries))
            common = common_length(node.label, ids, at)
            at += common
            if common < len(node.label):
                break
        if found is not None:
            check_stamp(found.version, version)
        return found, at

    def clear(self) -> None:
        self._roots.clear()

    @staticmethod
    def _split(parent: _Node, child: _Node, length: int) -> _Node:
        """Split a node in two, and return the upper one."""
        upper = _Node(child.label[:length], {child.label[length]: child}, dict(child.entries))
        parent.children[child.label[0]] = upper
        child.label = child.label[length:]
        return upper


class SeenPrefixes:
    """Counts prompts' ids that were given before, stored or not. Starts anew after `REMEMBERED` ids."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self.clear()

    def clear(self) -> None:
        self._tree, self._ids = PrefixIndex(), 0

    def count(self, ids: Sequence[int]) -> int:
        """Return how many of the ids, from the first on, were given before."""
        if self._ids > REMEMBERED:
            self.clear()
        length = self._tree.find((), ids, 0)[1]
        if length < len(ids):
            self._tree.add(Entry(self._store, -1, 0, (), list(ids)))
            self._ids += len(ids)
        return length


class SlotEntries:
    """The entry of each slot of one store, kept in a tree."""

    def __init__(self, tree: PrefixIndex) -> None:
        self._tree = tree
        self._entries: dict[int, Entry] = {}

    def put(self, entry: Entry) -> None:
        """Set the entry of its slot."""
        old = self._entries.get(entry.slot)
        if old is not None and (old.version, old.root, old.ids) == (entry.version, entry.root, entry.ids):
            return
        self.forget(entry.slot)
        self._entries[entry.slot] = entry
        self._tree.add(entry)

    def forget(self, slot: int) -> None:
        """Remove the entry of a slot that is about to be overwritten."""
        if (entry := self._entries.pop(slot, None)) is not None:
            self._tree.remove(entry)

    def length(self, slot: int) -> int:
        """Number of positions of the slot that can be copied."""
        entry = self._entries.get(slot)
        return len(entry.ids) if entry else 0

    def exchange(self, new_slots: Mapping[int, int]) -> None:
        """Follow a permutation: the contents of `slot` are now in `new_slots[slot]`."""
        moved = {new_slots[slot]: self._entries.pop(slot) for slot in new_slots if slot in self._entries}
        for slot, entry in moved.items():
            entry.slot = slot
        self._entries |= moved

    def clear(self) -> None:
        self._entries.clear()


def common_length(label: Sequence[int], ids: Sequence[int], start: int = 0) -> int:
    """Length of the common beginning of `label` and `ids[start:]`."""
    if list(ids[start : start + len(label)]) == label:
        return len(label)
    return next((i for i, (a, b) in enumerate(zip(label, ids[start:], strict=False)) if a != b), len(ids) - start)


def check_stamp(stamp: int, version: int) -> None:
    """Raise CanaryError if keys and values of one policy version would be read under another."""
    if stamp != version:
        raise CanaryError(
            f"The prefix cache holds what policy version {stamp} computed, but version {version} is being sampled; the "
            "run stops before it samples from a mixture of both."
        )
