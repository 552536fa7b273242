"""The engine's own forward pass computes what transformers' layers compute, or is not used."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mcp_rl.inference import forward
from mcp_rl.inference import policy as policies
from mcp_rl.inference.batch import DecodingBatch
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.inference.policy import Policy
from mcp_rl.inference.row import Row
from tests.inference.models import plain_logprobs
from tests.inference.test_batch import Life, random_lives

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [2.0] * 6,
    "original_max_position_embeddings": 64,
    "factor": 4.0,
}


def qwen2(**options: Any) -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**SIZES | options))


def qwen3(**options: Any) -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**SIZES | options))


def llama(**options: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES | options))


def halved() -> PreTrainedModel:
    model: Any = qwen2()
    return cast("PreTrainedModel", model.bfloat16())


def hooked() -> PreTrainedModel:
    model = qwen2()
    model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    return model


SAME: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen2": qwen2,
    "qwen2-tied-yarn": lambda: qwen2(tie_word_embeddings=True, rope_parameters=YARN),
    "qwen2-share-4": lambda: qwen2(num_key_value_heads=1, rms_norm_eps=1e-2),
    "qwen3": lambda: qwen3(head_dim=16),
    "qwen3-bias-tied": lambda: qwen3(head_dim=8, attention_bias=True, tie_word_embeddings=True),
    "llama-share-1": lambda: llama(num_key_value_heads=4, rope_parameters=LINEAR),
    "llama-biases-llama3": lambda: llama(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3),
    "llama-wide-heads": lambda: llama(head_dim=32, tie_word_embeddings=True),
}
REFUSED: dict[str, tuple[Callable[[], PreTrainedModel], str]] = {
    "hidden_act": (lambda: llama(hidden_act="gelu"), "GELU"),
    "dynamic": (lambda: llama(rope_parameters=DYNAMIC), "rope_type"),
    "longrope": (lambda: qwen2(rope_parameters=LONG), "rope_type"),
    "window": (lambda: qwen2(use_sliding_window=True, sliding_window=24, max_window_layers=1), "layer_types"),
    "bfloat16": (halved, "bfloat16"),
    "hooks": (hooked, "hooks"),
}


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Give norms and biases weights that matter; logits stay below 10."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in name and "head" not in name:
                parameter.mul_(4)
    return model


def reference(model: PreTrainedModel, weights: dict[str, torch.Tensor | LowRank]) -> PreTrainedModel:
    """Return transformers' model with a policy's weights."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in weights.items():
            parameter = changed.get_parameter(name)
            parameter.copy_(
                weight if isinstance(weight, torch.Tensor) else parameter + weight.scale * weight.b @ weight.a
            )
    return changed.eval()


def of_logprobs(right: PreTrainedModel, life: Life) -> Iterator[float]:
    """Yield how much the log-probability of each sampled id differs from that of a plain forward pass."""
    wanted, place = plain_logprobs(right, life.row.ids), -1
    for (new, _), logprobs in zip(life.turns, life.logprobs, strict=False):
        place += len(new)
        for logprob in logprobs:
            yield abs(wanted[place].item() - logprob)
            place += 1


@pytest.mark.parametrize("native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("kind", list(SAME))
def test_logits_are_those_of_transformers(kind: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In prompts and in decoding, alone and in batches, with and without trunks, and after other weights are loaded."""
    if not native:
        monkeypatch.setattr(policies, "NATIVE", 0)
    torch.manual_seed(0)
    model = randomised(SAME[kind]())
    policy = Policy(model)
    assert (policy.native is not None, policy.own is not None) == (native, not native)
    layer = model.model.layers[0]
    full: dict[str, torch.Tensor | LowRank] = {
        "model.norm.weight": torch.rand(48),
        "model.layers.1.mlp.down_proj.weight": torch.randn(48, 80) / 9,
    }
    low: dict[str, torch.Tensor | LowRank] = {
        f"model.layers.0.{name}.weight": LowRank(
            torch.randn(3, linear.in_features), torch.randn(linear.out_features, 3), 0.1
        )
        for name, linear in layer.named_modules()
        if isinstance(linear, torch.nn.Linear) and "up_proj" not in name
    }
    drawn, differences = DecodingBatch._draw, []

    def compared(self: DecodingBatch, rows: Sequence[Row], logits: torch.Tensor, uniforms: Sequence[float]) -> Any:
        for row, found in zip(rows, logits, strict=True):
            wanted = right(torch.tensor([row.ids])).logits[0, -1]
            assert (found[len(wanted) :] == -torch.inf).all()
            differences.append((wanted - found[: len(wanted)]).abs().max().item())
        return drawn(self, rows, logits, uniforms)

    monkeypatch.setattr(DecodingBatch, "_draw", compared)
    with torch.inference_mode():
        for version, weights in enumerate([{}, full, low, {}]):
            right = reference(model, weights)
            policy.load(weights, version)
            lives, _ = random_lives(policy, version, rounds=4, long=150)
            differences += [difference for life in lives for difference in of_logprobs(right, life)]
    assert len(differences) > 60
    assert max(differences) < 1e-5


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_it_does_not_know_takes_transformers_layers(kind: str) -> None:
    make, reason = REFUSED[kind]
    policy = Policy(make())
    assert policy.native is None and policy.own is None
    assert reason in forward.unknown_part(policy.model)
