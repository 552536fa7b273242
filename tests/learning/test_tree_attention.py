"""The models that may learn over trees, and the errors for the others."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from mcp_rl.errors import ConfigError, EngineError
from mcp_rl.learning.forward.attention import NAME
from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.output_layer import logits_of
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.forward.tree_batch import TreeBatch
from tests.learning.architectures import ARCHITECTURES, architecture

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 97}
REFUSED = {
    "Mamba": (SIZES, "linear_attention"),
    "Bloom": ({"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 97}, "with shared prefixes it fails"),
    "GPTNeo": ({"hidden_size": 64, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}, "local"),
    "Lfm2": ({**SIZES, "intermediate_size": 96, "layer_types": ["conv", "full_attention"]}, "conv"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layers_other_than_attention_are_refused(name: str) -> None:
    settings, words = REFUSED[name]
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**settings)).eval()
    with pytest.raises(ConfigError, match=f"^{name}ForCausalLM cannot be trained here: .*{words}.*") as caught:
        use_tree_attention(model)
    assert "\n" not in str(caught.value)


class _Mixing(nn.Module):
    """A module in which each token depends on the one before it in the flat sequence."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        return self.inner(hidden) + 0.05 * hidden.roll(1, 1)


def test_a_model_that_mixes_neighbours_is_found_and_unchanged() -> None:
    model = architecture("Llama")()
    layer: Any = model.base_model.layers[0]
    layer.mlp = _Mixing(layer.mlp)
    with pytest.raises(ConfigError, match="computes other logits than without"):
        use_tree_attention(model)
    assert model.config._attn_implementation == "sdpa"
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


class _Without:
    """A configuration that hides its window."""

    def __init__(self, config: Any) -> None:
        self._config, self.sliding_window = config, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def test_a_window_hidden_from_attention_is_found() -> None:
    model = architecture("Mistral", sliding_window=1000)()  # longer than what the check tries
    for layer in model.base_model.layers:
        layer.self_attn.config = _Without(model.config)
    with pytest.raises(ConfigError, match="ends after 1000 tokens"):
        use_tree_attention(model)


def test_a_model_is_taken_once_and_then_works_over_trees_only() -> None:
    model = architecture("Qwen2")()
    use_tree_attention(model)
    use_tree_attention(model)
    assert model.config._attn_implementation == NAME
    with pytest.raises(EngineError, match="was given none"):
        model(torch.tensor([[1, 2, 3]]))


ROTARY = {
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32},
    "dynamic": {"factor": 2.0},
}


@pytest.mark.parametrize("kind", ROTARY)
def test_lengths_with_other_rotary_frequencies_are_refused(kind: str) -> None:
    rotary = {"rope_type": kind, "rope_theta": 10000.0, **ROTARY[kind]}
    if kind == "longrope":
        model = architecture("Phi3", rope_parameters=rotary, original_max_position_embeddings=32)()
    else:
        model = architecture("Llama", rope_parameters=rotary, max_position_embeddings=32)()
    use_tree_attention(model)
    batches = []
    for length in (32, 33):
        tree = build_tree([list(range(length))])
        batches.append(TreeBatch.of(tree, torch.arange(3), torch.arange(3)))
    sampled_logprobs(model, batches[0])
    with pytest.raises(ConfigError, match=r"Episodes of 33 tokens .* beyond 32 tokens"):
        sampled_logprobs(model, batches[1])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_of_hidden_states_are_the_models_own(name: str) -> None:
    model: PreTrainedModel = architecture(name)()
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        hidden = model.base_model(ids, use_cache=False)[0]
        torch.testing.assert_close(logits_of(model, hidden[0]), model(ids).logits[0])
