"""Arguments that vLLM 0.30 to 0.32 needs on a CPU, and what it cannot do there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.inference.vllm.compat.known import LORA_KERNELS

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHUNKED_PREFILL = "enable-chunked-prefill"


def cpu_arguments(given: Mapping[str, object], *, lora: bool) -> list[str]:
    """Command-line arguments beside the user's own, `given` by name without dashes.

    One process that compiles nothing, so a small model is ready in half a minute. Prompts are not computed in chunks;
    see `takes_seeds`. Adapters are computed by `in_vllm/mcp_rl_lora.py`. Blocks of the prefix cache have 32 tokens,
    the fewest possible here, instead of 128: most prompts with tools are shorter than a few blocks of 128.
    """
    words = [] if {"enforce-eager", "no-enforce-eager"} & set(given) else ["--enforce-eager"]
    if not {_CHUNKED_PREFILL, f"no-{_CHUNKED_PREFILL}"} & set(given):
        words += [f"--no-{_CHUNKED_PREFILL}"]
    if "block-size" not in given:
        words += ["--block-size", "32"]
    if lora and "worker-extension-cls" not in given:
        words += ["--worker-extension-cls", LORA_KERNELS]
    return words if "distributed-executor-backend" in given else [*words, "--distributed-executor-backend", "uni"]


def takes_seeds(given: Mapping[str, object]) -> bool:
    """Return whether a server on a CPU with these arguments takes requests with a seed.

    0.32 dies of one whose prompt is computed in chunks: `gpu_model_runner.py` asks the random generator for an offset,
    which only CUDA's generators have.
    """
    return not given.get(_CHUNKED_PREFILL)
