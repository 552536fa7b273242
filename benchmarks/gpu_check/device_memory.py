"""Memory of the device that is in use, by all processes together, as NVIDIA's library counts it."""

import time
from collections.abc import Callable

from mcp_rl.hardware.gpus import read_gpus


def used_gb() -> float | None:
    """Of the first visible GPU; None where there is none or nobody can say."""
    gpus = read_gpus()
    return (gpus[0].memory - gpus[0].free) / 1e9 if gpus else None


def settled(enough: Callable[[float], bool], *, seconds: float = 30.0) -> tuple[float | None, float]:
    """Wait until what is used is little enough; returns what it is then, and after how many seconds."""
    began = time.monotonic()
    while (used := used_gb()) is not None and not enough(used) and time.monotonic() - began < seconds:
        time.sleep(0.1)
    return used, time.monotonic() - began
