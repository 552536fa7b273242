"""How time, memory and gradients are measured, and what is expected of a device."""

import time
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from benchmarks.gpu_check.setting import Failed, Figures, Setting, Shape
from mcp_rl.learning.rows import RowsBatch
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.step import Learner

PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12,
    "A100": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10G": 70e12, "A10": 125e12, "4090": 165e12,
    "3090": 71e12, "A6000": 155e12,
}  # fmt: skip
"""Dense bfloat16 operations per second, from the makers' data sheets; the first name that fits counts."""
AIM_PEAK = 900e12
"""The aims are an H100's; a smaller device is measured and not judged."""
TRAINED_AIM = 6500.0
"""Tokens per second of a 3B LoRA at 16k, before sharing is counted."""
SHARED_AIM = 4 * TRAINED_AIM
"""Unshared-equivalent tokens per second, groups of 8 with a prompt of 4k tokens."""


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: torch.device) -> float | None:
    """GB at most since `forget_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated() / 1e9 if device.type == "cuda" else None


def forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def backward(learner: Learner, given: Sequence[Sample]) -> dict[str, float]:
    """The gradient of a plain policy-gradient loss over all samples, and what it took to compute it."""
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
    """Of all parameters in one row, in float64 on the CPU."""
    backward(learner, given)
    grads = [cast(Tensor, parameter.grad).double().cpu().flatten() for parameter in learner.parameters.values()]
    learner.optimizer.zero_grad()
    return torch.cat(grads)


def agreement(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Relative length of the difference, and the cosine."""
    return {
        "relative_error": float((ours - theirs).norm() / theirs.norm()),
        "cosine": float(torch.dot(ours, theirs) / (ours.norm() * theirs.norm())),
    }


def operations(shape: Shape, counts: dict[str, float]) -> float:
    """Of a LoRA update: forward and the gradient of the activations; the base's weights have none. What checkpointing
    computes again does not count (model FLOPs as in Chowdhery et al., PaLM, 2022, appendix B)."""
    linear = 4 * shape.layer_weights * counts["forwarded"]
    output = 4 * shape.hidden * shape.vocabulary * counts["rows"]
    return linear + output + 12 * shape.layers * shape.hidden * counts["pairs"]


def timed_update(learner: Learner, shape: Shape, given: Sequence[Sample], *, repeats: int = 2) -> Figures:
    """Seconds of a whole update (the best of `repeats` after one to warm up), and what follows from them."""
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
    """Of the data sheet; None where the device is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def budget(setting: Setting, shape: Shape) -> int:
    """Tokens in one forward pass that fit the device's memory with checkpointed activations."""
    if setting.dry_run:
        return 4096
    room = torch.cuda.get_device_properties(0).total_memory * 0.8 - 2 * (shape.layer_weights + 2e8)
    one = 2 * shape.hidden * shape.layers + 12 * shape.intermediate + 60 * shape.hidden  # kept, and one layer's own
    return int(max(4096, min(1 << 17, room / (2 * one))))


def judged(figures: Figures, name: str, aim: float, device: torch.device) -> Figures:
    """The figures with their aim. Raises Failed where a device that could reach it does not."""
    peak = bf16_peak(device)
    reached = figures[name] >= aim
    figures |= {"aim": {name: aim}, "reaches_aim": reached, "judged": peak is not None and peak >= AIM_PEAK}
    if figures["judged"] and not reached:
        raise Failed(f"{name} is {figures[name]:.0f}, and the aim on such a device is {aim:.0f}", figures)
    return figures
