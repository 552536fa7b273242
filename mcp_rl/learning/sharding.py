"""A whole model divided among the learners (FSDP2: Zhao et al., PyTorch FSDP, 2023; `torch.distributed.fsdp`).

Each decoder layer is gathered for its own forward and backward pass and given up again. The rest (embeddings, the last
norm, the output layer) is gathered around the computation of log-probabilities, which is therefore made a module here:
it calls the decoder and the output layer itself, not the model's own forward. Gradients are summed over the ranks, not
averaged: the loss is normalised by the whole minibatch.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from mcp_rl.errors import ConfigError
from mcp_rl.learning.optimizer import make_optimizer
from mcp_rl.learning.parallel import Ranks
from mcp_rl.learning.samples import Sample

if TYPE_CHECKING:
    from mcp_rl.learning.step import Learner

T = TypeVar("T")


class _Computation(nn.Module):
    """A model and whatever is computed with it, as one module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[], T]) -> T:
        return function()


class Sharding:
    """Models that are divided among the ranks."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks) -> None:
        """Raises ConfigError for a model without layers that could be gathered one by one."""
        assert dist.group.WORLD is not None
        self._mesh = DeviceMesh.from_group(dist.group.WORLD, ranks.device.type)
        self._divided: dict[int, nn.Module] = {}
        self.add(model)

    def add(self, model: PreTrainedModel) -> None:
        """Divide another model, in place; each rank keeps its part on its own device."""
        layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
        if not layers:
            raise ConfigError(f"{type(model).__name__} has no layers to divide among learners: use one learner.")
        computation = _Computation(model)
        for module in [*layers, computation]:
            sharded = fully_shard(module, mesh=self._mesh)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        self._divided[id(model)] = computation

    def run(self, model: nn.Module, function: Callable[[], T]) -> T:
        """Compute with a model while all of it can be gathered. Every rank must take part."""
        computation = self._divided.get(id(model))
        if computation is None:
            return function()
        result: T = computation(function)
        if not torch.is_grad_enabled():  # no backward pass will give these weights up, and they are soon old
            cast(FSDPModule, computation).reshard()
        return result

    @staticmethod
    def local(value: Tensor) -> Tensor:
        """This rank's part of a tensor."""
        return value.to_local() if isinstance(value, DTensor) else value

    @staticmethod
    def whole(value: Tensor) -> Tensor:
        """All of a tensor. Every rank must take part."""
        return value.full_tensor() if isinstance(value, DTensor) else value

    def idle(self, learner: "Learner", sample: Sample, *, reference: bool) -> None:
        """Take part in a forward and a backward pass that others need, and add nothing. `reference`: in its too."""
        _, packed = next(iter(learner.parts([sample])))
        logprobs, _ = learner.logprobs(packed)
        if reference:
            with torch.no_grad():
                learner._logprobs_under(cast(PreTrainedModel, learner.reference), packed)
        if torch.is_grad_enabled():
            (logprobs.sum() * 0.0).backward()  # type: ignore[no-untyped-call]


def divided(state: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """What an optimiser remembers of a parameter, as the parameter is divided. Nothing is sent: every rank has it."""
    assert isinstance(parameter, DTensor)
    mesh, places = parameter.device_mesh, parameter.placements
    return {
        key: distribute_tensor(value.to(parameter.device), mesh, places, src_data_rank=None)
        if isinstance(value, Tensor) and value.dim()
        else value
        for key, value in state.items()
    }


def undivided(learner: "Learner", *, optimizer: bool = True) -> "Learner | None":
    """A copy that is in one piece on the CPU, to be saved or sampled, on rank 0; None on the others. Every rank must
    take part. What the optimiser remembers is there only where `optimizer` asks for it."""
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


def _in_one_piece(learner: "Learner", kept: dict[str, tuple[Tensor, dict[str, Any]]]) -> "Learner":
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
