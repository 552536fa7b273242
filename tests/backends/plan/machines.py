"""Simulated machines, and the published shapes of models."""

from mcp_rl.backends.plan.machine import GIB, Gpu, Machine
from mcp_rl.backends.plan.outcome import RunPlan
from mcp_rl.backends.plan.plan import plan
from mcp_rl.backends.plan.shape import KNOWN, ModelShape, shape_of
from mcp_rl.backends.plan.wanted import wanted
from mcp_rl.config import RunConfig

ALL_PACKAGES = ("torch", "transformers", "peft", "vllm", "unsloth", "bitsandbytes", "vllm-bnb-plugin")
SHAPES = {name.removeprefix("Qwen/Qwen2.5-").removesuffix("-Instruct"): name for name in KNOWN}


def qwen(size: str) -> ModelShape:
    """Return the shape of a Qwen2.5 of a size from `0.5B` to `32B`."""
    return shape_of(SHAPES[size], KNOWN[SHAPES[size]], "its published configuration")


def machine(
    gib: float,
    gpus: int = 1,
    *,
    packages: tuple[str, ...] = ALL_PACKAGES,
    capability: tuple[int, int] = (8, 0),
    used: float = 0.0,
) -> Machine:
    """Return a machine with GPUs of `gib` GiB each, of which other processes hold `used` GiB."""
    size = int(gib * GIB)
    return Machine(
        cpus=16,
        free_cpus=16,
        memory=256 * GIB,
        free_memory=240 * GIB,
        cuda_build="12.9",
        packages=dict.fromkeys(packages, "1.0"),
        gpus=tuple(
            Gpu(
                number=number,
                device=str(number),
                name=f"Some GPU {gib:g}GB",
                memory=size,
                free=size - int(used * GIB),
                capability=capability,
                driver="580.1",
            )
            for number in range(gpus)
        ),
    )


def planned(there: Machine, size: str, **settings: object) -> RunPlan:
    """Plan a run of a Qwen2.5 with these settings."""
    config = RunConfig.model_validate({"server": "any", "base_model": SHAPES[size], **settings})
    return plan(there, qwen(size), wanted(config))
