"""Attention over a prefix tree on CUDA, by FlexAttention (Dong et al., Flex Attention, 2024), compiled.

The kernel skips blocks of 128 by 128 in which no query sees a key, and masks inside those in which only some do. The
mask needs three numbers for each token; no [T, T] matrix is ever made.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import AuxOutput, AuxRequest, BlockMask
from torch.nn.attention.flex_attention import flex_attention as _flex

from mcp_rl.learning.forward.masked_attention import Scores, masked_attention
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_mask import TreeMask

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

BLOCK = 128
_SMALLEST_HEAD = 16
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_NEVER = torch.iinfo(torch.int32).min


def can_flex(q: Tensor, k: Tensor, v: Tensor, scores: Scores, sinks: Tensor | None) -> bool:
    """Return whether FlexAttention can be used for these [1, heads, T, size]: on CUDA, if a trial of it succeeds."""
    if q.device.type != "cuda" or q.dtype not in _DTYPES or min(q.shape[-1], v.shape[-1]) < _SMALLEST_HEAD:
        return False
    return _works(
        q.device, q.dtype, q.shape[1], k.shape[1], q.shape[-1], v.shape[-1], scores.softcap, sinks is not None
    )


@cache
def _works(
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    size: int,
    value_size: int,
    softcap: float | None,
    sinks: bool,
) -> bool:
    """Compare a forward and a backward pass over a small tree with plain matrix products; most of its time is
    compilation."""
    draw = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device, dtype=dtype).requires_grad_()

    shared = list(range(100))
    tree = build_tree([[*shared, *range(start, start + 150)] for start in (100, 250)])
    mask, length = TreeMask.of(tree).to(device), len(tree.tokens)
    q, k = random(1, heads, length, size), random(1, kv_heads, length, size)
    v = random(1, kv_heads, length, value_size)
    of_sinks = random(heads) if sinks else None
    scores = Scores(size**-0.5, softcap, 120)
    try:
        with torch.enable_grad():
            got, wanted = (
                _with_gradients(attention(q, k, v, mask, scores, of_sinks), [q, k, v, *([of_sinks] if sinks else [])])
                for attention in (flex_attention, masked_attention)
            )
        near = all(
            float((a.float() - b.float()).norm()) <= 0.03 * float(b.float().norm())
            for a, b in zip(got, wanted, strict=True)
        )
        reason = "" if near else "its values are wrong"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no compiler, no Triton, or a shape that its kernels do not support
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if reason:
        log.warning("FlexAttention cannot be used here, so slower matrix products are: %s", reason)
    return not reason


def _with_gradients(out: Tensor, inputs: list[Any]) -> list[Tensor]:
    return [out.detach(), *torch.autograd.grad(out.float().square().sum(), inputs)]


@cache
def _compiled() -> Callable[..., tuple[Tensor, AuxOutput]]:
    return compiled()


def compiled(backend: str | Callable[..., Any] = "inductor") -> Callable[..., tuple[Tensor, AuxOutput]]:
    """Compile FlexAttention once for all lengths. `fullgraph` makes it an error if it is compiled too often after all;
    without it the kernel would silently be replaced by code that holds scores [H, T, T]."""
    return cast(
        "Callable[..., tuple[Tensor, AuxOutput]]", torch.compile(_flex, dynamic=True, fullgraph=True, backend=backend)
    )


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: TreeMask,
    scores: Scores,
    sinks: Tensor | None = None,
    *,
    kernel: Callable[..., tuple[Tensor, AuxOutput]] | None = None,
) -> Tensor:
    """Attend: q [1, H, T, D], k [1, K, T, D], v [1, K, T, E], sinks [H] -> [1, T, H, E]. `kernel` replaces the compiled
    one."""
    length = q.shape[2]
    blocks = mask.plan(("flex", scores.window), lambda: block_mask(mask, scores.window))
    padded = (F.pad(part, (0, 0, 0, _padding(length))) for part in (q, k, v))
    out, extra = (kernel or _compiled())(
        *padded,
        score_mod=None if scores.softcap is None else _soft_capped(scores.softcap),
        block_mask=blocks,
        scale=scores.scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    out = out[:, :, :length].transpose(1, 2)
    if sinks is None:
        return out
    lse = cast("Tensor", extra.lse)[:, :, :length].transpose(1, 2)
    return out * torch.sigmoid(lse - sinks.to(lse.dtype)).unsqueeze(-1).to(out.dtype)


@cache
def _soft_capped(cap: float) -> Callable[..., Tensor]:
    def score_mod(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return score_mod


def _padding(length: int) -> int:
    """Return the padding up to whole blocks, at most an eighth of the length beyond that: each length may have to be
    compiled for, so there are few."""
    step = max(BLOCK, 1 << max(0, length.bit_length() - 4))
    return -length % step


def block_mask(mask: TreeMask, window: int | None = None) -> BlockMask:
    """Return which blocks of [T, T], T padded, are seen in part and which whole. Padding sees itself, so that no row is
    empty."""
    length = len(mask.enter)
    extra = _padding(length)
    alone = torch.arange(extra, dtype=torch.int32, device=mask.enter.device) + len(mask.tree.nodes)
    enter, leave = torch.cat([mask.enter, alone]), torch.cat([mask.leave, alone + 1])
    position = F.pad(mask.positions, (0, extra))
    earliest = torch.full_like(position, _NEVER) if window is None else position - (window - 1)

    def mask_mod(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        inside = (enter[key] <= enter[query]) & (enter[query] < leave[key])
        return inside & (position[key] <= position[query]) & (position[key] >= earliest[query])

    keys = torch.arange(length + extra, device=enter.device)
    seen = torch.stack(
        [
            mask_mod(keys, keys, keys[start : start + BLOCK, None], keys[None]).view(BLOCK, -1, BLOCK).sum((0, 2))
            for start in range(0, length + extra, BLOCK)
        ]
    )
    some, every = (seen > 0) & (seen < BLOCK * BLOCK), seen == BLOCK * BLOCK
    (partial, partial_at), (full, full_at) = _ordered(some), _ordered(every)
    return BlockMask.from_kv_blocks(partial, partial_at, full, full_at, BLOCK_SIZE=BLOCK, mask_mod=mask_mod)


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[n, n] bool -> [1, 1, n] count of set columns in each row, [1, 1, n, n] the columns with the set ones first."""
    columns = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32)[None, None], columns.int()[None, None].contiguous()
