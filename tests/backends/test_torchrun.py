"""A whole run that torchrun starts as two processes: the first is the run, the second learns with it and ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mcp_rl.learning.disk.checkpoint import newest_checkpoint


def test_torchrun_trains_with_two_learners_and_both_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--log-dir", str(tmp_path)]
    command += ["-m", "mcp_rl.train"]
    run = ["--server", "mcp_calculator", "--transport", "stdio", "--steps", "1", "--output-dir", str(tmp_path)]
    small = ["rollout.groups_per_step=4", "rollout.group_size=4", "rollout.probes=4", "evaluation.samples=1"]
    few = ["scenarios.count=12", "scenarios.val=4", "train.checkpoint_every=1", "tools.max_servers=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *run, "--name", "r", *small, *few], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("step 1/1") == 1, "only the first process prints"
    assert "Error" not in done.stderr
    folder = tmp_path / "default" / "models" / "r"
    assert json.loads((folder / "report.json").read_text())["step"] == 1
    (line,) = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines() if '"loss"' in line]
    assert line["forward_tokens"] > 0
    checkpoint = newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.step == 1
