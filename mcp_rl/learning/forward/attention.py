"""Attention over a prefix tree, for every model that uses the attention interface of transformers.

Three implementations compute the same: FlexAttention on CUDA, torch's fused kernel on a CPU, and plain matrix products
for all that these two cannot do. A model with its own attention gets a mask.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from mcp_rl.errors import EngineError
from mcp_rl.learning.forward.flex_attention import can_flex, flex_attention
from mcp_rl.learning.forward.fused_attention import can_fuse, fused_attention
from mcp_rl.learning.forward.masked_attention import Scores, masked_attention

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mcp_rl.learning.forward.tree_mask import TreeMask

NAME = "mcp_rl_tree"
PROBE = "mcp_rl_tree_probe"
"""The name of the same attention while a model is being checked."""
STOCK = "_mcp_rl_stock_attention"
"""Attribute of a model that names its attention from before `use_tree_attention`."""
_current: ContextVar[TreeMask | None] = ContextVar("_current", default=None)


@contextmanager
def attending(mask: TreeMask) -> Iterator[None]:
    """Attend over this tree in the block. It is not an argument of the forward, because many models pass none on."""
    token = _current.set(mask)
    try:
        yield
    finally:
        _current.reset(token)


def rounding(model: PreTrainedModel) -> float:
    """Return how far logits may differ if computed in another order, relative to their standard deviation."""
    quantised = getattr(model.config, "quantization_config", None) is not None
    return 1e-3 if model.dtype in (torch.float32, torch.float64) and not quantised else 0.06


def attend_over_trees(model: PreTrainedModel, over_trees: bool) -> None:
    """Switch a model between attention over trees and its stock attention; do nothing if it was never prepared."""
    stock = getattr(model, STOCK, None)
    if stock is not None:
        model.set_attn_implementation(NAME if over_trees else stock)


@contextmanager
def stock_attention(model: PreTrainedModel) -> Iterator[None]:
    """Switch the model to its stock attention in this block."""
    over_trees = model.config.get_text_config()._attn_implementation == NAME
    attend_over_trees(model, False)
    try:
        yield
    finally:
        attend_over_trees(model, over_trees)


def hidden_states(model: PreTrainedModel, tokens: Tensor, positions: Tensor, mask: TreeMask) -> Tensor:
    """Return the last hidden states [T, d] of a tree's tokens [1, T], each as in its own sequence.

    A model with its own attention gets an additive mask [1, 1, T, T], the only kind that it accepts.
    """
    own = {}
    if model.config.get_text_config()._attn_implementation not in (NAME, PROBE):
        own["attention_mask"] = mask.plan(("dense", model.dtype), lambda: _dense(mask, model.dtype))
    with attending(mask):
        output = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False, **own)
    return cast("Tensor", output[0])[0]


def _dense(mask: TreeMask, dtype: torch.dtype) -> Tensor:
    seen = mask.visible(slice(None), slice(None))
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)[
        None, None
    ]


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers. query [1, H, T, D]; key, value [1, K, T, D]; returns [1, T, H, D].

    Of the model's `options` it takes `sliding_window` (tokens), `softcap` and the sinks `s_aux` [H]. Raises EngineError
    for dropout, for scores with a position bias, and outside of `attending`.
    """
    mask = _current.get()
    if mask is None:
        raise EngineError(f"{type(module).__name__} attends over prefix trees only, and was given none.")
    if dropout or options.get("position_bias") is not None:
        raise EngineError(f"{type(module).__name__} uses dropout or a position bias, which tree attention does not.")
    query, key = query.to(value.dtype), key.to(value.dtype)  # under autocast rotary positions are float32
    sinks = options.get("s_aux")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = Scores(scale, options.get("softcap"), mask.window(options.get("sliding_window")))
    if can_flex(query, key, value, scores, sinks):
        return flex_attention(query, key, value, mask, scores, sinks), None
    if scores == Scores(scale) and sinks is None and can_fuse(query, value):
        return fused_attention(query, key, value, mask, scale, last=_is_last(module)), None
    return masked_attention(query, key, value, mask, scores, sinks), None


def _is_last(module: Any) -> bool:
    """Return whether it is the attention of the model's last layer, as far as the module tells."""
    layers = getattr(getattr(module, "config", None), "num_hidden_layers", None)
    return layers is not None and getattr(module, "layer_idx", None) == layers - 1


AttentionInterface.register(NAME, tree_attention)
AttentionInterface.register(PROBE, tree_attention)
