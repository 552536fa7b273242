"""The rows of all open episodes and the forward passes over them. Used by the worker thread alone.

Rows keep the slots that they get, also while their episode waits for a tool and, until the slots are needed, when it is
over. Only where torch computes are slots exchanged, so that the rows being sampled occupy the first ones: a decoding
step then reads plain views. A row's first `computed` ids have keys and values under the sampled version; the rest is
forwarded when its next turn starts. A beginning that any slot holds is copied, not computed; since that must not change
the result, the way that ids are attended over (the trunk) depends on them alone.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcp_rl.inference.attention import AttentionPlan, TokenGroup
from mcp_rl.inference.cache import GROWTH, KvStore, Trunk, round_up
from mcp_rl.inference.drafts import LOGITS, MOST, Drafts, Pace
from mcp_rl.inference.grouping import decoding_groups, in_order, width
from mcp_rl.inference.native.compiling import PAGE
from mcp_rl.inference.native.guesses import NOTHING
from mcp_rl.inference.native_turns import NativeTurns
from mcp_rl.inference.prefill import Piece, forward_all, group_trunks, prefill, trunk_length
from mcp_rl.inference.prefixes import Entry, PrefixIndex, SeenPrefixes, SlotEntries, check_stamp
from mcp_rl.inference.products import TILE
from mcp_rl.inference.sampler import draw, likeliest
from mcp_rl.inference.sharing import plan_sharing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mcp_rl.inference.native.model import NativeForward
    from mcp_rl.inference.policy import Policy
    from mcp_rl.inference.row import Row

TRUNKS = 8
"""Most trunks that are kept."""


@dataclass
class EngineStats:
    """Counters since the engine was opened."""

    prefill_tokens: int = 0
    """Given tokens that were forwarded, including trunks."""
    copied_tokens: int = 0
    """Given tokens that were copied from equal beginnings instead. Depends on the order of episodes, and on how long
    rows stay."""
    cached_tokens: int = 0
    """Given tokens of new episodes, from the first on, that had been given to the same policy version before. The sum
    depends on the episodes alone, not on their order."""
    decoded_tokens: int = 0
    """Sampled tokens."""
    waves: int = 0
    """Number of times that waiting turns were taken into the batch."""
    steps: int = 0
    """Number of decoding steps."""
    guessed_tokens: int = 0
    """Tokens that were forwarded as a guess. Depends on the order of episodes."""
    accepted_tokens: int = 0
    """Guessed tokens that were then sampled."""
    busy_seconds: float = 0.0
    """Time spent sampling, forwarding or swapping."""


class DecodingBatch:
    """Rows in slots, `active` of them being sampled."""

    def __init__(self, policy: Policy, stops: frozenset[int], max_rows: int) -> None:
        self.policy = policy
        self.stats = EngineStats()
        self.max_rows = max_rows
        self.share_sampled = True
        """True if rows may copy keys that were computed while their ids were sampled: only on machines where forwarding
        given ids gives the same bits."""
        self.drafts: Drafts | None = None
        """Guesses of the next ids, checked several at once; None: every step samples one id of each row."""
        self.pace = Pace()
        self._stops = stops
        self._ends = np.array(sorted(stops), np.int64)
        self._store = KvStore(policy.shape)
        self._slots: list[Row | None] = []
        self._sampled: set[Row] = set()
        self._free: deque[int] = deque()
        self._trunks: dict[tuple[int, ...], tuple[Trunk, Entry]] = {}
        self._tree = PrefixIndex()
        self._held = SlotEntries(self._tree)
        self._asked = SeenPrefixes(self._store)
        self._order: list[Row] = []
        """Active rows in the order of the tokens of a decoding step."""
        self._groups: list[tuple[int, int, list[tuple[Trunk, Tensor | None]]]] | None = None
        """For each group its first row, one past its last row, and the trunks that its rows attend to."""
        self._turns: NativeTurns | None = None
        """The turns of the active rows, for native decoding; None once rows have come, gone or moved."""
        self._last: dict[tuple[int, int], TokenGroup] = {}
        """The groups of the last decoding step, by first and one past the last row."""
        self._version = policy.version
        """Policy version of all active rows."""

    @property
    def active(self) -> int:
        """Number of rows being sampled."""
        return len(self._sampled)

    @property
    def room(self) -> int:
        """Number of further rows that can get a slot."""
        return self.max_rows - len(self._slots) + len(self._free)

    def clear(self) -> None:
        """Discard all keys and values, and stop sampling."""
        self._sampled.clear()
        self._last.clear()
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
        """Free the row's slot; its contents stay until the slot is needed."""
        self.drop(row)
        if row.slot >= 0:
            self._slots[row.slot] = None
            self._free.append(row.slot)
            row.slot = -1

    def drop(self, row: Row) -> None:
        """Stop sampling a row, if it is being sampled."""
        if row in self._sampled:
            self._retire([row])

    def start(self, rows: Sequence[Row]) -> list[Row]:
        """Take rows with a new turn into the batch and sample a first token for each; return those that ended."""
        self.stats.waves += 1
        for row in rows:
            row.copied = 0
        fresh = [row for row in rows if self._renew(row)]
        found = {row: self._find(row) for row in fresh}
        for row in rows:
            if row.slot < 0:
                self._seat(row)
        self._reserve(max(len(row.ids) - row.start for row in rows), found.values())
        self._fetch({row: source for row, source in found.items() if source[1]})
        self._activate(rows)
        logits = self._forward(rows, fresh)
        for row in rows:
            self._hold(row)
        for row in fresh:
            self.stats.cached_tokens += self._asked.count(row.ids)
        return self._sample(rows, logits)

    def step(self) -> list[Row]:
        """Sample one or more tokens for every active row; return those that ended."""
        check_stamp(self._version, self.policy.version)
        began, ids, passes = time.perf_counter(), self.stats.decoded_tokens, self.stats.steps
        active = self.active
        guessing = self.drafts is not None and self.pace.guesses(active)
        if self.policy.native is not None:
            ended, guessing = self._natively(self.policy.native, guessing)
        else:
            guesses = self._guesses() if guessing else None
            guessing = guesses is not None
            ended = self._one_more() if guesses is None else self._check_guesses(guesses)
            self.stats.steps += 1
        ids, passes = self.stats.decoded_tokens - ids, self.stats.steps - passes
        self.pace.took(active, guessing, time.perf_counter() - began, ids, passes)
        return ended

    def _one_more(self) -> list[Row]:
        """Sample one more token for every active row; return those that ended."""
        if self._groups is None:
            self._groups = self._grouped()
        rows = self._order
        positions = [len(row.ids) - 1 for row in rows]
        own = [position - row.start for position, row in zip(positions, rows, strict=True)]
        self._reserve(max(own) + 1)
        padding = [0] * (round_up(len(rows), TILE) - len(rows))
        columns = [row.ids[-1] for row in rows], positions, own
        ids, places, last = torch.tensor([[*c, *padding] for c in columns]).to(self.policy.shape.device)
        plan = self._decode_plan(rows, last[: len(rows)], own, max(positions) + 1)
        logits = self.policy.logits(ids, places, plan, None)
        for row in rows:
            row.computed += 1
        return self._sample(rows, logits[: len(rows)])

    def _natively(self, native: NativeForward, guessing: bool) -> tuple[list[Row], bool]:
        """Sample for every active row in one call; return the rows that ended, and whether it guessed."""
        if self._turns is None:
            self._turns = NativeTurns(self.sampled_rows())
        rows, places = self._turns.rows, self._turns.places
        if self._turns.with_likeliest:  # which are found in the logits
            self._reserve(max(len(row.ids) - row.start for row in rows))
            tokens = places.tokens([row.ids[-1] for row in rows], [len(row.ids) - 1 for row in rows])
            logits = native.logits(self._store, tokens, places.trunks)
            for row in rows:
                row.computed += 1
            self.stats.steps += 1
            return self._sample(rows, logits), False
        passes, most = self.pace.passes(len(rows), guessing), self._most_guesses() if guessing else 0
        turns = self._turns.arrays(passes * (1 + most))
        self._reserve(int((turns.positions - turns.starts + turns.limits).max()))
        followers = self.drafts.followers if self.drafts is not None else NOTHING
        native.decode(self._store, turns, places.trunks, followers, self._ends, passes=passes, most=most)
        if self.drafts is not None:
            self.drafts.take_in(turns.ids, turns.counts)
        ended, sampled = self._turns.take_in(turns)
        self.stats.decoded_tokens += sampled
        self.stats.steps += int(turns.passes.max())
        if most:
            self.stats.guessed_tokens += int(turns.guessed.sum())
            self.stats.accepted_tokens += int((turns.counts - turns.passes).sum())
        if ended:
            self._retire(ended)
        return ended, guessing

    def _most_guesses(self) -> int:
        return max(min(MOST, LOGITS // self.policy.vocabulary // self.active - 1), 0)

    def _guesses(self) -> dict[Row, list[int]] | None:
        """Return ids that may follow in each active row; None if there are none."""
        drafts, most, found = self.drafts, self._most_guesses(), {}
        for row in self.sampled_rows():
            assert drafts is not None
            found[row] = drafts.guess(row.ids, min(most, row.left - 1))  # none beyond the turn's last one
        return found if any(found.values()) else None

    def _check_guesses(self, guesses: Mapping[Row, list[int]]) -> list[Row]:
        """Forward the newest token of each row with the guess behind it; keep what is sampled up to the first token
        that was not guessed. Return the rows that ended."""
        pieces = [
            Piece(row.slot, row.computed - row.start, row.computed, [row.ids[-1], *guess], row.trunk)
            for row, guess in guesses.items()
        ]
        self._reserve(max(piece.own + len(piece.ids) for piece in pieces))
        logits = forward_all(self.policy, self._store, pieces)
        rows = [row for row, guess in guesses.items() for _ in range(1 + len(guess))]
        uniforms = [number for row, guess in guesses.items() for number in row.randomness.take(1 + len(guess)).tolist()]
        sampled = iter(self._draw(rows, logits, uniforms))
        ended = []
        for row, guess in guesses.items():
            count, kept = 1 + len(guess), 0
            for wanted, (token, logprob, best) in zip([*guess, None], list(islice(sampled, count)), strict=True):
                row.computed += 1
                kept += 1
                if self._append(row, token, logprob, best):
                    ended.append(row)
                    break
                if token != wanted:
                    break
            row.randomness.give_back(count - kept)
            self.stats.decoded_tokens += kept
            self.stats.guessed_tokens += len(guess)
            self.stats.accepted_tokens += kept - 1
        if ended:
            self._retire(ended)
        return ended

    def sampled_rows(self) -> list[Row]:
        """The rows being sampled, in slot order."""
        return sorted(self._sampled, key=lambda row: row.slot)

    def _grouped(self) -> list[tuple[int, int, list[tuple[Trunk, Tensor | None]]]]:
        """Group the active rows by length. They are moved so that they are sorted, if that pays off."""
        device, rows = self.policy.shape.device, self.sampled_rows()
        if (order := in_order([len(row.ids) - row.start for row in rows])) is not None:
            self._exchange({old: new for new, old in enumerate(order) if new != old})
            rows = self.sampled_rows()
        self._order, lengths = rows, [len(row.ids) - row.start for row in rows]
        return [
            (start, stop, group_trunks([(row.trunk, 1) for row in rows[start:stop]], device))
            for start, stop in decoding_groups(lengths)
        ]

    def _decode_plan(self, rows: Sequence[Row], last: Tensor, own: Sequence[int], reach: int) -> AttentionPlan:
        """last, own: [rows], the place of each row's newest token in its slot."""
        store = self._store
        slots, groups = torch.tensor([row.slot for row in rows], device=last.device), []
        for start, stop, trunks in self._groups or ():
            length = min(round_up(max(own[start:stop]) + 1, PAGE), store.capacity)
            groups.append(group := TokenGroup(store, start, last[start:stop], length, reach, trunks))
            before = self._last.get((start, stop))
            if before is not None and before.length == length and before.trunks is trunks:
                group.reuse(before)
        self._last = {(group.start, group.stop): group for group in groups}
        return AttentionPlan(store, len(own), store.where(slots, last), groups)

    def _sample(self, rows: Sequence[Row], logits: Tensor) -> list[Row]:
        sampled = self._draw(rows, logits, [row.randomness.next() for row in rows])
        self.stats.decoded_tokens += len(rows)
        ended = [row for row, one in zip(rows, sampled, strict=True) if self._append(row, *one)]
        if ended:
            self._retire(ended)
        return ended

    def _draw(
        self, rows: Sequence[Row], logits: Tensor, uniforms: Sequence[float]
    ) -> list[tuple[int, float, list[tuple[int, float]]]]:
        """Return a token for each row (which may be there several times), its log-probability, and the most likely
        tokens."""
        asked = [row.sampling for row in rows]
        temperatures = [sampling.temperature for sampling in asked]
        ids, logprobs = draw(logits, temperatures, uniforms)
        if most := max(sampling.top_logprobs for sampling in asked):
            top = likeliest(logits, temperatures, min(most, self.policy.vocabulary))
            return list(zip(ids, logprobs, top, strict=True))
        return [(token, logprob, []) for token, logprob in zip(ids, logprobs, strict=True)]

    def _append(self, row: Row, token: int, logprob: float, top: list[tuple[int, float]]) -> bool:
        row.extend([token], [logprob], [top])
        if self.drafts is not None:
            self.drafts.learn(row.ids)
        return row.ended

    def keys_and_values(self, row: Row) -> Tensor:
        """Copy what is stored for the row's own ids: [layers, 2, kv_heads, positions, head_dim]."""
        length = row.computed - row.start
        layers = range(self.policy.shape.layers)
        keys = [self._store.keys(layer, row.slot, length).transpose(1, 2) for layer in layers]
        values = [self._store.values(layer, row.slot, length) for layer in layers]
        return torch.stack([torch.stack(keys), torch.stack(values)], 1)

    def _check(self, rows: Sequence[Row]) -> None:
        """Raise CanaryError if these rows, or those that they join, would read another policy version's results."""
        if self.active > len(rows):
            check_stamp(self._version, self.policy.version)
        self._version = self.policy.version
        for row in rows:
            check_stamp(row.version, self.policy.version)
            if row.trunk is not None:
                check_stamp(row.trunk.version, self.policy.version)

    def _renew(self, row: Row) -> bool:
        """Give the row its trunk and discard another version's results; return True if nothing of its own is left."""
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
        """Find the entry that holds most of the row's own ids, except the last one, which must be forwarded."""
        return self._tree.find(row.root, row.ids[row.start : -1], self.policy.version)

    def _seat(self, row: Row) -> None:
        """Give the row a slot: a new one if the store has memory for it, else the one that was free for longest."""
        if self._free and len(self._slots) >= min(self.max_rows, self._store.rows):
            row.slot = self._free.popleft()
            self._held.forget(row.slot)
        else:
            row.slot = len(self._slots)
            self._slots.append(None)
        self._slots[row.slot] = row

    def _fetch(self, sources: dict[Row, tuple[Entry | None, int]]) -> None:
        """Copy the found beginnings. Sources may lie in slots that now belong to rows of the same wave."""
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
        """Let other rows find what the row has computed."""
        end = row.computed if self.share_sampled else min(row.computed, row.given)
        self._held.put(Entry(self._store, row.slot, row.version, row.root, row.ids[row.start : end]))

    def _activate(self, rows: Sequence[Row]) -> None:
        """Sample these rows too."""
        if self.policy.native is None:
            end = self.active + len(rows)
            chosen = set(rows)
            holes = [slot for slot in range(self.active, end) if self._slots[slot] not in chosen]
            self._swap([(row.slot, hole) for row, hole in zip([r for r in rows if r.slot >= end], holes, strict=True)])
        self._sampled.update(rows)
        self._groups = self._turns = None

    def _retire(self, rows: Sequence[Row]) -> None:
        """Sample these rows no more."""
        for row in rows:
            self._hold(row)
        if self.policy.native is None:  # the last active rows take their places
            end = self.active - len(rows)
            leaving = {row.slot for row in rows}
            staying = [slot for slot in range(end, self.active) if slot not in leaving]
            self._swap(list(zip(staying, sorted(slot for slot in leaving if slot < end), strict=True)))
        self._sampled.difference_update(rows)
        self._groups = self._turns = None

    def _swap(self, pairs: list[tuple[int, int]]) -> None:
        """Exchange the contents of disjoint pairs of slots."""
        self._exchange(dict(pairs) | {b: a for a, b in pairs})

    def _exchange(self, there: dict[int, int]) -> None:
        """Bring the contents of each slot to another (a permutation)."""
        by_width: dict[int, list[int]] = {}
        for slot in there:
            if stored := self._stored(slot):
                by_width.setdefault(min(width(stored), self._store.capacity), []).append(slot)
        self._store.carry([(slots, [there[slot] for slot in slots], wide) for wide, slots in by_width.items()])
        moved = {new: self._slots[old] for old, new in there.items()}
        for slot, row in moved.items():
            self._slots[slot] = row
            if row is not None:
                row.slot = slot
        self._held.exchange(there)
        self._free = deque(there.get(slot, slot) for slot in self._free)

    def _reserve(self, capacity: int, found: Iterable[tuple[Entry | None, int]] = ()) -> None:
        """Make room for so many positions of each row. What was `found` may lie in slots that have new rows already."""
        kept: dict[int, int] = defaultdict(int)
        for entry, length in found:
            if entry is not None and entry.store is self._store:
                kept[entry.slot] = max(kept[entry.slot], length)
        self._store.reserve(len(self._slots), capacity, lambda slot: max(self._stored(slot), kept[slot]))

    def _stored(self, slot: int) -> int:
        """Number of positions of a slot still in use: its row's, or those that can be copied."""
        row = self._slots[slot]
        return len(row.ids) - row.start if row is not None else self._held.length(slot)

    def _forward(self, rows: Sequence[Row], fresh: Sequence[Row]) -> Tensor:
        """Compute the new ids of each row, shared ones only once; return logits after the last id of each row."""
        self._check(rows)
        plan = plan_sharing(fresh, self._store)
        parts: list[Tensor] = []
        lines: dict[Row, int] = {}
        for stage in range(max(plan.stage.values(), default=0) + 1):
            now = [row for row in rows if plan.stage.get(row, 0) == stage and row not in plan.twins]
            self._copy({row: plan.leaders[row] for row in now if row in plan.leaders})
            parts.append(self._prefill(now))
            lines |= {row: len(lines) + number for number, row in enumerate(now)}
        self._copy({row: (leader, len(row.ids) - row.start) for row, leader in plan.twins.items()})
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        wanted = [lines[plan.twins.get(row, row)] for row in rows]
        if wanted == list(range(len(logits))):
            return logits
        return logits.index_select(0, torch.tensor(wanted, device=logits.device))

    def _copy(self, leaders: dict[Row, tuple[Row, int]]) -> None:
        """Copy to rows the first positions of their leader."""
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
