"""The products of the built-in model's layers, by mcp_rl's choice of library and by torch's own `linear`.

    python -m benchmarks.products [--threads 1] > result.json

Each product is timed by turns, 300 times each; the figures are medians, in microseconds. Where the processor lacks
AVX-512, or torch has no oneDNN, both are the same.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mcp_rl.inference.products import has_onednn, linear
from mcp_rl.tiny.architecture import tiny_config
from mcp_rl.tiny.tokenizer import build_tokenizer

ROWS = (16, 64, 512)
"""Tokens of a pass: few episodes, many, and a prompt."""


def layers() -> dict[str, tuple[int, int]]:
    """Return the inputs and outputs of the model's joined layers, and of a gradient that leaves the largest."""
    config = tiny_config(build_tokenizer())
    width, inner = config.hidden_size, config.intermediate_size
    values = (config.num_key_value_heads or 0) * width // config.num_attention_heads
    return {
        "queries, keys and values": (width, width + 2 * values),
        "attention's output": (width, width),
        "gates": (width, 2 * inner),
        "down": (inner, width),
        "logits": (width, config.vocab_size),
        "gradient of logits": (config.vocab_size, width),
    }


def by_turns(*ways: Callable[[], Tensor], rounds: int = 300) -> list[float]:
    """Return the median microseconds of each way."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for way, times in zip(ways, taken, strict=True):
            began = time.perf_counter()
            way()
            times.append(time.perf_counter() - began)
    return [round(1e6 * statistics.median(times), 1) for times in taken]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found = {}
    for name, (inputs, outputs) in layers().items():
        weight = torch.randn(outputs, inputs)
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            ours, torchs = by_turns(lambda x=x, w=weight: linear(x, w), lambda x=x, w=weight: F.linear(x, w))  # type: ignore[misc]
            found[f"{name}, {rows} rows"] = {
                "ours": ours,
                "torch": torchs,
                "times_as_fast": round(torchs / ours, 2),
                "gflops": round(2e-3 * rows * inputs * outputs / ours, 1),
            }
    json.dump(
        {
            "date": time.strftime("%Y-%m-%d"),
            "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
            "torch": torch.__version__,
            "threads": options.threads,
            "onednn": has_onednn(),
            "products": found,
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
