"""Forward given tokens: pieces of any length from many rows, packed without padding into few passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from mcp_rl.inference.attention import AttentionPlan, TokenGroup
from mcp_rl.inference.cache import KvStore, Trunk, round_up
from mcp_rl.inference.grouping import given_groups, is_alone, width
from mcp_rl.inference.native.compiling import PAGE
from mcp_rl.inference.native.model import TokenPlaces
from mcp_rl.inference.products import TILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.inference.native.model import NativeForward
    from mcp_rl.inference.policy import Policy

CHUNK = 512
"""Most tokens of one piece in one pass; bounds the score matrix."""
PASS = 2048
"""Most tokens in one pass."""
SCORES = 1 << 22
"""Most tokens times attended positions of a pass with several pieces: the number of scores for each head."""
ALONE = 128
"""Most tokens of one row in a group of their own."""
SHORTEST_TRUNK = 16
"""Fewest ids of a trunk."""


@dataclass(frozen=True)
class Piece:
    """Tokens to append to one row of a store."""

    slot: int
    own: int
    """Place of the first token within the slot."""
    position: int
    """Absolute position of the first token."""
    ids: list[int]
    trunk: Trunk | None


def trunk_length(ids: Sequence[int], stops: frozenset[int]) -> int:
    """Number of ids in a prompt's trunk: all up to its first stop token, or 0 if they are too few to be worth it.

    In the known chat formats that token ends the system message with the tool schemas. The trunk depends on the prompt
    alone, so an episode's computation never depends on other episodes.
    """
    length = min((ids.index(stop) + 1 for stop in stops if stop in ids), default=0)
    return length if SHORTEST_TRUNK <= length < len(ids) else 0


def prefill(policy: Policy, store: KvStore, pieces: Sequence[Piece]) -> Tensor:
    """Forward all pieces and return the logits after the last token of each: [pieces, vocabulary]."""
    passes: list[Tensor] = []
    order: list[int] = []
    left = dict(enumerate(pieces))
    while left:
        chosen = _next_pass(policy, left)
        passes.append(_forward(policy, store, [replace(left[i], ids=left[i].ids[:CHUNK]) for i in chosen]))
        order += chosen
        for index in chosen:
            piece = left.pop(index)
            if rest := piece.ids[CHUNK:]:
                left[index] = Piece(piece.slot, piece.own + CHUNK, piece.position + CHUNK, rest, piece.trunk)
    if order == list(range(len(pieces))):
        return passes[0] if len(passes) == 1 else torch.cat(passes)
    last = {index: place for place, index in enumerate(order)}
    wanted = torch.tensor([last[index] for index in range(len(pieces))], device=policy.shape.device)
    return torch.cat(passes).index_select(0, wanted)


def forward_all(policy: Policy, store: KvStore, pieces: Sequence[Piece]) -> Tensor:
    """Forward all pieces, each of at most `CHUNK` tokens, and return the logits after every token, in order: [tokens,
    vocabulary]."""
    logits: list[Tensor] = [torch.empty(0)] * len(pieces)
    left = dict(enumerate(pieces))
    while left:
        chosen = _next_pass(policy, left)
        now = [left.pop(i) for i in chosen]
        parts = torch.split(_forward(policy, store, now, every=True), [len(piece.ids) for piece in now])
        for index, part in zip(chosen, parts, strict=True):
            logits[index] = part
    return torch.cat(logits)


def _next_pass(policy: Policy, left: Mapping[int, Piece]) -> list[int]:
    """Choose the longest pieces that fit; where torch computes, put those of similar shape next to each other."""
    sizes = {index: min(len(piece.ids), CHUNK) for index, piece in left.items()}
    chosen: list[int] = []
    tokens = reach = 0
    for index in sorted(left, key=lambda index: -sizes[index]):
        size = sizes[index]
        tokens, reach = tokens + size, max(reach, left[index].position + size)
        if chosen and (tokens > PASS or tokens * reach > SCORES):
            break
        chosen.append(index)
    if policy.native is not None:
        return sorted(chosen)
    return sorted(chosen, key=lambda index: (is_alone(_extent(left[index])), -width(_extent(left[index])[1])))


def _extent(piece: Piece) -> tuple[int, int, int]:
    """Return the piece's tokens in its next pass, the positions of its row that they read, and those of its trunk."""
    tokens = min(len(piece.ids), CHUNK)
    return tokens, piece.own + tokens, piece.trunk.length if piece.trunk else 0


def _forward(policy: Policy, store: KvStore, pieces: Sequence[Piece], *, every: bool = False) -> Tensor:
    """Return the logits after the last token of each piece, or after `every` token."""
    if policy.native is not None:
        return _natively(policy.native, store, pieces)
    device = policy.shape.device
    total = sum(len(piece.ids) for piece in pieces)
    padding = round_up(total, TILE) - total
    groups: list[TokenGroup] = []
    for start, stop in given_groups([_extent(piece) for piece in pieces]):
        together = [list(pieces[start:stop])]
        for part in together if stop - start > 1 else [[block] for block in _blocks(pieces[start])]:
            groups.append(_group(store, part, groups[-1].stop if groups else 0))
    sizes = torch.tensor([len(piece.ids) for piece in pieces])
    shifts = torch.tensor([[piece.slot, piece.position - piece.own] for piece in pieces])
    slots, shift = shifts.repeat_interleave(sizes, 0).t().to(device)
    own = torch.cat([group.own for group in groups])
    plan = AttentionPlan(store, total, store.where(slots, own), groups)
    position = own + shift
    position = torch.cat([position, position.new_zeros(padding)])
    ids = torch.tensor([token for piece in pieces for token in piece.ids] + [0] * padding)
    if every:
        return policy.logits(ids.to(device), position, plan, None)[:total]
    last = torch.cat([sizes.cumsum(0) - 1, sizes.new_zeros(round_up(len(pieces), TILE) - len(pieces))])
    logits = policy.logits(ids.to(device), position, plan, last.to(device))
    return logits[: len(pieces)]


def _natively(native: NativeForward, store: KvStore, pieces: Sequence[Piece]) -> Tensor:
    """Return the logits after the last token of each piece."""
    sizes = [len(piece.ids) for piece in pieces]
    places = TokenPlaces.of([(piece.slot, piece.position - piece.own, piece.trunk) for piece in pieces]).repeated(sizes)
    positions = [np.arange(piece.position, piece.position + size) for piece, size in zip(pieces, sizes, strict=True)]
    tokens = places.tokens([token for piece in pieces for token in piece.ids], np.concatenate(positions))
    return native.logits(store, tokens, places.trunks, np.cumsum(sizes) - 1)


def _blocks(piece: Piece) -> list[Piece]:
    """Cut a piece into parts, none of which reads positions that only later ones need."""
    starts = range(0, len(piece.ids), ALONE)
    return [
        replace(piece, own=piece.own + i, position=piece.position + i, ids=piece.ids[i : i + ALONE]) for i in starts
    ]


def _group(store: KvStore, pieces: Sequence[Piece], before: int) -> TokenGroup:
    """Return the group of these pieces; `before` is the index of its first token."""
    device, rows = store.shape.device, len(pieces)
    sizes = torch.tensor([len(piece.ids) for piece in pieces])
    row = torch.repeat_interleave(torch.arange(rows), sizes)
    place = torch.arange(len(row)) - (sizes.cumsum(0) - sizes)[row]
    own = torch.tensor([piece.own for piece in pieces])[row] + place
    group = TokenGroup(
        store,
        before,
        own.to(device),
        min(round_up(int(own.max()) + 1, PAGE), store.capacity),
        max(piece.position + len(piece.ids) for piece in pieces),
        group_trunks([(piece.trunk, len(piece.ids)) for piece in pieces], device),
    )
    slots = torch.tensor([piece.slot for piece in pieces])
    if rows == 1:
        group.row = pieces[0].slot
    else:
        places = round_up(int(sizes.max()), TILE)
        scatter = row * places + place
        gather = torch.zeros(rows * places, dtype=torch.long).index_copy_(0, scatter, torch.arange(len(row)))
        group.rows, group.gather, group.scatter = slots.to(device), gather.to(device), scatter.to(device)
    return group


def group_trunks(owners: Sequence[tuple[Trunk | None, int]], device: torch.device) -> list[tuple[Trunk, Tensor | None]]:
    """Group packed tokens by the trunk that they attend to, given each row's trunk and number of tokens."""
    trunks = list(dict.fromkeys(trunk for trunk, _ in owners if trunk is not None))
    if len(trunks) == 1 and all(trunk is not None for trunk, _ in owners):
        return [(trunks[0], None)]
    tokens: dict[Trunk, list[int]] = {trunk: [] for trunk in trunks}
    start = 0
    for trunk, count in owners:
        if trunk is not None:
            tokens[trunk] += range(start, start + count)
        start += count
    for places in tokens.values():
        places += places[-1:] * (round_up(len(places), TILE) - len(places))
    return [(trunk, torch.tensor(places, device=device)) for trunk, places in tokens.items()]
