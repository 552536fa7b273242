"""LoRA adapters: created and stored by PEFT, computed with one matrix product per layer.

PEFT's own layer does three products and four element-wise passes for each token. Here W + s·B·A is formed once per
forward pass, and the gradients of A and B go through these small factors, never through a matrix of W's shape:
with y = x (W + s·B·A)ᵀ, dA = s·(dy·B)ᵀ·x and dB = s·dyᵀ·(x·Aᵀ) (Hu et al., LoRA, 2021).
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn import functional as F

from mcp_rl.errors import EngineError
from mcp_rl.inference.products import first_rows, in_tiles, linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transformers import PreTrainedModel

ADAPTER = "default"
_ROUGH = (torch.bfloat16, torch.float16)


class _MergedLinear(torch.autograd.Function):
    """Linear layer with its update merged: x [..., in], weight [out, in], bias [out] or None, a [r, in], b [out, r];
    returns [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        merged = torch.addmm(weight, b, a, alpha=scale)
        ctx.save_for_backward(x, merged, a, b)  # without rows of zeros: layers with the same x keep it once
        ctx.scale = scale
        return first_rows(linear(in_tiles(x), merged, bias), x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, a, b = ctx.saved_tensors
        x, dy = in_tiles(x), in_tiles(grads[0])
        dx = first_rows(linear(dy, merged.T), grads[0]) if ctx.needs_input_grad[0] else None
        da = linear(linear(dy, b.T * ctx.scale).T, x.T)
        db = linear(linear(x, a * ctx.scale).T, dy.T).T
        return dx, None, None, da, db, None


class _LowRank(torch.autograd.Function):
    """An adapter's part of a linear layer in 16 bits: x [..., in], a [r, in] and b [out, r] in float32; returns
    s·B·A·x [..., out] in the type of x. All products are in that type, and the gradients of a and b are float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rough_a, rough_b = a.to(x.dtype), b.to(x.dtype)
        ctx.save_for_backward(x, rough_a, rough_b)
        ctx.scale = scale
        return F.linear(F.linear(x, rough_a), rough_b) * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b = ctx.saved_tensors
        dy = grads[0].to(x.dtype) * ctx.scale
        through = dy @ b
        dx = through @ a if ctx.needs_input_grad[0] else None
        flat_dy, flat_x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        da = _summed(through.reshape(-1, through.shape[-1]), flat_x)
        db = _summed(flat_dy, F.linear(flat_x, a))
        return dx, da, db, None


def _summed(left: Tensor, right: Tensor) -> Tensor:
    """Return leftᵀ·right in float32. A GPU sums products of 16 bits in float32; a CPU sums those of float16 in
    float16, which loses digits over thousands of tokens."""
    if left.dtype == torch.float16 and left.device.type == "cpu":
        return left.T.float() @ right.float()
    return (left.T @ right).float()


def add_adapter(
    model: PreTrainedModel, *, rank: int, alpha: int, targets: Sequence[str], base_name: str, seed: int
) -> PeftModel:
    """Put a fresh adapter on a model. The same seed gives the same adapter; B is zero, so it changes nothing yet.

    `base_name` is the name by which `AutoModelForCausalLM.from_pretrained` finds the base again.
    """
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT uses a deprecated name of transformers
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    adapted.peft_config[ADAPTER].base_model_name_or_path = base_name
    adapted.eval()
    merge_in_forward(adapted)
    return adapted


def merge_in_forward(model: torch.nn.Module) -> int:
    """Replace PEFT's forward of plain LoRA layers; return the number of those with their update merged.

    Float32 layers are merged. In 16 bits, and on quantised weights, a small update would be lost in rounding, so it
    stays a product of its own, in 16 bits, where PEFT would cast each input to float32.
    """
    merged = [layer for layer in _lora_layers(model) if is_merged(layer)]
    for layer in merged:
        layer.forward = _merged_forward(layer)  # type: ignore[method-assign]
    others: list[Any] = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for module in others:
        if not any(module is layer for layer in merged) and _is_simple(module):
            module.forward = _low_rank_forward(module)
    return len(merged)


def _low_rank_forward(layer: Any) -> Callable[..., Tensor]:
    base, original = layer.get_base_layer(), layer.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if layer.disable_adapters or layer.merged or args or kwargs or x.dtype not in _ROUGH:
            return original(x, *args, **kwargs)  # type: ignore[no-any-return]
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        return base(x) + _LowRank.apply(x, a, b, layer.scaling[ADAPTER])  # type: ignore[no-any-return, no-untyped-call]

    return forward


def _merged_forward(layer: LoraLinear) -> Callable[..., Tensor]:
    base = layer.get_base_layer()
    original = layer.forward

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if layer.disable_adapters or layer.merged or args or kwargs:
            return original(x, *args, **kwargs)
        a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
        return _MergedLinear.apply(x, base.weight, base.bias, a, b, layer.scaling[ADAPTER])  # type: ignore[no-any-return, no-untyped-call]

    return forward


def _lora_layers(model: torch.nn.Module) -> Iterator[LoraLinear]:
    return (module for module in model.modules() if isinstance(module, LoraLinear))


def is_merged(layer: LoraLinear) -> bool:
    """Return whether a layer is one whose update is merged in each forward pass."""
    base = layer.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and not base.weight.requires_grad
        and base.weight.dtype == torch.float32
        and _is_simple(layer)
    )


def _is_simple(layer: Any) -> bool:
    """Return whether a layer is linear with one plain float32 adapter."""
    return (
        isinstance(layer.get_base_layer(), torch.nn.Linear)
        and ADAPTER in layer.lora_A
        and layer.lora_A[ADAPTER].weight.dtype == torch.float32
        and list(layer.active_adapters) == [ADAPTER]
        and not layer.lora_variant
        and not layer.lora_bias[ADAPTER]
        and isinstance(layer.lora_dropout[ADAPTER], torch.nn.Identity)
    )


def base_of(model: PeftModel | PreTrainedModel) -> PreTrainedModel:
    """Return the transformers model under an adapter, or the model itself."""
    return model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[return-value]


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the trainable parameters by name, in the model's fixed order; tied weights once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def full_copy(base: PreTrainedModel, *, copied: bool = True) -> PreTrainedModel:
    """Return a model with every weight trainable, in float32, where small updates are not lost in rounding: a copy, or
    the base itself."""
    model = copy.deepcopy(base) if copied else base
    model.to(torch.float32)  # type: ignore[arg-type]
    model.requires_grad_(True)
    model.eval()  # type: ignore[no-untyped-call]
    return model


@torch.no_grad()
def merged_weights(model: PeftModel | PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights that turn a sampler of the base into a sampler of the policy, by their names in the base.

    For an adapter: W + s·B·A of each weight that it changes. For a plain model: every parameter, tied ones once, not
    copied. Raises EngineError for an adapter on quantised layers, which do not compute with their stored weights.
    """
    if not isinstance(model, PeftModel):
        return {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, LoraLinear):
            raise EngineError(f"The adapter of {name} cannot be merged, because that is not a plain linear layer.")
    names = {id(module): name for name, module in model.get_base_model().named_modules()}
    return {
        f"{names[id(layer)]}.weight": cast("Tensor", layer.get_base_layer().weight) + layer.get_delta_weight(ADAPTER)
        for layer in _lora_layers(model)
    }
