"""Measure the update alone: its speed, its memory and its operations, with shared prefixes and without.

    OMP_NUM_THREADS=1 python -m benchmarks.learning_update speed|memory|profile [--small]

A random Qwen2 of the built-in model's size learns from random episodes: a prompt that all share, a request that a group
shares, and own tokens. Contenders learn from the same episodes with the same weights:

- `tree`: an update as every run calls it.
- `torch`: the same through the layers of transformers and torch, without the compiled pass.
- `unshared`: `tree` with `train.prefix_sharing = false`.
- `padded`: an update written by hand: padded rows, stock attention, PEFT's own layers, logits of the answers alone.

JSON on stdout. A trained token counts as often as it is in the episodes, however often it was computed.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.forward.tree import build_tree
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.samples import Sample, take_in
from mcp_rl.learning.step import update
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

VOCABULARY = 1000
SHAPES = {
    "8 groups of 8, 150 shared + 30 + 60 tokens": (8, 8, 150, 30, 60),
    "8 groups of 8, 1500 shared + 30 + 60 tokens": (8, 8, 1500, 30, 60),
}

Update = Callable[[], object]


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def learner(*, shared: bool, budget: int = 16384, native: bool = True) -> Learner:
    """Make a learner that takes one optimiser step per update, in parts of at most `budget` tokens."""
    base, lora = model(), LoraConfig()
    if not native:
        base.model.register_forward_hook(lambda *_: None)  # a model with hooks is left to torch
    use_tree_attention(base)
    adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="random", seed=0)
    return Learner(adapted, TrainConfig(epochs=1, microbatch_tokens=budget, prefix_sharing=shared))


def episodes(groups: int, size: int, shared: int, request: int, own: int) -> list[TrajectoryGroup]:
    """Make episodes whose `own` tokens vary in number by a quarter and all count as sampled. Every group has both
    rewards."""
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    system, found = tokens(shared), []
    for number in range(groups):
        prompt = system + tokens(request)
        trajectories = []
        for member in range(size):
            answer = tokens(own + draw.randrange(-own // 4, own // 4 + 1))
            segment = Segment()
            segment.observe(list(prompt))
            segment.act(answer, [-float(np.log(VOCABULARY))] * len(answer), 0)
            trajectories.append(Trajectory(scenario_id=str(number), segments=[segment], reward=float(member % 2)))
        scenario = McpScenario(task_description=str(number), server_params=StdioServer(command="none"))
        found.append(TrajectoryGroup(scenario=scenario, trajectories=trajectories))
    return found


def padded(groups: Sequence[TrajectoryGroup], rows: int = 16) -> Update:
    """Return an update written by hand, with rows sorted by length to save padding."""
    base, lora = model(), LoraConfig()
    adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="random", seed=0)
    for module in adapted.modules():
        module.__dict__.pop("forward", None)  # back to PEFT's layers
    parameters = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0, fused=True)

    def update() -> None:
        samples = sorted(take_in(groups, scale_by_std=True).samples, key=lambda sample: len(sample.tokens))
        total = sum(len(sample.targets) for sample in samples)
        for start in range(0, len(samples), rows):
            (padded_loss(adapted, samples[start : start + rows]) / total).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return update


def padded_loss(adapted: Any, part: Sequence[Sample]) -> torch.Tensor:
    """Return the sum of the clipped loss. A token without a recorded log-probability (NaN) has the ratio 1."""
    width = max(len(sample.tokens) for sample in part)
    ids = torch.tensor([sample.tokens + [0] * (width - len(sample.tokens)) for sample in part])
    first = min(int(sample.at[0]) for sample in part)
    logits = adapted(input_ids=ids, logits_to_keep=width - first, use_cache=False).logits
    loss = torch.zeros(())
    for row, sample in enumerate(part):
        logprobs = logits[row, torch.from_numpy(sample.at) - first].log_softmax(-1)
        chosen = logprobs.gather(1, torch.from_numpy(sample.targets)[:, None])[:, 0]
        sampled = torch.from_numpy(sample.logprobs)
        ratio = (chosen - torch.where(sampled.isnan(), chosen.detach(), sampled)).exp()
        loss = loss - torch.minimum(ratio * sample.advantage, ratio.clamp(0.8, 1.28) * sample.advantage).sum()
    return loss


def contenders(groups: Sequence[TrajectoryGroup]) -> dict[str, Update]:
    tree, torchs, unshared = learner(shared=True), learner(shared=True, native=False), learner(shared=False)
    return {
        "tree": lambda: update(tree, groups, check_sampler=False),
        "torch": lambda: update(torchs, groups, check_sampler=False),
        "unshared": lambda: update(unshared, groups, check_sampler=False),
        "padded": padded(groups),
    }


def sizes(groups: Sequence[TrajectoryGroup]) -> tuple[int, int]:
    """Return the number of forward tokens with sharing and without."""
    tree = build_tree([sample.tokens for sample in take_in(groups).samples])
    return len(tree.tokens), tree.unshared_tokens


def speed(shape: tuple[int, int, int, int, int], rounds: int) -> dict[str, Any]:
    """Time the contenders in turns, so that disturbances hit all of them. Seconds are processor time, which on one
    thread equals the wall time of a quiet machine."""
    groups = episodes(*shape)
    flat, unshared = sizes(groups)
    times: dict[str, list[float]] = {}
    updates = contenders(groups)
    for number in range(rounds + 1):
        for name, learn in updates.items():
            if number == 0 and unshared > 50_000 and name not in ("tree", "torch"):
                continue  # it takes so long that it needs no warm-up
            repeats = 3 if number and name in ("tree", "torch") else 1  # a single run is too short to measure
            began = time.process_time()
            for _ in range(repeats):
                learn()
            if number:
                times.setdefault(name, []).append((time.process_time() - began) / repeats)
    seconds = {name: statistics.median(found) for name, found in times.items()}
    factor, allowed = seconds["unshared"] / seconds["tree"], unshared / flat
    return {
        "unshared_tokens": unshared,
        "tree_tokens": flat,
        "factor_allowed_by_tokens": round(allowed, 2),
        "cpu_seconds": {name: round(value, 3) for name, value in seconds.items()},
        "trained_tokens_per_second": {name: round(unshared / value) for name, value in seconds.items()},
        "times_faster_than_torch": round(seconds["torch"] / seconds["tree"], 2),
        "times_faster_than_unshared": round(factor, 2),
        "times_faster_than_padded": round(seconds["padded"] / seconds["tree"], 2),
        "share_of_the_allowed_factor": round(factor / allowed, 3),
    }


def peak_mb(update: Update) -> float:
    """Return the peak growth of memory during an update, in MB, measured in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = _resident("VmRSS")
            Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
            update()
            os.write(writing, f"{(_resident('VmHWM') - before) / 1024:.1f}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return float(said)


def _resident(what: str) -> int:
    """Return a line of the kernel's account of this process, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what))


def memory(counts: Sequence[int], shared: int) -> list[dict[str, float]]:
    """Return peaks over batch sizes, each batch in one part, with sharing and without. Linux only."""
    found = []
    for count in counts:
        groups = episodes(count, 8, shared, 30, 60)
        flat, unshared = sizes(groups)
        row: dict[str, float] = {"episodes": 8 * count, "tree_tokens": flat, "unshared_tokens": unshared}
        for name, sharing in (("tree", True), ("unshared", False)):
            whole = learner(shared=sharing, budget=1 << 30)
            row[f"{name}_mb"] = peak_mb(partial(update, whole, groups, check_sampler=False))
        found.append(row)
        print(row, file=sys.stderr)
    return found


def draw_memory(found: Sequence[dict[str, float]], path: Path) -> None:
    """Draw the peaks over the batch size, and over the computed tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_size, by_tokens = figure.subplots(1, 2, sharey=True)
    for name, label, color in (("tree", "shared prefixes", "#0072b2"), ("unshared", "without sharing", "#d55e00")):
        megabytes = [row[f"{name}_mb"] for row in found]
        by_size.plot([row["episodes"] for row in found], megabytes, "o-", label=label, color=color)
        by_tokens.plot([row[f"{name}_tokens"] for row in found], megabytes, "o-", label=label, color=color)
    by_size.set(xlabel="episodes in a batch", ylabel="peak memory of the update, MB")
    by_tokens.set(xlabel="tokens that are computed")
    for axes in (by_size, by_tokens):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    by_size.legend(frameon=False)
    figure.savefig(path, dpi=130)


def profiles(shape: tuple[int, int, int, int, int], count: int = 8) -> dict[str, dict[str, float]]:
    """Return the time shares of the most expensive operations, by contender."""
    groups = episodes(*shape)
    found = {}
    for name, learn in contenders(groups).items():
        learn()
        with profile(activities=[ProfilerActivity.CPU]) as recorded:
            learn()
        averages = recorded.key_averages()
        total = sum(event.self_cpu_time_total for event in averages)
        ranked = sorted(averages, key=lambda event: -event.self_cpu_time_total)[:count]
        found[name] = {event.key: round(event.self_cpu_time_total / total, 3) for event in ranked}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["speed", "memory", "profile"])
    parser.add_argument("--small", action="store_true", help="run small, as a test of the benchmark")
    parser.add_argument("--picture", type=Path, help="file for the curve of the memory")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes = {"2 groups of 4, 60 shared + 10 + 20 tokens": (2, 4, 60, 10, 20)} if options.small else SHAPES
    result: Any
    if options.part == "speed":
        rounds = 1 if options.small else 3
        result = {}
        for name, shape in shapes.items():
            result[name] = speed(shape, rounds if shape[2] < 1000 else 1)
            print(name, result[name]["cpu_seconds"], file=sys.stderr)
    elif options.part == "memory":
        result = memory([1, 2], 60) if options.small else memory([1, 2, 4, 8], 300)
        if options.picture:
            draw_memory(result, options.picture)
    else:
        result = {name: profiles(shape) for name, shape in shapes.items() if shape[2] < 1000}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
