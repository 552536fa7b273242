"""The gradient of an update, and the same gradient computed in plain code."""

import math

import pytest
import torch

from mcp_rl.learning import canaries
from mcp_rl.learning.adapter import base_of
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from mcp_rl.trajectory import TrajectoryGroup


def plain_gradient(
    learner: Learner, groups: list[TrajectoryGroup], cap: float = 0.0
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradient of the mean over tokens in plain code: one sequence at a time, stock attention, PEFT's
    layers. The ratio is 1; with a cap every token has its importance weight."""
    model = learner.model
    for module in model.modules():
        module.__dict__.pop("forward", None)
    base_of(model).set_attn_implementation("sdpa")
    rows = []
    for group in groups:
        mean = sum(group.rewards) / len(group)
        for trajectory in group:
            segment, losses = trajectory.segments[0], []
            logits = model(torch.tensor([segment.tokens])).logits[0] / learner.temperature
            for i, sampled in enumerate(segment.sampled):
                if sampled:
                    logprob = logits[i - 1].log_softmax(-1)[segment.tokens[i]]
                    old = float(logprob.detach()) if cap else segment.logprobs[i]
                    weight = min(math.exp(old - segment.logprobs[i]), cap) if cap else 1.0
                    losses.append(-weight * (logprob - old).exp() * (trajectory.reward - mean))
            rows.append(torch.stack(losses))
    loss = torch.cat(rows).mean()
    gradients = torch.autograd.grad(loss, list(learner.parameters.values()))
    return float(loss.detach()), dict(zip(learner.parameters, gradients, strict=True))


def gradient_of_update(
    learner: Learner, groups: list[TrajectoryGroup], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """Return the metrics, and the gradient that reached the optimiser, which ignores it."""
    seen: dict[str, torch.Tensor] = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            learner.optimizer, "step", lambda: seen.update({n: p.grad.clone() for n, p in learner.parameters.items()})
        )
        patch.setattr(canaries, "check_moved", lambda *_: None)
        return update(learner, groups), seen


def assert_same_gradient(seen: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name] / largest, gradient / largest, atol=1e-5, rtol=1e-5)
