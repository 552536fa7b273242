"""A learner in 16 bits against a sampler in 32: rounding stops no run, what is wrong does."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mcp_rl.backends.base_model import load_base, make_learner
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import CanaryError
from mcp_rl.learning.sft import sample_of, supervise
from mcp_rl.learning.step import Learner
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

PROMPTS = 8


@cache
def exact() -> PreTrainedModel:
    return load_base(TINY)[0]


def rough_learner() -> Learner:
    base, _ = load_base(TINY, UnslothConfig(dtype="bfloat16"))
    assert base.dtype == torch.bfloat16
    return make_learner(base, TINY, TrainConfig(epochs=1))


@cache
@torch.no_grad()
def sampled(temperature: float, *, length: int = 40, size: int = 4) -> list[TrajectoryGroup]:
    """Sampled by the float32 model."""
    torch.manual_seed(1)
    groups = []
    for number in range(PROMPTS):
        prompt = [(number * 37 + 11 * i) % 900 for i in range(12)]
        ids = torch.tensor([prompt] * size)
        logprobs = torch.zeros(size, 0)
        for _ in range(length):
            logits = exact()(ids, use_cache=False).logits[:, -1]
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1)
            scores = (logits / temperature).log_softmax(-1).gather(1, drawn)
            ids, logprobs = torch.cat([ids, drawn], 1), torch.cat([logprobs, scores], 1)
        trajectories = []
        for row in range(size):
            segment = Segment()
            segment.observe(prompt)
            segment.act(ids[row, 12:].tolist(), logprobs[row].tolist(), 0)
            trajectories.append(Trajectory(scenario_id=f"s{number}", segments=[segment], reward=float(row % 2)))
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        groups.append(TrajectoryGroup(scenario=scenario, trajectories=trajectories))
    return groups


def test_rounding_in_16_bits_stops_no_run_though_float32s_own_limit_would() -> None:
    learner = rough_learner()
    metrics = learner.update(sampled(1.0))
    assert learner.step == 1
    assert 0.001 < metrics["logprob_difference_mean"] < 0.1


def rough_base_learner() -> Learner:
    """All weights are trained in float32; what samples them is in the base's 16 bits."""
    base, _ = load_base(TINY, UnslothConfig(dtype="bfloat16"))
    return make_learner(base, TINY, TrainConfig(epochs=1, method="full", learning_rate=1e-6))


def test_every_weight_in_float32_is_sampled_in_16_bits_without_stopping_the_run() -> None:
    learner = rough_base_learner()
    assert next(iter(learner.parameters.values())).dtype == torch.float32
    metrics = learner.update(rounded())
    assert learner.step == 1 and 0.01 < metrics["logprob_difference_mean"] < 0.1
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        rough_base_learner().update(sampled(0.7))


def rounded() -> list[TrajectoryGroup]:
    """The same turns, with log-probabilities as engines of 16 bits have them."""
    groups = copy.deepcopy(sampled(1.0))
    random = np.random.default_rng(0)
    for group in groups:
        for segment in (segment for trajectory in group for segment in trajectory.segments):
            noise = random.normal(0, 0.03, len(segment.logprobs))
            segment.logprobs = [value + float(add) for value, add in zip(segment.logprobs, noise, strict=True)]
    return groups


def test_a_few_tokens_are_judged_by_what_is_known_of_their_mean() -> None:
    learner = rough_learner()
    learner.update(sampled(1.0, length=2, size=4))
    assert learner.step == 1


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_a_wrong_temperature_is_found_in_16_bits_too(temperature: float) -> None:
    learner = rough_learner()
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        learner.update(sampled(temperature))
    assert learner.step == 0


def test_an_adapter_that_is_not_the_samplers_is_found_in_16_bits_too() -> None:
    learner = rough_learner()
    torch.manual_seed(0)
    for name, parameter in learner.parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.03)
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        learner.update(sampled(1.0))


class Looked(Learner):
    """Its gradient is looked at in place of a step."""

    def descend(self, *, check_moved: bool = True) -> float:
        self.gradient = torch.cat([p.grad.flatten() for p in self.parameters.values() if p.grad is not None]).double()
        return 1.0


def test_gradients_of_float16_do_not_vanish() -> None:
    found = []
    for dtype in (torch.float32, torch.float16):
        base, _ = load_base(TINY)
        learner = make_learner(base.to(dtype), TINY, TrainConfig(epochs=1))  # type: ignore[arg-type]
        looked = Looked(learner.model, learner.config, forward=learner.forward)
        looked.update(sampled(1.0, size=8), check_sampler=False)
        found.append(looked.gradient)
    exact, half = found
    assert float((half - exact).norm() / exact.norm()) < 0.015  # 0.027 where it is taken of the loss as it is


def test_gradients_of_float16_do_not_vanish_in_fine_tuning_either() -> None:
    found = []
    tokens = list(range(20, 120))
    for dtype in (torch.float32, torch.float16):
        base, _ = load_base(TINY)
        learner = make_learner(base.to(dtype), TINY, TrainConfig())  # type: ignore[arg-type]
        looked = Looked(learner.model, learner.config, forward=learner.forward)
        supervise(looked, [sample_of(tokens[i:] + tokens[:i], [False] * 5 + [True] * 95, i) for i in range(12)])
        found.append(looked.gradient)
    exact, half = found
    assert float((half - exact).norm() / exact.norm()) < 0.006  # 0.02 where it is taken of the loss as it is
