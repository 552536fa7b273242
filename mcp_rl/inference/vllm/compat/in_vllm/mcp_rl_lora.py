"""LoRA kernels for CPUs, loaded by vLLM's worker (`--worker-extension-cls mcp_rl_lora.Adapters`).

The kernels of vLLM 0.32 (`lora/ops/torch_ops/lora_ops.py`) copy an adapter's weights for every single token, which
takes most of the time of a small model. They also give tokens of the base the index -1, which selects the last adapter:
the base is not the base when it is sampled beside adapters. Here all tokens of an adapter are multiplied with it at
once, and tokens of the base with none. If vLLM's class is not the known one, it is left alone.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("vllm.mcp_rl_lora")
_KNOWN = ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices", "buffer", "kwargs"]
"""The parameters of `PunicaWrapperCPU.add_lora_linear`."""
Rows = torch.Tensor | None
"""Indices of tokens; None: all tokens."""


class Adapters:
    """An empty class that vLLM adds to its worker, so that it imports this module."""


class ByAdapter(PunicaWrapperCPU):  # type: ignore[misc]
    """Apply adapters to groups of tokens, one group for each adapter."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Group the tokens; called before each forward pass."""
        super().update_metadata(*args, **kwargs)
        self._groups = _groups(self.token_lora_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: Sequence[torch.Tensor],
        lora_b_stacked: Sequence[torch.Tensor],
        scale: float,
        output_slices: Sequence[int],
        *,
        buffer: Sequence[torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add the adapters' output to y.

        y: [tokens, sum of `output_slices`], changed in place; x: [tokens, inputs]; for each slice, A:
        [slots, 1, rank, inputs] and B: [slots, 1, outputs, rank]. As in vLLM, A is applied in float32.
        """
        out, given = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
        for slot, rows in self._groups:
            inputs = (given if rows is None else given[rows]).float()
            begin = 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                inner = (inputs @ a[slot, 0].float().T).mul_(scale).to(out.dtype)
                weight, part = b[slot, 0].to(out.dtype).T, out[:, begin : begin + size]
                if rows is None:
                    part.addmm_(inner, weight)
                else:
                    part.index_add_(0, rows, inner @ weight)
                begin += size


def _groups(slots: torch.Tensor) -> list[tuple[int, Rows]]:
    """Group tokens by their adapter's slot; tokens of the base, -1, are in no group."""
    found = sorted(set(slots.tolist()))
    if len(found) == 1:
        return [(slot, None) for slot in found if slot >= 0]
    return [(slot, (slots == slot).nonzero()[:, 0]) for slot in found if slot >= 0]


def _take_place() -> None:
    if list(inspect.signature(PunicaWrapperCPU.add_lora_linear).parameters) != _KNOWN:
        _log.warning("Adapters are computed by vLLM's own kernels for CPUs: this version's interface is unknown.")
        return
    type(current_platform).get_punica_wrapper = classmethod(lambda cls: f"{__name__}.{ByAdapter.__name__}")


if current_platform.is_cpu():
    _take_place()
