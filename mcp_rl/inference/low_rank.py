"""An adapter that is sampled as it is: x Wᵀ + s (x Aᵀ) Bᵀ (Hu et al., LoRA, 2021, equation 3), without W + s·B·A.

Switching it copies A and B, a few MB, where merging copies most of the model; and merging would round small updates
away in bfloat16, and in what bitsandbytes quantised. It costs two thin products for each layer and token, so small
float32 models are sampled faster merged.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from peft import PeftModel
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from mcp_rl.errors import EngineError


@dataclass(frozen=True, eq=False)
class LowRank:
    """What a policy version adds to one linear layer."""

    a: Tensor
    """[r, in]"""
    b: Tensor
    """[out, r]"""
    scale: float

    def fits(self, layer: nn.Linear) -> bool:
        """Whether it can be added to a layer."""
        shapes = (*self.b.shape[:1], *self.a.shape[1:]), self.a.shape[:1]
        return self.a.dim() == self.b.dim() == 2 and shapes == (_shape(layer), self.b.shape[1:])

    def copy(self) -> "LowRank":
        return LowRank(self.a.detach().clone(), self.b.detach().clone(), self.scale)


class AdaptedLinear(nn.Linear):
    """A linear layer that something of low rank may be added to. Computed in the order and precision of PEFT's own
    layer, so that sampler and learner round alike."""

    delta: LowRank | None = None

    def forward(self, input: Tensor) -> Tensor:
        out = F.linear(input, self.weight, self.bias)
        if (delta := self.delta) is None:
            return out
        low = F.linear(F.linear(input.to(delta.a.dtype), delta.a), delta.b)
        return (out + low * delta.scale).to(out.dtype)


class AdaptedQuantised(AdaptedLinear):
    """The same over a layer of bitsandbytes, whose class comes next and computes its own product."""

    def forward(self, input: Tensor) -> Tensor:
        out = super(AdaptedLinear, self).forward(input)
        if (delta := self.delta) is None:
            return out
        low = F.linear(F.linear(input.to(delta.a.dtype), delta.a), delta.b)
        return out + (low * delta.scale).to(out.dtype)


@functools.cache
def _over(kind: Any) -> type[AdaptedLinear]:
    return type("AdaptedQuantised", (AdaptedQuantised, kind), {})


def is_quantised(layer: nn.Module) -> bool:
    """Whether it is a linear layer of bitsandbytes."""
    return isinstance(layer, nn.Linear) and type(layer).__module__.startswith("bitsandbytes.")


def adapted(model: nn.Module, path: str) -> AdaptedLinear | None:
    """The layer of that path, made able to take a low-rank addition; None where it is no linear layer, or one of
    another kind."""
    layer: Any = model.get_submodule(path)
    if type(layer) is nn.Linear:
        layer.__class__ = AdaptedLinear
    elif is_quantised(layer):
        layer.__class__ = _over(cast(Any, type(layer)))
    return layer if isinstance(layer, AdaptedLinear) else None


def _shape(layer: nn.Linear) -> tuple[int, int]:
    """Of its weight as it is used: quantised, it is kept in another."""
    return layer.out_features, layer.in_features


def low_rank_weights(model: PeftModel) -> dict[str, LowRank]:
    """What the model's active adapter adds, by the names of the weights in the base model. Nothing is copied.

    Raises EngineError for an adapter that is not two matrices for each of some linear layers.
    """
    found = {}
    modules: Iterable[tuple[str, Any]] = cast(Any, model).get_base_model().named_modules()
    for path, module in modules:
        if not isinstance(module, LoraLayer):
            continue
        layer: Any = module
        (name,) = layer.active_adapters
        base = layer.get_base_layer()
        plain = type(base) is nn.Linear or is_quantised(base)
        if not plain or name in layer.lora_variant or layer.lora_bias[name]:
            raise EngineError(f"The adapter of {path} is not of a kind that can be sampled as it is; merge it.")
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        found[f"{path}.weight"] = LowRank(a.detach(), b.detach(), float(layer.scaling[name]))
    return found
