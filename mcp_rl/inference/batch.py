"""The rows of all open episodes and the forward passes over them. Lives in the worker thread alone.

Invariant: the rows that are being sampled sit in the first slots of the store, so that a decoding step reads plain
views; rows whose episode waits for a tool keep their keys and values in the slots behind, and so do rows whose episode
is over, until their slot is needed. A row's first `computed` ids have keys and values under the version that is
sampled; the rest is forwarded when its next turn starts. A beginning that anybody holds is copied, not computed; since
that must not be seen in the result, how ids are attended over (the trunk) depends on them alone.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mcp_rl.inference.attention import TILE, Plan
from mcp_rl.inference.cache import GROWTH, KvStore, Trunk, round_up
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.prefill import Piece, group_trunks, prefill, trunk_length
from mcp_rl.inference.prefixes import Asked, Entry, PrefixTree, SlotEntries, check_stamp
from mcp_rl.inference.row import Row
from mcp_rl.inference.sampler import draw, likeliest
from mcp_rl.inference.sharing import plan_sharing

TRUNKS = 8
"""Trunks that are kept."""


@dataclass
class Stats:
    """Counters since the engine was opened."""

    prefill_tokens: int = 0
    """Given tokens that were forwarded, trunks included."""
    copied_tokens: int = 0
    """Given tokens that were not, because somebody else held an equal beginning: that depends on who came when, and on
    how long rows stay."""
    cached_tokens: int = 0
    """Given tokens of new episodes that were given before to the same policy version, from the first token on: the sum
    over episodes depends on what they are alone, not on their order."""
    decoded_tokens: int = 0
    """Sampled tokens."""
    waves: int = 0
    """Times that waiting turns were taken into the batch."""
    steps: int = 0
    """Decoding steps."""
    busy_seconds: float = 0.0
    """Time in which something was sampled, forwarded or swapped."""


class Batch:
    """Rows in slots, the first `active` of them being sampled."""

    def __init__(self, policy: Policy, stops: frozenset[int], max_rows: int) -> None:
        self.policy = policy
        self.stats = Stats()
        self.active = 0
        self.max_rows = max_rows
        self.share_sampled = True
        """Whether rows may copy keys that were computed as their ids were sampled, which takes a machine on which that
        gives the same bits as forwarding given ids."""
        self._stops = stops
        self._store = KvStore(policy.shape)
        self._slots: list[Row | None] = []
        self._free: deque[int] = deque()
        self._trunks: dict[tuple[int, ...], tuple[Trunk, Entry]] = {}
        self._tree = PrefixTree()
        self._held = SlotEntries(self._tree)
        self._asked = Asked(self._store)
        self._groups: list[tuple[Trunk, Tensor | None]] | None = None
        self._version = policy.version
        """That of all that is being sampled."""

    @property
    def room(self) -> int:
        """How many rows more can get a slot."""
        return self.max_rows - len(self._slots) + len(self._free)

    def clear(self) -> None:
        """Forget every key and value, and stop sampling."""
        self.active = 0
        self._trunks.clear()
        self._tree.clear()
        self._asked.clear()
        self._held.clear()
        for row in self._slots:
            if row is not None:
                row.version = -1
        if not any(self._slots):
            self._slots.clear()
            self._free.clear()

    def release(self, row: Row) -> None:
        """Give the row's slot back; what it computed stays until the slot is needed."""
        self.drop(row)
        if row.slot >= 0:
            self._slots[row.slot] = None
            self._free.append(row.slot)
            row.slot = -1

    def drop(self, row: Row) -> None:
        """Stop sampling a row, if it is being sampled."""
        if 0 <= row.slot < self.active:
            self._retire([row])

    def start(self, rows: Sequence[Row]) -> list[Row]:
        """Take rows with a new turn into the batch and sample the first token of each; returns those that ended."""
        self.stats.waves += 1
        for row in rows:
            row.copied = 0
        fresh = [row for row in rows if self._renew(row)]
        found = {row: self._find(row) for row in fresh}
        for row in rows:
            if row.slot < 0:
                self._seat(row)
        self._store.reserve(len(self._slots), max(len(row.ids) - row.start for row in rows))
        self._fetch({row: source for row, source in found.items() if source[1]})
        self._activate(rows)
        logits = self._forward(rows, fresh)
        for row in rows:
            self._hold(row)
        for row in fresh:
            self.stats.cached_tokens += self._asked.count(row.ids)
        return self._sample(rows, logits)

    def step(self) -> list[Row]:
        """Sample one more token for every active row; returns those that ended."""
        rows = self.sampled_rows()
        check_stamp(self._version, self.policy.version)
        lengths, starts = [len(row.ids) for row in rows], [row.start for row in rows]
        own = [length - start - 1 for length, start in zip(lengths, starts, strict=True)]
        self._store.reserve(len(self._slots), max(own) + 1)
        padding = [0] * (round_up(len(rows), TILE) - len(rows))
        columns = [row.ids[-1] for row in rows], [length - 1 for length in lengths], own
        ids, positions, last = torch.tensor([[*c, *padding] for c in columns]).to(self.policy.shape.device)
        plan = self._decode_plan(last[: len(rows)], max(own) + 1, max(lengths))
        logits = self.policy.logits(ids, positions, plan, None)
        for row in rows:
            row.computed += 1
        self.stats.steps += 1
        return self._sample(rows, logits[: len(rows)])

    def sampled_rows(self) -> list[Row]:
        """The rows that are being sampled, in slot order."""
        return [row for row in self._slots[: self.active] if row is not None]

    def _decode_plan(self, last: Tensor, longest: int, reach: int) -> Plan:
        """last: [rows], the place of each row's newest token among its own."""
        shape, store, count = self.policy.shape, self._store, len(last)
        length = min(round_up(longest, 32), store.capacity)
        lines = torch.arange(count * shape.kv_heads, device=shape.device) * store.capacity
        if self._groups is None:
            self._groups = group_trunks([(row.trunk, 1) for row in self.sampled_rows()], shape.device)
        write = lines + last.repeat_interleave(shape.kv_heads)
        return Plan(store, count, write, last, length, reach, self._groups)

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> list[Row]:
        asked = [row.turn.sampling for row in rows if row.turn is not None]
        temperatures = [sampling.temperature for sampling in asked]
        ids, logprobs = draw(logits, temperatures, [row.uniform() for row in rows])
        top = likeliest(logits, temperatures, max(sampling.top_logprobs for sampling in asked))
        self.stats.decoded_tokens += len(rows)
        sampled = zip(rows, ids, logprobs, top, strict=True)
        ended = [row for row, token, logprob, best in sampled if row.append(token, logprob, best)]
        if ended:
            self._retire(ended)
        return ended

    def keys_and_values(self, row: Row) -> Tensor:
        """What is stored of the row's own ids: [layers, 2, kv_heads, positions, head_dim]."""
        return self._store.data[:, :, row.slot, :, : row.computed - row.start].clone()

    def _check(self, rows: Sequence[Row]) -> None:
        """Nothing is read that another policy version computed: not by these rows, nor by those that they join."""
        if self.active > len(rows):
            check_stamp(self._version, self.policy.version)
        self._version = self.policy.version
        for row in rows:
            check_stamp(row.version, self.policy.version)
            if row.trunk is not None:
                check_stamp(row.trunk.version, self.policy.version)

    def _renew(self, row: Row) -> bool:
        """Give the row its trunk and forget what another version computed; True where nothing of its own is left."""
        if row.version != self.policy.version:
            row.version, row.computed, row.trunk = self.policy.version, 0, None
            self._held.forget(row.slot)
        if row.computed:
            return False
        row.opening = row.opening or len(row.ids)
        before = self.stats.copied_tokens
        row.trunk = self._trunk(row.ids[: row.opening])
        row.copied = self.stats.copied_tokens - before
        row.computed = row.start
        row.given = len(row.ids)
        return True

    def _trunk(self, ids: list[int]) -> Trunk | None:
        length = trunk_length(ids, self._stops)
        if not length:
            return None
        key, version = tuple(ids[:length]), self.policy.version
        known = self._trunks.pop(key, None)
        if known is not None:
            self.stats.copied_tokens += length
        else:
            source, have = self._tree.find((), key[:-1], version)
            store = KvStore(self.policy.shape, 1, round_up(length, GROWTH))
            if source is not None:
                store.take(0, source.store, source.slot, have)
            prefill(self.policy, store, [Piece(0, have, have, list(key[have:]), None)])
            self.stats.copied_tokens += have
            self.stats.prefill_tokens += length - have
            known = Trunk(key, store, version), Entry(store, 0, version, (), list(key))
            self._tree.add(known[1])
        self._trunks[key] = known  # the newest is the last
        if len(self._trunks) > TRUNKS:
            self._tree.remove(self._trunks.pop(next(iter(self._trunks)))[1])
        return known[0]

    def _find(self, row: Row) -> tuple[Entry | None, int]:
        """Who holds most of the row's own ids, the last one left out, since it has to be forwarded."""
        return self._tree.find(row.root, row.ids[row.start : -1], self.policy.version)

    def _seat(self, row: Row) -> None:
        """Give the row a slot: an unused one where there is memory for it, else the one that was free for longest."""
        if self._free and len(self._slots) >= min(self.max_rows, self._store.rows):
            row.slot = self._free.popleft()
            self._held.forget(row.slot)
        else:
            row.slot = len(self._slots)
            self._slots.append(None)
        self._slots[row.slot] = row

    def _fetch(self, sources: dict[Row, tuple[Entry | None, int]]) -> None:
        """Copy what was found. Sources may lie in slots that now belong to rows of this very wave."""
        here = [
            (row, entry, n) for row, (entry, n) in sources.items() if entry is not None and entry.store is self._store
        ]
        length = max((n for _, _, n in here), default=0)
        self._store.move([entry.slot for _, entry, _ in here], [row.slot for row, _, _ in here], length)
        for row, (entry, length) in sources.items():
            if entry is not None and entry.store is not self._store:
                self._store.take(row.slot, entry.store, entry.slot, length)
            row.computed = row.start + length
            row.copied += length
            self.stats.copied_tokens += length

    def _hold(self, row: Row) -> None:
        """Let others find what the row has computed."""
        end = row.computed if self.share_sampled else min(row.computed, row.given)
        self._held.put(Entry(self._store, row.slot, row.version, row.root, row.ids[row.start : end]))

    def _activate(self, rows: Sequence[Row]) -> None:
        """Bring the rows into the slots right after the active ones."""
        end = self.active + len(rows)
        chosen = set(rows)
        holes = [slot for slot in range(self.active, end) if self._slots[slot] not in chosen]
        self._swap([(row.slot, hole) for row, hole in zip([r for r in rows if r.slot >= end], holes, strict=True)])
        self.active = end
        self._groups = None

    def _retire(self, rows: Sequence[Row]) -> None:
        """Move rows out of the active slots; the last active ones take their places."""
        for row in rows:
            self._hold(row)
        end = self.active - len(rows)
        leaving = {row.slot for row in rows}
        staying = [slot for slot in range(end, self.active) if slot not in leaving]
        self._swap(list(zip(staying, sorted(slot for slot in leaving if slot < end), strict=True)))
        self.active = end
        self._groups = None

    def _swap(self, pairs: list[tuple[int, int]]) -> None:
        """Exchange the contents of disjoint pairs of slots."""
        length = max((self._stored(slot) for pair in pairs for slot in pair), default=0)
        self._store.move([s for pair in pairs for s in pair], [s for a, b in pairs for s in (b, a)], length)
        there = dict(pairs) | {b: a for a, b in pairs}
        if not there:
            return
        for a, b in pairs:
            self._slots[a], self._slots[b] = self._slots[b], self._slots[a]
            for slot in (a, b):
                if (row := self._slots[slot]) is not None:
                    row.slot = slot
        self._held.exchange(there)
        self._free = deque(there.get(slot, slot) for slot in self._free)

    def _stored(self, slot: int) -> int:
        """Positions of a slot that somebody may still need: its row's, or those that others may copy."""
        row = self._slots[slot]
        return len(row.ids) - row.start if row is not None else self._held.length(slot)

    def _forward(self, rows: Sequence[Row], fresh: Sequence[Row]) -> Tensor:
        """Compute what is new in each row, what new rows share only once; logits after the last id of each row."""
        self._check(rows)
        plan = plan_sharing(fresh, self._store)
        lines: dict[Row, Tensor] = {}
        for stage in range(max(plan.stage.values(), default=0) + 1):
            now = [row for row in rows if plan.stage.get(row, 0) == stage and row not in plan.twins]
            self._copy({row: plan.leaders[row] for row in now if row in plan.leaders})
            lines |= zip(now, self._prefill(now), strict=True)
        self._copy({row: (leader, len(row.ids) - row.start) for row, leader in plan.twins.items()})
        return torch.stack([lines[plan.twins.get(row, row)] for row in rows])

    def _copy(self, leaders: dict[Row, tuple[Row, int]]) -> None:
        """Give rows the first own positions of their leader."""
        length = max((length for _, length in leaders.values()), default=0)
        self._store.move([leader.slot for leader, _ in leaders.values()], [row.slot for row in leaders], length)
        for row, (_, length) in leaders.items():
            row.copied += row.start + length - row.computed
            self.stats.copied_tokens += row.start + length - row.computed
            row.computed = row.start + length

    def _prefill(self, rows: Sequence[Row]) -> Tensor:
        pieces = []
        for row in rows:
            new = row.ids[row.computed :]
            pieces.append(Piece(row.slot, row.computed - row.start, row.computed, new, row.trunk))
            self.stats.prefill_tokens += len(new)
            row.computed = len(row.ids)
        return prefill(self.policy, self._store, pieces)
