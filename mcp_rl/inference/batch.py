"""The rows of all open episodes and the forward passes over them. Lives in the worker thread alone.

Invariant: the rows that are being sampled sit in the first slots of the store, so that a decoding step reads plain
views; rows whose episode waits for a tool keep their keys and values in the slots behind. A row's first `computed`
ids have keys and values under the version that is sampled; the rest is forwarded when its next turn starts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mcp_rl.inference.attention import TILE, Plan
from mcp_rl.inference.cache import KvStore, PromptIndex, Trunk, round_up
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.prefill import Piece, group_trunks, prefill, trunk_length
from mcp_rl.inference.sampler import Draws, draw


@dataclass
class Stats:
    """Counters since the engine was opened."""

    prefill_tokens: int = 0
    """Given tokens that were forwarded, trunks included."""
    cached_tokens: int = 0
    """Given tokens that were not, because an equal beginning was in the cache."""
    decoded_tokens: int = 0
    """Sampled tokens."""
    waves: int = 0
    """Times that waiting turns were taken into the batch."""
    steps: int = 0
    """Decoding steps."""


@dataclass(eq=False)
class Turn:
    """What a row is asked to sample now, and what it has sampled so far."""

    sampling: Sampling
    limit: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""


@dataclass(eq=False)
class Row:
    """The engine's side of one episode."""

    order: int
    draws: Draws
    ids: list[int] = field(default_factory=list)
    computed: int = 0
    version: int = -1
    trunk: Trunk | None = None
    slot: int = -1
    turn: Turn | None = None

    @property
    def start(self) -> int:
        """Absolute position of the first token in the row's own slot."""
        return self.trunk.length if self.trunk else 0

    def append(self, token: int, logprob: float, stops: frozenset[int]) -> bool:
        """Take a sampled token; True where it ends the turn."""
        turn = self.turn
        assert turn is not None
        self.ids.append(token)
        turn.ids.append(token)
        turn.logprobs.append(logprob)
        turn.finish = "stop" if token in stops else "length" if len(turn.ids) >= turn.limit else ""
        return bool(turn.finish)


class Batch:
    """Rows in slots, the first `active` of them being sampled."""

    def __init__(self, policy: Policy, stops: frozenset[int], max_rows: int) -> None:
        self.policy = policy
        self.stats = Stats()
        self.active = 0
        self.max_rows = max_rows
        self._stops = stops
        self._store = KvStore(policy.shape)
        self._slots: list[Row | None] = []
        self._free: deque[int] = deque()
        self._trunks: dict[tuple[int, ...], Trunk] = {}
        self._prompts = PromptIndex()
        self._groups: list[tuple[Trunk, Tensor | None]] | None = None

    @property
    def room(self) -> int:
        """How many rows more can get a slot."""
        return self.max_rows - len(self._slots) + len(self._free)

    def clear(self) -> None:
        """Forget every key and value, and stop sampling."""
        self.active = 0
        self._trunks.clear()
        self._prompts.clear()
        for row in self._slots:
            if row is not None:
                row.version = -1

    def release(self, row: Row) -> None:
        """Give the row's slot back; what it computed for its prompt stays until the slot is needed."""
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
        fresh = [row for row in rows if self._renew(row)]
        leaders: dict[tuple[int, ...], Row] = {}
        for row in rows:
            if row.slot < 0:
                self._seat(row)
        self._store.reserve(len(self._slots), max(len(row.ids) - row.start for row in rows))
        for row in fresh:
            self._adopt(row, leaders)
        self._activate(rows)
        originals = {row: leader for row in fresh if (leader := leaders[tuple(row.ids)]) is not row}
        firsts = [row for row in rows if row not in originals]
        logits = self._prefill(firsts)
        if originals:
            self._copy(originals)
            place = {row: i for i, row in enumerate(firsts)}
            logits = logits[[place[originals.get(row, row)] for row in rows]]
        return self._sample(rows, logits)

    def step(self) -> list[Row]:
        """Sample one more token for every active row; returns those that ended."""
        rows = self.sampled_rows()
        ids, positions, own = zip(*((r.ids[-1], len(r.ids) - 1, len(r.ids) - 1 - r.start) for r in rows), strict=True)
        longest = max(own) + 1
        self._store.reserve(len(self._slots), longest)
        plan = self._decode_plan(list(own), longest)
        padding = [0] * (round_up(len(rows), TILE) - len(rows))
        device = self.policy.shape.device
        logits = self.policy.logits(
            torch.tensor([*ids, *padding], device=device),
            torch.tensor([*positions, *padding], device=device),
            plan,
            None,
        )
        for row in rows:
            row.computed += 1
        self.stats.steps += 1
        return self._sample(rows, logits[: len(rows)])

    def sampled_rows(self) -> list[Row]:
        """The rows that are being sampled, in slot order."""
        return [row for row in self._slots[: self.active] if row is not None]

    def _decode_plan(self, own: list[int], longest: int) -> Plan:
        shape, store, count = self.policy.shape, self._store, len(own)
        length = min(round_up(longest, 32), store.capacity)
        last = torch.tensor(own, device=shape.device)
        lines = torch.arange(count * shape.kv_heads, device=shape.device) * store.capacity
        mask = torch.zeros(count, 1, length, device=shape.device)
        mask.masked_fill_(torch.arange(length, device=shape.device) > last[:, None, None], -torch.inf)
        if self._groups is None:
            self._groups = group_trunks([(row.trunk, 1) for row in self.sampled_rows()], shape.device)
        write = lines + last.repeat_interleave(shape.kv_heads)
        return Plan(store, count, write, mask, length, self._groups)

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> list[Row]:
        temperatures = [row.turn.sampling.temperature for row in rows if row.turn is not None]
        ids, logprobs = draw(logits, temperatures, [row.draws.next() for row in rows])
        self.stats.decoded_tokens += len(rows)
        pairs = zip(rows, ids, logprobs, strict=True)
        ended = [row for row, token, logprob in pairs if row.append(token, logprob, self._stops)]
        if ended:
            self._retire(ended)
        return ended

    def _renew(self, row: Row) -> bool:
        """Give the row its trunk and forget what another version computed; True where nothing of its own is left."""
        if row.version != self.policy.version:
            row.version, row.computed, row.trunk = self.policy.version, 0, None
        if row.computed:
            return False
        row.trunk = self._trunk(row.ids)
        row.computed = row.start
        return True

    def _trunk(self, ids: list[int]) -> Trunk | None:
        length = trunk_length(ids, self._stops)
        if not length:
            return None
        key = tuple(ids[:length])
        if key in self._trunks:
            self.stats.cached_tokens += length
        else:
            store = KvStore(self.policy.shape, 1, length)
            prefill(self.policy, store, [Piece(0, 0, 0, list(key), None)])
            self.stats.prefill_tokens += length
            self._trunks[key] = Trunk(key, store)
            if len(self._trunks) > 8:
                del self._trunks[next(iter(self._trunks))]
        return self._trunks[key]

    def _seat(self, row: Row) -> None:
        if self._free:
            row.slot = self._free.popleft()
        else:
            row.slot = len(self._slots)
            self._slots.append(None)
        self._slots[row.slot] = row

    def _adopt(self, row: Row, leaders: dict[tuple[int, ...], Row]) -> None:
        """Find who has, or will now compute, the same ids; the first of the wave leads the others."""
        key = tuple(row.ids)
        source = self._prompts.find(key)
        self._prompts.forget(row.slot)
        if key in leaders:
            return
        leaders[key] = row
        if source is not None and len(row.ids) - 1 > row.start:
            self._store.move([source], [row.slot], len(row.ids) - row.start)
            self.stats.cached_tokens += len(row.ids) - 1 - row.computed
            row.computed = len(row.ids) - 1
        self._prompts.put(key, row.slot)

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
        self._prompts.exchange(there)
        self._free = deque(there.get(slot, slot) for slot in self._free)

    def _stored(self, slot: int) -> int:
        """Positions of a slot that somebody may still need: its row's, else those of a prompt that is kept there."""
        if (row := self._slots[slot]) is not None:
            return len(row.ids) - row.start
        prompt = self._prompts.held_by(slot)
        return len(prompt) - trunk_length(prompt, self._stops) if prompt else 0

    def _copy(self, originals: dict[Row, Row]) -> None:
        """Give rows what their leader has computed for the same ids."""
        length = max(len(row.ids) - row.start for row in originals)
        self._store.move([row.slot for row in originals.values()], [row.slot for row in originals], length)
        for row in originals:
            self.stats.cached_tokens += len(row.ids) - row.computed
            row.computed = len(row.ids)

    def _prefill(self, rows: Sequence[Row]) -> Tensor:
        pieces = []
        for row in rows:
            new = row.ids[row.computed :]
            pieces.append(Piece(row.slot, row.computed - row.start, row.computed, new, row.trunk))
            self.stats.prefill_tokens += len(new)
            row.computed = len(row.ids)
        return prefill(self.policy, self._store, pieces)
