"""The engine's own forward pass for models of Llama's shape: Llama, Qwen2 and Qwen3.

It calls torch's and oneDNN's kernels without the wrappers of transformers' layers. It is used in float32 on a CPU,
where it knows every part and setting of the model (`unknown_part`); other models take transformers' layers, and small
ones a pass without torch (`native`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import SiLUActivation

from mcp_rl.inference.attention import AttentionKind, AttentionPlan, attend
from mcp_rl.inference.cache import round_up
from mcp_rl.inference.low_rank import AdaptedLinear
from mcp_rl.inference.products import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary positions that depend on the position alone, not on the longest sequence."""
POSITIONS = 1024
"""Positions by which the table of rotations grows."""
KNOWN = {name.lower(): name for name in ("Llama", "Qwen2", "Qwen3")}
"""Model types, and how the names of their classes begin."""
PARTS = ("Model", "DecoderLayer", "Attention", "MLP", "RMSNorm", "RotaryEmbedding")
"""How the names of a model's classes end, besides those in `PLAIN`."""
PLAIN = frozenset({nn.Linear, AdaptedLinear, nn.Embedding, nn.ModuleList, nn.SiLU, SiLUActivation})


def unknown_part(model: PreTrainedModel) -> str:
    """Return what keeps `LlamaForward` from computing what the model computes, or "" if nothing does."""
    kind = str(model.config.model_type)
    family = KNOWN.get(kind, "")
    source = f"transformers.models.{kind}.modeling_{kind}"
    if not family or (type(model).__module__, type(model).__name__) != (source, f"{family}ForCausalLM"):
        return type(model).__name__
    known = {(source, family + part) for part in PARTS}
    for name, module in model.named_modules():
        made_of = type(module)
        if name and made_of not in PLAIN and (made_of.__module__, made_of.__name__) not in known:
            return f"{name} is a {type(module).__name__}"
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return f"{name or type(model).__name__} has hooks"
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            return f"{name} is {parameter.dtype} on {parameter.device.type}"
    return _unknown_setting(model)


def _unknown_setting(model: Any) -> str:
    config = model.config
    rotation = config.rope_parameters or {}
    layer = model.model.layers[0].self_attn
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    expected = {
        "hidden_act": (config.hidden_act, "silu"),
        "layer_types": (set(getattr(config, "layer_types", None) or ()) - {"full_attention"}, set()),
        "rope_type": (rotation.get("rope_type", "default") in ROTATIONS, True),
        "partial_rotary_factor": (rotation.get("partial_rotary_factor") or 1, 1),
        "rotary_emb": (tuple(model.model.rotary_emb.inv_freq.shape), (layer.head_dim // 2,)),
        "num_hidden_layers": (len(model.model.layers), config.num_hidden_layers),
        "num_key_value_heads": (heads % shared, 0),
        "q_proj": (layer.q_proj.out_features, heads * layer.head_dim),
        "k_proj": (layer.k_proj.out_features, shared * layer.head_dim),
        "v_proj": (layer.v_proj.out_features, shared * layer.head_dim),
        "pretraining_tp": (getattr(config, "pretraining_tp", None) or 1, 1),
    }
    return next((name for name, (found, wanted) in expected.items() if found != wanted), "")


@dataclass(frozen=True)
class _Norm:
    """Root mean square normalisation (Zhang and Sennrich, 2019), x / sqrt(mean(x²) + eps) · w, as
    x / hypot(|x|, floor) · gain."""

    floor: Tensor
    """[1]: sqrt(eps · width)."""
    gain: Tensor
    """w · sqrt(width)."""

    @staticmethod
    def of(norm: Any) -> _Norm:
        width = len(norm.weight)
        floor = torch.tensor([math.sqrt(norm.variance_epsilon * width)])
        return _Norm(floor, norm.weight.detach() * math.sqrt(width))

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return (x / torch.hypot(length, self.floor)).mul_(self.gain)


@dataclass(frozen=True)
class _Product:
    """A linear layer, x Wᵀ + b + (x Aᵀ) Bᵀ."""

    weight: Tensor
    bias: Tensor | None
    low: tuple[Tensor, Tensor] | None
    """A [r, in] and Bᵀ [r, out], scaled."""

    @staticmethod
    def of(layer: Any) -> _Product:
        delta = getattr(layer, "delta", None)
        low = None if delta is None else (delta.a, delta.b.t() * delta.scale)
        return _Product(layer.weight.detach(), None if layer.bias is None else layer.bias.detach(), low)

    def __call__(self, x: Tensor) -> Tensor:
        out = linear(x, self.weight, self.bias)
        if self.low is not None:
            out.addmm_(F.linear(x, self.low[0]), self.low[1])
        return out

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Add the product to `total` in place."""
        total += self(x)


class _Layer:
    """A decoder layer."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index: int = attention.layer_idx
        self.dim: int = attention.head_dim
        self.shared = attention.k_proj.out_features // self.dim
        self.heads = attention.q_proj.out_features // self.dim
        self.kind = AttentionKind(attention.scaling)
        self.before = _Norm.of(layer.input_layernorm)
        self.after = _Norm.of(layer.post_attention_layernorm)
        self.inward = [_Product.of(part) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self.outward = _Product.of(attention.o_proj)
        self.gate, self.up = _Product.of(mlp.gate_proj), _Product.of(mlp.up_proj)
        self.down = _Product.of(mlp.down_proj)
        self.by_head: _Norm | None = None
        if hasattr(attention, "q_norm"):
            query, key = _Norm.of(attention.q_norm), _Norm.of(attention.k_norm)
            gains = [query.gain.expand(self.heads, -1), key.gain.expand(self.shared, -1)]
            self.by_head = _Norm(query.floor, torch.cat(gains))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, plan: AttentionPlan) -> Tensor:
        """Return the output for x [P, width], which is overwritten. cos, sin: [P, 1, d], the first half of the sines
        negative."""
        both = self.heads + self.shared
        normal = self.before(x)
        inward = torch.cat([part(normal) for part in self.inward], -1).view(len(x), both + self.shared, self.dim)
        turned = inward[:, :both]
        if self.by_head is not None:
            turned = self.by_head(turned)
        turned = torch.addcmul(turned * cos, turned.roll(self.dim // 2, -1), sin)
        query = turned[:, : self.heads].view(len(x), self.shared, -1, self.dim)
        new = torch.stack((turned[:, self.heads :], inward[:, both:]))
        plan.store.write(self.index, plan.where, new[:, : plan.tokens])
        self.outward.add_to(x, attend(plan, self.index, query, self.kind).view(len(x), -1))
        normal = self.after(x)
        self.down.add_to(x, F.silu(self.gate(normal), inplace=True).mul_(self.up(normal)))
        return x


class LlamaForward:
    """Computes what `model` computes, within the rounding of float32. Follows its parameters when told to `renew`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model
        self._cos = self._sin = torch.empty(0)
        self.renew()

    @torch.inference_mode()
    def renew(self) -> None:
        """Read the model's parameters and low-rank updates again."""
        inner = self._model.model
        self._layers = [_Layer(layer) for layer in inner.layers]
        self._norm = _Norm.of(inner.norm)
        self._head = _Product.of(self._model.lm_head)
        self._embeddings = inner.embed_tokens.weight.detach()

    def logits(self, ids: Tensor, positions: Tensor, plan: AttentionPlan, keep: Tensor | None) -> Tensor:
        """Forward packed ids [P] at absolute positions [P]; return logits [P or len(keep), vocabulary]."""
        x = self._embeddings.index_select(0, ids)
        if plan.reach > len(self._cos):
            self._rotate(round_up(plan.reach, POSITIONS))
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        for layer in self._layers:
            x = layer.forward(x, cos, sin, plan)
        if keep is not None:
            x = x.index_select(0, keep)
        return self._head(self._norm(x))

    def _rotate(self, count: int) -> None:
        """Tabulate the rotations of so many positions [count, 1, d]."""
        cos, sin = self._model.model.rotary_emb(self._embeddings, torch.arange(count)[None])
        half = sin.shape[-1] // 2
        self._cos, self._sin = cos[0, :, None], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]
