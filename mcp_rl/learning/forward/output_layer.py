"""Compute logits from hidden states by the model's own forward.

The steps after the last hidden state differ from model to model: scaling (Granite, Cohere), soft-capping (Gemma), none
(Llama). They are not repeated here: the model's forward runs on a stand-in for the model whose decoder returns hidden
states that were computed before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from mcp_rl.inference.products import linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Decoder:
    """Return the given hidden states from any call; every attribute is this decoder again (OPT asks for one)."""

    def __init__(self, hidden: Tensor) -> None:
        self.hidden = hidden

    def __call__(self, *args: Any, **kwargs: Any) -> _Outputs:
        return _Outputs(self.hidden)

    def __getattr__(self, name: str) -> _Decoder:
        return self


class _Outputs(tuple[Tensor, ...]):
    """A decoder's outputs: the hidden states, and None for every other attribute."""

    def __new__(cls, hidden: Tensor) -> _Outputs:
        return super().__new__(cls, (hidden,))

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        return None


class _Frozen(torch.autograd.Function):
    """A linear layer that does not learn: x [..., in], weight [out, in], bias [out] or None; returns [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return linear(grads[0], weight.T), None, None


class _FrozenLayer:
    """Stands in for a linear layer on the CPU that does not learn."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer

    @staticmethod
    def can_be(layer: Any) -> bool:
        """Return whether a layer is one."""
        if type(layer) is not nn.Linear or layer.weight.requires_grad or torch.is_autocast_enabled("cpu"):
            return False
        return layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"

    def __call__(self, x: Tensor) -> Tensor:
        return _Frozen.apply(x, self._layer.weight, self._layer.bias)  # type: ignore[no-any-return, no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


class _StandIn:
    """A model whose decoder is replaced, and whose frozen output layer takes the fastest product."""

    def __init__(self, model: PreTrainedModel, hidden: Tensor) -> None:
        self._model, self._decoder = model, _Decoder(hidden)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._model, name)
        if _FrozenLayer.can_be(value):
            return _FrozenLayer(value)
        return self._decoder if value is self._model.base_model else value


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the logits [P, V] of last hidden states [P, d] (after the final norm), as the model's forward makes
    them."""
    forward: Any = type(model).forward
    given = {"input_ids": None, "inputs_embeds": hidden[None], "use_cache": False, "return_dict": True}
    output = forward(_StandIn(model, hidden[None]), **given)  # Gemma 4 compares the lengths of both
    return cast("Tensor", output.logits)[0]


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the number of logits per position: rows of the output embedding, which padding may have made more than the
    tokenizer has."""
    head = cast("nn.Module | None", model.get_output_embeddings())  # type: ignore[no-untyped-call]
    weight = getattr(head, "weight", None)
    return len(weight) if isinstance(weight, Tensor) else int(model.config.get_text_config().vocab_size)
