"""Whole updates of several passes and minibatches, against plain code that computes one sequence at a time."""

import copy
import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor

from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import base_of, full_copy
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.losses import LOSSES
from mcp_rl.learning.step import minibatches, update
from mcp_rl.trajectory import Segment, TrajectoryGroup
from tests.learning.models import make_groups, make_learner, qwen2, set_logprobs

TEMPERATURE = 0.8
PASSES = {"epochs": 2, "minibatches": 2, "microbatch_tokens": 256, "optimizer": "sgd", "learning_rate": 0.5}
LEASH = {"kl": 0.05, "entropy": 0.03}


def learner_of(settings: dict[str, Any]) -> Learner:
    if settings.get("method") != "full":
        given = {"scale_by_std": None, **PASSES, **settings}
        return make_learner(temperature=TEMPERATURE, **given)
    base = qwen2()
    use_tree_attention(base)
    model = full_copy(base)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    config = TrainConfig.model_validate({"schedule": "constant", **PASSES, **settings})
    return Learner(model, config, temperature=TEMPERATURE, reference=base)


def one_step_on(learner: Learner) -> None:
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter += 0.02 * torch.randn_like(parameter)
    learner.step += 1


def episodes(learner: Learner) -> list[TrajectoryGroup]:
    """Make four groups of three; one trajectory of each has a branch."""
    groups = make_groups(learner, groups=4, size=3)
    for group in groups:
        branch = copy.deepcopy(group.trajectories[1].segments[0])
        branch.tokens[22] = 3
        branch.logprobs = [0.0] * len(branch.tokens)
        set_logprobs(learner, branch)
        group.trajectories[1].segments.append(branch)
    return groups


class Plain:
    """A plain learner with the same weights: every formula written out, gradients by autograd."""

    def __init__(self, learner: Learner, groups: list[TrajectoryGroup]) -> None:
        self.learner, self.config = learner, learner.config
        for model in (learner.model, learner.reference):
            for module in () if model is None else model.modules():
                module.__dict__.pop("forward", None)
            if model is not None:
                base_of(model).set_attn_implementation("sdpa")
        self.rows = list(self._rows(groups))
        with torch.no_grad():
            self.start = [self.logprobs(learner.model, segment)[0] for segment, _ in self.rows]
            lora = learner.model if isinstance(learner.model, PeftModel) else None
            with lora.disable_adapter() if lora else nullcontext():
                base = lora or learner.reference
                self.base = [self.logprobs(base, segment)[0] for segment, _ in self.rows]
        for parameter in learner.parameters.values():
            parameter.requires_grad_(True)

    def _rows(self, groups: list[TrajectoryGroup]) -> Iterator[tuple[Segment, float]]:
        for group in groups:
            mean = sum(group.rewards) / len(group)
            deviation = math.sqrt(sum((reward - mean) ** 2 for reward in group.rewards) / len(group))
            for trajectory in group:
                assert trajectory.reward is not None
                gain = trajectory.reward - mean
                for segment in trajectory.segments:
                    yield segment, gain if self.config.loss == "dr_grpo" else gain / (deviation + 1e-6)

    def logprobs(self, model: Any, segment: Segment) -> tuple[Tensor, Tensor]:
        every = (model(torch.tensor([segment.tokens])).logits[0] / TEMPERATURE).log_softmax(-1)
        where = [i for i, sampled in enumerate(segment.sampled) if sampled]
        chosen = torch.stack([every[i - 1, segment.tokens[i]] for i in where])
        return chosen, torch.stack([-(every[i - 1].exp() * every[i - 1]).sum() for i in where])

    def losses(self, number: int) -> Tensor:
        """Return the loss of each sampled token of a row."""
        config, (segment, gain) = self.config, self.rows[number]
        new, entropy = self.logprobs(self.learner.model, segment)
        sampler = torch.tensor([x for x, sampled in zip(segment.logprobs, segment.sampled, strict=True) if sampled])
        old = self.start[number] if config.cap else sampler
        ratio = (new - old).mean().exp().expand(len(new)) if config.loss == "gspo" else (new - old).exp()
        if config.loss == "cispo":
            loss = -ratio.detach().clamp(0, 5) * gain * new
        else:
            low, high = {"grpo": (0.8, 1.28), "dr_grpo": (0.8, 1.2), "gspo": (1 - 3e-4, 1 + 4e-4)}[config.loss]
            loss = -torch.minimum(ratio * gain, ratio.clamp(low, high) * gain)
        if config.cap:
            loss = loss * (self.start[number] - sampler).exp().clamp(max=config.cap)
        away = self.base[number] - new
        return loss - config.entropy * entropy + config.kl * (away.exp() - away - 1)

    def descend(self, numbers: list[int]) -> float:
        rows = [self.losses(number) for number in numbers]
        loss = {
            "token-mean": lambda: torch.cat(rows).mean(),
            "seq-mean-token-mean": lambda: torch.stack([row.mean() for row in rows]).mean(),
            "seq-mean-token-sum-norm": lambda: torch.stack([row.sum() / 30 for row in rows]).mean(),
        }[LOSSES[self.config.loss].aggregation]()
        parameters = list(self.learner.parameters.values())
        gradients = torch.autograd.grad(loss, parameters)
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= self.config.learning_rate * min(1.0, 1.0 / norm) * gradient
        return float(loss.detach())


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "grpo", **LEASH},
        {"loss": "grpo", **LEASH, "method": "full"},
        {"loss": "dr_grpo", "sequence_norm": 30, "max_staleness": 1, "importance_cap": 1.05},
        {"loss": "cispo", "max_staleness": 1, "importance_cap": 0, "prefix_sharing": False},
        {"loss": "gspo", **LEASH, "max_staleness": 1, "importance_cap": 1.05, "activation_checkpointing": True},
    ],
    ids=["grpo", "every weight", "dr_grpo corrected", "cispo unshared", "gspo corrected"],
)
def test_an_update_of_several_passes_equals_plain_code(settings: dict[str, Any]) -> None:
    learner, other = learner_of(settings), learner_of(settings)
    groups = episodes(learner)
    if learner.config.max_staleness:
        one_step_on(learner)
        one_step_on(other)
    before = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
    plain = Plain(other, groups)
    metrics = update(learner, groups, check_sampler=False)
    given = [segment.tokens for segment, _ in plain.rows]
    order = [
        [next(i for i, tokens in enumerate(given) if tokens[: len(sample.tokens)] == sample.tokens) for sample in share]
        for share in minibatches(other, learner.batch)
    ]
    losses = [plain.descend(share) for share in order]
    assert len(losses) == 4
    assert sorted(order[0] + order[1]) == list(range(16))
    assert metrics["loss"] == pytest.approx(sum(losses) / 4, abs=1e-5)
    assert metrics["clip_share"] > 0 or learner.config.loss == "dr_grpo"
    assert (metrics["capped_share"] > 0) == bool(learner.config.cap)
    furthest = max(float((p.detach() - before[name]).abs().max()) for name, p in learner.parameters.items())
    for name, parameter in other.parameters.items():
        torch.testing.assert_close(learner.parameters[name] / furthest, parameter / furthest, atol=1e-4, rtol=1e-5)
