"""The engine's own forward pass computes what transformers' layers compute, or is not used."""

from collections.abc import Callable
from dataclasses import dataclass, field
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
from mcp_rl.inference.low_rank import LowRank
from mcp_rl.inference.policy import Policy
from tests.inference.models import tiny_model
from tests.inference.test_batch import random_lives

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


@dataclass
class Both:
    """Computes each forward pass both ways."""

    policy: Policy
    differences: list[float] = field(default_factory=list)
    decoded: int = 0

    def logits(self, ids: Any, positions: Any, plan: Any, keep: Any) -> Any:
        own, self.policy.own = self.policy.own, None
        assert own is not None
        wanted = Policy.logits(self.policy, ids, positions, plan, keep)
        self.policy.own = own
        found = Policy.logits(self.policy, ids, positions, plan, keep)
        count = plan.tokens if keep is None else plan.wanted.tokens if plan.wanted else len(keep)
        assert (found[:, wanted.shape[1] :] == -torch.inf).all()
        self.differences.append((wanted - found[:, : wanted.shape[1]])[:count].abs().max().item())
        self.decoded += keep is None
        return found


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Give norms and biases weights that matter; logits stay below 10."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" not in name and "head" not in name:
                parameter.mul_(4)
    return model


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "apart"])
@pytest.mark.parametrize("kind", list(SAME))
def test_logits_are_those_of_transformers(kind: str, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In prompts and in decoding, alone and in batches, with and without trunks, and after other weights are loaded."""
    if not joined:
        monkeypatch.setattr(forward, "JOINED", 0)
    torch.manual_seed(0)
    model = randomised(SAME[kind]())
    policy = Policy(model)
    assert policy.own is not None, forward.unknown_part(policy.model)
    both = Both(policy)
    monkeypatch.setattr(policy, "logits", both.logits)
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
    with torch.inference_mode():
        for version, weights in enumerate([{}, full, low, {}]):
            policy.load(weights, version)
            random_lives(policy, version, rounds=4, long=150)
    assert both.decoded > 10 and len(both.differences) > 2 * both.decoded - len(both.differences)
    assert max(both.differences) < 1e-5


@pytest.mark.parametrize("kind", list(REFUSED))
def test_what_it_does_not_know_takes_transformers_layers(kind: str) -> None:
    make, reason = REFUSED[kind]
    policy = Policy(make())
    assert policy.own is None
    assert reason in forward.unknown_part(policy.model)


def test_it_follows_the_policy() -> None:
    """Joined copies of weights are made again with each version, and given up with it."""
    policy = Policy(tiny_model())
    assert policy.own is not None
    before = policy.own._layers[0].inward.parts[0].weight.to_dense()
    name = "model.layers.0.self_attn.k_proj.weight"
    policy.load({name: torch.ones(24, 48)}, 1)
    assert policy.own._layers[0].inward.parts[0].weight.to_dense()[48:72].eq(1).all()
    policy.load({}, 2)
    assert torch.equal(policy.own._layers[0].inward.parts[0].weight.to_dense(), before)
