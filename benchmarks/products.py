"""The products of the built-in model's layers: by the native pass that samples it, by mcp_rl's choice of library, which
larger models take, and by torch's own `linear`.

    python -m benchmarks.products [--threads 1] > result.json

Each product is timed by turns, 300 times each; the figures are medians, in microseconds. Where the processor lacks
AVX-512, or torch has no oneDNN, the last two are the same. The native pass takes one thread, and sums in its own order.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numba
import numpy as np
import torch
from torch.nn import functional as F

from mcp_rl.inference.native.compiling import OUTPUTS
from mcp_rl.inference.native.layers import WRITTEN, product
from mcp_rl.inference.native.model import FlatWeights
from mcp_rl.inference.native.vectors import start
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


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]
def native(numbers, kind, x, out):  # type: ignore[no-untyped-def]
    product(numbers, kind, start(x), len(x), (start(out), out.shape[1]), WRITTEN)


def by_turns(*ways: Callable[[], object], rounds: int = 300) -> list[float]:
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
            flat, layer = FlatWeights(), torch.nn.Linear(inputs, outputs, bias=False)
            layer.weight.copy_(weight)
            kind = np.array(flat.product([layer]))
            numbers, out = flat.joined(), np.empty((rows, kind[OUTPUTS]), np.float32)
            native(numbers, kind, x.numpy(), out)
            assert np.allclose(out[:, :outputs], F.linear(x, weight).numpy(), atol=1e-3)
            times = by_turns(
                lambda x=x, n=numbers, k=kind, o=out: native(n, k, x.numpy(), o),  # type: ignore[misc]
                lambda x=x, w=weight: linear(x, w),  # type: ignore[misc]
                lambda x=x, w=weight: F.linear(x, w),  # type: ignore[misc]
            )
            found[f"{name}, {rows} rows"] = {
                way: {"us": us, "gflops": round(2e-3 * rows * inputs * outputs / us, 1)}
                for way, us in zip(("native", "ours", "torch"), times, strict=True)
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
