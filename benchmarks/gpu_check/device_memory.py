"""Used memory of the device, of all processes together, as NVIDIA's library counts it."""

import time
from collections.abc import Callable

from mcp_rl.backends.plan.gpus import read_gpus


def used_gb() -> float | None:
    """Return the used GB of the first visible GPU; None without a GPU or if it cannot be read."""
    gpus = read_gpus()
    return (gpus[0].memory - gpus[0].free) / 1e9 if gpus else None


def settled(enough: Callable[[float], bool], *, seconds: float = 30.0) -> tuple[float | None, float]:
    """Wait until `enough` accepts the used GB, at most `seconds`; return the used GB, and the seconds waited."""
    began = time.monotonic()
    while (used := used_gb()) is not None and not enough(used) and time.monotonic() - began < seconds:
        time.sleep(0.1)
    return used, time.monotonic() - began
