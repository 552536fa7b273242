"""Learning over rows by the model's own forward pass: the tree's gradients, and models that the tree refuses."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.forward.attention import NAME, stock_attention
from mcp_rl.learning.forward.forward import Forward, forward_for
from mcp_rl.learning.forward.rows import RowsBatch, check_rows, row_logprobs, split_rows
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import take_in
from mcp_rl.learning.step import update
from mcp_rl.trajectory import TrajectoryGroup
from tests.learning.architectures import VOCABULARY, architecture, sharpened
from tests.learning.gradients import assert_same_gradient, gradient_of_update
from tests.learning.models import make_groups, make_learner, qwen2
from tests.learning.test_tree_gradients import BRANCHED, assert_gradients

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
WITHOUT_A_TREE: dict[str, dict[str, Any]] = {
    "Mamba": {**SIZES, "state_size": 8},
    "Rwkv": {**SIZES, "attention_hidden_size": 32, "context_length": 64},
    "Lfm2": {**SIZES, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
             "layer_types": ["conv", "full_attention"]},
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY},
    "GPTNeo": {"hidden_size": 32, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "num_heads": 4,
               "vocab_size": VOCABULARY},
}  # fmt: skip
TARGETS = {"Mamba": ["in_proj", "x_proj"], "Rwkv": ["key", "value", "receptance", "output"]}


def without_a_tree(name: str) -> PreTrainedModel:
    torch.manual_seed(5)
    config = getattr(transformers, f"{name}Config")(**WITHOUT_A_TREE[name])
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    return model if name == "Mamba" else sharpened(model)  # float32 is not exact enough for a sharp one


def alone_loss(model: PreTrainedModel, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute one sequence at a time, with the model's own logits."""
    logprobs, entropy = [], []
    for s in BRANCHED:
        every = (model(input_ids=torch.tensor([s]), use_cache=False).logits[0, :-1].float() / 0.8).log_softmax(-1)
        logprobs.append(every.gather(1, torch.tensor(s[1:])[:, None])[:, 0])
        entropy.append(-(every.exp() * every).sum(-1))
    (torch.cat(logprobs) * weights + 0.3 * torch.cat(entropy)).sum().backward()
    return torch.cat(logprobs).detach(), torch.cat(entropy).detach()


def rows_loss(model: PreTrainedModel | PeftModel, weights: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    targets = torch.tensor([token for s in BRANCHED for token in s[1:]])
    batch = RowsBatch.of([s[:-1] for s in BRANCHED], [np.arange(len(s) - 1) for s in BRANCHED], targets)
    logprobs, entropy = row_logprobs(model, batch, 0.8, **how)
    (logprobs * weights + 0.3 * entropy).sum().backward()
    return logprobs.detach(), entropy.detach()


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("name", [*WITHOUT_A_TREE, "Qwen2", "Gemma2", "OPT", "GPTJ"])
def test_gradients_over_rows_are_those_of_single_sequences(name: str, checkpointing: bool) -> None:
    def make() -> PreTrainedModel:
        return without_a_tree(name) if name in WITHOUT_A_TREE else architecture(name)()

    ours, theirs = make(), make()
    check_rows(ours)
    weights = torch.linspace(-1, 1, sum(len(s) - 1 for s in BRANCHED))
    got = rows_loss(ours, weights, activation_checkpointing=checkpointing)
    expected = alone_loss(theirs, weights)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert_gradients(ours, theirs)


@pytest.mark.parametrize("settings", [{}, {"loss": "gspo", "kl": 0.1, "entropy": 0.01}], ids=["defaults", "all on"])
def test_an_update_over_rows_has_the_trees_gradient(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**settings, "microbatch_tokens": 256, "max_grad_norm": 1e9}
    tree, rows = make_learner(**settings), make_learner(**settings)
    rows.forward = Forward(("rows", "tree"))
    rows.forward.take("rows", rows.model)
    groups = make_groups(tree)
    samples = take_in(groups).samples
    budget = tree.config.microbatch_tokens
    assert all(packed.flat_tokens <= budget for _, packed in rows.parts(samples)), "a part is over the budget"
    assert sum(len(part) for part, _ in rows.parts(samples)) == len(samples)
    told, expected = gradient_of_update(tree, groups, monkeypatch)
    rows_told, gradient = gradient_of_update(rows, groups, monkeypatch)
    assert_same_gradient(gradient, expected)
    assert rows_told["loss"] == pytest.approx(told["loss"], abs=1e-5)
    assert rows_told["forward_rows"] == 1.0 and "forward_rows" not in told
    assert rows_told["forward_tokens"] >= rows_told["unshared_tokens"] == told["unshared_tokens"]


@torch.no_grad()
def as_sampled_by(learner: Learner, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """Set the log-probabilities that an exact sampler of the learner's policy would have recorded."""
    for segment in (trajectory.segments[0] for group in groups for trajectory in group):
        where = [i for i, sampled in enumerate(segment.sampled) if sampled]
        logits = learner.model(input_ids=torch.tensor([segment.tokens]), use_cache=False).logits[0].log_softmax(-1)
        for i in where:
            segment.logprobs[i] = float(logits[i - 1, segment.tokens[i]])
    return groups


@pytest.mark.parametrize("name", ["Mamba", "Rwkv"])
def test_a_recurrent_model_learns_with_an_adapter(name: str) -> None:
    base = without_a_tree(name)
    forward = forward_for(base, "auto")
    assert forward.kinds == ("rows",) and f"{name}ForCausalLM shares no prefixes" in forward.note
    config = make_learner(learning_rate=3e-2).config
    adapted = add_adapter(base, rank=4, alpha=8, targets=TARGETS[name], base_name="base", seed=0)
    learner = Learner(adapted, config, forward=forward)
    groups = as_sampled_by(learner, make_groups(make_learner()))

    def likelihood() -> float:
        samples = [s for s in take_in(groups).samples if s.advantage > 0]
        with torch.no_grad():
            return float(sum(learner.logprobs(packed)[0].sum() for _, packed in learner.parts(samples)))

    before = likelihood()
    first = update(learner, groups)
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-4), "the sampler's own logprobs are the learner's"
    for _ in range(4):
        update(learner, groups, check_sampler=False)
    assert likelihood() > before + 1


def test_models_without_prefix_sharing_are_refused_by_tree() -> None:
    with pytest.raises(ConfigError, match="MambaForCausalLM cannot be trained here"):
        forward_for(without_a_tree("Mamba"), "tree")


def test_on_a_cpu_the_tree_is_taken_unmeasured() -> None:
    forward = forward_for(qwen2(), "auto")
    assert forward.kinds == ("tree",) and forward.decided and not forward.note


def test_a_model_attends_over_trees_and_over_rows_by_turns() -> None:
    model, plain = qwen2(), qwen2()
    ids = torch.tensor([[1, 2, 3]])
    use_tree_attention(model)
    with torch.no_grad(), stock_attention(model):
        torch.testing.assert_close(model(ids).logits, plain(ids).logits)
    assert model.config._attn_implementation == NAME


class _Backwards(torch.nn.Module):
    """Each token gets something of the one after it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) + 0.05 * hidden.roll(-1, 1)


def test_a_model_that_is_not_causal_is_refused() -> None:
    model = architecture("Llama")()
    layer: Any = model.base_model.layers[0]
    layer.mlp = _Backwards(layer.mlp)
    with pytest.raises(ConfigError, match="have other logits than alone"):
        check_rows(model)


def test_rows_longer_than_the_model_was_loaded_for_are_refused() -> None:
    model: Any = qwen2()
    model.max_seq_length = 8
    batch = RowsBatch.of([list(range(9))], [np.arange(9)], torch.arange(9))
    with pytest.raises(ConfigError, match="9 tokens is longer than the 8"):
        row_logprobs(model, batch)


def test_rows_so_long_that_frequencies_change_are_refused() -> None:
    rotary = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    model = architecture("Llama", rope_parameters=rotary, max_position_embeddings=32)()
    for length in (32, 33):
        batch = RowsBatch.of([list(range(length)), [1, 2]], [np.arange(3), np.arange(1)], torch.arange(4))
        if length == 32:
            row_logprobs(model, batch)
            continue
        with pytest.raises(ConfigError, match=r"Episodes of 33 tokens .* beyond 32 tokens"):
            row_logprobs(model, batch)


def test_rows_of_similar_length_go_together_in_the_budget() -> None:
    parts = split_rows([5, 40, 7, 39, 100, 6], 80)
    assert parts == [[4], [1, 3], [2, 5, 0]]
