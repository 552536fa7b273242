"""Forward given tokens: pieces of any length from many rows, packed without padding into few passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mcp_rl.inference.attention import TILE, AttentionPlan
from mcp_rl.inference.cache import KvStore, Trunk, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.inference.policy import Policy

CHUNK = 512
"""Most tokens of one piece in one pass; bounds the score matrix."""
PASS = 2048
"""Most tokens in one pass."""
SCORES = 1 << 22
"""Most tokens times attended positions of a pass with several pieces: the number of scores for each head."""
PADDED = 1024
"""Queries of a pass, padding included, that are always accepted."""
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
    length = next((i + 1 for i, token in enumerate(ids) if token in stops), 0)
    return length if SHORTEST_TRUNK <= length < len(ids) else 0


def prefill(policy: Policy, store: KvStore, pieces: Sequence[Piece]) -> Tensor:
    """Forward all pieces and return the logits after the last token of each: [pieces, vocabulary]."""
    logits: list[Tensor | None] = [None] * len(pieces)
    left = dict(enumerate(pieces))
    while left:
        chosen = _next_pass(left)
        heads = [replace(left[i], ids=left[i].ids[:CHUNK]) for i in chosen]
        out = _forward(policy, store, heads)
        for place, index in enumerate(chosen):
            piece = left.pop(index)
            logits[index] = out[place]
            if rest := piece.ids[CHUNK:]:
                left[index] = Piece(piece.slot, piece.own + CHUNK, piece.position + CHUNK, rest, piece.trunk)
    return torch.stack([line for line in logits if line is not None])


def _next_pass(left: Mapping[int, Piece]) -> list[int]:
    """Choose the longest pieces that fit, without padding short ones to the length of much longer ones."""
    sizes = {index: min(len(piece.ids), CHUNK) for index, piece in left.items()}
    chosen: list[int] = []
    tokens = reach = longest = 0
    for index in sorted(left, key=lambda index: -sizes[index]):
        size = sizes[index]
        tokens, reach = tokens + size, max(reach, left[index].position + size)
        longest = longest or round_up(size, TILE)
        padded = longest * (len(chosen) + 1)
        if chosen and (tokens > PASS or tokens * reach > SCORES or padded > max(PADDED, 2 * tokens)):
            break
        chosen.append(index)
    return chosen


def _forward(policy: Policy, store: KvStore, pieces: Sequence[Piece]) -> Tensor:
    device = policy.shape.device
    sizes = torch.tensor([len(piece.ids) for piece in pieces])
    own = torch.tensor([piece.own for piece in pieces])
    total = int(sizes.sum())
    padding = round_up(total, TILE) - total
    row = torch.repeat_interleave(torch.arange(len(pieces)), sizes)
    ends = sizes.cumsum(0)
    place = torch.arange(total) - (ends - sizes)[row]
    position = torch.tensor([piece.position for piece in pieces])[row] + place
    ids = torch.tensor([token for piece in pieces for token in piece.ids] + [0] * padding)
    last = torch.cat([ends - 1, torch.zeros(round_up(len(pieces), TILE) - len(pieces), dtype=torch.long)])
    plan = _plan(store, pieces, policy.shape.kv_heads, row, place, own, int(sizes.max()))
    position = torch.cat([position, torch.zeros(padding, dtype=torch.long)])
    logits = policy.logits(ids.to(device), position.to(device), plan, last.to(device))
    return logits[: len(pieces)]


def _plan(
    store: KvStore, pieces: Sequence[Piece], kv_heads: int, row: Tensor, place: Tensor, own: Tensor, longest: int
) -> AttentionPlan:
    device, rows, total = store.shape.device, len(pieces), len(row)
    places = round_up(longest, TILE)
    length = min(round_up(int((own[row] + place).max()) + 1, 32), store.capacity)
    slots = torch.tensor([piece.slot for piece in pieces])
    lines = (slots[row, None] * kv_heads + torch.arange(kv_heads)) * store.capacity
    write = (lines + (own[row] + place)[:, None]).flatten()
    scatter = row * places + place
    gather = torch.zeros(rows * places, dtype=torch.long).index_copy_(0, scatter, torch.arange(total))
    groups = group_trunks([(piece.trunk, len(piece.ids)) for piece in pieces], device)
    reach = max(piece.position + len(piece.ids) for piece in pieces)
    return AttentionPlan(
        store,
        total,
        write.to(device),
        (own[row] + place).to(device),
        length,
        reach,
        groups,
        rows=slots.to(device),
        gather=gather.to(device),
        scatter=scatter.to(device),
    )


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
