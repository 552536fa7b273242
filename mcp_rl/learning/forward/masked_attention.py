"""Attention over a prefix tree in plain matrix products, on any device: windows, soft-capped scores, sinks, any sizes.

Neighbours in the tree attend together, a hundred or more queries at a time: to what leads to them, and to each other
under a mask. The backward pass computes the probabilities again from the log-sum-exp (Dao et al., FlashAttention,
2022, algorithm 4), so that scores exist for one block at a time. Soft-capping: Gemma 2, 2024, section 2. Sinks: a
learned score of each head that takes part in the softmax and has no value (gpt-oss, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.learning.forward.tree_mask import TreeMask


@dataclass(frozen=True)
class Scores:
    """The settings of the scores between queries and keys."""

    scale: float
    softcap: float | None = None
    window: int | None = None


@dataclass(frozen=True)
class _Block:
    """Queries `start` to `stop` against their path and against each other: p + (stop - start) keys."""

    start: int
    stop: int
    path: Tensor
    """[p] flat positions."""
    seen: Tensor
    """[stop - start, k] mask of the last k keys; every query sees the keys before those."""


def _blocks(mask: TreeMask, window: int | None) -> list[_Block]:
    """Return blocks that hold every query of a tree once."""
    device = mask.enter.device
    limit = 128 if device.type == "cpu" else 1024  # on a CPU the scores of a block should stay in the cache
    blocks = []
    for start, stop, path in _spans(mask, limit):
        near = 0 if window is None else max(0, int(mask.tree.positions[start:stop].min()) - window + 1)
        path = path[near:].to(device)  # positions along a path are 0, 1, 2, …
        own = torch.arange(start, stop, device=device)
        keys = own if window is None else torch.cat([path, own])
        blocks.append(_Block(start, stop, path, mask.visible(own, keys, window)))
    return blocks


def _spans(mask: TreeMask, limit: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield runs of siblings of at most `limit` tokens, and slices of longer nodes: start, stop and their path."""
    nodes = mask.tree.nodes
    for siblings in (range(1), *mask.tree.children):
        if not siblings:
            continue
        path = torch.from_numpy(mask.tree.path(nodes[siblings[0]].parent))
        start, end = nodes[siblings[0]].start, nodes[siblings[-1]].stop
        for node in (nodes[index] for index in siblings):
            if node.stop - start > limit and node.start > start:
                yield start, node.start, path
                start = node.start
            if node.length > limit:
                for start in range(node.start, node.stop, limit):
                    before = torch.arange(node.start, start)
                    yield start, min(start + limit, node.stop), torch.cat([path, before])
                start = node.stop
        if end > start:
            yield start, end, path


class _MaskedAttention(torch.autograd.Function):
    """Attention: q [K, T, G, D] with K key-value heads of G query heads each; k [K, T, D]; v [K, T, E]; sinks [K, G] or
    None; returns [K, T, G, E]."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, mask: TreeMask, scores: Scores
    ) -> Tensor:
        out = v.new_empty(*q.shape[:3], v.shape[-1])
        lse = q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        for block in mask.plan(("blocks", scores.window), lambda: _blocks(mask, scores.window)):
            span = slice(block.start, block.stop)
            values, s = _with_path(block, v), _scores(block, q[:, span], _with_path(block, k), scores)
            sums = s.logsumexp(-1)
            if sinks is not None:
                sums = torch.logaddexp(sums, sinks[:, None].to(sums.dtype))
            probabilities = s.sub_(sums.unsqueeze(-1)).exp_().to(v.dtype)
            out[:, span] = (probabilities.flatten(1, 2) @ values).view(*sums.shape, -1)
            lse[:, span] = sums
        ctx.save_for_backward(q, k, v, sinks, out, lse)
        ctx.mask, ctx.scores = mask, scores
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, lse = ctx.saved_tensors
        mask, scores, grad = ctx.mask, ctx.scores, grads[0]
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (grad * out).sum(-1, dtype=lse.dtype)
        for block in mask.plan(("blocks", scores.window), lambda: _blocks(mask, scores.window)):
            span = slice(block.start, block.stop)
            keys, values = _with_path(block, k), _with_path(block, v)
            queries, outward = q[:, span].flatten(1, 2), grad[:, span].flatten(1, 2)
            s = _scores(block, q[:, span], keys, scores)
            p = (s - lse[:, span].unsqueeze(-1)).exp_()
            ds = (outward @ values.mT).view_as(p).to(p.dtype).sub_(delta[:, span].unsqueeze(-1)).mul_(p)
            if scores.softcap is not None:  # the slope of cap * tanh(x / cap) is 1 - tanh², taken from the value
                ds.mul_(1 - (s.masked_fill_(s.isneginf(), 0.0) / scores.softcap).square_())
            ds = ds.mul_(scores.scale).to(q.dtype).flatten(1, 2)
            p = p.to(v.dtype).flatten(1, 2)
            dq[:, span] = (ds @ keys).view(*dq[:, span].shape)
            _add(dk, block, ds.mT @ queries)
            _add(dv, block, p.mT @ outward)
        of_sinks = None
        if sinks is not None:
            of_sinks = -((sinks[:, None] - lse).exp() * delta).sum(1).to(sinks.dtype)
        return dq, dk, dv, of_sinks, None, None


def _with_path(block: _Block, whole: Tensor) -> Tensor:
    own = whole[:, block.start : block.stop]
    return torch.cat([whole.index_select(1, block.path), own], 1) if len(block.path) else own


def _scores(block: _Block, queries: Tensor, keys: Tensor, scores: Scores) -> Tensor:
    """queries [K, n, G, D], keys [K, m, D] -> [K, n, G, m], -inf where a key is not seen."""
    s = (queries.flatten(1, 2) @ keys.mT).view(*queries.shape[:3], -1)
    s = s.to(torch.promote_types(s.dtype, torch.float32)).mul_(scores.scale)
    if scores.softcap is not None:
        s = s.div_(scores.softcap).tanh_().mul_(scores.softcap)
    s[..., s.shape[-1] - block.seen.shape[-1] :].masked_fill_(~block.seen[None, :, None], -torch.inf)
    return s


def _add(total: Tensor, block: _Block, part: Tensor) -> None:
    length = len(block.path)
    if length:
        total.index_add_(1, block.path, part[:, :length])
    total[:, block.start : block.stop] += part[:, length:]


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: TreeMask, scores: Scores, sinks: Tensor | None = None
) -> Tensor:
    """Attend: q [1, H, T, D], k [1, K, T, D], v [1, K, T, E], sinks [H] -> [1, T, H, E]."""
    queries, keys, values = grouped_queries(q, k), k[0].contiguous(), v[0].contiguous()
    sinks = None if sinks is None else sinks.reshape(len(keys), -1)
    return ungrouped(_MaskedAttention.apply(queries, keys, values, sinks, mask, scores))  # type: ignore[no-untyped-call]


def grouped_queries(q: Tensor, k: Tensor) -> Tensor:
    """[1, H, T, D] -> [K, T, G, D]: the G query heads of each of the K key-value heads of k [1, K, T, D]."""
    kv_heads = k.shape[1]
    return q[0].reshape(kv_heads, q.shape[1] // kv_heads, q.shape[2], -1).transpose(1, 2).contiguous()


def ungrouped(out: Tensor) -> Tensor:
    """[K, T, G, E] -> [1, T, H, E]."""
    return out.transpose(0, 1).flatten(1, 2).unsqueeze(0)
