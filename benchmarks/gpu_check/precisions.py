"""Check what each precision does on the device: adapters in 16 bits, whole weights, overflows, the canaries' limits."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.measure import agreement, forget_peak, gradient, peak_memory, timed_update, wait
from benchmarks.gpu_check.models import random_learner, random_model, samples
from benchmarks.gpu_check.setting import Failed, Figures, Setting, Shape, check
from mcp_rl.learning.adapter import full_copy
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.off_policy import per_sample
from mcp_rl.learning.precision import ROUNDINGS
from mcp_rl.learning.samples import Sample

PLACES = {"memory": Path("/dev/shm"), "disk": Path(tempfile.gettempdir())}


def _given(setting: Setting, shape: Shape, size: int = 4) -> list[Sample]:
    context = setting.contexts[0]
    return samples(shape.vocabulary, groups=1, size=size, prompt=context // 2, answer=context // 4)


@check
def lora_in_16_bits(setting: Setting) -> Figures:
    """An adapter on a bfloat16 base, multiplied in 16 bits, against PEFT's own layers, which cast their input."""
    found: Figures = {}
    grads, given = [], _given(setting, setting.half)
    for name in ("ours", "peft"):
        learner = random_learner(setting.half, setting, microbatch_tokens=1 << 14)
        if name == "peft":
            for module in learner.model.modules():
                vars(module).pop("forward", None)  # PEFT's own again
        grads.append(gradient(learner, given))
        kinds = {str(parameter.dtype) for parameter in learner.parameters.values()}
        found[name] = timed_update(learner, setting.half, given)
        del learner
        forget_peak(setting.device)
    found |= {**agreement(*grads), "adapter": ", ".join(kinds)}
    found["times_faster"] = found["peft"]["seconds"] / found["ours"]["seconds"]
    if not found["cosine"] > 0.99 or kinds != {"torch.float32"}:
        raise Failed(f"the gradients have a cosine of {found['cosine']:.4f}, of adapters in {found['adapter']}", found)
    return found


@check
def whole_weights(setting: Setting) -> Figures:
    """Every weight of the 0.5B learned in bfloat16 with float32 masters, against float32 alone; its swap and its
    checkpoint, written to the disk and to the machine's memory."""
    from mcp_rl.config import TrainConfig
    from mcp_rl.learning.disk.state import ModelCard, save_learner, write_weights

    found: Figures = {}
    grads, given = [], _given(setting, setting.half)
    config = TrainConfig(method="full", epochs=1, learning_rate=1e-6, activation_checkpointing=not setting.dry_run)
    for name, compute in (("bfloat16", torch.bfloat16), ("float32", None)):
        base = random_model(setting.half, setting.device, torch.bfloat16)
        use_tree_attention(base)
        learner = Learner(full_copy(base, copied=False), config, compute=compute)
        grads.append(gradient(learner, given))
        found[name] = timed_update(learner, setting.half, given)
        if name == "bfloat16":
            masters = {str(parameter.dtype) for parameter in learner.parameters.values()}
            with tempfile.TemporaryDirectory() as place:
                began = time.perf_counter()
                path = save_learner(Path(place), learner, {}, ModelCard("gpu/check", "random")).path
                found["checkpoint_seconds"] = time.perf_counter() - began
                found["checkpoint_gb"] = sum(file.stat().st_size for file in path.iterdir()) / 1e9
            for where, folder in PLACES.items():
                if folder.is_dir():
                    with tempfile.TemporaryDirectory(dir=folder) as place:
                        began = time.perf_counter()
                        write_weights(learner.model, Path(place), dtype=compute)
                        found[f"swap_by_{where}_seconds"] = time.perf_counter() - began
                        found["swap_gb"] = sum(file.stat().st_size for file in Path(place).iterdir()) / 1e9
        del learner, base
        forget_peak(setting.device)
    found |= agreement(*grads)
    found["times_faster"] = found["float32"]["seconds"] / found["bfloat16"]["seconds"]
    if not found["cosine"] > 0.98 or masters != {"torch.float32"}:
        raise Failed(f"the gradients have a cosine of {found['cosine']:.4f}, of weights in {masters}", found)
    if not found["swap_gb"] < found["checkpoint_gb"] / 4:
        raise Failed("a swap weighs as much as float32 weights", found)
    return found


@check
def overflow_in_float16(setting: Setting) -> Figures:
    """An update in float16 whose gradient overflows is skipped with half the scale, and the next one moves the
    policy."""
    learner = random_learner(setting.half, setting, torch.float16, microbatch_tokens=1 << 14)
    given = _given(setting, setting.half)
    before = [parameter.detach().clone() for parameter in learner.parameters.values()]

    def descend(factor: float) -> float:
        scale = learner.scale(sum(len(sample.targets) for sample in given))
        for _, packed in learner.parts(given):
            logprobs, _ = learner.logprobs(packed)
            (-(packed.advantages * logprobs).mean() * scale * factor).backward()  # type: ignore[no-untyped-call]
        learner.unscale(scale)
        return learner.descend(check_moved=False)

    first = learner.scale(len(given))
    over = descend(math.inf)
    halved = learner.scale(len(given))
    kept = all(torch.equal(a, b) for a, b in zip(before, learner.parameters.values(), strict=True))
    norm = descend(1.0)
    moved = any(not torch.equal(a, b) for a, b in zip(before, learner.parameters.values(), strict=True))
    found: Figures = {"scale": first, "halved": halved, "grad_norm": norm}
    if math.isfinite(over) or not kept or halved * 2 != first or not moved or not math.isfinite(norm):
        raise Failed(f"skipped: {kept}, scale {first} to {halved}, then norm {norm}, moved: {moved}", found)
    return found


@check
def canary_limits(setting: Setting) -> Figures:
    """Differences of log-probabilities by precision and by attention kernel, against the limits that stop a run."""
    found: Figures = {}
    given = _given(setting, setting.half, size=2)
    exact = random_learner(setting.half, setting, torch.float32, microbatch_tokens=1 << 14)
    expected = _logprobs(exact, given)
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        rough = _on(exact, setting, dtype)
        gap = (_logprobs(rough, given) - expected).abs().mean()
        alone = torch.cat([_logprobs(rough, [one]) for one in given])  # other kernels and another batch
        kernels = (_logprobs(rough, given) - alone).abs().mean()
        found[name] = {"against_float32": float(gap), "kernels": float(kernels), "limit": ROUNDINGS[name].magnitude}
        del rough
        forget_peak(setting.device)
    for name in ("bfloat16", "float16"):
        if not max(found[name]["against_float32"], found[name]["kernels"]) < found[name]["limit"]:
            raise Failed(f"in {name} sampler and learner may differ by more than the limit allows", found)
    return found


def _on(learner: Learner, setting: Setting, dtype: torch.dtype) -> Learner:
    """Return a learner with the same weights in another precision."""
    made = random_learner(setting.half, setting, dtype, microbatch_tokens=1 << 14)
    kept: dict[str, Any] = learner.model.state_dict()
    made.model.load_state_dict(kept)
    return made


@torch.no_grad()
def _logprobs(learner: Learner, given: list[Sample]) -> torch.Tensor:
    """Return the log-probabilities of all learned tokens, in the order of the samples."""
    found: dict[int, torch.Tensor] = {}
    for part, packed in learner.parts(given):
        own = per_sample([given[i] for i in part], learner.logprobs(packed)[0])
        found |= {i: torch.from_numpy(values) for i, values in zip(part, own, strict=True)}
    return torch.cat([found[i] for i in range(len(given))])


@check
def lengths_compile_once(setting: Setting) -> Figures:
    """Updates of many lengths: the attention kernel is compiled a few times, not once for each length."""
    import torch._dynamo.utils as counting

    learner = random_learner(setting.half, setting, microbatch_tokens=1 << 14)
    lengths = [setting.contexts[0] // 2 + 37 * number for number in range(3 if setting.dry_run else 12)]
    times = []
    before = dict(counting.counters["stats"])
    for length in lengths:
        given = samples(setting.half.vocabulary, groups=1, size=4, prompt=length, answer=length // 3)
        wait(setting.device)
        began = time.perf_counter()
        gradient(learner, given)
        wait(setting.device)
        times.append(time.perf_counter() - began)
    graphs = counting.counters["stats"].get("unique_graphs", 0) - before.get("unique_graphs", 0)
    found: Figures = {
        "lengths": len(lengths),
        "graphs": graphs,
        "first_seconds": times[0],
        "last_seconds": times[-1],
        "peak_memory_gb": peak_memory(setting.device),
    }
    if graphs > len(lengths) // 2 and not setting.dry_run:
        raise Failed(f"{graphs} graphs were compiled for {len(lengths)} lengths", found)
    return found
