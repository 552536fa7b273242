"""The weights that are sampled: the base model's own tensors, except those that a policy version replaces.

The engine's model is a second set of modules around the same memory, so the learner's adapter, attention function and
gradients never meet the sampler. A policy version is the whole difference from the base, by parameter name: another
weight (for LoRA the merged W + s·B·A), or a low-rank update (`LowRank`: A and B themselves). Other parameters are the
base's.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from mcp_rl.errors import EngineError
from mcp_rl.inference import attention
from mcp_rl.inference.cache import KvShape
from mcp_rl.inference.engine import ATTENTION
from mcp_rl.inference.forward import LlamaForward, unknown_part
from mcp_rl.inference.low_rank import AdaptedLinear, LowRank, adapted
from mcp_rl.inference.native.model import NativeForward
from mcp_rl.inference.native.vectors import WIDE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedModel


NATIVE = 64_000_000
"""Most weights of a model that the native forward pass copies."""


class Policy:
    """A decoder-only language model whose weights can be replaced. Parameters of the base must not change in place."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = second_view(model)
        self.version = 0
        config = self.model.config.get_text_config()
        weight = next(self.model.parameters())
        kv_heads, head_dim = _widest(self.model)
        known = not unknown_part(self.model)
        native = known and sum(parameter.numel() for parameter in self.model.parameters()) <= NATIVE
        self.shape = KvShape(
            layers=config.num_hidden_layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            dtype=weight.dtype,
            device=weight.device,
            panel=WIDE if native else 0,
        )
        self.window: int = getattr(config, "max_position_embeddings", None) or 4096
        """Most tokens of an episode: the model's positions."""
        self.vocabulary: int = config.vocab_size
        """Logits of a token."""
        self._base = dict(self.model.named_parameters(remove_duplicate=False))
        self._replaced: dict[str, nn.Parameter] = {}
        self._adapted: dict[str, AdaptedLinear] = {}
        unique = {id(parameter): name for name, parameter in self.model.named_parameters()}
        self._tied_to = {name: unique[id(parameter)] for name, parameter in self._base.items()}
        self.native = NativeForward(self.model) if native else None
        """The forward pass without torch, of a small model that is known in all its parts."""
        self.own = LlamaForward(self.model) if known and not native else None
        """The engine's own forward pass of larger ones; if both are None, transformers' layers are called."""

    def load(self, weights: Mapping[str, Tensor | LowRank], version: int) -> None:
        """Sample a copy of `weights` from now on. Raises EngineError, and changes nothing, if one does not fit.

        A tied weight that is not named itself follows the first name of its group; a low-rank update is added to the
        named layer alone.
        """
        for name, weight in weights.items():
            self._check(name, weight, version)
        tensors = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor)}
        self._replaced = {
            name: self._replaced[name] if name in self._replaced else _empty(self._base[name]) for name in tensors
        }
        for name, tensor in tensors.items():
            self._replaced[name].copy_(tensor)
        for name, base in self._base.items():
            path, _, leaf = name.rpartition(".")
            parameter = self._replaced.get(name, self._replaced.get(self._tied_to[name], base))
            self.model.get_submodule(path)._parameters[leaf] = parameter
        for old in self._adapted.values():
            old.delta = None
        self._adapted = {}
        for name, weight in weights.items():
            if isinstance(weight, LowRank) and (layer := adapted(self.model, name.removesuffix(".weight"))):
                layer.delta = weight.copy()
                self._adapted[name] = layer
        for own in (self.native, self.own):
            if own is not None:
                own.renew()
        self.version = version

    @property
    def low_rank(self) -> bool:
        """True if the version has low-rank updates."""
        return bool(self._adapted)

    def _check(self, name: str, weight: Tensor | LowRank, version: int) -> None:
        if name not in self._base:
            raise EngineError(f"Policy version {version} has a weight {name!r} that the model lacks.")
        base = self._base[name]
        if isinstance(weight, LowRank):
            layer = adapted(self.model, name.removesuffix(".weight")) if name.endswith(".weight") else None
            if layer is None:
                raise EngineError(f"Policy version {version}: {name} is not the weight of a plain linear layer.")
            if not weight.fits(layer):
                shapes = f"{tuple(weight.b.shape)} x {tuple(weight.a.shape)}"
                wanted = (layer.out_features, layer.in_features)
                raise EngineError(f"Policy version {version}: {name} has shape {shapes}, not {wanted}.")
        elif weight.shape != base.shape:
            raise EngineError(
                f"Policy version {version}: {name} has shape {tuple(weight.shape)}, not {tuple(base.shape)}."
            )
        for tensor in _tensors(weight):
            if not torch.isfinite(tensor).all():
                raise EngineError(f"Policy version {version}: {name} holds values that are not finite.")

    @property
    def fingerprint(self) -> str:
        """Hash of the sampled difference from the base; equals `fingerprint_of` the loaded weights."""
        sampled = dict(self.model.named_parameters(remove_duplicate=False))
        weights: dict[str, Tensor | LowRank] = {name: sampled[name] for name in self._replaced}
        weights |= {name: layer.delta for name, layer in self._adapted.items() if layer.delta is not None}
        return fingerprint_of(weights)

    def logits(self, ids: Tensor, positions: Tensor, plan: attention.AttentionPlan, keep: Tensor | None) -> Tensor:
        """Forward packed ids [N] at absolute positions [N], where there is no native pass.

        Returns logits [N, vocabulary], or [len(keep), vocabulary] for the places `keep` alone.
        """
        if self.own is not None:
            return self.own.logits(ids, positions, plan, keep)
        with attention.follow(plan):
            out = self.model(
                input_ids=ids[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=0 if keep is None else keep,
            )
        return cast("Tensor", out.logits[0])


def fingerprint_of(weights: Mapping[str, Tensor | LowRank]) -> str:
    """Return a short hash of names and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        weight = weights[name]
        digest.update(name.encode())
        if isinstance(weight, LowRank):
            digest.update(repr(weight.scale).encode())
        for tensor in _tensors(weight):
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _tensors(weight: Tensor | LowRank) -> tuple[Tensor, ...]:
    return (weight.a, weight.b) if isinstance(weight, LowRank) else (weight,)


def _empty(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(parameter), requires_grad=False)


def _widest(model: Any) -> tuple[int, int]:
    """Return the most heads of keys that a layer has, and the widest head: both may differ between layers."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    groups = {count for layer in layers if (count := getattr(layer, "num_key_value_groups", None))}
    names = "qk_head_dim", "head_dim"
    widths = {found for layer in layers for name in names if type(found := getattr(layer, name, None)) is int}
    kv_heads = heads // min(groups) if groups else getattr(config, "num_key_value_heads", None) or heads
    return kv_heads, max(widths) if widths else getattr(config, "head_dim", None) or config.hidden_size // heads


def second_view(model: Any) -> PreTrainedModel:
    """Copy the model without adapters: new modules and configuration around the same parameters and buffers."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    view: PreTrainedModel = copy.deepcopy(inner, shared)
    for name, module in list(view.named_modules()):
        if name and hasattr(module, "base_layer"):
            view.set_submodule(name, module.base_layer)
    if kinds := set(getattr(view.config.get_text_config(), "layer_types", None) or ()) - ATTENTION:
        found = ", ".join(sorted(kinds))
        raise EngineError(f"{type(view).__name__} has layers with {found}; the in-process engine takes attention only.")
    view.eval()  # type: ignore[no-untyped-call]
    view.set_attn_implementation(attention.NAME)
    if view.config.get_text_config()._attn_implementation != attention.NAME:
        raise EngineError(f"{type(view).__name__} takes no attention function, but the in-process engine needs one.")
    return view
