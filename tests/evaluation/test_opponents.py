"""Frozen opponents with the built-in model: checkpoints of other runs, and earlier ones of the run itself.

1. `earlier` is drawn from the same checkpoints in a run that was interrupted, and such checkpoints stay on disk.
2. Evaluations meet the policy that the run began with.
3. A frozen checkpoint says what its own weights say.
4. A checkpoint that is missing ends the run with one sentence.
"""

import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.evaluation.opponents import find_opponents, opened_opponents
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rollouts.episode import EpisodePlan
from mcp_rl.rollouts.seated import Opponents, own_episode
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, ScenarioSeat, Verifier, scenario_lines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.trajectory import Trajectory

SERVER = load_plugins().servers["mcp_tictactoe"]
PLUGIN = """
from mcp_rl.plugins.hookspecs import hookimpl
from mcp_rl.rewards.verdict import Verdict

def even(trajectory, scenario):
    tokens = [t for s in trajectory.segments for t, sampled in zip(s.tokens, s.sampled) if sampled]
    return Verdict(sum(token % 2 == 0 for token in tokens) / max(1, len(tokens)), "share of even tokens")

@hookimpl
def register_verifiers(register):
    register("even", even)
"""
pytestmark = pytest.mark.asyncio(loop_scope="module")


def game(x: int, o: int, split: Any = "train") -> McpScenario:
    spelled = "You play {}. Use place_mark with square = {}."
    return McpScenario(
        id=f"game-{x}-{o}",
        task_description=spelled.format("x", x),
        server_params=SERVER.params(),
        initial_state={"opening": [5]},  # so that o, the opponent, moves first
        verifier=Verifier(kind="even"),
        seats=(ScenarioSeat(name="x"), ScenarioSeat(name="o", task=spelled.format("o", o))),
        split=split,
    )


def settings(folder: Path, name: str, steps: int, **rollout: Any) -> RunConfig:
    few = {"groups_per_step": 1, "group_size": 3, "max_turn_tokens": 40, "max_turns": 2, **rollout}
    return RunConfig.model_validate(
        {
            "server": "mcp_tictactoe",
            "name": name,
            "output_dir": folder,
            "steps": steps,
            "plugins": [str(folder / "even.py")],
            "scenarios": {"file": folder / "games.jsonl"},
            "rollout": few,
            "evaluation": {"samples": 8, "greedy": False, "subset": 0},
            "train": {"sft_steps": 0, "learning_rate": 1e-3, "checkpoint_every": 50, "keep_checkpoints": 1},
        }
    )


async def run(config: RunConfig) -> RunDirectory:
    await run_training(config, console=Console(file=StringIO(), width=200))
    return RunDirectory(config.output_dir / config.project / "models" / str(config.name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Four steps against earlier checkpoints, of every second step."""
    folder = tmp_path_factory.mktemp("ground")
    (folder / "even.py").write_text(PLUGIN)
    games = [game(x, o) for x, o in ((3, 7), (9, 2), (4, 6), (7, 3), (2, 8))]
    (folder / "games.jsonl").write_text(scenario_lines([*games, game(6, 4, "val"), game(8, 2, "val")]))
    return await run(settings(folder, "whole", 4, opponents=["earlier"], earlier_every=2))


def ground(run: RunDirectory) -> Path:
    return run.path.parents[2]


def episodes(run: RunDirectory, split: str, step: int) -> list[Trajectory]:
    return [trajectory for group in run.trajectories(split, step) for trajectory in group]


def versions(trajectory: Trajectory) -> set[int]:
    return {one for segment in trajectory.segments for one in segment.versions if one >= 0}


async def test_1_an_interrupted_run_meets_the_same_earlier_checkpoints(whole: RunDirectory) -> None:
    config = settings(ground(whole), "stopped", 3, opponents=["earlier"], earlier_every=2)
    stopped = await run(config)
    assert (stopped.checkpoints / "0003").is_dir()  # the interruption's own checkpoint, which is no opponent
    await run(config.model_copy(update={"steps": 4}))
    met: list[set[int]] = []
    for step in range(1, 5):
        said = [(one.segments, one.others[0].segments) for one in episodes(whole, "train", step)]
        assert said == [(one.segments, one.others[0].segments) for one in episodes(stopped, "train", step)]
        assert {one.others[0].speaker for one in episodes(whole, "train", step)} == {"earlier"}
        met.append(set[int]().union(*(versions(one.others[0]) for one in episodes(whole, "train", step))))
    assert met == [{0}, {0}, {2}, {0}]  # of the beginning and every second step, drawn from the run's seed
    for one in (whole, stopped):
        assert sorted(path.name for path in one.checkpoints.iterdir()) == ["0000", "0002", "0004"]
    weights = [(one.checkpoints / "0004" / "adapter_model.safetensors").read_bytes() for one in (whole, stopped)]
    assert weights[0] == weights[1] != (whole.checkpoints / "0000" / "adapter_model.safetensors").read_bytes()


async def test_2_evaluations_meet_the_first_checkpoint(whole: RunDirectory) -> None:
    for step in (0, 4):
        played = episodes(whole, "val", step)
        made = {version for one in played for version in versions(one)}  # some games end before the policy's first move
        assert made == {step}
        assert {version for one in played for version in versions(one.others[0])} == {0}


async def played(config: RunConfig, opponents: Opponents, seed: int) -> Trajectory:
    """Play one game in which the policy's seat is taken by the opponent that speaks in the other one too."""
    async with Sessions(server=SERVER) as sessions:
        scenario = game(3, 7)
        async with sessions.episode(scenario.server_params, scenario.initial_state) as lease:
            chosen = opponents(None, seed)
            assert chosen.setting is not None
            setting, limits = chosen.setting(lease.session), Limits(max_turns=2, max_turn_tokens=40)
            episode = own_episode(EpisodePlan(setting, scenario, seed, 1.0, limits), opponents=opponents)
            with episode.allowance.limiting():
                await episode.play()
    return episode.trajectory


async def test_3_a_frozen_checkpoint_says_what_its_weights_say(whole: RunDirectory) -> None:
    found = {}
    for name in ("whole@4", "whole@0"):
        config = settings(ground(whole), "other", 1, opponents=[name])
        async with opened_opponents(config) as opponents:
            trajectory = await played(config, opponents, seed=1)
        [other] = trajectory.others
        assert (trajectory.fault, other.speaker, versions(other)) == (None, name, {int(name[-1])})
        found[name] = other.segments[0]
    assert found["whole@4"].logprobs != found["whole@0"].logprobs


async def test_4_a_missing_checkpoint_is_one_sentence(whole: RunDirectory, tmp_path: Path) -> None:
    config = settings(ground(whole), "whole", 4, opponents=["earlier"], earlier_every=2)
    kept = tmp_path / "checkpoints"
    shutil.copytree(whole.checkpoints, kept)
    async with opened_opponents(config, checkpoints=kept) as opponents:
        (kept / "0002" / "adapter_model.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"0002, which cannot be read \(.* is missing\): restore it"):
            await opponents.prepare(3)


async def test_earlier_checkpoints_do_not_go_with_steps_that_overlap(tmp_path: Path) -> None:
    config = settings(tmp_path, "stale", 5, opponents=["earlier"])
    train = config.train.model_copy(update={"max_staleness": 1})
    with pytest.raises(ConfigError, match=r"with train\.max_staleness = 1 those of several steps"):
        find_opponents(config.model_copy(update={"train": train}))
