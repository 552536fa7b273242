"""Attention over packed tokens of many episodes, registered with transformers under one name.

The model sees one flat sequence [1, tokens]; the `AttentionPlan` says which episode a token belongs to and what it may
attend to. A token attends to its own row and to its episode's trunk, whose keys are read once for the queries of all
episodes that share it. The scores of both lie side by side and go through one softmax.

Shapes are chosen so that on a CPU a token's result depends neither on the rest of the batch nor on whether the token
was sampled or given: a linear layer gets a multiple of `TILE` rows, a product in attention at least `ROWS`, and sums
over a row's positions are taken in blocks of `BLOCK`, one after the other (MKL splits longer ones according to their
length, which is that of the group's longest row; a trunk's length is always the same). Scores are laid out as [sink,
own row, trunk], with the own row a multiple of 16 wide, so the softmax adds the same numbers in the same vector lanes,
and beside them zeros.
"""

from __future__ import annotations

import math
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_utils import AttentionInterface

from mcp_rl.inference.cache import round_up
from mcp_rl.inference.products import TILE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.inference.cache import KvShape, KvStore, Trunk

NAME = "mcp_rl_packed"
BLOCK = 128
"""Positions of a row whose values are summed in one product."""
ROWS = 4
"""Fewest rows of a product in attention; with fewer, MKL sums in another order."""


@dataclass
class TokenGroup:
    """Packed tokens of rows of similar length. N = its tokens, R = rows, T = most tokens of a row, L = positions read.

    Rows of very different lengths are put into groups of their own, since a group costs as much as if all of its rows
    had the length of the longest.
    """

    store: KvStore
    start: int
    """Index of the group's first token; when decoding also the index of its first row in the store."""
    own: Tensor
    """[N]: place of each token in its row."""
    length: int
    """L."""
    reach: int
    """An exclusive upper bound of all positions."""
    trunks: list[tuple[Trunk, Tensor | None]]
    """Each trunk with the tokens that attend to it, padded to TILE with the last of them; None: all tokens."""
    rows: Tensor | None = None
    """[R]: rows of the store; None when decoding (token i belongs to row i) and for the tokens of a single row."""
    row: int = -1
    """The row of the store, if all tokens are of one."""
    gather: Tensor | None = None
    """[R * T]: the token at each place of the padded queries; None in decoding."""
    scatter: Tensor | None = None
    """[N]: the place in the padded queries of each token; None in decoding."""
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _trunk_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _buffers: dict[tuple[int, ...], _Buffers] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """One more than the number of its last token."""
        return self.start + len(self.own)

    def reuse(self, before: TokenGroup) -> None:
        """Take over the tensors of a step that is over, of a group with the same rows, length and trunks."""
        self._buffers = before._buffers

    def mask(self, window: int | None) -> Tensor:
        """Mask of the own rows [N, 1, L]: 0 where a token may attend, -inf elsewhere.

        `window`: number of positions that a token sees, itself included; None: all.
        """
        window = self._narrow(window)
        if window not in self._masks:
            seen = self.own[:, None]
            key = torch.arange(self.length, device=self.own.device)
            hidden = key > seen
            if window is not None:
                hidden |= key <= seen - window
            mask = torch.zeros(hidden.shape, device=self.own.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def trunk_mask(self, which: int, window: int | None) -> Tensor | None:
        """Mask of trunk number `which` for the tokens that attend to it: [tokens, 1, trunk's length]."""
        if (window := self._narrow(window)) is None:
            return None
        if (which, window) not in self._trunk_masks:
            trunk, tokens = self.trunks[which]
            own = self.own if tokens is None else self.own.index_select(0, tokens)
            key = torch.arange(trunk.length, device=own.device)
            hidden = key <= own[:, None] + (trunk.length - window)
            mask = torch.zeros(hidden.shape, device=own.device).masked_fill_(hidden, -torch.inf)
            self._trunk_masks[which, window] = mask[:, None]
        return self._trunk_masks[which, window]

    def buffers(self, share: int, sinks: int) -> _Buffers:
        """Return the tensors that layers with these options use one after the other."""
        if (share, sinks) not in self._buffers:
            self._buffers[share, sinks] = _Buffers(self, share, sinks)
        return self._buffers[share, sinks]

    def _narrow(self, window: int | None) -> int | None:
        """Return None for a window that hides nothing."""
        return window if window is not None and window < self.reach else None


@dataclass
class AttentionPlan:
    """Layout of one forward pass. N = packed tokens, P = N rounded up to TILE."""

    store: KvStore
    tokens: int
    """N, without the padding at the end."""
    where: Tensor
    """Destination of the tokens' keys and values (`KvStore.where`)."""
    groups: list[TokenGroup]
    """All tokens, in order."""
    reach: int = field(init=False)
    """An exclusive upper bound of all positions."""
    _out: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.reach = max(group.reach for group in self.groups)

    def out(self, share: int) -> Tensor:
        """The attention's output [P, kv_heads, share, d], which each layer overwrites; padding stays 0."""
        if share not in self._out:
            shape = self.store.shape
            size = round_up(self.tokens, TILE), shape.kv_heads, share, shape.head_dim
            self._out[share] = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        return self._out[share]


class _Buffers:
    """Work tensors of one group, allocated once for all layers. P = N rounded up to TILE, W = columns of scores."""

    def __init__(self, group: TokenGroup, share: int, sinks: int) -> None:
        shape = group.store.shape
        heads, each, count = shape.kv_heads, max(share, ROWS), len(group.own)
        padded = round_up(count, TILE)
        trunk = max((trunk.length for trunk, _ in group.trunks), default=0)
        end = sinks + group.length
        self.scores = _scratch((heads, padded, share, end + trunk), shape.device)
        """[kv_heads, P, share, W]: scores of sink, own row and trunk; the softmax overwrites them."""
        self.own = self.scores[:, :count, :, sinks:end].transpose(0, 1)
        """[N, kv_heads, share, L]"""
        self.trunk = self.scores[..., end:]
        self.padded_query = torch.zeros(heads, padded, share, shape.head_dim, dtype=shape.dtype, device=shape.device)
        """Scaled queries."""
        self.query = self.padded_query[:, :count].transpose(0, 1)
        """[N, kv_heads, share, d]"""
        if group.rows is None:
            self.lone = torch.zeros(count, heads, each, shape.head_dim, dtype=shape.dtype, device=shape.device)
            """Queries of decoding, one token for each row of the store."""
            self.lone_weights = torch.zeros(count, heads, each, group.length, dtype=shape.dtype, device=shape.device)


class _Scratch(threading.local):
    """Memory for scores, one block for each thread, reused by one group after the other: fresh memory costs more than a
    matrix product."""

    memory = torch.empty(0)


_SCRATCH = _Scratch()


def _scratch(size: tuple[int, ...], device: torch.device) -> Tensor:
    """Return uninitialised float32 memory, valid until the next call."""
    if device.type != "cpu":
        return torch.zeros(size, device=device)
    count = math.prod(size)
    if count > len(_SCRATCH.memory):
        _SCRATCH.memory = torch.zeros(count)
    return _SCRATCH.memory[:count].view(size)


_PLAN: ContextVar[AttentionPlan] = ContextVar("plan")


@contextmanager
def follow(plan: AttentionPlan) -> Iterator[None]:
    """Make attention in this context follow `plan`."""
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


@dataclass(frozen=True)
class AttentionKind:
    """Options of a layer's attention."""

    scaling: float
    softcap: float | None = None
    """Bound c of the scores: c * tanh(score / c) (Gemma 2, Google DeepMind 2024, section 2)."""
    window: int | None = None
    """Number of positions that a token sees, itself included."""
    sinks: Tensor | None = None
    """[heads]: scores of a position without a value (gpt-oss)."""

    def score(self, queries: Tensor, keys: Tensor, out: Tensor) -> Tensor:
        """Write to `out` the soft-capped float32 scores of scaled queries [B, M, d] over keys [B, d, positions]."""
        if out.dtype == queries.dtype:
            return self.cap(torch.bmm(queries, keys, out=out))
        return self.cap(out.copy_(torch.bmm(queries, keys)))

    def cap(self, scores: Tensor) -> Tensor:
        """Apply the soft cap to scores, in place."""
        return scores if self.softcap is None else scores.div_(self.softcap).tanh_().mul_(self.softcap)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store the new keys and values and attend.

    query: [1, heads, N, d], key and value: [1, kv_heads, N, d], all with positions applied; returns [1, N, heads, d].
    softcap, sliding_window and s_aux are those of `AttentionKind`. Raises NotImplementedError for a layer that
    hides positions without passing its window.
    """
    plan = _PLAN.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    _check_window(module, layer, sliding_window, plan)
    kind = AttentionKind(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, sliding_window, s_aux)
    width = value.shape[-1]
    query, key, value = _as_stored(plan.store.shape, query, key, value)
    heads, padded, dim = query.shape[1:]
    kv_heads = key.shape[1]
    grouped = query[0].transpose(0, 1).reshape(padded, kv_heads, heads // kv_heads, dim)
    plan.store.write(layer, plan.where, torch.cat((key, value)).transpose(1, 2)[:, : plan.tokens])
    out = attend(plan, layer, grouped, kind)
    return out.view(1, padded, heads, dim)[..., :width], None


def _as_stored(shape: KvShape, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bring a layer's heads to the store's number and width, where layers differ (Gemma 4) or values are narrower than
    keys (DeepSeek's latent attention): zeros add nothing to a score, and repeated heads are those that were shared."""
    if key.shape[1] < shape.kv_heads:
        repeats = shape.kv_heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    missing = [shape.head_dim - part.shape[-1] for part in (query, key, value)]
    parts = zip((query, key, value), missing, strict=True)
    query, key, value = (F.pad(part, (0, more)) if more else part for part, more in parts)
    return query, key, value


def attend(plan: AttentionPlan, layer: int, query: Tensor, kind: AttentionKind) -> Tensor:
    """Compute attention of queries [P, kv_heads, share, d] over the store, which holds the tokens' own keys and values
    already.

    Returns [P, kv_heads, share, d], which the next layer overwrites.
    """
    out = plan.out(query.shape[2])
    for group in plan.groups:
        _attend(group, layer, query[group.start : group.stop], kind, out[group.start : group.stop])
    return out


def _attend(group: TokenGroup, layer: int, query: Tensor, kind: AttentionKind, out: Tensor) -> None:
    """Write the attention of a group's queries [N, kv_heads, share, d] to `out`."""
    if group.row >= 0:
        _attend_alone(group, layer, query, kind, out)
        return
    buffers = group.buffers(query.shape[2], 0 if kind.sinks is None else 1)
    if kind.sinks is not None:
        buffers.scores[..., 0] = kind.sinks.float().view(query.shape[1], 1, -1)
    torch.mul(query, kind.scaling, out=buffers.query)
    scores = kind.cap(_own_scores(group, layer, buffers).float())
    torch.add(scores, group.mask(kind.window)[:, None], out=buffers.own)
    if group.trunks and group.trunks[0][1] is not None:
        buffers.trunk.fill_(-torch.inf)
    for which, (trunk, tokens) in enumerate(group.trunks):
        _trunk_scores(trunk, layer, tokens, buffers, kind, group.trunk_mask(which, kind.window))
    torch.softmax(buffers.scores, -1, out=buffers.scores)
    own = _own_values(group, layer, buffers)
    parts = [_trunk_values(trunk, layer, tokens, buffers, len(out)) for trunk, tokens in group.trunks]
    if not parts:
        out.copy_(own)
    for part in parts:
        own = torch.add(own, part, out=out)


def _attend_alone(group: TokenGroup, layer: int, query: Tensor, kind: AttentionKind, out: Tensor) -> None:
    """Write the attention of queries of a single row to `out`."""
    count, heads, share, dim = query.shape
    padded, length = round_up(count, TILE), group.length
    start = 0 if kind.sinks is None else 1
    end = start + length
    width = end + sum(trunk.length for trunk, _ in group.trunks)
    by_head = query.new_zeros(heads, padded, share, dim)
    torch.mul(query.transpose(0, 1), kind.scaling, out=by_head[:, :count])
    by_head = by_head.view(heads, -1, dim)
    scores = _scratch((heads, padded * share, width), query.device)
    by_token = scores.view(heads, padded, share, width)[:, :count]
    if kind.sinks is not None:
        scores.view(heads, padded, share, width)[..., 0] = kind.sinks.float().view(heads, 1, share)
    kind.score(by_head, group.store.keys(layer, group.row, length), scores[..., start:end])
    by_token[..., start:end] += group.mask(kind.window)
    for which, (trunk, _) in enumerate(group.trunks):
        kind.score(by_head, trunk.keys[layer], scores[..., end:])
        if (mask := group.trunk_mask(which, kind.window)) is not None:
            by_token[..., end:] += mask
    weights = torch.softmax(scores, -1, out=scores).to(query.dtype)
    total = _weighted(weights[..., start:end], group.store.values(layer, group.row, length))
    for trunk, _ in group.trunks:
        total += torch.bmm(weights[..., end:], trunk.values(layer))
    out.copy_(total.view(heads, -1, share, dim)[:, :count].transpose(0, 1))


def _check_window(module: nn.Module, layer: int, window: int | None, plan: AttentionPlan) -> None:
    """Raise NotImplementedError for a sliding-window layer that passes no window, if the window matters."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None)
    if window is None and kinds and kinds[layer] == "sliding_attention" and size and plan.reach > size:
        raise NotImplementedError(f"{type(module).__name__} does not pass its sliding window to the attention function")


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights [B, M, L] by values [B, L, d], summing in blocks of fixed size."""
    length = values.shape[1]
    if length <= BLOCK or values.device.type != "cpu":
        return torch.bmm(weights, values)
    out = torch.bmm(weights[..., :BLOCK], values[:, :BLOCK])
    for start in range(BLOCK, length, BLOCK):
        out += torch.bmm(weights[..., start : start + BLOCK], values[:, start : start + BLOCK])
    return out


def _own_scores(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return the scores of tokens over their own rows [N, kv_heads, share, L]."""
    return (_decoding_scores if group.rows is None else _given_scores)(group, layer, buffers)


def _own_values(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return the weighted values of the tokens' own rows [N, kv_heads, share, d]."""
    return (_decoding_values if group.rows is None else _given_values)(group, layer, buffers)


def _decoding_scores(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return scores over the own rows [N, kv_heads, share, L]; token i has row i."""
    count, heads, each, dim = buffers.lone.shape
    share = buffers.query.shape[2]
    buffers.lone[:, :, :share] = buffers.query
    keys = group.store.lines(layer, 0, group.start, group.stop, group.length)
    scores = torch.bmm(buffers.lone.view(count * heads, each, dim), keys.transpose(1, 2))
    return scores.view(count, heads, each, -1)[:, :, :share]


def _decoding_values(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return the weighted values of the own rows [N, kv_heads, share, d]."""
    count, heads, each, dim = buffers.lone.shape
    share = buffers.query.shape[2]
    buffers.lone_weights[:, :, :share] = buffers.own
    values = group.store.lines(layer, 1, group.start, group.stop, group.length)
    out = _weighted(buffers.lone_weights.view(count * heads, each, -1), values)
    return out.view(count, heads, each, dim)[:, :, :share]


def _given_scores(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return scores over the own rows [N, kv_heads, share, L] of pieces of several tokens."""
    assert group.rows is not None
    keys = group.store.chosen(layer, 0, group.rows, group.length)
    return _packed(group, torch.bmm(_spread(group, buffers.query), keys.transpose(1, 2)), buffers)


def _given_values(group: TokenGroup, layer: int, buffers: _Buffers) -> Tensor:
    """Return the weighted values of the own rows [N, kv_heads, share, d] of pieces of several tokens."""
    assert group.rows is not None
    values = group.store.chosen(layer, 1, group.rows, group.length)
    weights = _spread(group, buffers.own).to(values.dtype)
    return _packed(group, _weighted(weights, values), buffers)


def _spread(group: TokenGroup, packed: Tensor) -> Tensor:
    """Bring packed [N, kv_heads, share, ...] into rows of equal length: [R * kv_heads, share * T, ...]."""
    assert group.rows is not None and group.gather is not None
    rows = packed.index_select(0, group.gather).view(len(group.rows), -1, *packed.shape[1:])
    return rows.permute(0, 2, 3, 1, 4).flatten(2, 3).flatten(0, 1)


def _packed(group: TokenGroup, rows: Tensor, buffers: _Buffers) -> Tensor:
    """Undo `_spread`."""
    assert group.rows is not None and group.scatter is not None
    _, heads, share, _ = buffers.query.shape
    by_place = rows.view(len(group.rows), heads, share, -1, rows.shape[-1]).permute(0, 3, 1, 2, 4)
    return by_place.flatten(0, 1).index_select(0, group.scatter)


def _trunk_scores(
    trunk: Trunk, layer: int, tokens: Tensor | None, buffers: _Buffers, kind: AttentionKind, mask: Tensor | None
) -> None:
    """Write the scores of the tokens over a trunk."""
    if tokens is None:
        query, scores = buffers.padded_query, buffers.trunk
    else:
        query = buffers.padded_query.index_select(1, tokens)
        scores = buffers.scores.new_empty(*query.shape[:3], trunk.length)
    kind.score(query.flatten(1, 2), trunk.keys[layer], scores.view(len(query), -1, trunk.length))
    if mask is not None:
        scores[:, : len(mask)] += mask
    if tokens is not None:
        buffers.trunk[..., : trunk.length].index_copy_(1, tokens, scores)


def _trunk_values(trunk: Trunk, layer: int, tokens: Tensor | None, buffers: _Buffers, count: int) -> Tensor:
    """Return the weighted values of a trunk [N, kv_heads, share, d]; 0 for tokens that do not attend to it."""
    weights = buffers.trunk if tokens is None else buffers.trunk.index_select(1, tokens)
    values = trunk.values(layer)
    out = torch.bmm(weights[..., : trunk.length].flatten(1, 2).to(values.dtype), values)
    out = out.view(*weights.shape[:3], -1).transpose(0, 1)
    return out[:count] if tokens is None else out.new_zeros(count, *out.shape[1:]).index_copy_(0, tokens, out)


AttentionInterface.register(NAME, packed_attention)
