"""Attention over packed tokens of many episodes, registered with transformers under one name.

The model sees one flat sequence [1, tokens]; which episode a token belongs to, and what it may look at, is in the
`Plan`. A token looks at its episode's trunk (one product over the queries of all episodes that share it) and at its
own row; the two partial softmaxes are merged exactly through their maxima and sums (log-sum-exp merging, as in
FlashDecoding, Dao et al. 2023, and cascade inference, Ye et al. 2024).

Shapes are chosen so that on the CPU a token's result does not depend on what else is in the batch: the number of rows
of every product is at least `TILE` and rounded up to it, or fixed by the model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from mcp_rl.inference.cache import KvStore, Trunk

NAME = "mcp_rl_packed"
TILE = 16
"""Products are padded to a multiple of so many rows."""


@dataclass
class Plan:
    """What one forward pass reads and writes. N = packed tokens, R = rows, T = most tokens of a row, L = positions
    read."""

    store: KvStore
    tokens: int
    """N without the padding at the end."""
    write: Tensor
    """[N * kv_heads]: index of each token and head in the flat store."""
    mask: Tensor
    """0 where a token may look at its own row, -inf elsewhere: [R, 1, L] in decoding, else [R, 1, T, L]."""
    length: int
    """L."""
    trunks: list[tuple[Trunk, Tensor | None]] = field(default_factory=list)
    """Each trunk with the tokens that look at it, padded to TILE with N; None for all tokens."""
    rows: Tensor | None = None
    """[R]: rows of the store; None in decoding, where row i is that of token i."""
    gather: Tensor | None = None
    """[R * T]: the packed token at each place of the padded queries."""
    scatter: Tensor | None = None
    """[N]: the place in the padded queries of each packed token."""


_PLAN: ContextVar[Plan] = ContextVar("plan")


@contextmanager
def follow(plan: Plan) -> Iterator[None]:
    """Attention inside this context follows `plan`."""
    token = _PLAN.set(plan)
    try:
        yield
    finally:
        _PLAN.reset(token)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Store the new keys and values and attend. query [1, heads, N, d], key and value [1, kv_heads, N, d] after the
    positions were applied; returns [1, N, heads, d]. Sliding windows are left to `Policy.window`, which keeps episodes
    within them. Raises NotImplementedError for kinds of attention it lacks."""
    if softcap is not None or s_aux is not None:
        raise NotImplementedError("soft caps and attention sinks are not supported")
    plan = _PLAN.get()
    layer: int = module.layer_idx  # type: ignore[assignment]
    heads, padded, dim = query.shape[1:]
    kv_heads = key.shape[1]
    for which, new in enumerate((key, value)):
        flat = new[0, :, : plan.tokens].transpose(0, 1).reshape(-1, dim)
        plan.store.flat(layer, which).index_copy_(0, plan.write, flat)
    grouped = query[0].transpose(0, 1).reshape(padded, kv_heads, heads // kv_heads, dim)
    grouped = grouped * (dim**-0.5 if scaling is None else scaling)
    own = _decode_part(plan, layer, grouped) if plan.rows is None else _prefill_part(plan, layer, grouped)
    out = query.new_zeros(1, padded, heads, dim) if padded > plan.tokens else query.new_empty(1, padded, heads, dim)
    if plan.trunks:
        out[0, : plan.tokens] = _merge(own, _trunk_part(plan, layer, grouped))
    else:
        out[0, : plan.tokens] = own[0] * (1 / own[2])  # bit by bit what merging with an empty trunk gives
    return out, None


Partial = tuple[Tensor, Tensor, Tensor]
"""Unnormalised output [N, heads, d], maximum and sum of the scores [N, heads, 1]."""


def _softmax_parts(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scores = scores.float()
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp_()
    return weights, top, weights.sum(-1, keepdim=True)


def _decode_part(plan: Plan, layer: int, query: Tensor) -> Partial:
    rows, (_, kv_heads, share, dim) = plan.tokens, query.shape
    keys = plan.store.leading(layer, 0, rows, plan.length)
    values = plan.store.leading(layer, 1, rows, plan.length)
    scores = torch.bmm(query[:rows].view(rows * kv_heads, share, dim), keys.transpose(1, 2))
    weights, top, total = _softmax_parts(scores.view(rows, kv_heads * share, -1).add_(plan.mask))
    out = torch.bmm(weights.view(rows * kv_heads, share, -1).to(values.dtype), values)
    return out.view(rows, kv_heads * share, dim), top, total


def _prefill_part(plan: Plan, layer: int, query: Tensor) -> Partial:
    assert plan.rows is not None and plan.gather is not None and plan.scatter is not None
    _, kv_heads, share, dim = query.shape
    count = len(plan.rows)
    keys = plan.store.chosen(layer, 0, plan.rows, plan.length)
    values = plan.store.chosen(layer, 1, plan.rows, plan.length)
    places = len(plan.gather) // count
    padded = query.index_select(0, plan.gather).view(count, places, kv_heads, share, dim)
    padded = padded.permute(0, 2, 3, 1, 4).reshape(count * kv_heads, share * places, dim)
    scores = torch.bmm(padded, keys.transpose(1, 2)).view(count, kv_heads * share, places, -1).add_(plan.mask)
    weights, top, total = _softmax_parts(scores)
    out = torch.bmm(weights.view(count * kv_heads, share * places, -1).to(values.dtype), values)

    def packed(tensor: Tensor) -> Tensor:
        by_place = tensor.view(count, kv_heads * share, places, -1).transpose(1, 2).flatten(0, 1)
        return by_place.index_select(0, plan.scatter)  # type: ignore[arg-type]

    return packed(out), packed(top), packed(total)


def _trunk_part(plan: Plan, layer: int, query: Tensor) -> Partial:
    _, kv_heads, share, dim = query.shape
    heads = kv_heads * share
    first, everyone = plan.trunks[0]
    if everyone is None:
        out, top, total = _one_trunk(first, layer, query)
        return out[: plan.tokens], top[: plan.tokens], total[: plan.tokens]
    out = query.new_zeros(plan.tokens + 1, heads, dim)  # the last one takes the padding
    top = torch.full((plan.tokens + 1, heads, 1), -torch.inf, device=query.device)
    total = torch.zeros_like(top)
    query = torch.cat([query[: plan.tokens], query.new_zeros(1, kv_heads, share, dim)])
    for trunk, tokens in plan.trunks:
        assert tokens is not None
        part = _one_trunk(trunk, layer, query.index_select(0, tokens))
        for whole, piece in zip((out, top, total), part, strict=True):
            whole.index_copy_(0, tokens, piece)
    return out[:-1], top[:-1], total[:-1]


def _one_trunk(trunk: Trunk, layer: int, query: Tensor) -> Partial:
    count, kv_heads, share, dim = query.shape
    by_head = query.transpose(0, 1).reshape(kv_heads, count * share, dim)
    weights, top, total = _softmax_parts(torch.bmm(by_head, trunk.part(layer, 0).transpose(1, 2)))
    out = torch.bmm(weights.to(query.dtype), trunk.part(layer, 1))

    def by_token(tensor: Tensor) -> Tensor:
        return tensor.view(kv_heads, count, share, -1).transpose(0, 1).reshape(count, kv_heads * share, -1)

    return by_token(out), by_token(top), by_token(total)


def _merge(one: Partial, other: Partial) -> Tensor:
    """The softmax over both parts. The first part is never empty, so its maximum is finite."""
    top = torch.maximum(one[1], other[1])
    scale_one, scale_other = (one[1] - top).exp_(), (other[1] - top).exp_()
    total = scale_one * one[2] + scale_other * other[2]
    return (scale_one / total) * one[0] + (scale_other / total) * other[0]


AttentionInterface.register(NAME, packed_attention)
