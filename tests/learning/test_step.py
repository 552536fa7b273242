"""An update: the right gradient, the right normalisation, and checks that stop a run."""

import copy

import pytest
import torch

from mcp_rl.errors import CanaryError, ConfigError
from mcp_rl.learning import canaries
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.losses import LOSSES
from mcp_rl.learning.step import update
from mcp_rl.trajectory import TrajectoryGroup
from tests.learning.gradients import assert_same_gradient, gradient_of_update, plain_gradient
from tests.learning.models import make_groups, make_learner


def test_an_update_follows_the_plain_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(temperature=0.8, max_grad_norm=1e9, microbatch_tokens=256)
    groups = make_groups(learner, groups=4)
    metrics, seen = gradient_of_update(learner, groups, monkeypatch)
    loss, expected = plain_gradient(make_learner(temperature=0.8), groups)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_gradient(seen, expected)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_learning_makes_rewarded_answers_likelier(loss: str) -> None:
    learner = make_learner(learning_rate=3e-3, loss=loss)
    groups = make_groups(learner)
    before = 0.0
    for _ in range(6):
        update(learner, groups, check_sampler=False)
        _, packed = next(learner.parts(learner.batch))
        with torch.no_grad():
            gained = float(((learner.logprobs(packed)[0] - packed.sampler) * packed.advantages).mean())
        assert gained > before
        before = gained if loss != "gspo" else 0.0  # sequences beyond its narrow bounds stay where they are
    assert gained > 0.01


def test_metrics_of_an_exact_sampler() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    metrics = update(learner, groups)
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
    metrics = update(learner, make_groups(learner))
    assert metrics["clip_share"] > 0
    assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)  # measured before the first update


def test_kl_pulls_towards_the_base() -> None:
    learner = make_learner(kl=1.0, learning_rate=1e-2)
    groups = make_groups(learner)
    first = update(learner, groups)["kl"]
    for _ in range(10):
        last = update(learner, groups, check_sampler=False)["kl"]
    assert first > 0.01
    assert last < first


def test_the_base_is_asked_once_for_all_epochs() -> None:
    learner = make_learner(kl=0.1, epochs=3, microbatch_tokens=256)
    learned: list[bool] = []
    decoder = learner.model.get_base_model().base_model
    decoder.register_forward_hook(lambda *_: learned.append(torch.is_grad_enabled()))
    groups = make_groups(learner, groups=4)
    learned.clear()
    update(learner, groups)
    assert learned.count(False) == learned.count(True) / 3 > 1


def test_the_optimiser_of_a_learner_cannot_change() -> None:
    learner = make_learner()
    learner.config = learner.config.model_copy(update={"optimizer": "sgd"})
    with pytest.raises(ConfigError, match=r"train\.optimizer cannot change"):
        update(learner, make_groups(learner))


def test_entropy_bonus_raises_the_entropy() -> None:
    learner = make_learner(entropy=1.0, learning_rate=1e-2)
    groups = make_groups(learner)
    first = update(learner, groups)["entropy"]
    for _ in range(5):
        last = update(learner, groups, check_sampler=False)["entropy"]
    assert last > first + 0.01


def test_without_variance_the_adapter_stays_and_the_step_counts() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    for group in groups:
        for trajectory in group:
            trajectory.reward = 1.0
    before = copy.deepcopy(learner.model.state_dict())
    metrics = update(learner, groups)
    assert metrics["groups_dropped"] == 3
    assert learner.step == 1
    assert all(torch.equal(before[name], value) for name, value in learner.model.state_dict().items())


def test_truncated_importance_weights_undo_an_inexact_sampler() -> None:
    learner = make_learner(importance_cap=2.0)
    groups = make_groups(learner)
    for group in groups:
        for trajectory in group:
            trajectory.segments[0].logprobs = [x + 0.005 for x in trajectory.segments[0].logprobs]
    metrics = update(learner, groups)
    assert metrics["ratio_mean"] == pytest.approx(0.995, abs=1e-3)  # the mismatch is still reported
    exact = make_learner()
    expected = update(exact, make_groups(exact))
    assert metrics["loss"] == pytest.approx(expected["loss"] * 0.995, abs=1e-4)


# -- canaries: each test breaks exactly what its canary checks


def stopped(learner: Learner, groups: list[TrajectoryGroup], match: str) -> None:
    """The update raises, in one sentence, and changes nothing."""
    before = {name: p.detach().clone() for name, p in learner.parameters.items()}
    with pytest.raises(CanaryError, match=match) as caught:
        update(learner, groups)
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


def test_a_broken_off_update_does_not_keep_its_old_step() -> None:
    learner = make_learner(epochs=2)
    groups, passes = make_groups(learner), []
    parameter = next(iter(learner.parameters.values()))
    before = parameter.detach().clone()
    parameter.register_hook(lambda grad: passes.append(1) or grad / (2 - len(passes)))
    with pytest.raises(CanaryError, match="gradient's norm is"):
        update(learner, groups)
    assert not torch.equal(before, parameter)  # the first pass has moved them
    assert learner.step == 1


def test_an_optimizer_of_other_parameters_stops_the_run() -> None:
    learner = make_learner()
    groups = make_groups(learner)
    other = make_learner()
    learner.optimizer = other.optimizer
    with pytest.raises(CanaryError, match="other parameters"):
        update(learner, groups)


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
