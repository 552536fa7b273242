"""A whole model divided among the learners (FSDP2: Zhao et al., PyTorch FSDP, 2023; `torch.distributed.fsdp`).

Each decoder layer is gathered for its own forward and backward pass and freed again. The rest (embeddings, the last
norm, the output layer) is gathered around the computation of log-probabilities. FSDP gathers around a module's forward,
and that computation calls the decoder and the output layer instead of the model's own forward, so it is wrapped in a
module here. Gradients are summed over the ranks, not averaged: the loss is normalised by the whole minibatch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from mcp_rl.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from mcp_rl.learning.parallel import Ranks

T = TypeVar("T")


class _Computation(nn.Module):
    """A model and a function that computes with it, as one module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], T]) -> T:
        return function()


class Sharding:
    """Models that are divided among the ranks."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks) -> None:
        """Divide a model. Raises ConfigError if it has no layers that can be gathered one by one."""
        assert dist.group.WORLD is not None
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, ranks.device.type)
        self._divided: dict[int, nn.Module] = {}
        self.add(model)

    def add(self, model: PreTrainedModel) -> None:
        """Divide another model, in place; each rank keeps its part on its own device."""
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise ConfigError(f"{type(model).__name__} has no layers to divide among learners; use one learner.")
        computation = _Computation(model)
        for module in [*layers, computation]:
            sharded = fully_shard(module, mesh=self._mesh)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        self._divided[id(model)] = computation

    def run(self, model: nn.Module, function: Callable[[], T]) -> T:
        """Call a function that computes with a model, whose weights are gathered as needed. Every rank must take
        part."""
        computation = self._divided.get(id(model))
        if computation is None:
            return function()
        result: T = computation(function)
        if not torch.is_grad_enabled():  # no backward pass will free these weights, and they are soon out of date
            cast("FSDPModule", computation).reshard()
        return result

    @staticmethod
    def local(value: Tensor) -> Tensor:
        """Return this rank's part of a tensor."""
        return value.to_local() if isinstance(value, DTensor) else value

    @staticmethod
    def whole(value: Tensor) -> Tensor:
        """Gather a whole tensor. Every rank must take part."""
        return value.full_tensor() if isinstance(value, DTensor) else value


def divided(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Divide an optimiser's state of a parameter as the parameter is divided. Every rank has it, so nothing is sent."""
    assert isinstance(parameter, DTensor)
    mesh, places = parameter.device_mesh, parameter.placements
    return {
        key: distribute_tensor(value.to(parameter.device), mesh, places, src_data_rank=None)
        if isinstance(value, Tensor) and value.dim()
        else value
        for key, value in state.items()
    }
