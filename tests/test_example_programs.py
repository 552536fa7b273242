"""The programs in examples/ run as they stand, with few steps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("name", ["from_art", "from_trl", "from_verifiers"])
def test_a_program_for_those_who_come_from_elsewhere_trains(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^step 1: mean reward (on held-out tasks )?0\.\d\d$", done.stdout, re.MULTILINE), done.stdout
