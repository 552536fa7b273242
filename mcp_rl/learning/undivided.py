"""Gather a divided learner into one piece on the CPU."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mcp_rl.learning.optimizer import make_optimizer
from mcp_rl.learning.sharding import Sharding

if TYPE_CHECKING:
    from mcp_rl.learning.learner import Learner


def undivided(learner: Learner, *, optimizer: bool = True) -> Learner | None:
    """Return a copy in one piece on the CPU, to be saved or sampled from, on rank 0 and None on the others.

    Every rank must take part. The optimiser's state is included only if `optimizer` is True.
    """
    assert learner.ranks is not None
    leads = learner.ranks.leads
    kept: dict[str, tuple[Tensor, dict[str, Any]]] = {}
    for name, parameter in learner.parameters.items():
        values = learner.optimizer.state.get(parameter, {}) if optimizer else {}
        state = {key: Sharding.whole(value) if isinstance(value, Tensor) else value for key, value in values.items()}
        weight = Sharding.whole(parameter.detach())
        if leads:
            on_cpu = {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}
            kept[name] = weight.cpu(), on_cpu
    return _in_one_piece(learner, kept) if leads else None


def _in_one_piece(learner: Learner, kept: dict[str, tuple[Tensor, dict[str, Any]]]) -> Learner:
    model: Any = learner.model
    with torch.device("meta"):
        plain = type(model)(model.config)
    for name, (weight, _) in kept.items():
        owner, _, own_name = name.rpartition(".")
        setattr(plain.get_submodule(owner), own_name, nn.Parameter(weight))
    plain.tie_weights()
    plain.generation_config = model.generation_config
    one = copy.copy(learner)
    one.model, one.ranks, one.sharding, one.device = plain, None, None, torch.device("cpu")
    one.parameters = {name: plain.get_parameter(name) for name in kept}
    one.optimizer = make_optimizer(learner.config, one.parameters.values())
    for name, (_, state) in kept.items():
        if state:
            one.optimizer.state[one.parameters[name]] = state
    return one
