"""Nothing that learns or samples takes it for granted that tensors are on the CPU."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "tests.elsewhere"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("case", ["float32", "bfloat16", "full"])
def test_sampling_learning_and_going_on_work_on_a_device_that_refuses_the_cpus_tensors(
    case: str, found: dict[str, Any]
) -> None:
    there, here = found[case]["there"], found[case].get("here")
    assert there["device"] == "elsewhere:0"
    assert there["restored"] is (None if case == "full" else True)
    assert there["metrics"]["grad_norm"] > 0
    assert there["metrics"]["ratio_mean"] == pytest.approx(1, abs=0.02)
    if here is not None:
        assert here["device"] == "cpu"
        assert there["tokens"] == here["tokens"]
        assert there["metrics"] == pytest.approx(here["metrics"], rel=1e-3, abs=1e-5)
