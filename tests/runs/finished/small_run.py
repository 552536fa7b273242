"""A real training run that takes seconds: a model of random weights, a reward that varies, the real server, engine and
learner."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import typer

from mcp_rl.cli import app
from mcp_rl.config import RunConfig
from mcp_rl.config.load import load_config
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from tests.random_base import write_smallest_base

STEPS = 6
PLUGIN = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.verdict import Verdict

def checksum(trajectory, scenario):
    tokens = [t for s in trajectory.segments for t, sampled in zip(s.tokens, s.sampled) if sampled]
    return Verdict(sum(tokens) % 3 / 2, "checksum")

@hookimpl
def register_verifiers(register):
    register("checksum", checksum)
"""


def make_ground(folder: Path) -> Path:
    """Put a base model, a plugin and scenarios into a folder."""
    write_smallest_base(folder / "base")
    (folder / "checksum.py").write_text(PLUGIN)
    scenarios = [
        McpScenario(
            task_description=f"add {i} and 1",
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind="checksum", expected=i + 1),
            reference=(ToolCall(tool="add", arguments={"a": i, "b": 1}),),
            split="val" if i < 2 else "train",
        )
        for i in range(9)
    ]
    (folder / "scenarios.jsonl").write_text(scenario_lines(scenarios))
    return folder


def train(ground: Path, name: str, *more: str, out: Path | None = None) -> Path:
    """Train a run through the command and return its folder."""
    out = out or ground / "out"
    words = [
        *("train", "--server", "mcp_calculator", "--transport", "stdio", "--base-model", str(ground / "base")),
        *("--plugin", str(ground / "checksum.py"), "--scenarios", str(ground / "scenarios.jsonl")),
        *("--steps", str(STEPS), "--output-dir", str(out), "--name", name),
        *("rollout.groups_per_step=3", "rollout.group_size=3", "rollout.max_turn_tokens=6", "rollout.max_tokens=12"),
        *("train.checkpoint_every=2", "train.keep_checkpoints=9", "train.learning_rate=1e-2", "train.minibatches=2"),
        *("evaluation.samples=1", "evaluation.samples_between=1", "evaluation.every=4"),
        *("train.truncated=learn", "rollout.refills=0", *more),  # random weights never end an episode by themselves
    ]
    go_on(words)
    return out / "default" / "models" / name


def configured(words: Sequence[str]) -> RunConfig:
    """Return the configuration that a `train` command would run."""
    job = typer.main.get_command(app).main(args=list(words), prog_name="mcp-rl", standalone_mode=False)
    return load_config(file=job.file, overrides=job.overrides, options=job.options)


def go_on(words: Sequence[str]) -> None:
    """Run a `train` command without its final page."""
    anyio.run(run_training, configured(words))


def weights(run: Path, step: int) -> bytes:
    return (run / "checkpoints" / f"{step:04d}" / "adapter_model.safetensors").read_bytes()


def without_clock(path: Path) -> list[Any]:
    """Return the lines of a file without times, memory and cache counts."""

    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: told(inner)
                for key, inner in value.items()
                if not key.endswith(("seconds", "_time_share")) and key not in ("peak_rss_mb", "cached_tokens", "chain")
            }
        return [told(inner) for inner in value] if isinstance(value, list) else value

    return [told(json.loads(line)) for line in path.read_bytes().splitlines()]
