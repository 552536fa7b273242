"""A run that was killed goes on as if it never was: on the CPU, to the last bit of the adapter.

The model has random weights and the reward is a function of its tokens, so that every group has variance; the server,
the engine, the learner, the checkpoints and the signals are the real ones.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.tiny import weights_path
from mcp_rl.tiny.architecture import tiny_config

ROOT = Path(__file__).parent.parent
STEPS = 40
PLUGIN = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.verdict import Verdict

def checksum(trajectory, scenario):
    tokens = [t for s in trajectory.segments for t, sampled in zip(s.tokens, s.sampled) if sampled]
    return Verdict(sum(tokens) % 5 / 4, "checksum")

@hookimpl
def register_verifiers(register):
    register("checksum", checksum)
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base model, a plugin and scenarios."""
    folder = tmp_path_factory.mktemp("ground")
    tokenizer: Any = AutoTokenizer.from_pretrained(weights_path())
    config: Any = tiny_config(tokenizer)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 32, 64, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 16
    config.layer_types = config.layer_types[:1]
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    (folder / "checksum.py").write_text(PLUGIN)
    scenarios = [
        McpScenario(
            task_description=f"add {i} and 1",
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind="checksum"),
            reference=(ToolCall(tool="add", arguments={"a": i, "b": 1}),),
            split="val" if i < 2 else "train",
        )
        for i in range(9)
    ]
    (folder / "scenarios.jsonl").write_text(scenario_lines(scenarios))
    return folder


def command(ground: Path, name: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "mcp_rl.train", "--server", "mcp_calculator", "--transport", "stdio"),
        *("--base-model", str(ground / "base"), "--plugin", str(ground / "checksum.py")),
        *("--scenarios", str(ground / "scenarios.jsonl"), "--steps", str(STEPS)),
        *("--output-dir", str(ground / "out"), "--name", name, "--json", *more),
        *("rollout.groups_per_step=3", "rollout.group_size=4", "rollout.max_turn_tokens=12", "rollout.max_tokens=24"),
        *("train.checkpoint_every=2", "train.learning_rate=1e-2", "evaluation.samples=1"),
    ]


STARTED: "list[subprocess.Popen[str]]" = []


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    """A test that fails halfway leaves no run behind."""
    yield
    for process in STARTED:
        process.kill()
        process.wait()


def start(ground: Path, name: str, *more: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command(ground, name, *more),
        cwd=ground,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def finish(process: "subprocess.Popen[str]") -> tuple[str, str]:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    return out, err


def run_path(ground: Path, name: str) -> Path:
    return ground / "out" / "default" / "models" / name


def fingerprint(run: Path) -> dict[str, str]:
    files = [*sorted((run / "checkpoints" / f"{STEPS:04d}").glob("*.safetensors")), run / "val.jsonl"]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def wait_for(condition: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 400
    while not condition.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def descendants(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    return list(psutil.Process(process.pid).children(recursive=True))


def gone(processes: list[psutil.Process], seconds: float = 10) -> bool:
    return not psutil.wait_procs(processes, timeout=seconds)[1]


@pytest.fixture(scope="module")
def uninterrupted(ground: Path) -> Path:
    out, _ = finish(start(ground, "whole"))
    report = json.loads(out.splitlines()[-1])
    assert report["step"] == STEPS and report["train"]["trained_tokens"] > 0
    return run_path(ground, "whole")


def test_a_run_killed_and_interrupted_at_random_moments_ends_bit_identical(ground: Path, uninterrupted: Path) -> None:
    moments = random.Random()
    run = run_path(ground, "killed")
    process = start(ground, "killed")
    wait_for(run / "trajectories/train/0001.jsonl", process)
    servers = descendants(process)
    time.sleep(moments.uniform(0, 0.5))
    process.kill()
    process.communicate()
    assert servers and gone(servers), "a tool server outlived a killed run"

    reached = max(int(path.stem) for path in (run / "trajectories/train").glob("*.jsonl"))
    process = start(ground, "killed")
    wait_for(run / f"trajectories/train/{reached + 1:04d}.jsonl", process)
    servers = descendants(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=400)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "continues" in err
    assert servers and gone(servers), "a tool server outlived an interrupted run"
    kept = json.loads((run / "state.json").read_text())["step"]
    assert kept >= 3 and (run / "checkpoints" / f"{kept:04d}").is_dir()

    out, _ = finish(start(ground, "killed"))
    assert fingerprint(run) == fingerprint(uninterrupted)
    report = json.loads(out.splitlines()[-1])
    whole = json.loads((uninterrupted / "report.json").read_text())
    assert report["val"] == whole["val"]
    assert report["train"] == whole["train"]
    history = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert [h["step"] for h in history if h["split"] == "train"] == list(range(1, STEPS + 1))
    assert [h["step"] for h in history if h["split"] == "val"] == [0, STEPS]


def test_a_finished_run_says_so_and_how_to_go_on(ground: Path, uninterrupted: Path) -> None:
    before = fingerprint(uninterrupted)
    out, err = finish(start(ground, "whole"))
    assert f"All {STEPS} steps of this run are done" in err and "--steps" in err and "--fresh" in err
    assert json.loads(out.splitlines()[-1])["step"] == STEPS
    assert fingerprint(uninterrupted) == before


def test_every_training_scenario_is_used_once_before_any_comes_again(uninterrupted: Path) -> None:
    used = [
        json.loads(line)["scenario"]["id"]
        for path in sorted((uninterrupted / "trajectories" / "train").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    train = len((uninterrupted / "train.jsonl").read_text().splitlines())
    assert train == 7 and len(used) >= 2 * train
    for epoch in range(len(used) // train):
        assert len(set(used[epoch * train : (epoch + 1) * train])) == train


def test_a_run_whose_reader_has_gone_ends(ground: Path) -> None:
    """A progress bar that could not be written kept its lock, and the process hung at its exit."""
    process = start(ground, "unread")
    assert process.stdout is not None and process.stderr is not None
    while not process.stderr.readline().startswith("Scenarios:"):
        """The next thing is to load the base model."""
    process.stderr.close()
    process.stdout.close()
    assert process.wait(timeout=400) == 1
