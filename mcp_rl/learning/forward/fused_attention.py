"""Attention over a prefix tree with torch's fused kernel for CPUs, in two parts merged by their log-sum-exp.

A token sees its own node up to itself, and its ancestors whole. The kernel computes each part and returns the
log-sum-exp of its scores, by which the parts are merged as in blockwise attention (Dao et al., FlashAttention, 2022,
section 3.1; Liu et al., Ring Attention, 2023). Given the merged output and log-sum-exp, the kernel's backward yields
each part's exact share of the gradient, so no matrix of scores is ever stored.

Of the last layer's outputs only those are read that predict a sampled token. Its other tokens do not attend to their
ancestors, and not at all in nodes that predict nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mcp_rl.learning.forward.masked_attention import grouped_queries, ungrouped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.learning.forward.tree import Node, PrefixTree
    from mcp_rl.learning.forward.tree_mask import TreeMask

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@dataclass(frozen=True)
class OwnBlocks:
    """Nodes of similar length that attend to themselves, causally, as one padded batch of n rows of `width` tokens."""

    rows: int
    width: int
    gather: Tensor
    """[rows * width] flat positions; a row's padding repeats its last token."""
    tokens: Tensor
    """[t] flat positions of the real tokens."""
    filled: Tensor | None
    """[t] their indices in the padded batch; None if nothing is padded."""
    padding: Tensor | None
    """[rows * width] True on padding."""


@dataclass(frozen=True)
class PathBlock:
    """Queries in the children of one node attend to the path that leads to them."""

    queries: slice | Tensor
    """Flat positions."""
    keys: Tensor
    """[k] flat positions of the path."""


@dataclass(frozen=True)
class _Plan:
    own: list[OwnBlocks]
    paths: list[PathBlock]

    @staticmethod
    def of(tree: PrefixTree, wanted: Tensor | None = None) -> _Plan:
        """wanted: [P] flat positions in ascending order whose outputs are read; None: all."""
        paths = []
        for index, children in enumerate(tree.children):
            if not children:
                continue
            start, stop = tree.nodes[children[0]].start, tree.nodes[children[-1]].stop
            path = tree.path(index)
            queries = slice(start, stop) if wanted is None else _within(wanted, start, stop)
            if _count(queries) and len(path):
                paths.append(PathBlock(queries, torch.from_numpy(path)))
        nodes = [n for n in tree.nodes if n.length and (wanted is None or len(_within(wanted, n.start, n.stop)))]
        return _Plan(_own_blocks(nodes), paths)


def _within(positions: Tensor, start: int, stop: int) -> Tensor:
    low, high = torch.searchsorted(positions, torch.tensor([start, stop])).tolist()
    return positions[low:high]


def _count(queries: slice | Tensor) -> int:
    return len(queries) if isinstance(queries, Tensor) else int(queries.stop - queries.start)


def _own_blocks(nodes: Iterable[Node], slack: float = 1.3) -> list[OwnBlocks]:
    """Group nodes of similar length; a block ends where padding would exceed the slack."""
    nodes = sorted(nodes, key=lambda node: node.length)
    bounds = [0] if nodes else []
    for i, node in enumerate(nodes):
        if node.length > slack * nodes[bounds[-1]].length + 4:
            bounds.append(i)
    bounds.append(len(nodes))
    return [_own_block([(n.start, n.stop) for n in nodes[low:high]]) for low, high in pairwise(bounds) if high > low]


def _own_block(spans: list[tuple[int, int]]) -> OwnBlocks:
    starts, stops = (torch.tensor(side).unsqueeze(1) for side in zip(*spans, strict=True))
    width = int((stops - starts).max())
    positions = starts + torch.arange(width)
    padding = (positions >= stops).flatten()
    gather = torch.minimum(positions, stops - 1).flatten()
    padded = bool(padding.any())
    filled = (~padding).nonzero().squeeze(1) if padded else None
    return OwnBlocks(
        len(spans), width, gather, gather if filled is None else gather[filled], filled, padding if padded else None
    )


class _FusedAttention(torch.autograd.Function):
    """Attention: q [K, T, G, D] with K key-value heads of G query heads each; k, v [K, T, D]; returns [K, T, G, D]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: _Plan, scale: float) -> Tensor:
        out = torch.zeros(q.shape, dtype=v.dtype, device=q.device)
        lse = torch.zeros(q.shape[:3], dtype=torch.float32, device=q.device)
        for block in plan.own:
            o, s = _forward(*_own_inputs(block, q, k, v), 0.0, True, scale=scale)
            _put(out, block, o.transpose(1, 2))
            _put(lse, block, s.transpose(1, 2))
        for path in plan.paths:
            keys, values = k.index_select(1, path.keys), v.index_select(1, path.keys)
            at = path.queries
            o, s = _forward(q[:, at].transpose(1, 2), *_per_head(q, keys, values), scale=scale)
            o, s = o.transpose(1, 2), s.transpose(1, 2)
            weight = torch.sigmoid(s - lse[:, at]).to(out.dtype)
            out[:, at] = torch.lerp(out[:, at], o, weight.unsqueeze(-1))
            lse[:, at] = torch.logaddexp(lse[:, at], s)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grad = grads[0].contiguous()
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for block in ctx.plan.own:
            rows = (block.rows * len(k), block.width)
            g, o, s = (t.index_select(1, block.gather) for t in (grad, out, lse))
            if block.padding is not None:
                g.masked_fill_(block.padding[:, None, None], 0.0)
                s.masked_fill_(block.padding[:, None], 1e9)  # padding gets probability 0 and no gradient
            g, o, s = (t.view(*rows, *t.shape[2:]).transpose(1, 2) for t in (g, o, s))
            q_, k_, v_ = _own_inputs(block, q, k, v)
            a, b, c = _backward(g, q_, k_, v_, o, s, 0.0, True, scale=ctx.scale)
            _add(dq, block, a.transpose(1, 2))
            _add(dk, block, b.sum(1))
            _add(dv, block, c.sum(1))
        for path in ctx.plan.paths:
            keys, values = k.index_select(1, path.keys), v.index_select(1, path.keys)
            g, q_, o, s = (t[:, path.queries].transpose(1, 2) for t in (grad, q, out, lse))
            a, b, c = _backward(g, q_, *_per_head(q, keys, values), o, s, 0.0, False, scale=ctx.scale)
            dq[:, path.queries] += a.transpose(1, 2)
            dk.index_add_(1, path.keys, b.sum(1))
            dv.index_add_(1, path.keys, c.sum(1))
        return dq, dk, dv, None, None


def _own_inputs(block: OwnBlocks, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = (block.rows * len(k), block.width)
    queries = q.index_select(1, block.gather).view(*rows, *q.shape[2:]).transpose(1, 2)
    keys, values = (t.index_select(1, block.gather).view(*rows, t.shape[-1]) for t in (k, v))
    return queries, *_per_head(q, keys, values)


def _per_head(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Expand keys and values [B, L, D] to each of the G query heads that share them, without a copy."""
    heads = q.shape[2]
    return keys.unsqueeze(1).expand(-1, heads, -1, -1), values.unsqueeze(1).expand(-1, heads, -1, -1)


def _unpadded(block: OwnBlocks, batch: Tensor, heads: int) -> Tensor:
    flat = batch.reshape(heads, block.rows * block.width, *batch.shape[2:])
    return flat if block.filled is None else flat.index_select(1, block.filled)


def _put(target: Tensor, block: OwnBlocks, batch: Tensor) -> None:
    target.index_copy_(1, block.tokens, _unpadded(block, batch, len(target)).to(target.dtype))


def _add(target: Tensor, block: OwnBlocks, batch: Tensor) -> None:
    target.index_add_(1, block.tokens, _unpadded(block, batch, len(target)))


def can_fuse(q: Tensor, v: Tensor) -> bool:
    """Return whether the kernel takes these: on a CPU, float32 or bfloat16, keys and values of one head size."""
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1] and q.dtype in (torch.float32, torch.bfloat16)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: TreeMask, scale: float, *, last: bool = False) -> Tensor:
    """Attend: q [1, H, T, D]; k, v [1, K, T, D] -> [1, T, H, D]. In the `last` layer only `mask.wanted` outputs are
    right."""
    plan = mask.plan(("fused", last), lambda: _Plan.of(mask.tree, mask.wanted if last else None))
    out = _FusedAttention.apply(grouped_queries(q, k), k[0].contiguous(), v[0].contiguous(), plan, scale)  # type: ignore[no-untyped-call]
    return ungrouped(out)
