"""Run learner and engine on a simulated device other than the CPU, and print the results as JSON.

    python -m tests.learning.elsewhere

The device's tensors are computed on the CPU but report another device, and an operation between them and tensors of the
CPU is refused, as on a GPU; only copies, and indices of another device, are allowed. Everything runs on both devices.
This changes torch for the whole process, so it runs in its own.
"""

import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import safetensors.torch
import torch
import torch.utils._device as device_contexts
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::_index_put_impl_"}
CPU = torch.device("cpu")


class _Module:
    """The functions that torch calls of a device's module."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Elsewhere(torch.Tensor):
    """A tensor of the simulated device, which holds a tensor of the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return cast(Elsewhere, made)

    def __init__(self, held: torch.Tensor) -> None: ...

    def tolist(self) -> Any:
        return self.held.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = Elsewhere(self.held.clone())
        return torch.nn.Parameter(made, self.requires_grad) if isinstance(self, torch.nn.Parameter) else made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, tensors = func._schema.name, list(_tensors((*args, *kwargs.values())))
    there = any(isinstance(x, Elsewhere) for x in tensors)
    if there and name not in MAY_MIX and any(not isinstance(x, Elsewhere) and x.dim() for x in tensors):
        raise RuntimeError(f"{name}: all tensors must be on one device, but some are {NAME} and some on the CPU")
    device = kwargs.get("device")
    wanted = there if device is None else torch.device(device).type == NAME
    out = func(*map(_held, args), **{key: _held(value) for key, value in kwargs.items()})
    if name == "aten::copy_":
        return args[0]
    if not wanted:
        return out
    return return_and_correct_aliasing(func, args, kwargs, _wrapped(out)) if there else _wrapped(out)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _held(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        return value.held
    if isinstance(value, list | tuple):
        return type(value)(map(_held, value))
    return CPU if isinstance(value, torch.device) else value


def _wrapped(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Elsewhere(value)
    return type(value)(map(_wrapped, value)) if isinstance(value, list | tuple) else value


def register() -> torch.device:
    """Register the device with torch."""
    device_contexts._device_constructors()  # caches the original torch.tensor
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    plain, save = torch.tensor, safetensors.torch.save_file

    def tensor(data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != NAME:
            return plain(data, device=device, **options)
        return plain(data, device="cpu", **options).to(device)

    def save_file(tensors: dict[str, torch.Tensor], *rest: Any, **options: Any) -> None:
        save({name: cast(torch.Tensor, _held(value)).clone() for name, value in tensors.items()}, *rest, **options)

    torch.tensor, torch.inference_mode = tensor, torch.no_grad  # type: ignore[assignment, misc]
    safetensors.torch.save_file = save_file  # the real one moves a GPU's tensors by itself
    _kept.append(library)
    return torch.device(NAME, 0)


_kept: list[Any] = []


def work(place: torch.device, dtype: torch.dtype, **settings: Any) -> dict[str, Any]:
    """Play two turns of some episodes, update on them, and take a second update with and without a checkpoint between.

    Whole models have no checkpoint here: transformers reads their tensors' addresses, which these tensors lack.
    """
    from mcp_rl.backends.base.base_model import load_base, make_learner
    from mcp_rl.config import TINY, TrainConfig
    from mcp_rl.inference.chat.chat_format import ChatFormat
    from mcp_rl.learning.disk.checkpoint import newest_checkpoint
    from mcp_rl.learning.disk.state import ModelCard, restore, save_learner
    from mcp_rl.learning.step import update

    config = TrainConfig.model_validate({"epochs": 1, **settings})
    base, tokenizer = load_base(TINY)
    base = moved(base, dtype, place)
    learner = make_learner(base, TINY, config)
    with torch.no_grad():  # so that the adapter changes the model
        for name, parameter in learner.parameters.items():
            if "lora_B" in name:
                parameter.add_(torch.full(parameter.shape, 0.002).to(place, parameter.dtype))
    groups = anyio.run(functools.partial(play, learner, base, ChatFormat(tokenizer)))
    metrics = update(learner, groups)
    again = learner
    if config.method == "lora":
        with tempfile.TemporaryDirectory() as folder:
            save_learner(Path(folder), learner, {}, ModelCard("elsewhere", TINY))
            other, _ = load_base(TINY)
            again = make_learner(moved(other, dtype, place), TINY, config)
            checkpoint = newest_checkpoint(Path(folder))
            assert checkpoint is not None
            restore(again, checkpoint)
        update(again, groups, check_sampler=False)
    update(learner, groups, check_sampler=False)
    pairs = zip(learner.parameters.values(), again.parameters.values(), strict=True)
    tokens = [segment.tokens for group in groups for one in group for segment in one.segments]
    return {
        "device": str(learner.device),
        "tokens": tokens,
        "metrics": {name: value for name, value in metrics.items() if not name.endswith("_seconds")},
        "restored": None
        if again is learner
        else all(torch.equal(a.detach().cpu(), b.detach().cpu()) for a, b in pairs),
    }


def moved(model: Any, dtype: torch.dtype, place: torch.device) -> Any:
    """Move a model to a device and tie its weights again, since wrapped tensors lose the tie."""
    model = model.to(dtype).to(place)
    model.tie_weights()
    return model


async def play(learner: Any, base: Any, chat: Any) -> list[Any]:
    """Play two groups of episodes with two turns each, sampled from the learner's current policy."""
    from mcp_rl.backends.samplers.weights import sampled_weights
    from mcp_rl.inference.engine import Sampling
    from mcp_rl.inference.local import LocalEngine
    from mcp_rl.scenario import McpScenario, StdioServer
    from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

    numbers = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": numbers}} for name in ("add", "subtract")]
    played: dict[tuple[int, int], Segment] = {}

    async def one(engine: Any, group: int, seed: int) -> None:
        segment = played[group, seed] = Segment()
        asked = chat.initial([{"role": "user", "content": f"add {group + 3} and 4"}], tools)
        async with engine.episode(seed=10 * group + seed) as episode:
            for new in (asked, chat.continuation([{"role": "tool", "content": "7"}])):
                said = await episode.generate(new, Sampling(max_tokens=6))
                segment.observe(new)
                segment.act(said.token_ids, said.logprobs, said.version)

    async with LocalEngine(base, stop_token_ids=chat.stop_token_ids) as engine:
        await engine.load_policy(sampled_weights(learner.model), 0)
        async with anyio.create_task_group() as tasks:
            for group in range(2):
                for seed in range(2):
                    tasks.start_soon(one, engine, group, seed)
    groups = []
    for group in range(2):
        scenario = McpScenario(task_description=f"task {group}", server_params=StdioServer(command="true"))
        members = [
            Trajectory(scenario_id=scenario.id, seed=seed, segments=[played[group, seed]], reward=float(seed == group))
            for seed in range(2)
        ]
        groups.append(TrajectoryGroup(scenario=scenario, trajectories=members))
    return groups


CASES: dict[str, Callable[[torch.device], dict[str, Any]]] = {
    "float32": lambda place: work(place, torch.float32, kl=0.1, entropy=0.01, importance_cap=2.0, minibatches=2),
    "bfloat16": lambda place: work(place, torch.bfloat16, activation_checkpointing=True, loss="gspo"),
    "full": lambda place: work(place, torch.float32, method="full", learning_rate=1e-4, kl=0.1),
}

REPEATED = ("float32", "full")
"""Cases whose rounding is fine enough to sample the same tokens on both devices."""


def main() -> None:
    there = register()
    found = {name: {"there": case(there)} for name, case in CASES.items()}
    for name in REPEATED:
        found[name]["here"] = CASES[name](CPU)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
