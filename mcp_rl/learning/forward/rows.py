"""Log-probabilities by the model's own forward pass: a row for each sequence, padded on the right.

In a causal model no token depends on later ones, so padding on the right changes nothing before it and needs no mask.
This works for every causal model, recurrent and convolutional ones too, with whatever kernels were patched into it;
shared prefixes are computed once for each sequence.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.forward.attention import rounding, stock_attention
from mcp_rl.learning.forward.logprobs import checkpointed_layers, predicted_logprobs
from mcp_rl.learning.forward.output_layer import logits_of
from mcp_rl.learning.forward.tree_attention import check_length, check_tokens, logits_alone
from mcp_rl.learning.forward.tree_batch import Predictors

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class RowsBatch:
    """R sequences side by side and the S sampled tokens in them, as tensors on the model's device."""

    tokens: Tensor
    """[R, L], padded on the right with 0."""
    predictors: Predictors
    """At flat positions of [R * L]."""

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], at: Sequence[npt.NDArray[np.int64]], targets: Tensor) -> RowsBatch:
        """Make a batch; `at` has for each sequence the indices of the tokens just before the sampled ones."""
        longest = max(map(len, sequences))
        tokens = np.zeros((len(sequences), longest), np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = sequence
        flat = np.concatenate([row * longest + where for row, where in enumerate(at)])
        return RowsBatch(torch.from_numpy(tokens), Predictors.at(torch.from_numpy(flat), targets))

    def to(self, device: torch.device) -> RowsBatch:
        return self if device.type == "cpu" else RowsBatch(self.tokens.to(device), self.predictors.to(device))


def split_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return indices of sequences in parts of at most `budget` tokens, padding included; a longer sequence stands
    alone.

    Sequences of similar length are put together, the longest first, so that there is little padding.
    """
    parts: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return parts


def row_logprobs(
    model: PeftModel | PreTrainedModel,
    batch: RowsBatch,
    temperature: float = 1.0,
    *,
    activation_checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [S] of each sampled token and the entropy [S] at its position, in nats, at the
    temperature.

    Raises ConfigError for rows longer than the model was loaded for, or so long that its rotary frequencies change.
    """
    base = base_of(model)
    limit = getattr(base, "max_seq_length", None)  # set by Unsloth, which would silently cut longer rows
    if limit is not None and batch.tokens.shape[1] > limit:
        raise ConfigError(
            f"A sequence of {batch.tokens.shape[1]} tokens is longer than the {limit} that the model was loaded for: "
            "raise unsloth.max_seq_length, or keep episodes shorter."
        )
    check_length(base, batch.tokens.shape[1])
    with _layers_kept(model, base, activation_checkpointing):
        hidden = _hidden(base, batch.tokens)
    return predicted_logprobs(base, hidden.flatten(0, 1), batch.predictors, temperature)


def _layers_kept(model: torch.nn.Module, base: PreTrainedModel, checkpointing: bool) -> Any:
    """Return a context for the activations to keep: as the model's loader arranged it, all, or those between layers."""
    if getattr(model, "_unsloth_gradient_checkpointing", None):
        return _training(model)
    return checkpointed_layers(base) if checkpointing else nullcontext()


@contextmanager
def _training(model: torch.nn.Module) -> Iterator[None]:
    """Put a model in training mode, in which alone Unsloth's checkpointing works; what it loads has no dropout."""
    model.train()
    try:
        yield
    finally:
        model.eval()


def _hidden(base: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Return the last hidden states [R, L, d]."""
    return cast("Tensor", base.base_model(input_ids=tokens, use_cache=False)[0])


@torch.no_grad()
def check_rows(model: PreTrainedModel) -> None:
    """Raise ConfigError, in one sentence, if a model's logits over padded rows are not those of each sequence alone, or
    if its output layer cannot be computed for chosen positions."""
    device, tokens = model.device, check_tokens(model)
    sequences = [tokens[:17], tokens[3:12], tokens[5:24]]
    name = type(model).__name__
    try:
        with stock_attention(model):
            expected = logits_alone(model, sequences)
            batch = RowsBatch.of(sequences, [np.arange(len(s)) for s in sequences], torch.zeros(0)).to(device)
            hidden = _hidden(model, batch.tokens).flatten(0, 1)
            together = logits_of(model, hidden[batch.predictors.rows]).float()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ConfigError(f"{name} cannot be trained here: its forward pass over rows fails ({reason}).") from error
    difference = float((together - expected).abs().mean() / expected.std())
    if not difference <= rounding(model):
        raise ConfigError(
            f"{name} cannot be trained here: sequences side by side have other logits than alone, by {difference:.2g} "
            "of their deviation."
        )
