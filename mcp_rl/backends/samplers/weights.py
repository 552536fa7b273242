"""Chooses the form in which the engine gets the learned weights: merged, or as an adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor

from mcp_rl.inference.low_rank import LowRank, low_rank_weights
from mcp_rl.learning.adapter import merged_weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel

MERGED_PARAMETERS = 64_000_000
"""Most weights of adapted float32 layers (256 MB) that are merged, since small models are sampled faster so."""


def sampled_weights(
    model: PeftModel | PreTrainedModel, base: PreTrainedModel | None = None
) -> Mapping[str, Tensor | LowRank]:
    """Return the weights that the engine must load to sample the model, by the base's names; a whole model's are in the
    precision of the `base` that it is a copy of."""
    if isinstance(model, PeftModel) and not _merges_well(model):
        return low_rank_weights(model)
    weights = merged_weights(model)
    if base is None:
        return weights  # type: ignore[return-value, unused-ignore]
    kinds = {name: parameter.dtype for name, parameter in base.named_parameters()}
    return {name: weight.to(kinds[name]) for name, weight in weights.items()}


def _merges_well(model: PeftModel) -> bool:
    adapted = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    if not all(isinstance(layer, LoraLinear) for layer in adapted):  # quantised: they compute other weights
        return False
    bases: list[Tensor] = [layer.get_base_layer().get_parameter("weight") for layer in adapted]
    return all(w.dtype == torch.float32 for w in bases) and sum(w.numel() for w in bases) <= MERGED_PARAMETERS
