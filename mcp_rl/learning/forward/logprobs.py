"""Log-probabilities of sampled tokens under a model, over a prefix tree or over rows (`rows`).

Only positions that predict a sampled token reach the output layer, and their logits exist one chunk at a time.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpointing
from transformers.modeling_layers import GradientCheckpointingLayer

from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.forward.attention import attending, hidden_states
from mcp_rl.learning.forward.output_layer import logits_of, vocabulary_size
from mcp_rl.learning.forward.tree_attention import check_length
from mcp_rl.learning.native.model import native_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peft import PeftModel
    from transformers import PreTrainedModel

    from mcp_rl.learning.forward.tree_batch import Predictors, TreeBatch
    from mcp_rl.learning.forward.tree_mask import TreeMask


checkpoint: Callable[..., Any] = getattr(checkpointing, "_old_checkpoint", checkpointing.checkpoint)
"""Torch's own: Unsloth replaces it by one that takes no keywords and moves the kept tensors to the host."""
CHUNK_ELEMENTS = 1 << 24
"""Number of logits in one chunk: 64 MiB of float32; on CUDA eight times that."""


class _SampledLogprobs(torch.autograd.Function):
    """logits [P, V], row [S], targets [S] -> logprobs [S], entropy [P] at the temperature, by one softmax."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, row: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits = logits.float() if temperature == 1.0 else logits.float() / temperature
        probabilities = logits.softmax(-1)
        highest, of_highest = logits.amax(-1), probabilities.amax(-1).log()
        lse = highest - of_highest  # a third of logsumexp's time
        logprobs = logits[row, targets] - highest[row] + of_highest[row]
        entropy = lse - torch.linalg.vecdot(probabilities, logits)
        ctx.save_for_backward(probabilities, row, targets, entropy)
        ctx.temperature = temperature
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, row, targets, entropy = ctx.saved_tensors
        of_logprobs, of_entropy = grads
        per_row = torch.zeros_like(entropy).index_add_(0, row, of_logprobs)
        grad = probabilities * -per_row.unsqueeze(1)
        # in one dimension index_add_ has a fixed order, so that equal inputs give equal bits
        grad.view(-1).index_add_(0, row * grad.shape[1] + targets, of_logprobs)
        if of_entropy.any():
            surprise = probabilities.clamp_min(1e-30).log_().add_(entropy.unsqueeze(1))
            grad -= surprise.mul_(probabilities).mul_(of_entropy.unsqueeze(1))
        return grad if ctx.temperature == 1.0 else grad.div_(ctx.temperature), None, None, None


def sampled_logprobs(
    model: PeftModel | PreTrainedModel,
    batch: TreeBatch,
    temperature: float = 1.0,
    *,
    activation_checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [S] of each sampled token and the entropy [S] at its position, in nats, at the
    temperature.

    `activation_checkpointing` keeps only the hidden states between layers; the backward pass computes the rest again.
    """
    base = base_of(model)
    check_length(base, batch.mask.longest)
    if not activation_checkpointing and (native := native_model(base)) is not None:
        return _predicted(base, native.hidden(batch), batch.predictors, temperature)
    around = partial(_attending, batch.mask)
    with checkpointed_layers(base, around) if activation_checkpointing else nullcontext():
        hidden = hidden_states(base, batch.tokens, batch.positions, batch.mask)
    return predicted_logprobs(base, hidden, batch.predictors, temperature)


def predicted_logprobs(
    base: PreTrainedModel, hidden: Tensor, at: Predictors, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the same two from the last hidden states [T, d] at flat positions."""
    return _predicted(base, hidden.index_select(0, at.rows), at, temperature)


def _predicted(base: PreTrainedModel, hidden: Tensor, at: Predictors, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the same two from the last hidden states [P, d] of `at.rows`."""

    def chunk(states: Tensor, row: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _SampledLogprobs.apply(logits_of(base, states), row, targets, temperature)  # type: ignore[no-any-return, no-untyped-call]

    size = max(1, CHUNK_ELEMENTS * (8 if hidden.is_cuda else 1) // vocabulary_size(base))
    if len(hidden) <= size:
        logprobs, entropy = chunk(hidden, at.row, at.targets)
        return logprobs, entropy.index_select(0, at.row)
    parts, done = [], 0
    for start in range(0, len(hidden), size):
        states = hidden[start : start + size]
        end = at.ends[start + len(states) - 1]
        inside, done = at.by_row[done:end], end
        parts.append(checkpoint(chunk, states, at.row[inside] - start, at.targets[inside], use_reentrant=False))
    logprobs, entropy = (torch.cat(side) for side in zip(*parts, strict=True))
    return torch.empty_like(logprobs).index_copy(0, at.by_row, logprobs), entropy.index_select(0, at.row)


@contextmanager
def checkpointed_layers(
    model: PreTrainedModel, around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
) -> Iterator[None]:
    """Checkpoint every decoder layer in this block, its forward wrapped by `around`. The model's own switch would need
    training mode, and with it dropout."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no layers to checkpoint: train.activation_checkpointing=false.")
    for layer in layers:
        forward = around(layer.forward) if around else layer.forward
        layer.forward = partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _attending(mask: TreeMask, forward: Callable[..., Any]) -> Callable[..., Any]:
    def over_tree(*args: Any, **kwargs: Any) -> Any:
        with attending(mask):  # the backward pass calls this again, later and perhaps in another thread
            return forward(*args, **kwargs)

    return over_tree
