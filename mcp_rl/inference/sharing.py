"""Plan which of the rows that start together compute what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.inference.prefixes import Entry, PrefixIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.inference.cache import KvStore
    from mcp_rl.inference.row import Row

WORTH_WAITING = 32
"""Shared ids beyond the cache that are worth waiting for; fewer are computed again."""
STAGES = 4
"""Most rounds of computing in one wave."""


@dataclass
class Sharing:
    """A plan for rows that start together. Rows not named here compute all of their new ids at once."""

    twins: dict[Row, Row] = field(default_factory=dict)
    """Rows with the same ids as another row, and that row."""
    leaders: dict[Row, tuple[Row, int]] = field(default_factory=dict)
    """Rows that wait for another row, and how many of their own positions they copy from it."""
    stage: dict[Row, int] = field(default_factory=dict)
    """The round in which a row is computed, from 0."""


def plan_sharing(rows: Sequence[Row], store: KvStore) -> Sharing:
    """Plan the sharing of new rows of a store, beyond what each has already."""
    plan = Sharing()
    trees = [PrefixIndex() for _ in range(STAGES - 1)]
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
