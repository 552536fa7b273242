"""Time of one update, with shared prefixes and without, on a random Qwen2 the size of the built-in model.

    OMP_NUM_THREADS=1 python -m benchmarks.learning > benchmarks/results/learning.json

Each contender runs the same code on the same 128 episodes: prefix tree against one node per sequence (a padded batch
through stock attention is the third), merged LoRA products against PEFT's own layers. JSON on stdout.
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

from mcp_rl.config import TrainConfig
from mcp_rl.learning.adapter import add_adapter
from mcp_rl.learning.samples import Sample
from mcp_rl.learning.step import Learner
from mcp_rl.learning.tally import Tally
from mcp_rl.learning.tree import build_tree
from mcp_rl.learning.tree_attention import use_tree_attention

VOCABULARY = 1000


def make_learner(*, merged: bool = True) -> Learner:
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
    train = TrainConfig(microbatch_tokens=1 << 16)
    base = Qwen2ForCausalLM(config).eval()
    use_tree_attention(base)
    lora = train.lora
    adapted = add_adapter(base, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, base_name="random", seed=0)
    if not merged:
        for module in adapted.modules():
            module.__dict__.pop("forward", None)
    return Learner(adapted, train)


def episodes(groups: int, size: int, shared: int, request: int, own: int) -> list[Sample]:
    """`own` varies by a quarter; every own token counts as sampled."""
    draw = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(count)]

    system, samples = tokens(shared), []
    for group in range(groups):
        asked = tokens(request)
        for _ in range(size):
            answer = tokens(own + draw.randrange(-own // 4, own // 4 + 1))
            whole = system + asked + answer
            at = np.arange(shared + request - 1, len(whole) - 1)
            count = len(answer)
            samples.append(
                Sample(
                    tokens=whole[:-1],
                    at=at,
                    targets=np.asarray(answer, np.int64),
                    logprobs=np.full(count, -np.log(VOCABULARY), np.float32),
                    weights=np.ones(count, np.float32),
                    advantage=draw.gauss(0, 1),
                    group=group,
                )
            )
    return samples


def update(learner: Learner, samples: list[Sample]) -> None:
    learner._update_once(samples, Tally(), first=False, check_sampler=False)


def padded_update(learner: Learner, samples: list[Sample], rows: int = 16) -> None:
    """What most trainers do: padded rows, stock attention, logits of the answer's positions only."""
    total = sum(len(sample.targets) for sample in samples)
    ordered = sorted(samples, key=lambda sample: len(sample.tokens))
    for start in range(0, len(ordered), rows):
        part = ordered[start : start + rows]
        width = max(len(sample.tokens) for sample in part)
        ids = torch.tensor([sample.tokens + [0] * (width - len(sample.tokens)) for sample in part])
        first = min(int(sample.at[0]) for sample in part)
        logits = learner.model(input_ids=ids, logits_to_keep=width - first, use_cache=False).logits
        loss = torch.zeros(())
        for row, sample in enumerate(part):
            logprobs = logits[row, torch.from_numpy(sample.at) - first].log_softmax(-1)
            chosen = logprobs.gather(1, torch.from_numpy(sample.targets)[:, None])[:, 0]
            loss = loss - ((chosen - torch.from_numpy(sample.logprobs)).exp() * sample.advantage).sum()
        (loss / total).backward()
    torch.nn.utils.clip_grad_norm_(learner.parameters.values(), 1.0)
    learner.optimizer.step()
    learner.optimizer.zero_grad()


def seconds(work: Callable[[], None], repeats: int) -> float:
    """Median CPU seconds of this process, which on one thread are what a quiet machine would take on the clock."""
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def top_operations(work: Callable[[], None], count: int = 6) -> dict[str, float]:
    """Share of CPU time of the most expensive operations."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        work()
    averages = recorded.key_averages()
    total = sum(event.self_cpu_time_total for event in averages)
    ranked = sorted(averages, key=lambda event: -event.self_cpu_time_total)[:count]
    return {event.key: round(event.self_cpu_time_total / total, 3) for event in ranked}


def measure(samples: list[Sample], repeats: int) -> dict[str, Any]:
    plain = make_learner()
    plain.model.get_base_model().set_attn_implementation("sdpa")  # type: ignore[operator]
    slow = make_learner(merged=False)
    slow.model.get_base_model().set_attn_implementation("sdpa")  # type: ignore[operator]
    ours, peft_layers = make_learner(), make_learner(merged=False)
    flat = len(build_tree([sample.tokens for sample in samples]).tokens)
    unshared = sum(len(sample.tokens) for sample in samples)
    result: dict[str, Any] = {
        "episodes": len(samples),
        "unshared_tokens": unshared,
        "tree_tokens": flat,
        "factor_allowed_by_tokens": unshared / flat,
        "cpu_seconds": {
            "tree": seconds(lambda: update(ours, samples), repeats),
            "tree_with_peft_layers": seconds(lambda: update(peft_layers, samples), repeats),
            "padded": seconds(lambda: padded_update(plain, samples), max(1, repeats // 2)),
            "padded_with_peft_layers": seconds(lambda: padded_update(slow, samples), max(1, repeats // 2)),
        },
        "profile_of_tree": top_operations(lambda: update(ours, samples)),
    }
    times = result["cpu_seconds"]
    result["unshared_tokens_per_cpu_second"] = {name: unshared / value for name, value in times.items()}
    result["times_faster_than_padded"] = times["padded"] / times["tree"]
    result["times_faster_than_padded_with_peft_layers"] = times["padded_with_peft_layers"] / times["tree"]
    result["share_of_the_allowed_factor"] = result["times_faster_than_padded"] / result["factor_allowed_by_tokens"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shapes", type=int, default=3, help="how many of the shapes to measure, cheapest first")
    options = parser.parse_args()
    shapes = {
        "8x8, 150 shared + 30 + 60": (8, 8, 150, 30, 60),
        "8x16, 300 shared + 30 + 60": (8, 16, 300, 30, 60),
        "8x8, 1500 shared + 30 + 60": (8, 8, 1500, 30, 60),
    }
    report: dict[str, Any] = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    for name, shape in list(shapes.items())[: options.shapes]:
        report[name] = measure(episodes(*shape), options.repeats)
        print(name, json.dumps(report[name]["cpu_seconds"]), file=sys.stderr)
    report["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
