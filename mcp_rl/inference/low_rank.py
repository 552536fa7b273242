"""Sample an adapter without merging it: x Wᵀ + s (x Aᵀ) Bᵀ (Hu et al., LoRA, 2021, equation 3), not W + s·B·A.

Switching adapters copies A and B, a few MB, where merging copies most of the model; and merging would round away small
updates in bfloat16 and in weights quantised by bitsandbytes. It costs two thin products for each layer and token, so
small float32 models are sampled faster merged.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn import functional as F

from mcp_rl.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from peft import PeftModel


@dataclass(frozen=True, eq=False)
class LowRank:
    """The update that a policy version adds to one linear layer. Compared by identity."""

    a: Tensor
    """[r, in]"""
    b: Tensor
    """[out, r]"""
    scale: float

    def fits(self, layer: nn.Linear) -> bool:
        """Return whether it can be added to a layer."""
        wanted = layer.out_features, layer.in_features  # a quantised weight is stored in another shape
        shapes = (*self.b.shape[:1], *self.a.shape[1:]), self.a.shape[:1]
        return self.a.dim() == self.b.dim() == 2 and shapes == (wanted, self.b.shape[1:])

    def copy(self) -> LowRank:
        return LowRank(self.a.detach().clone(), self.b.detach().clone(), self.scale)


class AdaptedLinear(nn.Linear):
    """A linear layer with an optional low-rank update.

    It computes in the order and precision of PEFT's layer, so sampler and learner round alike.
    """

    delta: LowRank | None = None

    def forward(self, input: Tensor) -> Tensor:
        out = F.linear(input, self.weight, self.bias)
        if (delta := self.delta) is None:
            return out
        low = F.linear(F.linear(input.to(delta.a.dtype), delta.a), delta.b)
        return (out + low * delta.scale).to(out.dtype)


class AdaptedQuantised(AdaptedLinear):
    """The same for a bitsandbytes layer: its class, next in the MRO, computes the quantised product."""

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
    """Return whether it is a linear layer of bitsandbytes."""
    return isinstance(layer, nn.Linear) and type(layer).__module__.startswith("bitsandbytes.")


def adapted(model: nn.Module, path: str) -> AdaptedLinear | None:
    """Return the linear layer of that path, made able to take a low-rank update; None for other kinds of layers."""
    layer: Any = model.get_submodule(path)
    if type(layer) is nn.Linear:
        layer.__class__ = AdaptedLinear
    elif is_quantised(layer):
        layer.__class__ = _over(cast("Any", type(layer)))
    return layer if isinstance(layer, AdaptedLinear) else None


def low_rank_weights(model: PeftModel) -> dict[str, LowRank]:
    """Return the active adapter's updates by the names of the weights in the base model. Nothing is copied.

    Raises EngineError unless the adapter is two matrices for each of some linear layers.
    """
    found = {}
    modules: Iterable[tuple[str, Any]] = cast("Any", model).get_base_model().named_modules()
    for path, module in modules:
        if not isinstance(module, LoraLayer):
            continue
        layer: Any = module
        (name,) = layer.active_adapters
        base = layer.get_base_layer()
        plain = type(base) is nn.Linear or is_quantised(base)
        if not plain or name in layer.lora_variant or layer.lora_bias[name]:
            raise EngineError(f"The adapter of {path} is not plain LoRA on a linear layer: merge it to sample it.")
        a, b = layer.lora_A[name].weight, layer.lora_B[name].weight
        found[f"{path}.weight"] = LowRank(a.detach(), b.detach(), float(layer.scaling[name]))
    return found
