"""The layers of a model that get an adapter, and those that get none.

Names of layers differ between architectures: fused projections, experts in one tensor, layers without attention. A
fixed list of names would silently leave a part of such a model as it is, so names are resolved on the model itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from peft import LoraConfig
from torch import nn
from transformers.pytorch_utils import Conv1D

from mcp_rl.config.learning import ALL_LINEAR
from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from peft import PeftModel
    from transformers import PreTrainedModel

_ROUTERS = {"gate", "router", "shared_expert_gate"}
"""Layers that choose experts; an update of theirs moves every expert's load, and engines sample no adapter on them."""

COVERED = 0.5
"""Share of a model's weights under an adapter below which a run says so at its start."""


def resolve_targets(model: PreTrainedModel, targets: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the layers to adapt: the targets themselves, or for "all-linear" the names of every linear
    layer but the output layer and the routers of experts.

    Raises ConfigError for a name that no linear layer has, naming those that there are.
    """
    there = {name.rpartition(".")[2] for name, _ in _linear(model)}
    if ALL_LINEAR in targets:
        if len(targets) > 1:
            raise ConfigError(f'train.lora.targets names "{ALL_LINEAR}" and others: leave the others out.')
        if not there:
            raise ConfigError(f"{type(model).__name__} has no linear layers, so it takes no adapter.")
        return tuple(sorted(there - _meant_for_experts(model, there)))
    names = [f".{name}" for name, _ in _linear(model, routers=True)]
    missing = [target for target in targets if not any(name.endswith(f".{target}") for name in names)]
    if missing:
        raise ConfigError(
            f"train.lora.targets names {', '.join(missing)}, and {type(model).__name__} has no such layer, so a part "
            f"of it would not learn: its linear layers are {', '.join(sorted(there))}; name them, or take "
            f'["{ALL_LINEAR}"] for all.'
        )
    if experts := sorted(_meant_for_experts(model, targets)):
        raise ConfigError(
            f"train.lora.targets names {', '.join(experts)}, which PEFT takes for the experts of "
            f"{type(model).__name__}, whose weights are in one tensor that the engine samples no adapter of: take "
            f'["{ALL_LINEAR}"], which leaves them out.'
        )
    return tuple(targets)


def _meant_for_experts(model: PreTrainedModel, names: Iterable[str]) -> set[str]:
    """Return the names that PEFT takes for a model's experts, which transformers stores in one tensor since its version
    5, rather than for linear layers of the same name (`down_proj` of a shared expert)."""
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers as convert
    except ImportError:  # an earlier PEFT, which converts nothing
        return set()
    config = LoraConfig(target_modules=list(names))
    try:
        convert(config, model, None)
    except ValueError:  # PEFT says what is wrong with these names as it makes the adapter
        return set()
    return set(names) - set(config.target_modules or ())


def describe_adapted(model: PeftModel) -> dict[str, Any]:
    """Return what an adapter covers, for model.json: the names of adapted layers and their number, the linear layers
    without one, and the share of the base's parameters outside of the embeddings that lies under it."""
    base: Any = model.get_base_model()
    adapted, left = Counter[str](), Counter[str]()
    ends = [layer for layer in (base.get_input_embeddings(), base.get_output_embeddings()) if layer is not None]
    counted = {id(p) for layer in ends for p in layer.parameters()}
    under = linear = 0
    for name, module in _linear(base, routers=True):
        has = hasattr(module, "lora_A")
        (adapted if has else left)[name.rpartition(".")[2]] += 1
        linear += _size(module)
        under += _size(module) if has else 0
        counted |= {id(p) for p in module.parameters()}
    others = sum(p.numel() for p in base.parameters() if id(p) not in counted)
    share = round(under / max(1, linear + others), 4)
    return {"layers": sorted(adapted), "modules": adapted.total(), "without": sorted(left), "share": share}


def uncovered(about: Mapping[str, Any], name: str) -> str:
    """Return a sentence for an adapter that leaves most of a model as it is; empty for any other."""
    if about["share"] >= COVERED:
        return ""
    without = f", and {', '.join(about['without'])} have none" if about["without"] else ""
    return (
        f"The adapter covers {about['share']:.0%} of {name} without its embeddings: {', '.join(about['layers'])} have "
        f"one{without}; what is stored in no linear layer, such as fused experts, stays as it is."
    )


def _linear(model: nn.Module, *, routers: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the linear layers with their names, without the output layer and what an adapter itself holds."""
    output = getattr(model, "get_output_embeddings", lambda: None)()
    for name, module in model.named_modules():
        if ".lora_" in name or ".base_layer" in name or module is output:
            continue
        plain = isinstance(module, nn.Linear | Conv1D) or hasattr(module, "lora_A")
        if plain and (routers or name.rpartition(".")[2] not in _ROUTERS):
            yield name, module


def _size(module: nn.Module) -> int:
    """Return the weights of a linear layer, also where they are stored in fewer bits."""
    base: Any = getattr(module, "base_layer", module)
    return int(base.weight.numel() if isinstance(base, Conv1D) else base.in_features * base.out_features)
