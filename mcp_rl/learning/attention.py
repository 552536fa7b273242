"""Attention over a prefix tree, for every model that uses the attention interface of transformers.

Three ways compute the same: FlexAttention on CUDA, torch's fused kernel on a CPU, plain matrix products for whatever
these two cannot do. A model with an attention of its own is given a mask.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from mcp_rl.errors import EngineError
from mcp_rl.learning.flex_attention import can_flex, flex_attention
from mcp_rl.learning.fused_attention import can_fuse, fused_attention
from mcp_rl.learning.masked_attention import Scores, masked_attention
from mcp_rl.learning.tree_mask import TreeMask

NAME = "mcp_rl_tree"
PROBE = "mcp_rl_tree_probe"
"""The same, while a model is looked at."""
STOCK = "_mcp_rl_stock_attention"
"""Where a model remembers the attention that it had before it was made to attend over trees."""
_current: ContextVar[TreeMask | None] = ContextVar("_current", default=None)


@contextmanager
def attending(mask: TreeMask) -> Iterator[None]:
    """In this block, attention is over a tree. It is no argument of the forward because many models hand none on."""
    token = _current.set(mask)
    try:
        yield
    finally:
        _current.reset(token)


def rounding(model: PreTrainedModel) -> float:
    """By how much logits may differ where they are computed in another order, in parts of their deviation."""
    quantised = getattr(model.config, "quantization_config", None) is not None
    return 1e-3 if model.dtype in (torch.float32, torch.float64) and not quantised else 0.06


def attend_over_trees(model: PreTrainedModel, over_trees: bool) -> None:
    """Have a model that was made to attend over trees do so, or attend as it did before. One that never was stays."""
    stock = getattr(model, STOCK, None)
    if stock is not None:
        model.set_attn_implementation(NAME if over_trees else stock)


@contextmanager
def stock_attention(model: PreTrainedModel) -> Iterator[None]:
    """In this block the model attends as it did before it was made to attend over trees."""
    over_trees = model.config.get_text_config()._attn_implementation == NAME
    attend_over_trees(model, False)
    try:
        yield
    finally:
        attend_over_trees(model, over_trees)


def hidden_states(model: PreTrainedModel, tokens: Tensor, positions: Tensor, mask: TreeMask) -> Tensor:
    """Last hidden states [T, d] of a tree's tokens [1, T], each after its own sequence.

    A model with an attention of its own gets a mask that adds -inf, [1, 1, T, T]: the only one that it would take.
    """
    own = {}
    if model.config.get_text_config()._attn_implementation not in (NAME, PROBE):
        own["attention_mask"] = mask.plan(("dense", model.dtype), lambda: _dense(mask, model.dtype))
    with attending(mask):
        output = model.base_model(input_ids=tokens, position_ids=positions, use_cache=False, **own)
    return cast(Tensor, output[0])[0]


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
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **unsupported: Any,
) -> tuple[Tensor, None]:
    """The function registered with transformers. query [1, H, T, D]; key, value [1, K, T, D]; returns [1, T, H, D].

    Raises EngineError for dropout, for scores with a bias of position, and outside of a tree.
    """
    mask = _current.get()
    if mask is None:
        raise EngineError(f"{type(module).__name__} attends over prefix trees only, and was given none.")
    if dropout or unsupported.get("position_bias") is not None:
        raise EngineError(f"{type(module).__name__} uses dropout, or scores with a bias of position.")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = Scores(scale, softcap, mask.window(sliding_window))
    if can_flex(query, key, value, scores, s_aux):
        return flex_attention(query, key, value, mask, scores, s_aux), None
    if scores == Scores(scale) and s_aux is None and can_fuse(query, value):
        return fused_attention(query, key, value, mask, scale), None
    return masked_attention(query, key, value, mask, scores, s_aux), None


AttentionInterface.register(NAME, tree_attention)
AttentionInterface.register(PROBE, tree_attention)
