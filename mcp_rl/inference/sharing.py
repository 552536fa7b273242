"""What rows that start together have in common, and so who computes it for whom."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mcp_rl.inference.cache import KvStore
from mcp_rl.inference.prefixes import Entry, PrefixTree
from mcp_rl.inference.row import Row

WORTH_WAITING = 32
"""Fewer ids beyond the cache are computed again, rather than waited for."""
STAGES = 4


@dataclass
class Sharing:
    """Who computes what among rows that start together. All rows not named compute all that is new in them at once."""

    twins: dict[Row, Row] = field(default_factory=dict)
    """Rows with the same ids as another one."""
    leaders: dict[Row, tuple[Row, int]] = field(default_factory=dict)
    """Rows that wait for another one, and how many of their own positions they take from it."""
    stage: dict[Row, int] = field(default_factory=dict)
    """0 or how many rounds of others a row waits for."""


def plan_sharing(rows: Sequence[Row], store: KvStore) -> Sharing:
    """Find what new rows of a store share beyond what they have."""
    plan = Sharing()
    trees = [PrefixTree() for _ in range(STAGES - 1)]
    same: dict[tuple[tuple[int, ...], tuple[int, ...]], Row] = {}
    for number, row in enumerate(rows):
        own = row.ids[row.start :]
        leader = same.setdefault((row.root, tuple(own)), row)
        if leader is not row:
            plan.twins[row] = leader
            continue
        have = row.computed - row.start
        stage = 0
        for before, tree in enumerate(trees):
            entry, length = tree.find(row.root, own[:-1], row.version)
            if entry is not None and length - have >= WORTH_WAITING:
                plan.leaders[row], have, stage = (rows[entry.slot], length), length, before + 1
        plan.stage[row] = stage
        if stage < len(trees):
            trees[stage].add(Entry(store, number, row.version, row.root, own))
    return plan
