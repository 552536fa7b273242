"""Tokens of older policy versions: weighted, dropped, counted, and told apart from a broken sampler."""

import numpy as np
import pytest
import torch

from mcp_rl.errors import CanaryError
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from mcp_rl.trajectory import TrajectoryGroup
from tests.learning.gradients import assert_same_gradient, gradient_of_update, plain_gradient
from tests.learning.models import make_groups, make_learner


def moved(learner: Learner, scale: float = 0.02) -> Learner:
    """Return the learner one step later, with a changed policy."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter += scale * torch.randn_like(parameter)
    learner.step += 1
    return learner


def old_groups(**settings: object) -> list[TrajectoryGroup]:
    """Return groups that version 0 sampled."""
    return make_groups(make_learner(**settings), groups=4)  # type: ignore[arg-type]


def test_older_tokens_are_weighted_by_their_importance(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"max_staleness": 1, "max_grad_norm": 1e9, "importance_cap": 1.1, "microbatch_tokens": 256}
    learner, groups = moved(make_learner(**settings)), old_groups()
    metrics, seen = gradient_of_update(learner, groups, monkeypatch)
    loss, expected = plain_gradient(moved(make_learner()), groups, cap=1.1)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_gradient(seen, expected)
    assert metrics["staleness_mean"] == metrics["staleness_max"] == 1
    assert 0 < metrics["capped_share"] < metrics["corrected_share"] <= 1
    assert metrics["clip_share"] == 0  # the ratio is to the learner itself
    assert metrics["ratio_max"] > 1.1  # reported as it was
    assert metrics["trajectories_stale"] == 0


def test_a_sequence_far_off_as_a_whole_is_masked_beside_the_tokens() -> None:
    learner, groups = moved(make_learner(max_staleness=1, sequence_cap=1.02)), old_groups()
    metrics = update(learner, groups)
    assert 0 < metrics["sequences_masked_share"] < 1
    for sample in learner.batch:
        ratio = np.exp((sample.old - sample.logprobs).sum())
        assert bool(sample.weights.any()) == bool(ratio <= 1.02)


def test_tokens_beyond_the_bounds_can_be_left_out() -> None:
    learner, groups = moved(make_learner(max_staleness=1, importance_cap=1.1, importance="mask")), old_groups()
    metrics = update(learner, groups)
    weights = np.concatenate([sample.weights for sample in learner.batch])
    assert weights.max() <= 1.1 and 0 < (weights == 0).mean() < 1
    assert metrics["masked_share"] == pytest.approx((weights == 0).mean())


def test_one_or_more_minibatches_correct_alike() -> None:
    batches = []
    for minibatches in (1, 2):
        learner = moved(make_learner(max_staleness=1, minibatches=minibatches, learning_rate=0.1))
        update(learner, old_groups())
        batches.append(learner.batch)
    for one, other in zip(*batches, strict=True):
        assert one.old is not None and other.old is not None
        np.testing.assert_allclose(one.old, other.old, atol=1e-5)
        np.testing.assert_allclose(one.weights, other.weights, atol=1e-5)


def test_tokens_older_than_allowed_are_dropped_and_counted() -> None:
    learner = make_learner(max_staleness=2)
    learner.step = 5
    groups = make_groups(learner, groups=2)
    fresh = make_groups(learner, groups=1, seed=1)
    for number, trajectory in enumerate(groups[0]):
        segment = trajectory.segments[0]
        segment.versions = [5 - number if version >= 0 else -1 for version in segment.versions]
    metrics = update(learner, [*groups, *fresh])
    assert metrics["trajectories_stale"] == 1  # version 2 at step 5
    assert metrics["trajectories_trained"] == 11
    assert metrics["staleness_max"] == 2
    assert 0 < metrics["staleness_mean"] < 1


def test_current_tokens_are_neither_corrected_nor_dropped() -> None:
    metrics = update(learner := make_learner(), make_groups(learner))
    names = ("staleness_mean", "staleness_max", "corrected_share", "capped_share", "trajectories_stale")
    assert [metrics[name] for name in names] == [0, 0, 0, 0, 0]


def test_a_token_of_a_version_to_come_stops_the_run() -> None:
    learner = make_learner(max_staleness=1)
    groups = make_groups(learner, version=3)
    with pytest.raises(CanaryError, match="version 3, but the learner is at step 0"):
        update(learner, groups)


def test_a_wrong_sampler_is_found_among_older_tokens() -> None:
    learner = moved(make_learner(max_staleness=1))
    groups = old_groups()
    assert update(learner, groups)["logprob_difference_mean"] > 0.01  # older ones may differ
    learner = moved(make_learner(max_staleness=1))
    wrong = make_groups(learner, groups=1, seed=2)
    for trajectory in wrong[0]:
        trajectory.segments[0].logprobs = [x - 0.05 * (x < 0) for x in trajectory.segments[0].logprobs]
    with pytest.raises(CanaryError, match="disagree"):
        update(learner, [*groups, *wrong])


def test_without_staleness_older_tokens_are_checked_strictly() -> None:
    with pytest.raises(CanaryError, match="disagree"):
        update(moved(make_learner()), old_groups())


def test_one_far_likelier_older_token_stops_no_run() -> None:
    groups = old_groups()
    segment = groups[0].trajectories[0].segments[0]
    segment.logprobs[next(i for i, sampled in enumerate(segment.sampled) if sampled)] -= 8
    metrics = update(moved(make_learner(max_staleness=1)), groups)
    assert metrics["ratio_mean"] > 1.5  # reported as it was


def test_older_tokens_that_are_far_off_stop_the_run() -> None:
    learner = moved(make_learner(max_staleness=1), scale=0.5)
    with pytest.raises(CanaryError, match="disagree"):
        update(learner, old_groups())
