"""The programs in examples/ run as they stand, with few steps."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_rl

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("name", ["from_art", "from_trl", "from_verifiers"])
def test_a_program_for_those_who_come_from_elsewhere_trains(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in this process, which has imported what takes seconds; it uses nothing but public names."""
    program = EXAMPLES / f"{name}.py"
    text = program.read_text(encoding="utf-8")
    [alias] = re.findall(r"^import mcp_rl as (\w+)$", text, re.MULTILINE)
    assert set(re.findall(rf"\b{alias}\.(\w+)", text)) <= set(mcp_rl.__all__)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program), "1"])
    runpy.run_path(str(program), run_name="__main__")
    said = capsys.readouterr().out
    assert re.search(r"^step 1: mean reward (on held-out tasks )?0\.\d\d$", said, re.MULTILINE), said


def test_the_notebook_runs_and_keeps_what_a_longer_run_showed(tmp_path: Path) -> None:
    path = EXAMPLES / "calculator.ipynb"
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "notebook.py").write_text("\n\n".join("".join(cell["source"]) for cell in cells), encoding="utf-8")
    small = "scenarios.count=24 scenarios.val=4 rollout.groups_per_step=2 rollout.group_size=4 evaluation.samples=1"
    variables = {**os.environ, "STEPS": "1", "OPTIONS": f"{small} tools.max_servers=2", "MPLBACKEND": "agg"}
    command = [sys.executable, "notebook.py"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "step 1/1" in done.stdout and re.search(r"^after: [01]\.\d{3}, 95 % interval", done.stdout, re.MULTILINE)
    outputs = [output for cell in cells for output in cell["outputs"]]
    texts = "".join("".join(output.get("text", [])) for output in outputs)
    assert "step 40/40" in texts and "0 faults" in texts and str(Path.home()) not in texts and "\x1b" not in texts
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert path.stat().st_size < 200_000
