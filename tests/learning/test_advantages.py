"""Advantages against independent plain code, and the trajectories that become samples."""

import statistics

import numpy as np
import pytest

from mcp_rl.learning.advantage import advantages
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


def test_both_options_together_are_the_two_one_after_the_other() -> None:
    rewards = [1.0, 0.0, 0.2, 0.9]
    others = [r - (sum(rewards) - r) / 3 for r in rewards]
    expected = [gain / statistics.pstdev(rewards) for gain in others]
    np.testing.assert_allclose(advantages(rewards, scale_by_std=True, leave_one_out=True), expected, rtol=1e-4)


def test_the_mask_covers_sampled_tokens_only() -> None:
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


def test_trajectories_with_too_old_tokens_are_dropped() -> None:
    groups = make_groups(make_learner(), groups=2, size=4, version=7)
    for trajectory, reward in zip(groups[0], [1.0, 0.0, 0.0, 0.5], strict=True):
        trajectory.reward = reward
    old = groups[0].trajectories[3].segments[0]
    old.versions[next(i for i, sampled in enumerate(old.sampled) if sampled)] = 4
    for trajectory in groups[1].trajectories[1:]:
        trajectory.segments[0].versions = [4 if version >= 0 else -1 for version in trajectory.segments[0].versions]
    intake = take_in(groups, oldest=5)
    np.testing.assert_allclose([sample.advantage for sample in intake.samples], [2 / 3, -1 / 3, -1 / 3])
    assert (intake.stale, intake.trained, intake.masked, intake.groups_without_variance) == (4, 3, 5, 1)
    assert take_in(groups, oldest=4).stale == 0


def test_what_a_token_limit_cut_off_counts_in_the_mean_and_gives_no_sample() -> None:
    groups = make_groups(make_learner(), groups=1, size=4)
    for trajectory, reward in zip(groups[0], [1.0, 0.0, 0.0, 1.0], strict=True):
        trajectory.reward = reward
    for number, reason in ((1, StopReason.MAX_TOKENS), (2, StopReason.MAX_TURNS), (3, StopReason.MAX_TURN_TOKENS)):
        groups[0].trajectories[number].stop_reason = reason
    intake = take_in(groups, mask_truncated=True)
    assert [sample.advantage for sample in intake.samples] == [0.5, -0.5]  # too many turns is the model's own mistake
    assert (intake.trained, intake.truncated, intake.masked) == (2, 2, 2)
    assert [s.advantage for s in take_in(groups).samples] == [0.5, -0.5, -0.5, 0.5]
