"""Read the metrics of vLLM 0.30 to 0.32 in Prometheus's text format."""

from __future__ import annotations

import re

_RUNNING = "vllm:num_requests_running"
_WORK = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count")
"""Counters that grow with every step that computes something."""
_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{.*?\bblock_size="(\d{1,9})"', re.MULTILINE)
_CPU_BLOCK_SIZE = 128
"""Default on a CPU; on GPUs few kinds of model have it."""


def metric(text: str, name: str) -> float | None:
    """Sum a metric over its labels; None if it is missing."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else None


def running_requests(text: str) -> float:
    """Number of requests that are being computed."""
    return metric(text, _RUNNING) or 0.0


def work_done(text: str) -> float:
    """A sum that grows with everything that is computed for requests."""
    return sum(metric(text, name) or 0.0 for name in _WORK)


def process_start(text: str) -> float | None:
    """When the server's process began, in seconds since 1970; None if the server does not say."""
    return metric(text, "process_start_time_seconds")


def block_size(text: str) -> int:
    """Tokens in a block of the prefix cache; 0 if the server does not say."""
    return max(map(int, _BLOCK_SIZE.findall(text)), default=0)


def looks_like_a_cpu(text: str) -> bool:
    """Guess from the size of its cache's blocks whether a server runs on a CPU."""
    return block_size(text) == _CPU_BLOCK_SIZE
