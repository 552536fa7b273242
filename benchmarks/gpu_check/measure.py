"""Measure time, memory and gradients, and judge them by the device."""

import time
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from benchmarks.gpu_check.setting import Failed, Figures, Setting, Shape
from mcp_rl.learning.forward.rows import RowsBatch
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import Sample

PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12, "4090": 165e12,
    "3090": 71e12, "A6000": 155e12,
}  # fmt: skip
"""Dense bfloat16 operations per second, from the makers' data sheets; the first matching name counts."""
AIM_PEAK = 900e12
"""Lowest peak of a device that is judged: the aims are an H100's, and a smaller device is only measured."""
TRAINED_AIM = 6500.0
"""Tokens per second of a 3B LoRA at 16k, before sharing is counted."""
SHARED_AIM = 4 * TRAINED_AIM
"""Unshared-equivalent tokens per second, groups of 8 with a prompt of 4k tokens."""


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> float | None:
    """Return the peak memory in GB since `forget_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def backward(learner: Learner, given: Sequence[Sample]) -> dict[str, float]:
    """Compute the gradient of a plain policy-gradient loss over all samples; return the loss and the work done."""
    total = sum(len(sample.targets) for sample in given)
    pairs = forwarded = rows = 0
    loss = 0.0
    for _, packed in learner.parts(given):
        logprobs, _ = learner.logprobs(packed)
        part = -(packed.advantages * logprobs).sum() / total
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
        batch = packed.batch
        if isinstance(batch, RowsBatch):
            count, length = batch.tokens.shape
            pairs += count * length * (length + 1) // 2
        else:
            nodes = batch.mask.tree.nodes
            pairs += sum(node.length * node.depth + node.length * (node.length + 1) // 2 for node in nodes)
        forwarded, rows = forwarded + packed.flat_tokens, rows + len(batch.predictors.rows)
    return {"pairs": pairs, "forwarded": forwarded, "rows": rows, "loss": loss}


def gradient(learner: Learner, given: Sequence[Sample]) -> Tensor:
    """Return the gradient of all parameters as one vector, in float64 on the CPU."""
    backward(learner, given)
    grads = [cast(Tensor, parameter.grad).double().cpu().flatten() for parameter in learner.parameters.values()]
    learner.optimizer.zero_grad()
    return torch.cat(grads)


def agreement(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Return the relative norm of the difference of two gradients, and their cosine."""
    return {
        "relative_error": float((ours - theirs).norm() / theirs.norm()),
        "cosine": float(torch.dot(ours, theirs) / (ours.norm() * theirs.norm())),
    }


def operations(shape: Shape, counts: dict[str, float]) -> float:
    """Return the operations of a LoRA update: forward and the gradient of the activations; the base's weights have
    none. Recomputation by checkpointing does not count (model FLOPs as in Chowdhery et al., PaLM, 2022, appendix B)."""
    linear = 4 * shape.layer_weights * counts["forwarded"]
    output = 4 * shape.hidden * shape.vocabulary * counts["rows"]
    return linear + output + 12 * shape.layers * shape.hidden * counts["pairs"]


def timed_update(learner: Learner, shape: Shape, given: Sequence[Sample], *, repeats: int = 2) -> Figures:
    """Return the seconds of a whole update (the best of `repeats` after a warm-up), and figures derived from them."""
    device = learner.device
    times, counts = [], {}
    forget_peak(device)
    for _ in range(repeats + 1):
        wait(device)
        began = time.perf_counter()
        counts = backward(learner, given)
        norm = learner.descend(check_moved=False)
        wait(device)
        times.append(time.perf_counter() - began)
    seconds = min(times[1:])
    unshared = sum(len(sample.tokens) for sample in given)
    done = operations(shape, counts) / seconds
    peak = bf16_peak(device)
    return {
        "seconds": seconds,
        "first_seconds": times[0],
        "forward_tokens": counts["forwarded"],
        "unshared_tokens": unshared,
        "forward_tokens_per_second": counts["forwarded"] / seconds,
        "unshared_tokens_per_second": unshared / seconds,
        "operations_per_second": done,
        "share_of_bf16_peak": None if peak is None else done / peak,
        "peak_memory_gb": peak_memory(device),
        "grad_norm": norm,
        "loss": counts["loss"],
    }


def bf16_peak(device: torch.device) -> float | None:
    """Return the data sheet's peak in operations per second; None for an unknown device."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def budget(setting: Setting, shape: Shape) -> int:
    """Return the number of tokens in a forward pass that fit the device's memory with checkpointed activations."""
    if setting.dry_run:
        return 4096
    room = torch.cuda.get_device_properties(0).total_memory * 0.8 - 2 * (shape.layer_weights + 2e8)
    one = 2 * shape.hidden * shape.layers + 12 * shape.intermediate + 60 * shape.hidden  # kept, current layer
    return int(max(4096, min(1 << 17, room / (2 * one))))


def judged(figures: Figures, name: str, aim: float, device: torch.device) -> Figures:
    """Return the figures with their aim. Raises Failed if a device misses an aim that it could reach."""
    peak = bf16_peak(device)
    reached = figures[name] >= aim
    figures |= {"aim": {name: aim}, "reaches_aim": reached, "judged": peak is not None and peak >= AIM_PEAK}
    if figures["judged"] and not reached:
        raise Failed(f"{name} is {figures[name]:.0f}, and the aim on such a device is {aim:.0f}", figures)
    return figures
