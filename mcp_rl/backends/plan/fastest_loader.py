"""Which library loads the base: measured for the model and the lengths of a run, once on each machine.

Unsloth brings kernels of its own, and its attention cannot share prefixes; which of the two saves more depends on the
model, its precision, how much the episodes share, and the GPU. Each way computes the same small model forward and
backward in a process of its own, since Unsloth changes transformers where it is imported. Imports no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from mcp_rl.backends.plan.workload import Way
from mcp_rl.learning.forward.choice import Choice, Trial, choose
from mcp_rl.system.measured import recall, remember

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp_rl.backends.plan.machine import Machine
    from mcp_rl.backends.plan.workload import Workload

LOADERS: dict[str, Way] = {"transformers": Way(loader="transformers"), "unsloth": Way(loader="unsloth")}
"""The ways that a run on a GPU chooses between; the first is the reference."""
KEPT = "loader"
TOLERANCE = {"float32": 1e-3, "float16": 0.04, "bfloat16": 0.1}
"""Mean difference of log-probabilities up to which a way is right, by precision (`learning/precision.py`)."""
_QUANTISED = 0.15
_PACKAGES = ("torch", "transformers", "peft", "unsloth", "unsloth_zoo", "bitsandbytes")


def measured_loader(work: Workload, machine: Machine, ways: Mapping[str, Way] = LOADERS) -> Choice | None:
    """Return the choice that an earlier run measured for this work on this machine; None if none has."""
    found = recall(KEPT, _key(work, machine, ways))
    try:
        return None if found is None else Choice(**found)
    except TypeError:
        return None


def fastest_loader(
    work: Workload,
    machine: Machine,
    ways: Mapping[str, Way] = LOADERS,
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = 240.0,
) -> Choice | None:
    """Time each way, unless that was done, and return the fastest that is right; None if none works. `environment` is
    added to that of the processes; each has so many seconds."""
    if (known := measured_loader(work, machine, ways)) is not None:
        return known
    variables = {**os.environ, **(environment or {})}
    trials: dict[str, Trial] = {}
    for loader in dict.fromkeys(way.loader for way in ways.values()):
        own = {name: way for name, way in ways.items() if way.loader == loader}
        trials |= _tried(work, own, variables, seconds)
    tolerance = TOLERANCE[work.dtype] if work.quantisation == "none" else _QUANTISED
    try:
        choice = choose(trials, reference=next(iter(ways)), tolerance=tolerance)
    except RuntimeError:
        return None
    remember(KEPT, _key(work, machine, ways), asdict(choice))
    return choice


def _tried(work: Workload, ways: Mapping[str, Way], environment: dict[str, str], seconds: float) -> dict[str, Trial]:
    """Time the ways of one loader in a process."""
    told = json.dumps({name: way.model_dump() for name, way in ways.items()})
    command = [sys.executable, "-P", "-m", "mcp_rl.backends.processes.loader_trial", work.model_dump_json(), told]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(ways, Trial(failure=f"it was not done in {seconds:.0f} s"))
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [f"exit code {done.returncode}"]
        return dict.fromkeys(ways, Trial(failure=said[0].strip()[:200]))
    found = json.loads(lines[-1])
    return {
        name: Trial(one["seconds"], np.array(one["values"], np.float32), one["failure"]) for name, one in found.items()
    }


def _key(work: Workload, machine: Machine, ways: Mapping[str, Way]) -> dict[str, object]:
    gpu = machine.usable_gpus[0] if machine.usable_gpus else None
    return {
        "device": f"{machine.cpus} CPUs" if gpu is None else [gpu.name, gpu.driver],
        "work": work.model_dump(mode="json"),
        "ways": {name: way.model_dump(mode="json") for name, way in ways.items()},
        "versions": dict(_versions()),
    }


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found
