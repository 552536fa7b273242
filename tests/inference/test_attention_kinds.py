"""Soft caps, attention sinks and windows shorter than the context, against the models' own forward pass."""

from collections.abc import Callable

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mcp_rl.errors import EngineError
from mcp_rl.inference.engine import Sampling
from mcp_rl.inference.local import LocalEngine
from tests.inference.models import DEVICES, STOP, VOCABULARY, plain_logprobs, prompt
from tests.inference.test_local_engine import mixed_episodes, play, play_all

WINDOW = 24
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 600,
}


def gemma2() -> PreTrainedModel:
    return Gemma2ForCausalLM(
        Gemma2Config(**SIZES, sliding_window=WINDOW, attn_logit_softcapping=3.0, final_logit_softcapping=20.0)
    )


def gemma3() -> PreTrainedModel:
    return Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=WINDOW, sliding_window_pattern=2))


def gpt_oss() -> PreTrainedModel:
    config = GptOssConfig(**SIZES, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2)
    model = GptOssForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(parameter)
    return model


def mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW))


def qwen2() -> PreTrainedModel:
    sizes = {name: size for name, size in SIZES.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2))


@pytest.fixture(params=[gemma2, gemma3, gpt_oss, mistral, qwen2], ids=lambda make: make.__name__)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    make: Callable[[], PreTrainedModel] = request.param
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "embed" not in name:
                parameter.mul_(6)
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("device", DEVICES)
async def test_logprobs_are_those_of_the_models_own_forward_pass(model: PreTrainedModel, device: str) -> None:
    """Prompts with and without a trunk, trunks longer and shorter than the window, turns far beyond it."""
    model = model.to(device)
    episodes = mixed_episodes(14)
    episodes[100] = [[*range(60), STOP, *range(9)], [4] * 30, [7, 8]]
    episodes[101] = [[*range(90)], [5] * 20]
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        assert engine.max_context == 600
        played = await play_all(engine, episodes, Sampling(max_tokens=30))
    for episode in played.values():
        reference = plain_logprobs(model, episode.ids)
        for place, logprob in episode.logprobs.items():
            assert logprob == pytest.approx(reference[place - 1].item(), abs=2e-4)


async def test_window_cap_and_sinks_matter(model: PreTrainedModel) -> None:
    """Make sure that the models above use them, or the comparison would prove nothing."""
    config = model.config
    ids = prompt(length=120)
    before = plain_logprobs(model, ids)
    if getattr(config, "attn_logit_softcapping", None):
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = 0.5
        assert (plain_logprobs(model, ids) - before).abs().max() > 0.01
    config.sliding_window = 10_000
    again = type(model)(config).eval()
    again.load_state_dict(model.state_dict())
    again.set_attn_implementation("eager")
    assert (plain_logprobs(again, ids) - before).abs().max() > 0.01
    if isinstance(model, GptOssForCausalLM):
        for layer in model.model.layers:
            layer.self_attn.sinks.data.fill_(-1e4)
        assert (plain_logprobs(model, ids) - before).abs().max() > 0.01


@pytest.mark.parametrize("model", [gemma2, mistral], indirect=True, ids=["gemma2", "mistral"])
async def test_windowed_episodes_are_independent_of_the_batch(model: PreTrainedModel) -> None:
    episodes, sampling = mixed_episodes(7), Sampling(max_tokens=16)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        if engine.gang:
            pytest.skip("results depend on the batch with this model, and the engine has found that out")
        together = await play_all(engine, episodes, sampling)
    async with LocalEngine(model, stop_token_ids=[STOP]) as engine:
        for seed in (0, 6):
            assert await play(engine, seed, episodes[seed], sampling) == together[seed]


async def test_a_layer_that_hides_its_window_is_refused() -> None:
    async with LocalEngine(gemma2(), stop_token_ids=[]) as engine:
        for layer in engine._policy.model.model.layers:
            layer.self_attn.sliding_window = None
        short = await play(engine, 1, [[*range(9)]], Sampling(max_tokens=3))
        assert len(short.ids) == 12
        with pytest.raises(EngineError, match="does not pass its sliding window"):
            await play(engine, 1, [[*range(60)]], Sampling(max_tokens=3))
