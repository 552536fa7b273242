"""Log-probabilities of a learner's samples, over the prefix tree or by the model's own forward pass over rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.forward.attention import attend_over_trees
from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.rows import RowsBatch, check_rows, row_logprobs, split_rows
from mcp_rl.learning.forward.tree import split_by_tokens
from mcp_rl.learning.forward.tree_attention import use_tree_attention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.forward.tree_batch import TreeBatch
    from mcp_rl.learning.samples import Sample

Kind = Literal["tree", "rows"]
log = logging.getLogger(__name__)


class Forward:
    """The ways in which a model can be computed, and the one in use."""

    def __init__(self, kinds: Sequence[Kind] = ("tree",), note: str = "") -> None:
        """Take the one kind, or leave the choice between two to a measurement on the first batch. `note` is a sentence
        for the user."""
        self.kinds, self.note = tuple(kinds), note
        self.kind = self.kinds[0]
        self.decided = len(self.kinds) == 1

    def split(self, samples: Sequence[Sample], config: TrainConfig) -> list[list[int]]:
        """Return the indices of samples in parts of at most `microbatch_tokens` forward tokens."""
        if self.kind == "rows":
            return split_rows([len(sample.tokens) for sample in samples], config.microbatch_tokens)
        sequences = [sample.tokens for sample in samples]
        return split_by_tokens(sequences, config.microbatch_tokens, shared=config.prefix_sharing)

    def take(self, kind: str, *models: PeftModel | PreTrainedModel | None) -> None:
        """Compute these models in this way from now on, if it is one of `kinds`."""
        if kind not in self.kinds:
            return
        self.kind, self.decided = "rows" if kind == "rows" else "tree", True
        if len(self.kinds) > 1:
            for model in models:
                if model is not None:
                    attend_over_trees(base_of(model), self.kind == "tree")


def forward_for(model: PreTrainedModel, wanted: Literal["auto", "tree", "rows"]) -> Forward:
    """Prepare a model to be computed as wanted. "auto" is the tree if the model supports it, else rows; on a GPU where
    both work, the first batch decides.

    Raises ConfigError if the model cannot be computed as wanted.
    """
    if wanted == "rows":
        check_rows(model)
        return Forward(("rows",))
    try:
        use_tree_attention(model)
    except ConfigError as error:
        if wanted == "tree":
            raise
        check_rows(model)
        reason = str(error).replace("cannot be trained here:", "shares no prefixes:", 1).rstrip(".")
        return Forward(("rows",), f'{reason}; each sequence is computed alone (train.forward = "rows").')
    if wanted == "tree" or model.device.type != "cuda":
        return Forward(("tree",))
    try:
        check_rows(model)
    except ConfigError:
        return Forward(("tree",))
    return Forward(("tree", "rows"))


def logprobs_of(
    model: PeftModel | PreTrainedModel,
    batch: TreeBatch | RowsBatch,
    temperature: float = 1.0,
    *,
    activation_checkpointing: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the log-probability [S] of each sampled token and the entropy [S] at its position, in nats, at the
    temperature."""
    if isinstance(batch, RowsBatch):
        return row_logprobs(model, batch, temperature, activation_checkpointing=activation_checkpointing)
    return sampled_logprobs(model, batch, temperature, activation_checkpointing=activation_checkpointing)
