"""Compare Unsloth's loader, forward pass and kernels with transformers', without a GPU.

Triton's interpreter runs the kernels, and torch pretends to have a CUDA device. Each makes one update of the built-in
model on the same batch; JSON with the largest differences is printed. A few tokens take minutes: this measures whether
the two agree, not their speed.

    python -m venv .venv-unsloth
    .venv-unsloth/bin/pip install torch==2.13.0 'transformers<=5.17' 'trl<=1.15' 'datasets<5' bitsandbytes torchao ...
    .venv-unsloth/bin/pip install --no-deps unsloth==2026.10.7 unsloth_zoo==2026.10.7
    PYTHONPATH=. .venv-unsloth/bin/python -m benchmarks.unsloth_on_cpu --checkpointing unsloth

It uses internals of Unsloth 2026.10.7 and works with no other version.
"""

import argparse
import importlib
import json
import os
import random
import time
from types import SimpleNamespace
from typing import Any

ENVIRONMENT = {
    "UNSLOTH_ALLOW_CPU": "1",
    "TRITON_INTERPRET": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "UNSLOTH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}
CHECKPOINTING: dict[str, Any] = {"kept": False, "again": True, "unsloth": "unsloth"}


def pretend_cuda() -> None:
    """Make torch answer questions about a GPU, and put tensors meant for it on the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Nothing:
        """A stand-in for streams and events, and for the results of their methods."""

        cuda_stream = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __enter__(self) -> "Nothing":
            return self

        def __exit__(self, *args: Any) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: self

    def place(device: Any) -> Any:
        if isinstance(device, int) and not isinstance(device, bool):
            return "cpu"
        return "cpu" if str(device).startswith("cuda") else device

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if "device" in kwargs:
                kwargs["device"] = place(kwargs["device"])
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
            if getattr(func, "__name__", "") == "to" and len(args) > 1:
                args = (args[0], place(args[1]), *args[2:])
            return func(*args, **kwargs)

    about = SimpleNamespace(name="none", total_memory=8 << 30, major=9, minor=0, multi_processor_count=8, warp_size=32)
    answers = {
        "get_device_capability": (9, 0), "get_device_properties": about, "get_device_name": "none", "current_device": 0,
        "synchronize": None, "empty_cache": None, "set_device": None, "reset_peak_memory_stats": None,
        "memory_reserved": 0, "max_memory_reserved": 0, "memory_allocated": 0, "mem_get_info": (8 << 30, 8 << 30),
        "is_bf16_supported": True, "default_stream": Nothing(), "current_stream": Nothing(), "stream": Nothing(),
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    torch.cuda.Stream = torch.cuda.Event = Nothing  # type: ignore[assignment,misc]
    OnTheCpu().__enter__()


def one_device() -> None:
    """Make Unsloth keep one table of rotary positions, on the CPU, instead of one for each GPU."""
    import torch

    llama: Any = importlib.import_module("unsloth.models.llama")
    llama.DEVICE_COUNT = 1

    def build(self: Any, index: int) -> None:
        size = self.current_rope_size
        device, dtype = torch.device("cpu", 0), self._rope_cache_dtype
        self._set_cos_sin_cache(seq_len=self._rope_cache_rows(), device=device, dtype=dtype)
        self.current_rope_size = size
        self._rope_cache_versions[index] = self._rope_cache_version

    llama._PerDeviceRopeCache._build_rope_cache = build


def measure(use: bool, dtype: str, checkpointing: str) -> tuple[dict[str, Any], list[float], dict[str, float]]:
    """Return gradients, log-probabilities of the sampled tokens and figures of one update."""
    import torch

    from mcp_rl.backends.base.base_model import make_learner, open_base
    from mcp_rl.backends.base.options import plan_loading
    from mcp_rl.backends.processes.in_process import token_logprobs
    from mcp_rl.config import TINY, TrainConfig, UnslothConfig
    from mcp_rl.learning.step import update
    from mcp_rl.scenario import McpScenario, StdioServer
    from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

    config = TrainConfig(epochs=1)
    loading = UnslothConfig.model_validate(
        {"use": use, "dtype": dtype, "use_gradient_checkpointing": CHECKPOINTING[checkpointing]}
    )
    base = open_base(plan_loading(TINY, loading, config, max_seq_length=512))
    learner = make_learner(base.model, TINY, config, plan=base.plan)
    for number, (_, parameter) in enumerate(sorted(learner.parameters.items())):
        torch.manual_seed(number)
        with torch.no_grad():
            parameter.normal_(std=0.05)
    draw = random.Random(0)
    trajectories = []
    for reward in (0.0, 1.0):
        segment = Segment()
        segment.observe([draw.randrange(900) for _ in range(8)])
        turn = [draw.randrange(900) for _ in range(draw.randrange(4, 9))]
        segment.act(turn, [0.0] * len(turn), 0)
        segment.logprobs[8:] = token_logprobs(learner, [segment.tokens])[0][7:]
        trajectories.append(Trajectory(scenario_id="s", segments=[segment], reward=reward))
    scenario = McpScenario(id="s", task_description="t", server_params=StdioServer(command="x"))
    gradients: dict[str, Any] = {}
    step: Any = learner.optimizer.step

    def seen() -> None:
        gradients.update({name: parameter.grad.clone() for name, parameter in learner.parameters.items()})  # type: ignore[union-attr]
        step()

    learner.optimizer.step = seen  # type: ignore[method-assign, assignment]
    began = time.perf_counter()
    metrics = update(learner, [TrajectoryGroup(scenario=scenario, trajectories=trajectories)])
    figures = {name: metrics[name] for name in ("loss", "grad_norm", "ratio_mean", "logprob_difference_mean")}
    figures |= {"seconds": time.perf_counter() - began, "rows": metrics.get("forward_rows", 0.0)}
    return gradients, [value for t in trajectories for value in t.segments[0].logprobs[8:]], figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    parser.add_argument("--checkpointing", choices=CHECKPOINTING, default="kept")
    given = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    pretend_cuda()
    from mcp_rl.backends.base.first import import_first

    if not import_first(True):
        raise SystemExit("Unsloth cannot be imported here.")
    one_device()
    import torch

    if given.dtype == "float16":  # our own loader refuses it on a CPU
        from mcp_rl.backends.base import transformers_loader, unsloth_loader

        transformers_loader.dtype_for = unsloth_loader.dtype_for = lambda plan: torch.float16
    dtype = given.dtype
    ours, expected, plain = measure(False, dtype, given.checkpointing)
    theirs, found, fast = measure(True, dtype, given.checkpointing)
    largest = max(float(gradient.abs().max()) for gradient in ours.values())
    apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours) / largest
    nats = max(abs(a - b) for a, b in zip(expected, found, strict=True))
    result = {
        "dtype": dtype,
        "checkpointing": given.checkpointing,
        "gradient_difference": apart,
        "logprob_difference": nats,
    }
    print(json.dumps({**result, "transformers": plain, "unsloth": fast}, indent=2))


if __name__ == "__main__":
    main()
