"""Check a learner that leaves the device while an engine samples, and the choice of the loader."""

import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.gpu_check.loaders import without_unsloth
from benchmarks.gpu_check.measure import backward, forget_peak
from benchmarks.gpu_check.models import base_folder, random_learner, samples
from benchmarks.gpu_check.setting import Failed, Figures, Setting, check
from mcp_rl.learning.host_memory import HostMemory

MOST_LEFT = 0.1
"""Largest share of a learner that may stay on the device."""


@check
def learner_rests(setting: Setting) -> Figures:
    """A 3B with an adapter moved to the machine's memory and back between two updates: seconds each way, memory given
    back, and the same bits as one that stayed."""
    context = setting.contexts[0]
    given = samples(setting.three.vocabulary, groups=1, size=4, prompt=context // 2, answer=context // 4)
    found: Figures = {}
    ends: list[list[torch.Tensor]] = []
    for name in ("stayed", "moved"):
        learner = random_learner(setting.three, setting, microbatch_tokens=1 << 14)
        memory = HostMemory(learner)
        for step in range(3):
            if name == "moved":
                found |= _there_and_back(memory, setting, step)
            backward(learner, given)
            learner.descend(check_moved=False)
        ends.append([parameter.detach().cpu() for parameter in learner.parameters.values()])
        memory.close()
        del learner, memory
        forget_peak(setting.device)
    if not all(torch.equal(one, other) for one, other in zip(*ends, strict=True)):
        raise Failed("the update after a move is another", found)
    return found


def _there_and_back(memory: HostMemory, setting: Setting, step: int) -> Figures:
    """Move a learner to the host and back; the first time, host memory is allocated."""
    before = torch.cuda.memory_allocated() if not setting.dry_run else 0
    memory.rest()
    left = torch.cuda.memory_allocated() if not setting.dry_run else 0
    name = "first_to_host_seconds" if step == 0 else "to_host_seconds"
    found: Figures = {name: memory.seconds, "host_gb": memory.bytes / 1e9}
    if left > MOST_LEFT * before:
        raise Failed(f"{left / 1e9:.1f} of {before / 1e9:.1f} GB stay on the device", found)
    memory.wake()
    seconds = max(memory.seconds, 1e-9)
    return found | {
        "to_device_seconds": memory.seconds,
        "gb_per_second": memory.bytes / 1e9 / seconds,
        "pinned": str(memory.pinned),
    }


@check
def loader_choice(setting: Setting) -> Figures:
    """The loader that a run would choose for the 0.5B in 16 bits, as it measures it; without Unsloth, tree or rows."""
    from mcp_rl.backends.plan.detect import detect
    from mcp_rl.backends.plan.fastest_loader import LOADERS, fastest_loader
    from mcp_rl.backends.plan.workload import Way, Workload

    rows = {name: Way(loader="transformers", forward=name) for name in ("rows", "tree")}
    reason = without_unsloth(setting)
    with tempfile.TemporaryDirectory() as place:
        work = Workload(
            base_model=str(base_folder(setting.half, setting, Path(place) / "base")),
            dtype="float32" if setting.dry_run else "bfloat16",
            shared=setting.prompt,
            own=setting.answer,
            rows=4 if setting.dry_run else 8,
        )
        environment = {"XDG_CACHE_HOME": place, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        kept = os.environ.get("XDG_CACHE_HOME")
        os.environ["XDG_CACHE_HOME"] = place
        try:
            choice = fastest_loader(work, detect(), rows if reason else LOADERS, environment=environment)
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if kept is not None:
                os.environ["XDG_CACHE_HOME"] = kept
    if choice is None:
        raise Failed("no way to load the model works")
    return {**asdict(choice), "unsloth_skipped": reason}
