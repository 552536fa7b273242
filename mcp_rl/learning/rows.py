"""Log-probabilities by the model's own forward pass: a row for each sequence, padded on the right.

A causal model computes nothing of a token from those that come after it, so padding on the right changes no token
before it and needs no mask. That takes every causal model, recurrent and convolutional ones too, and whatever kernels
have been put into it; shared prefixes are computed once for each sequence.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.errors import ConfigError
from mcp_rl.learning.attention import rounding, stock_attention
from mcp_rl.learning.logprobs import Predictors, checkpointed_layers, predicted_logprobs
from mcp_rl.learning.output_layer import logits_of
from mcp_rl.learning.tree_attention import check_length


@dataclass(frozen=True)
class RowsBatch:
    """R sequences side by side and the S sampled tokens in them, as tensors on the model's device."""

    tokens: Tensor
    """[R, L], padded on the right with 0."""
    predictors: Predictors
    """At flat positions of [R * L]."""

    @staticmethod
    def of(sequences: Sequence[Sequence[int]], at: Sequence[npt.NDArray[np.int64]], targets: Tensor) -> "RowsBatch":
        """`at`: for each sequence, the indices of the tokens just before the sampled ones."""
        longest = max(map(len, sequences))
        tokens = np.zeros((len(sequences), longest), np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = sequence
        flat = np.concatenate([row * longest + where for row, where in enumerate(at)])
        return RowsBatch(torch.from_numpy(tokens), Predictors.at(torch.from_numpy(flat), targets))

    def to(self, device: torch.device) -> "RowsBatch":
        return self if device.type == "cpu" else RowsBatch(self.tokens.to(device), self.predictors.to(device))


def split_rows(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of sequences in parts of at most `budget` tokens, padding included; a longer sequence stands alone.

    Sequences of like length are put together, the longest first, so that little is padded.
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
    """Log-probability [S] of each sampled token and entropy [S] where it was drawn, in nats, at the temperature.

    Raises ConfigError for rows longer than the model was loaded for, or than its positions are the same for all rows.
    """
    base = cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model
    limit = getattr(base, "max_seq_length", None)  # of Unsloth, which would cut them without a word
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
    """What is kept for the backward pass in this block: what the model's loader arranged, everything, or little."""
    if getattr(model, "_unsloth_gradient_checkpointing", None):
        return _training(model)
    return checkpointed_layers(base) if checkpointing else nullcontext()


@contextmanager
def _training(model: torch.nn.Module) -> Iterator[None]:
    """Unsloth's checkpointing works in training mode only; what it loads has no dropout."""
    model.train()
    try:
        yield
    finally:
        model.eval()


def _hidden(base: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Last hidden states [R, L, d]."""
    return cast(Tensor, base.base_model(input_ids=tokens, use_cache=False)[0])


@torch.no_grad()
def check_rows(model: PreTrainedModel) -> None:
    """Raise ConfigError, in one sentence, for a model whose logits over padded rows are not those of each sequence
    alone, or whose output layer cannot be computed for chosen positions."""
    vocabulary, device = model.config.get_text_config().vocab_size, model.device
    tokens = [(7919 * i + 11) % vocabulary for i in range(24)]
    sequences = [tokens[:17], tokens[3:12], tokens[5:24]]
    name = type(model).__name__
    try:
        with stock_attention(model):
            alone = [model(torch.tensor([s], device=device), use_cache=False).logits[0] for s in sequences]
            batch = RowsBatch.of(sequences, [np.arange(len(s)) for s in sequences], torch.zeros(0)).to(device)
            hidden = _hidden(model, batch.tokens).flatten(0, 1)
            together = logits_of(model, hidden[batch.predictors.rows]).float()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise ConfigError(f"{name} cannot be trained here: its forward pass over rows fails ({reason}).") from error
    expected = torch.cat(alone).float()
    difference = float((together - expected).abs().mean() / expected.std())
    if not difference <= rounding(model):
        raise ConfigError(
            f"{name} cannot be trained here: side by side, sequences get other logits than alone, by {difference:.2g} "
            "of their deviation."
        )
