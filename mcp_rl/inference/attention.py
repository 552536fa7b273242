"""Attention over packed tokens of many episodes, registered with transformers under one name.

The model sees one flat sequence [1, tokens]; the `AttentionPlan` says which episode a token belongs to and what it may
attend to. A token attends to its episode's trunk (one product over the queries of all episodes that share it) and to
its own row; the two partial softmaxes are merged exactly through their maxima and sums (log-sum-exp merging, as in
FlashDecoding, Dao et al. 2023, and cascade inference, Ye et al. 2024).

Shapes are chosen so that on a CPU a token's result depends neither on the rest of the batch nor on whether the token
was sampled or given: a linear layer gets a multiple of `TILE` rows, a product in attention at least `ROWS`, and sums
over positions are taken in blocks of `BLOCK`, one after the other (MKL splits longer ones according to their length,
which is that of the batch's longest row).
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.inference.cache import KvStore, Trunk

NAME = "mcp_rl_packed"
TILE = 16
"""Linear layers get a multiple of so many rows."""
ROWS = 4
"""Fewest rows of a product in attention; with fewer, MKL sums in another order."""
BLOCK = 128
"""Positions summed in one product."""


@dataclass
class AttentionPlan:
    """Layout of one forward pass. N = packed tokens, R = rows, T = most tokens of a row, L = positions read."""

    store: KvStore
    tokens: int
    """N, without the padding at the end."""
    write: Tensor
    """[N * kv_heads]: index of each token and head in the flat store."""
    own: Tensor
    """[N]: place of each token in its row."""
    length: int
    """L."""
    reach: int
    """An exclusive upper bound of all positions."""
    trunks: list[tuple[Trunk, Tensor | None]] = field(default_factory=list)
    """Each trunk with the tokens that attend to it, padded to TILE with N; None: all tokens."""
    rows: Tensor | None = None
    """[R]: rows of the store; None in decoding, where token i has row i."""
    first: Tensor | None = None
    """[R]: place of each row's first token in its row; None in decoding."""
    gather: Tensor | None = None
    """[R * T]: the packed token at each place of the padded queries."""
    scatter: Tensor | None = None
    """[N]: the place in the padded queries of each packed token."""
    both: Tensor = field(init=False)
    """[2 * N * kv_heads]: `write` for keys, then values, in the layer's flat store of both."""
    _masks: dict[int | None, Tensor] = field(default_factory=dict)
    _trunk_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.both = torch.cat((self.write, self.write + self.store.positions))

    def mask(self, window: int | None) -> Tensor:
        """Mask of the rows: 0 where a token may attend, -inf elsewhere: [R, 1, L] in decoding, else [R, 1, T, L].

        `window`: number of positions that a token sees, itself included; None: all.
        """
        window = self._narrow(window)
        if window not in self._masks:
            seen = self.own[:, None]
            if self.first is not None and self.gather is not None:
                places = len(self.gather) // len(self.first)
                seen = self.first[:, None] + torch.arange(places, device=self.own.device)
            key = torch.arange(self.length, device=self.own.device)
            hidden = key > seen[..., None]
            if window is not None:
                hidden |= key <= seen[..., None] - window
            mask = torch.zeros(hidden.shape, device=self.own.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask if self.first is None else mask[:, None]
        return self._masks[window]

    def trunk_mask(self, which: int, count: int, window: int | None) -> Tensor | None:
        """Mask of trunk number `which` for the `count` queries that attend to it: [count, 1, trunk's length]."""
        if (window := self._narrow(window)) is None:
            return None
        if (which, window) not in self._trunk_masks:
            trunk, tokens = self.trunks[which]
            own = torch.cat([self.own, self.own.new_zeros(max(1, count - len(self.own)))])
            own = own[:count] if tokens is None else own.index_select(0, tokens)
            key = torch.arange(trunk.length, device=own.device)
            hidden = key <= own[:, None] + (trunk.length - window)
            mask = torch.zeros(hidden.shape, device=own.device).masked_fill_(hidden, -torch.inf)
            self._trunk_masks[which, window] = mask[:, None]
        return self._trunk_masks[which, window]

    def _narrow(self, window: int | None) -> int | None:
        """Return None for a window that hides nothing."""
        return window if window is not None and window < self.reach else None


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
class _Kind:
    """Options of a layer's attention."""

    softcap: float | None
    window: int | None
    sinks: Tensor | None
    """[heads]"""

    def capped(self, scores: Tensor) -> Tensor:
        """Return float32 scores; with a soft cap c, c * tanh(scores / c) (Gemma 2, Google DeepMind 2024, section 2)."""
        scores = scores.float()
        return scores if self.softcap is None else (scores / self.softcap).tanh_().mul_(self.softcap)


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
    softcap bounds the scores; sliding_window is the number of positions that a token sees, itself included; s_aux
    [heads] are attention sinks, scores of a position without a value (gpt-oss). Raises NotImplementedError for a layer
    that hides positions without passing its window.
    """
    plan = _PLAN.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    _check_window(module, layer, sliding_window, plan)
    kind = _Kind(softcap, sliding_window, s_aux)
    heads, padded, dim = query.shape[1:]
    kv_heads = key.shape[1]
    new = torch.cat((key, value))[:, :, : plan.tokens].transpose(1, 2).reshape(-1, dim)
    plan.store.flat(layer).index_copy_(0, plan.both, new)
    grouped = query[0].transpose(0, 1).reshape(padded, kv_heads, heads // kv_heads, dim)
    grouped = grouped * (dim**-0.5 if scaling is None else scaling)
    own_part = _decode_part if plan.rows is None else _prefill_part
    parts = [own_part(plan, layer, grouped, kind)]
    if plan.trunks:
        parts.append(_trunk_part(plan, layer, grouped, kind))
    out = query.new_zeros(grouped.shape) if padded > plan.tokens else query.new_empty(grouped.shape)
    out[: plan.tokens] = _merge(parts, s_aux)
    return out.view(1, padded, heads, dim), None


def _check_window(module: nn.Module, layer: int, window: int | None, plan: AttentionPlan) -> None:
    """Raise NotImplementedError for a sliding-window layer that passes no window, if the window matters."""
    config = getattr(module, "config", None)
    kinds = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None)
    if window is None and kinds and kinds[layer] == "sliding_attention" and size and plan.reach > size:
        raise NotImplementedError(f"{type(module).__name__} does not pass its sliding window to the attention function")


Partial = tuple[Tensor, Tensor, Tensor]
"""Unnormalised output [N, kv_heads, share, d], maximum and sum of the scores [N, kv_heads, share, 1], where `share` is
the number of heads that use the same keys."""


def _softmax_parts(scores: Tensor, *, blind: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return exp(scores - maximum), the maximum and the sum.

    If all positions may be hidden (`blind`), the sum may be 0, and the maximum is then low.
    """
    top = scores.amax(-1, keepdim=True)
    if blind:
        top.clamp_(min=-1e30)
    weights = (scores - top).exp_()
    return weights, top, weights.sum(-1, keepdim=True)


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights [B, M, L] by values [B, L, d], summing in blocks of fixed size."""
    weights = weights.to(values.dtype)
    length = values.shape[1]
    if length <= BLOCK or values.device.type != "cpu":
        return torch.bmm(weights, values)
    out = torch.bmm(weights[..., :BLOCK], values[:, :BLOCK])
    for start in range(BLOCK, length, BLOCK):
        out += torch.bmm(weights[..., start : start + BLOCK], values[:, start : start + BLOCK])
    return out


def _decode_part(plan: AttentionPlan, layer: int, query: Tensor, kind: _Kind) -> Partial:
    rows, (_, kv_heads, share, dim) = plan.tokens, query.shape
    keys = plan.store.leading(layer, 0, rows, plan.length)
    values = plan.store.leading(layer, 1, rows, plan.length)
    query, each = query[:rows], max(share, ROWS)
    if each > share:
        query = torch.cat([query, query.new_zeros(rows, kv_heads, each - share, dim)], 2)
    scores = kind.capped(torch.bmm(query.reshape(rows * kv_heads, each, dim), keys.transpose(1, 2)))
    weights, top, total = _softmax_parts(scores.view(rows, kv_heads * each, -1).add_(plan.mask(kind.window)))
    out = _weighted(weights.view(rows * kv_heads, each, -1), values)

    def by_token(tensor: Tensor) -> Tensor:
        return tensor.view(rows, kv_heads, each, -1)[:, :, :share]

    return by_token(out), by_token(top), by_token(total)


def _prefill_part(plan: AttentionPlan, layer: int, query: Tensor, kind: _Kind) -> Partial:
    assert plan.rows is not None and plan.gather is not None and plan.scatter is not None
    _, kv_heads, share, dim = query.shape
    count = len(plan.rows)
    keys = plan.store.chosen(layer, 0, plan.rows, plan.length)
    values = plan.store.chosen(layer, 1, plan.rows, plan.length)
    places = len(plan.gather) // count
    padded = query.index_select(0, plan.gather).view(count, places, kv_heads, share, dim)
    padded = padded.permute(0, 2, 3, 1, 4).reshape(count * kv_heads, share * places, dim)
    scores = kind.capped(torch.bmm(padded, keys.transpose(1, 2))).view(count, kv_heads * share, places, -1)
    weights, top, total = _softmax_parts(scores.add_(plan.mask(kind.window)))
    out = _weighted(weights.view(count * kv_heads, share * places, -1), values)

    def packed(tensor: Tensor) -> Tensor:
        by_place = tensor.view(count, kv_heads, share, places, -1).permute(0, 3, 1, 2, 4).flatten(0, 1)
        return by_place.index_select(0, plan.scatter)  # type: ignore[arg-type]

    return packed(out), packed(top), packed(total)


def _trunk_part(plan: AttentionPlan, layer: int, query: Tensor, kind: _Kind) -> Partial:
    _, kv_heads, share, dim = query.shape
    first, everyone = plan.trunks[0]
    if everyone is None:
        out, top, total = _one_trunk(first, layer, query, kind, plan.trunk_mask(0, len(query), kind.window))
        return out[: plan.tokens], top[: plan.tokens], total[: plan.tokens]
    out = query.new_zeros(plan.tokens + 1, kv_heads, share, dim)  # the last row takes the padding
    top = torch.full((plan.tokens + 1, kv_heads, share, 1), -torch.inf, device=query.device)
    total = torch.zeros_like(top)
    query = torch.cat([query[: plan.tokens], query.new_zeros(1, kv_heads, share, dim)])
    for which, (trunk, tokens) in enumerate(plan.trunks):
        assert tokens is not None
        mask = plan.trunk_mask(which, len(tokens), kind.window)
        part = _one_trunk(trunk, layer, query.index_select(0, tokens), kind, mask)
        for whole, piece in zip((out, top, total), part, strict=True):
            whole.index_copy_(0, tokens, piece)
    return out[:-1], top[:-1], total[:-1]


def _one_trunk(trunk: Trunk, layer: int, query: Tensor, kind: _Kind, mask: Tensor | None) -> Partial:
    count, kv_heads, share, dim = query.shape
    by_head = query.transpose(0, 1).reshape(kv_heads, count * share, dim)
    scores = kind.capped(torch.bmm(by_head, trunk.part(layer, 0).transpose(1, 2)))
    if mask is not None:
        scores.view(kv_heads, count, share, -1).add_(mask)
    weights, top, total = _softmax_parts(scores, blind=mask is not None)
    out = _weighted(weights, trunk.part(layer, 1))

    def by_token(tensor: Tensor) -> Tensor:
        return tensor.view(kv_heads, count, share, -1).transpose(0, 1)

    return by_token(out), by_token(top), by_token(total)


def _merge(parts: list[Partial], sinks: Tensor | None) -> Tensor:
    """Merge the softmax over all parts and the sinks, which have no value.

    The first part, a token's own row, is never empty, so its maximum is finite.
    """
    own = parts[0]
    if len(parts) == 1 and sinks is None:
        return own[0] * (1 / own[2])  # the same bits as merging with an empty trunk
    tops = [part[1] for part in parts]
    if sinks is not None:
        tops.append(sinks.float().view(own[1].shape[1:]).expand_as(own[1]))
    top = functools.reduce(torch.maximum, tops)
    scales = [(each - top).exp_() for each in tops]
    sums = [scale * part[2] for scale, part in zip(scales, parts, strict=False)]
    total = functools.reduce(torch.add, sums if sinks is None else [*sums, scales[-1]])
    outs = [(scale / total) * part[0] for scale, part in zip(scales, parts, strict=False)]
    return functools.reduce(torch.add, outs)


AttentionInterface.register(NAME, packed_attention)
