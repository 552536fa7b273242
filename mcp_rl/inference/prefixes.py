"""Who holds the keys and values of which ids: a radix tree over all rows, those whose episode is over included.

A path from a root spells ids; every node knows the entries whose ids pass through it. Each trunk is a root of its own,
since keys behind one are computed otherwise than keys without it. An entry is valid for the policy version that it is
stamped with and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_rl.errors import CanaryError
from mcp_rl.inference.cache import KvStore

REMEMBERED = 2_000_000


@dataclass(eq=False)
class Entry:
    """Positions 0, 1, … of a store's row hold keys and values of `ids`."""

    store: KvStore
    slot: int
    version: int
    root: Sequence[int]
    """Ids of the trunk before them."""
    ids: list[int]


@dataclass(eq=False)
class _Node:
    label: list[int]
    children: dict[int, "_Node"] = field(default_factory=dict)
    entries: dict[Entry, None] = field(default_factory=dict)
    """In the order in which they came."""


class PrefixTree:
    """Longest common beginnings with anything that is held."""

    def __init__(self) -> None:
        self._roots: dict[tuple[int, ...], _Node] = {}

    def add(self, entry: Entry) -> None:
        """Hold an entry from now on."""
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
        """Hold it no longer."""
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
        """An entry with the longest common beginning, and its length: what lies in its store is that of `ids`.

        Raises CanaryError where that was computed by another policy version than the given one.
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
        """Cut a node in two, and return the upper one."""
        upper = _Node(child.label[:length], {child.label[length]: child}, dict(child.entries))
        parent.children[child.label[0]] = upper
        child.label = child.label[length:]
        return upper


class Asked:
    """What was given so far, kept or not, for counting alone: at most `REMEMBERED` ids, then it begins anew."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self.clear()

    def clear(self) -> None:
        self._tree, self._ids = PrefixTree(), 0

    def count(self, ids: Sequence[int]) -> int:
        """How many of the ids, from the first on, were given before."""
        if self._ids > REMEMBERED:
            self.clear()
        length = self._tree.find((), ids, 0)[1]
        self._tree.add(Entry(self._store, -1, 0, (), list(ids)))
        self._ids += len(ids)
        return length


class SlotEntries:
    """The entry of each slot of one store, in a tree."""

    def __init__(self, tree: PrefixTree) -> None:
        self._tree = tree
        self._entries: dict[int, Entry] = {}

    def put(self, entry: Entry) -> None:
        """The slot holds this now."""
        old = self._entries.get(entry.slot)
        if old is not None and (old.version, old.root, old.ids) == (entry.version, entry.root, entry.ids):
            return
        self.forget(entry.slot)
        self._entries[entry.slot] = entry
        self._tree.add(entry)

    def forget(self, slot: int) -> None:
        """The slot is about to be overwritten."""
        if (entry := self._entries.pop(slot, None)) is not None:
            self._tree.remove(entry)

    def length(self, slot: int) -> int:
        """How many positions of the slot somebody may copy."""
        entry = self._entries.get(slot)
        return len(entry.ids) if entry else 0

    def exchange(self, there: Mapping[int, int]) -> None:
        """Slots changed places: what was in `slot` is now in `there[slot]`."""
        moved = {there[slot]: self._entries.pop(slot) for slot in there if slot in self._entries}
        for slot, entry in moved.items():
            entry.slot = slot
        self._entries |= moved

    def clear(self) -> None:
        self._entries.clear()


def common_length(label: Sequence[int], ids: Sequence[int], start: int = 0) -> int:
    """How many ids of `label` follow each other in `ids` from `start`."""
    if list(ids[start : start + len(label)]) == label:
        return len(label)
    return next((i for i, (a, b) in enumerate(zip(label, ids[start:], strict=False)) if a != b), len(ids) - start)


def check_stamp(stamp: int, version: int) -> None:
    """Keys and values are read under the policy version that computed them, and under no other."""
    if stamp != version:
        raise CanaryError(
            f"The prefix cache holds what policy version {stamp} computed, but version {version} is being sampled, so "
            "the run stops before a token is sampled from a mixture of both."
        )
