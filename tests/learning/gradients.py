"""The gradient of an update, and what it should be, computed the plain way."""

import math

import pytest
import torch
from peft import PeftModel

from mcp_rl.learning import canaries
from mcp_rl.learning.step import Learner
from mcp_rl.trajectory import TrajectoryGroup


def plain_gradient(
    learner: Learner, groups: list[TrajectoryGroup], cap: float = 0.0
) -> tuple[float, dict[str, torch.Tensor]]:
    """The mean over tokens by the book: one sequence at a time, stock attention, PEFT's layers; the ratio is 1, and
    with a cap every token is weighted by how likely it has become since it was sampled."""
    model = learner.model
    for module in model.modules():
        module.__dict__.pop("forward", None)
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    base.set_attn_implementation("sdpa")
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
    """Metrics, and the gradient that reached the optimiser, which does nothing with it."""
    seen: dict[str, torch.Tensor] = {}
    with monkeypatch.context() as patch:
        patch.setattr(
            learner.optimizer, "step", lambda: seen.update({n: p.grad.clone() for n, p in learner.parameters.items()})
        )
        patch.setattr(canaries, "check_moved", lambda *_: None)
        return learner.update(groups), seen


def assert_same_gradient(seen: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(seen[name] / largest, gradient / largest, atol=1e-5, rtol=1e-5)
