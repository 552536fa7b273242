"""Advantages and losses against a few independent lines each."""

import math
import statistics

import numpy as np
import pytest
import torch

from mcp_rl.learning.advantage import advantages
from mcp_rl.learning.losses import LOSSES, Tokens, kl_to_reference
from mcp_rl.learning.samples import take_in
from mcp_rl.trajectory import StopReason
from tests.learning.models import make_groups, make_learner


def test_advantage_is_reward_minus_group_mean() -> None:
    assert advantages([1.0, 0.0, 0.5, 0.5]).tolist() == [0.5, -0.5, 0.0, 0.0]


def test_advantage_can_be_scaled_by_the_standard_deviation() -> None:
    rewards = [1.0, 0.0, 0.2, 0.9]
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    expected = [(r - mean) / deviation for r in rewards]
    np.testing.assert_allclose(advantages(rewards, scale_by_std=True), expected, rtol=1e-4)


def test_leave_one_out_compares_with_the_others() -> None:
    rewards = [1.0, 0.0, 0.2, 0.9]
    expected = [r - (sum(rewards) - r) / 3 for r in rewards]
    np.testing.assert_allclose(advantages(rewards, leave_one_out=True), expected)


@pytest.mark.parametrize("rewards", [[], [1.0], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3]])
def test_a_group_without_variance_has_no_advantage(rewards: list[float]) -> None:
    assert not advantages(rewards, scale_by_std=True).any()


def reference_grpo(new: float, old: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    """Loss and its derivative after the new logprob."""
    ratio = math.exp(new - old)
    if advantage > 0:
        loss, active = -min(ratio, 1 + high) * advantage, ratio < 1 + high
    else:
        loss, active = -max(ratio, 1 - low) * advantage, ratio > 1 - low
    return loss, -ratio * advantage if active else 0.0


def reference_cispo(new: float, old: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    weight = min(max(math.exp(new - old), 1 - low), 1 + high)
    return -weight * advantage * new, -weight * advantage


@pytest.mark.parametrize(("name", "reference"), [("grpo", reference_grpo), ("cispo", reference_cispo)])
def test_losses_and_gradients_are_those_of_the_papers(name: str, reference: object) -> None:
    draw = np.random.default_rng(0)
    old = -draw.exponential(1.0, 200)
    new, gains = old + draw.normal(0, 0.5, 200), draw.normal(0, 1, 200)
    logprobs = torch.tensor(new, requires_grad=True)
    tokens = Tokens(logprobs, torch.tensor(old), torch.tensor(gains), torch.tensor([200]))
    losses, clipped = LOSSES[name].function(tokens, 0.2, 0.28)
    losses.sum().backward()
    expected = [reference(*values, 0.2, 0.28) for values in zip(new, old, gains, strict=True)]  # type: ignore[operator]
    np.testing.assert_allclose(losses.detach(), [loss for loss, _ in expected])
    np.testing.assert_allclose(logprobs.grad, [gradient for _, gradient in expected], atol=1e-12)
    assert 0 < clipped.sum() < 200
    if name == "grpo":
        assert torch.equal(clipped, logprobs.grad == 0)


def test_kl_estimate_is_unbiased_and_never_negative() -> None:
    torch.manual_seed(0)
    policy, reference = (torch.randn(50).log_softmax(0) for _ in range(2))
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True)
    estimate = kl_to_reference(policy[drawn], reference[drawn])
    assert estimate.min() >= 0
    assert float(estimate.mean()) == pytest.approx(float((policy.exp() * (policy - reference)).sum()), rel=0.05)


def test_the_mask_is_what_was_sampled_and_not_what_was_seen() -> None:
    groups = make_groups(make_learner(), groups=1, size=2)
    segment = groups[0].trajectories[0].segments[0]
    sample = take_in(groups).samples[0]
    assert [segment.tokens[i + 1] for i in sample.at] == sample.targets.tolist()
    assert all(segment.sampled[i + 1] for i in sample.at)
    assert len(sample.at) == sum(segment.sampled)
    assert len(sample.tokens) < len(segment.tokens) - 3  # what follows the last sampled token is not forwarded


def test_faults_and_timeouts_neither_train_nor_move_the_mean() -> None:
    groups = make_groups(make_learner(), groups=1, size=4)
    for trajectory, reward in zip(groups[0], [1.0, 0.0, 0.0, None], strict=True):
        trajectory.reward = reward
    groups[0].trajectories[2].stop_reason = StopReason.TIMEOUT
    intake = take_in(groups)
    assert [sample.advantage for sample in intake.samples] == [0.5, -0.5]
    assert (intake.trained, intake.masked, intake.trajectories) == (2, 2, 4)


def test_groups_without_variance_are_dropped_and_counted() -> None:
    groups = make_groups(make_learner(), groups=3, size=2)
    for trajectory in groups[1]:
        trajectory.reward = 1.0
    intake = take_in(groups)
    assert (intake.groups, intake.groups_without_variance, intake.masked) == (3, 1, 2)
    assert {sample.group for sample in intake.samples} == {0, 2}
