"""How a learner computes log-probabilities: over the prefix tree, or by the model's own forward pass over rows."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning.attention import attend_over_trees, rounding
from mcp_rl.learning.choice import Choice, Trial, Values, attempt, choose
from mcp_rl.learning.logprobs import TreeBatch, sampled_logprobs
from mcp_rl.learning.off_policy import per_sample
from mcp_rl.learning.rows import RowsBatch, check_rows, row_logprobs, split_rows
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.tree import split_by_tokens
from mcp_rl.learning.tree_attention import use_tree_attention

if TYPE_CHECKING:
    from mcp_rl.learning.step import Learner

Kind = Literal["tree", "rows"]
log = logging.getLogger(__name__)


class Forward:
    """The ways that a model can be computed, and the one that is taken."""

    def __init__(self, kinds: Sequence[Kind] = ("tree",), note: str = "") -> None:
        """With two of them, which one is taken is measured on the first batch. `note` is a sentence for people."""
        self.kinds, self.note = tuple(kinds), note
        self.kind = self.kinds[0]
        self.decided = len(self.kinds) == 1

    def split(self, samples: Sequence[Sample], config: TrainConfig) -> list[list[int]]:
        """Indices of samples in parts of at most `microbatch_tokens` tokens that go forward."""
        if self.kind == "rows":
            return split_rows([len(sample.tokens) for sample in samples], config.microbatch_tokens)
        sequences = [sample.tokens for sample in samples]
        return split_by_tokens(sequences, config.microbatch_tokens, shared=config.prefix_sharing)

    def take(self, kind: str, *models: PeftModel | PreTrainedModel | None) -> None:
        """Compute these models so from now on, where that is one of the ways."""
        if kind not in self.kinds:
            return
        self.kind, self.decided = "rows" if kind == "rows" else "tree", True
        if len(self.kinds) > 1:
            for model in models:
                if model is not None:
                    attend_over_trees(_base(model), self.kind == "tree")


def _base(model: PeftModel | PreTrainedModel) -> PreTrainedModel:
    return model.get_base_model() if isinstance(model, PeftModel) else model  # type: ignore[return-value]


def rounds(model: PeftModel | PreTrainedModel) -> bool:
    """Whether it computes in less than float32."""
    return rounding(_base(model)) > 1e-3


def forward_for(model: PreTrainedModel, wanted: Literal["auto", "tree", "rows"]) -> Forward:
    """Make a model ready to be computed as wanted. "auto" is the tree where the model can be computed so, else rows;
    on a GPU that takes both it is measured.

    Raises ConfigError for a model that cannot be computed as wanted.
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
        return Forward(("rows",), f'{reason}; each sequence is computed for itself (train.forward = "rows").')
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
    """Log-probability [S] of each sampled token and entropy [S] where it was drawn, in nats, at the temperature."""
    if isinstance(batch, RowsBatch):
        return row_logprobs(model, batch, temperature, activation_checkpointing=activation_checkpointing)
    return sampled_logprobs(model, batch, temperature, activation_checkpointing=activation_checkpointing)


def measure(learner: "Learner", samples: Sequence[Sample]) -> Choice:
    """Compute some of a batch forward and backward each way, and take the fastest one that says what the model's own
    forward pass says. Gradients are forgotten; nothing is learned.

    Raises ConfigError where no way works.
    """
    forward = learner.forward
    budget, shared = learner.config.microbatch_tokens, learner.config.prefix_sharing
    some = [samples[i] for i in split_by_tokens([sample.tokens for sample in samples], budget, shared=shared)[0]]

    def compute() -> Values:
        found: dict[int, Values] = {}
        for part, packed in learner.parts(some):
            logprobs, _ = learner.logprobs(packed)
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
            found |= dict(zip(part, per_sample([some[i] for i in part], logprobs.detach()), strict=True))
        learner.optimizer.zero_grad()
        return np.concatenate([found[i] for i in range(len(some))])

    trials: dict[str, Trial] = {}
    for kind in forward.kinds:
        forward.take(kind, learner.model, learner.reference)
        trials[kind] = attempt(compute, finish=torch.cuda.synchronize if learner.device.type == "cuda" else _nothing)
        learner.optimizer.zero_grad()
    try:  # the tolerance in nats: log-probabilities deviate by about one
        choice = choose(trials, reference="rows", tolerance=rounding(_base(learner.model)))
    except RuntimeError as error:
        raise ConfigError(f"{type(_base(learner.model)).__name__} cannot be trained here: {error}.") from error
    forward.take(choice.name, learner.model, learner.reference)
    forward.note = choice.reason
    log.info("Of the ways to compute a batch, %s", choice.reason)
    return choice


def _nothing() -> None: ...
