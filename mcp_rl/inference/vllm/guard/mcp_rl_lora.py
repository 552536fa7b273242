"""Loaded by vLLM's worker on a CPU (`--worker-extension-cls mcp_rl_lora.Adapters`): an adapter is multiplied once.

vLLM 0.32's own kernels for CPUs (`lora/ops/torch_ops/lora_ops.py`) copy an adapter's weights for every single token,
which takes most of the time of a small model. And a token of the base is given the index -1, which there is the last
adapter's: sampled beside adapters, the base is not the base. Here the tokens of an adapter are multiplied with it
together, and those of the base with none. Where vLLM's class is not the one that is known, it stays as it is.
"""

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

_log = logging.getLogger("vllm.mcp_rl_lora")
_KNOWN = ["self", "y", "x", "lora_a_stacked", "lora_b_stacked", "scale", "output_slices", "buffer", "kwargs"]
"""The parameters of `PunicaWrapperCPU.add_lora_linear`."""
Rows = torch.Tensor | None
"""Indices of tokens; None: all of them."""


class Adapters:
    """vLLM adds this class to its worker; importing the module is all that it is for."""


class ByAdapter(PunicaWrapperCPU):  # type: ignore[misc]
    """Adds what adapters add, to tokens in groups of one adapter each."""

    def update_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Called before each forward pass."""
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
        """y: [tokens, sum of `output_slices`], changed in place; x: [tokens, inputs]; of each slice the adapters'
        A, [slots, 1, rank, inputs], and B, [slots, 1, outputs, rank]. What is between them is float32, as vLLM's is."""
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
    """Which tokens are of which adapter's slot; those of the base, -1, are in none."""
    found = sorted(set(slots.tolist()))
    if len(found) == 1:
        return [(slot, None) for slot in found if slot >= 0]
    return [(slot, (slots == slot).nonzero()[:, 0]) for slot in found if slot >= 0]


def _take_place() -> None:
    if list(inspect.signature(PunicaWrapperCPU.add_lora_linear).parameters) != _KNOWN:
        _log.warning("Adapters are computed by vLLM's own kernels for CPUs, which are not the ones that we know.")
        return
    type(current_platform).get_punica_wrapper = classmethod(lambda cls: f"{__name__}.{ByAdapter.__name__}")


if current_platform.is_cpu():
    _take_place()
