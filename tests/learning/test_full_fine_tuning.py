"""Training every weight: the right gradient, a base that stays as it is, weights that a sampler takes."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from mcp_rl.backends.samplers.weights import sampled_weights
from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.inference.policy import Policy, fingerprint_of
from mcp_rl.learning.adapter import full_copy
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from tests.learning.gradients import assert_same_gradient, gradient_of_update, plain_gradient
from tests.learning.models import llama, make_groups, qwen2


def make_full_learner(base: PreTrainedModel | None = None, **settings: object) -> Learner:
    """A learner of its own copy of a base, which is its reference."""
    plain = {"method": "full", "epochs": 1, "scale_by_std": False, "decay_steps": 0, "learning_rate": 1e-3}
    base = base or qwen2()
    use_tree_attention(base)
    return Learner(full_copy(base), TrainConfig.model_validate({**plain, **settings}), reference=base)


def test_the_gradient_is_the_plain_one_with_tied_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_full_learner(max_grad_norm=1e9)
    assert "lm_head.weight" not in learner.parameters  # tied to the embeddings
    groups = make_groups(learner)
    metrics, seen = gradient_of_update(learner, groups, monkeypatch)
    loss, expected = plain_gradient(make_full_learner(), groups)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert_same_gradient(seen, expected)


@pytest.mark.parametrize("make_base", [qwen2, llama], ids=["tied", "untied"])
def test_the_sampler_takes_every_weight_and_the_base_stays(make_base: Callable[[], PreTrainedModel]) -> None:
    base = make_base()
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    learner = make_full_learner(base)
    policy = Policy(base)
    update(learner, make_groups(learner))
    weights = sampled_weights(learner.model, learner.reference)
    policy.load(weights, 1)
    assert policy.fingerprint == fingerprint_of(weights)
    sampled = dict(policy.model.named_parameters(remove_duplicate=False))
    learned = dict(learner.model.named_parameters(remove_duplicate=False))
    assert all(torch.equal(sampled[name], learned[name]) for name in learned)
    assert all(torch.equal(before[name], p) for name, p in base.named_parameters())
    assert any(not torch.equal(before[name], learned[name]) for name in before)


def test_a_bfloat16_base_is_trained_in_float32() -> None:
    base = qwen2().to(torch.bfloat16)
    learner = make_full_learner(base)
    assert {p.dtype for p in learner.parameters.values()} == {torch.float32}
    policy = Policy(base)
    policy.load(weights := sampled_weights(learner.model, learner.reference), 1)
    assert policy.fingerprint == fingerprint_of(weights)
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16} == {base.dtype}


def test_kl_is_to_the_base_that_was_copied() -> None:
    learner = make_full_learner(kl=0.1, learning_rate=1e-2, epochs=2)
    groups = make_groups(learner)
    assert update(learner, groups)["kl"] > 0  # nothing in the first epoch, something in the second
    alone = TrainConfig(kl=0.1, method="full")
    with pytest.raises(ConfigError, match="needs the base model as a reference"):
        Learner(full_copy(qwen2()), alone)
