"""The product of a linear layer on the CPU, by the faster of the two libraries that torch brings along.

torch's `linear` calls MKL, which uses AVX-512 on Intel's processors alone; oneDNN uses it on all. On a Zen 5 core it
computes the built-in model's products 1.2 to 2.4 times as fast, large ones more (`benchmarks.products`). Both add
in the same order whatever the number of rows, a multiple of `TILE` (each engine measures it, see `probe`).

oneDNN keeps what it compiles for each size that it meets. The heap frays around that, by a gigabyte after some hundred
sizes, so rows are added until there are few sizes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 16
"""Linear layers get a multiple of so many rows."""
_SIZES = 5
"""Digits of the binary number of rows that may differ from 0: at most 6 % of the rows are added."""
_FEW = 256
"""Rows that make few sizes anyway."""


@functools.cache
def has_onednn() -> bool:
    """Return whether oneDNN is there and computes in float32 with AVX-512."""
    capable = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return capable and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def in_tiles(x: Tensor) -> Tensor:
    """Return x [..., in] as rows [n, in]; where oneDNN computes, with rows of zeros up to one of few sizes."""
    rows = x.reshape(-1, x.shape[-1])
    if x.device.type != "cpu" or x.dtype != torch.float32 or not has_onednn():
        return rows
    missing = -len(rows) % max(TILE, 1 << max(0, len(rows).bit_length() - _SIZES))
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


def first_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Return the first of some rows [n, out] in the shape [..., out] of `like` [..., in]."""
    return rows[: like[..., 0].numel()].view(*like.shape[:-1], rows.shape[-1])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b for x [..., in], weight [out, in] (a view will do) and bias [out], without a gradient."""
    if x.device.type != "cpu" or not x.dtype == weight.dtype == torch.float32 or not has_onednn():
        return F.linear(x, weight, bias)
    if not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.contiguous()  # else a reference kernel computes, a hundred times slower
    rows = x if x.dim() == 2 and len(x) <= _FEW else in_tiles(x)
    out = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return out if rows is x else first_rows(out, x)
