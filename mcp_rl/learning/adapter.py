"""The LoRA adapter: made by PEFT, stored by PEFT, computed with one matrix product per layer.

PEFT's own layer does three products and four element-wise passes for each token. Here W + s·B·A is formed once per
forward, and the gradients of A and B are taken through their small factors, never through one of W's shape:
with y = x (W + s·B·A)ᵀ, dA = s·(dy·B)ᵀ·x and dB = s·dyᵀ·(x·Aᵀ) (Hu et al., LoRA, 2021).
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora import LoraLayer
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from mcp_rl.errors import EngineError

ADAPTER = "default"


class _MergedLinear(torch.autograd.Function):
    """x [..., in], weight [out, in], bias [out] or None, a [r, in], b [out, r]; returns [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        merged = torch.addmm(weight, b, a, alpha=scale)
        ctx.save_for_backward(x, merged, a, b)
        ctx.scale = scale
        return F.linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, a, b = ctx.saved_tensors
        dy = grads[0]
        dx = dy @ merged if ctx.needs_input_grad[0] else None
        flat_dy, flat_x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        da = (flat_dy @ (b * ctx.scale)).T @ flat_x
        db = flat_dy.T @ (flat_x @ (a.T * ctx.scale))
        return dx, None, None, da, db, None


def add_adapter(
    model: PreTrainedModel, *, rank: int, alpha: int, targets: Sequence[str], base_name: str, seed: int
) -> PeftModel:
    """Put a fresh adapter on a model. The same seed gives the same adapter; B is zero, so it changes nothing yet.

    `base_name` is what `AutoModelForCausalLM.from_pretrained` will need to find the base again.
    """
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(targets), lora_dropout=0.0, bias="none", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by an older name
        torch.manual_seed(seed)
        adapted = get_peft_model(model, config, adapter_name=ADAPTER)
    adapted.peft_config[ADAPTER].base_model_name_or_path = base_name
    adapted.eval()
    merge_in_forward(adapted)
    return adapted


def merge_in_forward(model: torch.nn.Module) -> int:
    """Replace the forward of every plain float32 LoRA layer by the merged one; returns how many there were.

    Other dtypes keep PEFT's forward: a small update would be lost in rounding if it were added to a bfloat16 weight.
    """
    layers = [layer for layer in _lora_layers(model) if _is_plain(layer)]
    for layer in layers:
        layer.forward = _merged_forward(layer)  # type: ignore[method-assign]
    return len(layers)


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


def _is_plain(layer: LoraLinear) -> bool:
    base = layer.get_base_layer()
    return (
        type(base) is torch.nn.Linear
        and not base.weight.requires_grad
        and base.weight.dtype == layer.lora_A[ADAPTER].weight.dtype == torch.float32
        and list(layer.active_adapters) == [ADAPTER]
        and not layer.lora_variant
        and not layer.lora_bias[ADAPTER]
        and isinstance(layer.lora_dropout[ADAPTER], torch.nn.Identity)
    )


def trainable_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """What is trained, by name, in the model's fixed order; tied weights stand there once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def full_copy(base: PreTrainedModel) -> PreTrainedModel:
    """A model of its own with every weight trainable, in float32, where small updates are not lost in rounding."""
    model = copy.deepcopy(base)
    model.to(torch.float32)  # type: ignore[arg-type]
    model.requires_grad_(True)
    model.eval()  # type: ignore[no-untyped-call]
    return model


@torch.no_grad()
def merged_weights(model: PeftModel | PreTrainedModel) -> dict[str, Tensor]:
    """What a sampler of the base needs to sample the policy, by the names in the base model.

    Of an adapter: W + s·B·A of the weights that it changes. Of a plain model: every parameter, tied ones once, and not
    copied. Raises EngineError for an adapter on quantised layers, whose weights are not those that are computed with.
    """
    if not isinstance(model, PeftModel):
        return {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, LoraLinear):
            raise EngineError(f"The adapter of {name} is not on a plain linear layer and cannot be merged into it.")
    names = {id(module): name for name, module in model.get_base_model().named_modules()}
    return {
        f"{names[id(layer)]}.weight": cast(Tensor, layer.get_base_layer().weight) + layer.get_delta_weight(ADAPTER)
        for layer in _lora_layers(model)
    }
