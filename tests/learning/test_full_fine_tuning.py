"""Training every weight: the right gradient, a base that stays as it is, weights that a sampler takes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from mcp_rl.backends.base.base_model import make_learner
from mcp_rl.backends.base.options import LoadPlan
from mcp_rl.backends.samplers.weights import sampled_weights
from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError
from mcp_rl.inference.policy import Policy, fingerprint_of
from mcp_rl.learning.adapter import full_copy
from mcp_rl.learning.disk.state import write_weights
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import take_in
from mcp_rl.learning.step import update
from tests.learning.gradients import assert_same_gradient, gradient_of_update, plain_gradient
from tests.learning.models import llama, make_groups, qwen2


def make_full_learner(base: PreTrainedModel | None = None, **settings: object) -> Learner:
    """A learner of its own copy of a base, which is its reference."""
    plain = {"method": "full", "epochs": 1, "scale_by_std": False, "schedule": "constant", "learning_rate": 1e-3}
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


def half_learner(tmp_path: Path, *, sampled: bool, **settings: object) -> tuple[PreTrainedModel, Learner]:
    base = llama().to(torch.bfloat16)
    config = TrainConfig.model_validate({"method": "full", "epochs": 1, "learning_rate": 1e-3, **settings})
    plan = LoadPlan("any", "any", str(tmp_path), full=True, sampled=sampled)
    return base, make_learner(base, "any", config, plan=plan)


def test_a_base_in_16_bits_is_multiplied_in_16_bits_and_learned_in_32(tmp_path: Path) -> None:
    _, learner = half_learner(tmp_path, sampled=False)
    exact = Learner(full_copy(llama()), TrainConfig(method="full"))
    samples = take_in(make_groups(exact, groups=1)).samples
    gradients = []
    for each in (learner, exact):
        with torch.no_grad():
            for name, parameter in each.parameters.items():
                parameter.copy_(exact.parameters[name].bfloat16())
        _, packed = next(each.parts(samples))
        with Float32Products() as products:
            each.logprobs(packed)[0].sum().backward()
        assert {p.grad.dtype for p in each.parameters.values() if p.grad is not None} == {torch.float32}
        gradients.append(torch.cat([p.grad.flatten() for p in each.parameters.values() if p.grad is not None]))
        assert (products.found == 0) is (each is learner)
    assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.99


def test_no_base_is_kept_that_is_neither_a_reference_nor_sampled(tmp_path: Path) -> None:
    base, learner = half_learner(tmp_path, sampled=False)
    assert learner.reference is None and learner.model is base and base.dtype == torch.float32
    learner.config = learner.config.model_copy(update={"kl": 0.1})
    with pytest.raises(ConfigError, match=r"train\.kl needs the base model"):
        update(learner, [])
    for settings, sampled in (({"kl": 0.1}, False), ({}, True)):
        base, learner = half_learner(tmp_path, sampled=sampled, **settings)
        assert learner.reference is base and base.dtype == torch.bfloat16


def test_a_policy_is_written_in_the_type_that_it_is_sampled_in(tmp_path: Path) -> None:
    tied = full_copy(qwen2())
    write_weights(tied, tmp_path, dtype=torch.bfloat16)
    written = load_file(tmp_path / "model.safetensors")
    assert {value.dtype for value in written.values()} == {torch.bfloat16} and "lm_head.weight" not in written
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert next(tied.parameters()).dtype == torch.float32


class Float32Products(TorchDispatchMode):
    """Count matrix products in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.found += args[-1].dtype == torch.float32
        return func(*args, **(kwargs or {}))
