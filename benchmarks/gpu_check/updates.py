"""Measure the device and the learner's updates on it: shared prefixes against none, a 3B at 16k."""

import time

import torch

from benchmarks.gpu_check.measure import (
    SHARED_AIM,
    TRAINED_AIM,
    agreement,
    bf16_peak,
    budget,
    forget_peak,
    gradient,
    judged,
    timed_update,
    wait,
)
from benchmarks.gpu_check.models import random_learner, samples
from benchmarks.gpu_check.setting import Failed, Figures, Setting, check


@check
def device(setting: Setting) -> Figures:
    """The device's properties, and its speed in a plain product of bfloat16 matrices."""
    size = 256 if setting.dry_run else 8192
    a, b = (torch.randn(size, size, device=setting.device, dtype=torch.bfloat16) for _ in range(2))
    a @ b
    wait(setting.device)
    began, rounds = time.perf_counter(), 2 if setting.dry_run else 20
    for _ in range(rounds):
        a @ b
    wait(setting.device)
    found: Figures = {"matmul_bf16_operations_per_second": 2 * size**3 * rounds / (time.perf_counter() - began)}
    if setting.dry_run:
        return found
    about = torch.cuda.get_device_properties(0)
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise Failed(f"{about.name} does not compute in bfloat16", found)
    return found | {
        "name": about.name,
        "memory_gb": about.total_memory / 1e9,
        "capability": f"{about.major}.{about.minor}",
        "multiprocessors": about.multi_processor_count,
        "bf16_peak": bf16_peak(setting.device),
    }


@check
def gradients_float32(setting: Setting) -> Figures:
    """The shared update's gradient equals the unshared one's, in float32, whose rounding hides nothing."""
    context = setting.contexts[0]
    given = samples(setting.half.vocabulary, groups=2, size=4, prompt=context // 2, answer=context // 8)
    grads = []
    for sharing in (True, False):
        learner = random_learner(
            setting.half, setting, torch.float32, prefix_sharing=sharing, microbatch_tokens=1 << 15
        )
        grads.append(gradient(learner, given))
        del learner
    found: Figures = {"context": context, **agreement(*grads)}
    if not found["relative_error"] < 1e-4:
        raise Failed(f"the gradients differ by {found['relative_error']:.2g} of their length", found)
    return found


def _sharing(setting: Setting, context: int) -> Figures:
    """Measure a group of 8 on the 0.5B, half of each sequence shared: gradients, speed and memory, with and without
    sharing."""
    shape = setting.half
    given = samples(shape.vocabulary, groups=1, size=8, prompt=context // 2, answer=context // 2)
    found: Figures = {"context": context, "sequences": len(given)}
    grads = []
    for name, sharing in (("shared", True), ("unshared", False)):
        learner = random_learner(shape, setting, prefix_sharing=sharing, microbatch_tokens=budget(setting, shape))
        grads.append(gradient(learner, given))
        found[name] = timed_update(learner, shape, given)
        del learner
        forget_peak(setting.device)
    found |= agreement(*grads)
    found["times_faster"] = found["unshared"]["seconds"] / found["shared"]["seconds"]
    found["times_fewer_tokens"] = found["unshared"]["forward_tokens"] / found["shared"]["forward_tokens"]
    if not found["cosine"] > 0.99:
        raise Failed(f"the gradients have a cosine of {found['cosine']:.4f}; rounding leaves more than 0.99", found)
    return found


@check
def update_2k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 2k."""
    return _sharing(setting, setting.contexts[0])


@check
def update_8k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 8k."""
    return _sharing(setting, setting.contexts[1])


@check
def update_16k(setting: Setting) -> Figures:
    """The shared update against the unshared one at 16k."""
    return _sharing(setting, setting.contexts[2])


@check
def lora_3b_16k(setting: Setting) -> Figures:
    """Trained tokens per second of a 3B LoRA at 16k, nothing shared."""
    context, shape = setting.contexts[2], setting.three
    given = samples(shape.vocabulary, groups=2, size=1, prompt=context // 4, answer=context - context // 4)
    learner = random_learner(shape, setting, prefix_sharing=False, microbatch_tokens=max(context, 4096))
    found = {"context": context, **timed_update(learner, shape, given)}
    return judged(found, "unshared_tokens_per_second", TRAINED_AIM, setting.device)


@check
def lora_3b_shared(setting: Setting) -> Figures:
    """Unshared-equivalent tokens per second of a 3B LoRA on groups of 8 with a shared prompt of 4k tokens."""
    shape = setting.three
    given = samples(shape.vocabulary, groups=2, size=8, prompt=setting.prompt, answer=setting.answer)
    learner = random_learner(shape, setting, microbatch_tokens=budget(setting, shape))
    found = {"prompt": setting.prompt, "answer": setting.answer, **timed_update(learner, shape, given)}
    return judged(found, "unshared_tokens_per_second", SHARED_AIM, setting.device)
