"""Runs tests with vectors of the length that this processor is not compiled for, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from mcp_rl.inference.native.vectors import LANES

ROOT = Path(__file__).parents[2]
_AVX2 = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
_PROGRAM = """
import sys
import pytest
from llvmlite import binding

lanes, *arguments = sys.argv[1:]
if lanes == "16":  # longer vectors than the processor's: each is computed in parts
    from unittest import mock

    with mock.patch.object(binding, "get_host_cpu_features") as features:
        features.return_value.flatten.return_value = "+avx512f"
        import mcp_rl.inference.native.vectors
from mcp_rl.inference.native.vectors import LANES
assert LANES == int(lanes)
sys.exit(pytest.main([*arguments, "-q", "-p", "no:cacheprovider"]))
"""


def passes_with_other_lanes(folder: Path, file: str, chosen: str) -> None:
    """Assert that the one test of a file that `chosen` (pytest's -k) picks passes."""
    lanes, settings = ("8", _AVX2) if LANES == 16 else ("16", {})
    environment = os.environ | settings | {"NUMBA_CACHE_DIR": str(folder)}
    words = [sys.executable, "-c", _PROGRAM, lanes, file, "-k", chosen]
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout + run.stderr
