"""Learning and sampling do not assume that tensors are on the CPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "tests.learning.elsewhere"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("case", ["float32", "bfloat16", "full"])
def test_learning_and_sampling_stay_on_their_device(case: str, found: dict[str, Any]) -> None:
    there, here = found[case]["there"], found[case].get("here")
    assert there["device"] == "elsewhere:0"
    assert there["restored"] is (None if case == "full" else True)
    assert there["metrics"]["grad_norm"] > 0
    assert there["metrics"]["ratio_mean"] == pytest.approx(1, abs=0.02)
    if here is not None:
        assert here["device"] == "cpu"
        assert there["tokens"] == here["tokens"]
        assert there["metrics"] == pytest.approx(here["metrics"], rel=1e-3, abs=1e-5)
