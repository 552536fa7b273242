"""How far a sampler and a learner of the same policy may differ, by the precision in which they compute.

Measured on the built-in model's logits over random tokens, as the mean absolute difference in nats: float32 against
bfloat16 0.028, and against float16 0.0034, which has three bits more; two attention kernels in bfloat16 0.026, in
float16 0.003. Limits for quantised bases are chosen, not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mcp_rl.learning.adapter import base_of

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Rounding:
    """Limits on the differences between two computations of the same log-probabilities, in nats."""

    name: str
    magnitude: float
    """Limit of the mean absolute difference."""
    mean: float
    """Limit of the mean difference, for many tokens."""


BFLOAT16 = Rounding("bfloat16", 0.1, 0.02)
ROUNDINGS = {
    "bfloat16": BFLOAT16,
    "float16": Rounding("float16", 0.04, 0.02),
    "8-bit": Rounding("8 bits", 0.15, 0.03),
    "4-bit": Rounding("4 bits", 0.15, 0.03),
}
"""Limits by precision: three to twelve times what was measured. Quantised layers are restored to 16 bits by other
kernels in the sampler than in the learner, and 8 bits depend on what else is in the batch."""
_EXPERTS = 2.0
"""Factor for models with experts: rounding sends a few tokens to other experts."""


def rounding_of(*models: PeftModel | PreTrainedModel | None) -> Rounding | None:
    """Return the limits for the roughest of some models; None if all of them compute in float32."""
    found = [rounding for model in models if model is not None and (rounding := _rounding(base_of(model)))]
    return max(found, key=lambda rounding: rounding.magnitude, default=None)


def _rounding(base: Any) -> Rounding | None:
    stored = getattr(base.config, "quantization_config", None)
    if stored is not None:
        known = stored if isinstance(stored, dict) else vars(stored)
        bits = "8-bit" if known.get("load_in_8bit") or known.get("_load_in_8bit") else "4-bit"
        found = ROUNDINGS[bits]
    elif base.dtype in (torch.float32, torch.float64):
        return None
    else:
        found = ROUNDINGS.get(str(base.dtype).removeprefix("torch."), BFLOAT16)
    text = base.config.get_text_config()
    if getattr(text, "num_experts_per_tok", None):
        return Rounding(f"{found.name} with experts", found.magnitude * _EXPERTS, found.mean * _EXPERTS)
    return found
