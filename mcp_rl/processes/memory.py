"""How much memory this process has had."""

import resource
import sys


def peak_rss_mb() -> float:
    """Most memory that this process ever had; the kernel counts in KiB, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
