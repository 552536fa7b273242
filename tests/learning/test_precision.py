"""A learner in 16 bits against a sampler in 32: rounding stops no run, errors do."""

import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from mcp_rl.backends.base.base_model import load_base, make_learner
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import CanaryError
from mcp_rl.learning.learner import MOST_OVERFLOWS, Learner
from mcp_rl.learning.precision import rounding_of
from mcp_rl.learning.sft import sample_of, supervise
from mcp_rl.learning.step import update
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

PROMPTS = 8


@cache
def exact() -> PreTrainedModel:
    return load_base(TINY)[0]


def rough_learner(**settings: Any) -> Learner:
    base, _ = load_base(TINY, UnslothConfig(dtype="bfloat16"))
    assert base.dtype == torch.bfloat16
    return make_learner(base, TINY, TrainConfig(epochs=1, **settings))


@cache
@torch.no_grad()
def sampled(temperature: float, *, length: int = 40, size: int = 4) -> list[TrajectoryGroup]:
    """Return groups sampled by the float32 model."""
    torch.manual_seed(1)
    ids = torch.tensor([[(number * 37 + 11 * i) % 900 for i in range(12)] for number in range(PROMPTS)])
    ids = ids.repeat_interleave(size, 0)
    logprobs = torch.zeros(len(ids), 0)
    for _ in range(length):
        logits = exact()(ids, use_cache=False, logits_to_keep=1).logits[:, -1] / temperature
        drawn = torch.multinomial(logits.softmax(-1), 1)
        ids = torch.cat([ids, drawn], 1)
        logprobs = torch.cat([logprobs, logits.log_softmax(-1).gather(1, drawn)], 1)
    groups = []
    for number in range(PROMPTS):
        trajectories = []
        for row in range(number * size, (number + 1) * size):
            segment = Segment()
            segment.observe(ids[row, :12].tolist())
            segment.act(ids[row, 12:].tolist(), logprobs[row].tolist(), 0)
            trajectories.append(Trajectory(scenario_id=f"s{number}", segments=[segment], reward=float(row % 2)))
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        groups.append(TrajectoryGroup(scenario=scenario, trajectories=trajectories))
    return groups


def test_rounding_in_16_bits_stops_no_run() -> None:
    learner = rough_learner()
    metrics = update(learner, sampled(1.0))
    assert learner.step == 1
    assert 0.001 < metrics["logprob_difference_mean"] < 0.1


def rough_base_learner() -> Learner:
    """A learner of all weights in float32, which are sampled in the base's 16 bits."""
    base, _ = load_base(TINY, UnslothConfig(dtype="bfloat16"))
    return make_learner(base, TINY, TrainConfig(epochs=1, method="full", learning_rate=1e-6))


def test_full_training_sampled_in_16_bits_stops_no_run() -> None:
    learner = rough_base_learner()
    assert next(iter(learner.parameters.values())).dtype == torch.float32
    metrics = update(learner, rounded())
    assert learner.step == 1 and 0.01 < metrics["logprob_difference_mean"] < 0.1
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        update(rough_base_learner(), sampled(0.7))


def rounded() -> list[TrajectoryGroup]:
    """Return the same turns with the rounded log-probabilities of an engine in 16 bits."""
    groups = copy.deepcopy(sampled(1.0))
    random = np.random.default_rng(0)
    for group in groups:
        for segment in (segment for trajectory in group for segment in trajectory.segments):
            noise = random.normal(0, 0.03, len(segment.logprobs))
            segment.logprobs = [value + float(add) for value, add in zip(segment.logprobs, noise, strict=True)]
    return groups


def test_a_few_tokens_are_judged_by_their_standard_error() -> None:
    learner = rough_learner()
    update(learner, sampled(1.0, length=2, size=4))
    assert learner.step == 1


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_a_wrong_temperature_is_found_in_16_bits_too(temperature: float) -> None:
    learner = rough_learner()
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        update(learner, sampled(temperature))
    assert learner.step == 0


def test_another_adapter_is_found_in_16_bits_too() -> None:
    learner = rough_learner()
    torch.manual_seed(0)
    for name, parameter in learner.parameters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.03)
    with pytest.raises(CanaryError, match="by more than rounding explains"):
        update(learner, sampled(1.0))


class Looked(Learner):
    """A learner that keeps its gradient instead of taking a step."""

    def descend(self, *, check_moved: bool = True) -> float:
        self.gradient = torch.cat([p.grad.flatten() for p in self.parameters.values() if p.grad is not None]).double()
        return 1.0


def test_float16_gradients_do_not_vanish() -> None:
    found = []
    for dtype in (torch.float32, torch.float16):
        base, _ = load_base(TINY)
        learner = make_learner(base.to(dtype), TINY, TrainConfig(epochs=1))  # type: ignore[arg-type]
        looked = Looked(learner.model, learner.config, forward=learner.forward)
        update(looked, sampled(1.0, length=120), check_sampler=False)
        found.append(looked.gradient)
    exact, half = found
    assert float((half - exact).norm() / exact.norm()) < 0.015  # 0.16 without scaling the loss


def test_float16_gradients_of_fine_tuning_do_not_vanish() -> None:
    found = []
    tokens = list(range(20, 120))
    for dtype in (torch.float32, torch.float16):
        base, _ = load_base(TINY)
        learner = make_learner(base.to(dtype), TINY, TrainConfig())  # type: ignore[arg-type]
        looked = Looked(learner.model, learner.config, forward=learner.forward)
        supervise(looked, [sample_of(tokens[i:] + tokens[:i], [False] * 5 + [True] * 95, i) for i in range(12)])
        found.append(looked.gradient)
    exact, half = found
    assert float((half - exact).norm() / exact.norm()) < 0.006  # 0.02 without scaling the loss


def test_a_little_more_than_rounding_is_looked_at_twice() -> None:
    learner = rough_learner(learning_rate=1e-7)  # so that what was sampled before an update is as good after it
    limits = rounding_of(learner.model)
    assert limits is not None and limits.name == "bfloat16"
    before = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
    metrics = update(learner, shifted(0.028))
    assert metrics["update_skipped"] == 1 and learner.step == 1
    assert all(torch.equal(before[name], parameter) for name, parameter in learner.parameters.items())
    assert "update_skipped" not in update(learner, sampled(1.0)), "a good batch forgets the doubt"
    update(learner, shifted(0.028))
    with pytest.raises(CanaryError, match=r"mean absolute difference .* in bfloat16"):
        update(learner, shifted(0.028))


def shifted(by: float) -> list[TrajectoryGroup]:
    """Return the same turns with log-probabilities that are all off by so much."""
    groups = copy.deepcopy(sampled(1.0))
    for group in groups:
        for segment in (segment for trajectory in group for segment in trajectory.segments):
            segment.logprobs = [
                value + by if own else 0.0 for value, own in zip(segment.logprobs, segment.sampled, strict=True)
            ]
    return groups


def test_limits_follow_precision_quantisation_and_experts() -> None:
    def limits(**settings: object) -> float:
        config = SimpleNamespace(quantization_config=settings.get("bits"))
        config.get_text_config = lambda: SimpleNamespace(num_experts_per_tok=settings.get("experts"))
        found = rounding_of(SimpleNamespace(config=config, dtype=settings.get("dtype", torch.bfloat16)))  # type: ignore[arg-type]
        return 0.0 if found is None else found.magnitude

    four = limits(bits={"load_in_4bit": True})
    assert limits(dtype=torch.float32) == 0 < limits(dtype=torch.float16) < limits() < four
    assert limits(experts=8) == 2 * limits()


def test_an_overflow_in_float16_skips_the_update_and_halves_the_scale() -> None:
    base, _ = load_base(TINY)
    learner = make_learner(base.half(), TINY, TrainConfig(epochs=1))
    groups = copy.deepcopy(sampled(1.0, size=2, length=8))
    learner.halved = -16  # a scale under which the gradients of any batch overflow
    before = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
    metrics = update(learner, groups, check_sampler=False)
    assert metrics["overflows"] == 1 and learner.halved == -15 and learner.step == 1
    assert all(torch.equal(before[name], parameter) for name, parameter in learner.parameters.items())
    learner.halved = 0
    assert update(learner, groups, check_sampler=False)["overflows"] == 0 and learner.overflows == 0
    assert any(not torch.equal(before[name], parameter) for name, parameter in learner.parameters.items())
    learner.halved, learner.overflows = -16, MOST_OVERFLOWS - 1
    with pytest.raises(CanaryError, match=f"gradient, {MOST_OVERFLOWS} times in a row, is"):
        update(learner, groups, check_sampler=False)


class _Products(TorchDispatchMode):
    """Count the float32 matrix products with at least `rows` rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.found = rows, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            factors = args[-2:]
            self.found += factors[0].dtype == torch.float32 and max(f.shape[0] for f in factors) >= self.rows
        return func(*args, **(kwargs or {}))


def test_an_adapter_on_a_base_in_16_bits_is_multiplied_in_16_bits_with_float32_gradients() -> None:
    def gradients(*, as_peft: bool) -> tuple[dict[str, torch.Tensor], int]:
        learner = rough_learner()
        torch.manual_seed(0)
        for name, parameter in learner.parameters.items():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.01)
        layers = [module for name, module in learner.model.named_modules() if hasattr(module, "lora_A")]
        if as_peft:
            for layer in layers:
                del layer.forward
        x = torch.randn(1, 300, layers[0].in_features, generator=torch.manual_seed(1)).bfloat16().requires_grad_()
        with _Products(rows=300) as products:
            layers[0](x).float().square().sum().backward()
        found = {name: p.grad for name, p in learner.parameters.items() if p.grad is not None}
        return {**found, "x": x.grad}, products.found  # type: ignore[dict-item]

    (ours, products), (plain, casts) = gradients(as_peft=False), gradients(as_peft=True)
    assert (products, casts > 0) == (0, True)
    assert ours.keys() == plain.keys() and len(ours) == 3
    for name, gradient in plain.items():
        assert ours[name].dtype == gradient.dtype
        cosine = torch.cosine_similarity(ours[name].double().flatten(), gradient.double().flatten(), dim=0)
        assert float(cosine) > 0.9999
