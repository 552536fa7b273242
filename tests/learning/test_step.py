"""One update: the right gradient, the right normalisation, and checks that stop a run."""

import copy

import pytest
import torch

from mcp_rl.config import TrainConfig
from mcp_rl.errors import CanaryError
from mcp_rl.learning import canaries
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.step import Learner
from mcp_rl.trajectory import TrajectoryGroup
from tests.learning.models import make_groups, make_learner


def plain_gradient(learner: Learner, groups: list[TrajectoryGroup]) -> tuple[float, dict[str, torch.Tensor]]:
    """Token-level GRPO by the book: one sequence at a time, stock attention, PEFT's layers, ratio 1."""
    model = learner.model
    for module in model.modules():
        module.__dict__.pop("forward", None)
    model.get_base_model().set_attn_implementation("sdpa")
    losses, count = [], 0
    for group in groups:
        mean = sum(group.rewards) / len(group)
        for trajectory in group:
            segment = trajectory.segments[0]
            logits = model(torch.tensor([segment.tokens])).logits[0] / learner.temperature
            for i, sampled in enumerate(segment.sampled):
                if sampled:
                    logprob = logits[i - 1].log_softmax(-1)[segment.tokens[i]]
                    losses.append(-(logprob - segment.logprobs[i]).exp() * (trajectory.reward - mean))
                    count += 1
    loss = torch.stack(losses).sum() / count
    gradients = torch.autograd.grad(loss, list(learner.parameters.values()))
    return float(loss.detach()), dict(zip(learner.parameters, gradients, strict=True))


@pytest.mark.parametrize("budget", [16384, 256])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_an_update_follows_the_plain_gradient(budget: int, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(temperature=temperature, microbatch_tokens=budget, max_grad_norm=1e9)
    groups = make_groups(learner, groups=4)
    seen = {}
    monkeypatch.setattr(
        learner.optimizer, "step", lambda: seen.update({n: p.grad.clone() for n, p in learner.parameters.items()})
    )
    monkeypatch.setattr(canaries, "check_moved", lambda *_: None)
    metrics = learner.update(groups)
    loss, expected = plain_gradient(make_learner(temperature=temperature), groups)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name] / largest, gradient / largest, atol=1e-5, rtol=1e-5)


def test_learning_makes_rewarded_answers_likelier() -> None:
    learner = make_learner(learning_rate=3e-3)
    groups = make_groups(learner)
    gains = []
    for _ in range(8):
        metrics = learner.update(groups, check_sampler=False)
        gains.append(-metrics["loss"])
    assert gains[0] == pytest.approx(0, abs=0.2)
    assert gains[-1] > gains[0] + 0.01


def test_metrics_of_an_exact_sampler() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    metrics = learner.update(groups)
    sampled = sum(trajectory.sampled_tokens for group in groups for trajectory in group)
    assert metrics["trained_tokens"] == sampled
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["ess"] == pytest.approx(1, abs=1e-5)
    assert metrics["logprob_difference_max"] < 1e-4
    assert metrics["clip_share"] == 0
    assert metrics["saved_share"] == pytest.approx(1 - metrics["forward_tokens"] / metrics["unshared_tokens"])
    assert metrics["saved_share"] > 0.3
    assert 0 < metrics["entropy"] < 4.6
    assert learner.step == 1


def test_several_updates_on_one_batch_clip() -> None:
    learner = make_learner(learning_rate=0.05, epochs=3, minibatches=2)
    metrics = learner.update(make_groups(learner))
    assert metrics["clip_share"] > 0
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)  # measured before the first update


def test_kl_pulls_towards_the_base() -> None:
    learner = make_learner(kl=1.0, learning_rate=1e-2)
    groups = make_groups(learner)
    first = learner.update(groups)["kl"]
    for _ in range(10):
        last = learner.update(groups, check_sampler=False)["kl"]
    assert first > 0.01
    assert last < first


def test_entropy_bonus_raises_the_entropy() -> None:
    learner = make_learner(entropy=1.0, learning_rate=1e-2)
    groups = make_groups(learner)
    first = learner.update(groups)["entropy"]
    for _ in range(5):
        last = learner.update(groups, check_sampler=False)["entropy"]
    assert last > first + 0.01


def test_without_variance_the_adapter_stays_and_the_step_counts() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    for group in groups:
        for trajectory in group:
            trajectory.reward = 1.0
    before = copy.deepcopy(learner.model.state_dict())
    metrics = learner.update(groups)
    assert metrics["groups_dropped"] == 3
    assert learner.step == 1
    assert all(torch.equal(before[name], value) for name, value in learner.model.state_dict().items())


def test_truncated_importance_weights_undo_an_inexact_sampler() -> None:
    learner = make_learner(importance_cap=2.0)
    groups = make_groups(learner)
    for group in groups:
        for trajectory in group:
            trajectory.segments[0].logprobs = [x + 0.005 for x in trajectory.segments[0].logprobs]
    metrics = learner.update(groups)
    assert metrics["ratio_mean"] == pytest.approx(0.995, abs=1e-3)  # the mismatch is still reported
    exact = make_learner()
    expected = exact.update(make_groups(exact))
    assert metrics["loss"] == pytest.approx(expected["loss"] * 0.995, abs=1e-4)


def test_the_rate_rises_and_falls() -> None:
    config = TrainConfig(learning_rate=1.0, warmup_steps=1, decay_steps=4)
    assert [learning_rate(config, step) for step in (0, 1, 4, 8)] == pytest.approx([0.5, 0.8, 0.5, 1 / 3])
    assert learning_rate(TrainConfig(learning_rate=0.1, decay_steps=0), 1000) == 0.1


# -- canaries: each breaks exactly what it watches


def stopped(learner: Learner, groups: list[TrajectoryGroup], match: str) -> None:
    """The update raises, in one sentence, and changes nothing."""
    before = {name: p.detach().clone() for name, p in learner.parameters.items()}
    with pytest.raises(CanaryError, match=match) as caught:
        learner.update(groups)
    assert "\n" not in str(caught.value)
    assert learner.step == 0
    assert all(torch.equal(before[name], p) for name, p in learner.parameters.items())
    assert all(p.grad is None for p in learner.parameters.values())


def test_a_wrong_temperature_stops_the_run() -> None:
    groups = make_groups(make_learner(temperature=1.0))
    stopped(make_learner(temperature=0.8), groups, "disagree")


def test_an_adapter_that_was_not_swapped_stops_the_run() -> None:
    groups = make_groups(make_learner(touched=False))
    stopped(make_learner(touched=True), groups, "disagree")


def test_a_nan_in_the_weights_stops_the_run() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    with torch.no_grad():
        learner.model.get_base_model().model.norm.weight[3] = float("nan")
    stopped(learner, groups, "loss is nan")


def test_an_infinite_gradient_stops_the_run() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    parameter = next(iter(learner.parameters.values()))
    parameter.register_hook(lambda grad: grad * float("inf"))
    stopped(learner, groups, "gradient's norm is")


def test_an_optimizer_of_other_parameters_stops_the_run() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    other = make_learner()
    learner.optimizer = other.optimizer
    with pytest.raises(CanaryError, match="other parameters"):
        learner.update(groups)


def test_lost_and_strange_prompts_are_seen() -> None:
    canaries.check_prompts(["a", "b", "b"], ["b", "a", "b"])
    with pytest.raises(CanaryError, match="1 of 3 prompts were lost, the first of them 'b'"):
        canaries.check_prompts(["a", "b", "b"], ["a", "b"])
    with pytest.raises(CanaryError, match="not given out"):
        canaries.check_prompts(["a"], ["a", "a"])


def test_versions_must_be_the_learners() -> None:
    canaries.check_version(3, 3)
    canaries.check_sampled_versions([3, 3], 3)
    with pytest.raises(CanaryError, match="version 2, but the learner is at step 3"):
        canaries.check_version(2, 3)
    with pytest.raises(CanaryError, match="1 tokens of the batch were sampled by policy version 2"):
        canaries.check_sampled_versions([3, 2, 3], 3)
