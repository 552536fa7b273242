"""The learner in a child process equals one in this process to the last byte, and its end is one error here. So does
an engine in a child process beside the one in this."""

import asyncio
import shutil
from pathlib import Path

import anyio
import anyio.lowlevel
import psutil
import pytest

from mcp_rl.backends.local import LocalBackend
from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.errors import ConfigError, ContextOverflow, EngineStop
from mcp_rl.inference.engine import Engine, Sampling
from mcp_rl.model import TrainableModel
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

CONFIG = TrainConfig(checkpoint_every=1, learning_rate=5e-3, lora=LoraConfig(rank=4, alpha=8))


def make_model(base: str, folder: Path) -> TrainableModel[None]:
    return TrainableModel("calc-001", "demo", base, base_path=folder)


async def play(engine: Engine, seed: int) -> list[TrajectoryGroup]:
    """Sample two groups of four side by side; the reward is the share of even ids."""

    async def one(prompt: list[int], seed: int) -> Trajectory:
        segment = Segment()
        async with engine.episode(seed=seed) as episode:
            for new in (prompt, [9, 8, 7]):
                segment.observe(new)
                turn = await episode.generate(new, Sampling(max_tokens=6))
                segment.act(turn.token_ids, turn.logprobs, turn.version)
        reward = sum(t % 2 == 0 for t, s in zip(segment.tokens, segment.sampled, strict=True) if s) / 12
        return Trajectory(scenario_id="s", segments=[segment], reward=reward)

    groups = []
    for number in range(2):
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        members = [one([*range(20, 40), number], 1000 * seed + 10 * number + member) for member in range(4)]
        groups.append(TrajectoryGroup(scenario=scenario, trajectories=list(await asyncio.gather(*members))))
    return groups


async def steps(model: TrainableModel[None], backend: LocalBackend, until: int) -> None:
    while backend.step < until:
        groups = await play(backend.engine, backend.step)
        result = await backend.train(model, groups, frontier={"next": backend.step + 1})
        assert result.metrics["ratio_mean"] == pytest.approx(1, abs=1e-3)
        await model.log(groups, "train", step=result.step)


def learner_of(backend: LocalBackend) -> psutil.Process:
    """Return the process of a backend's learner."""
    return psutil.Process(backend._learner.process.child.pid)  # type: ignore[union-attr]


FILES = ("adapter_model.safetensors", "optimizer.safetensors")


@pytest.fixture(scope="module")
def whole(base: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a run of three steps in one process."""
    folder = tmp_path_factory.mktemp("whole")
    model = make_model(base, folder)

    async def run() -> None:
        async with LocalBackend(config=CONFIG, in_process=True) as backend:
            await model.register(backend)
            await steps(model, backend, 3)

    anyio.run(run)
    return folder


def copied(whole: Path, folder: Path, step: int) -> None:
    """Copy a run as it was at a step."""
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    for path in (folder / "demo" / "models" / "calc-001" / "checkpoints").iterdir():
        if int(path.name) > step:
            shutil.rmtree(path)


def assert_same(one: Path, other: Path, step: int) -> None:
    """Compare the files of a step byte for byte."""
    for name in (*(f"checkpoints/{step:04d}/{file}" for file in FILES), f"trajectories/train/{step:04d}.jsonl"):
        paths = [folder / "demo" / "models" / "calc-001" / name for folder in (one, other)]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name


async def test_a_run_in_a_child_equals_a_run_in_one_process(base: str, whole: Path, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)
    async with LocalBackend(config=CONFIG, in_process=False, max_context=64) as backend:
        await model.register(backend)
        assert backend.frontier == {} and backend.engine.max_context == 64
        await steps(model, backend, 1)
        assert_same(whole, tmp_path, 1)
        with pytest.raises(ConfigError, match="process of its own"):
            _ = backend.learner
        async with backend.engine.episode(seed=1) as episode:
            with pytest.raises(ContextOverflow, match="context of 64 tokens has no room"):
                await episode.generate([5] * 70, Sampling())
            assert len((await episode.generate([5] * 20, Sampling(max_tokens=3))).token_ids) == 3
            with anyio.move_on_after(0.0):
                await episode.generate([5], Sampling(max_tokens=9))
        groups = await play(backend.engine, 1)
        with pytest.raises(ConfigError, match=r"train\.lora cannot change"):
            await backend.train(model, groups, CONFIG.model_copy(update={"lora": LoraConfig(rank=8)}))
        result = await backend.train(model, groups, CONFIG)
        assert result.step == backend.step == backend.engine.version == 2
        family = [learner_of(backend), *learner_of(backend).parents()[:1]]
    assert not psutil.wait_procs(family, timeout=10)[1]


async def test_a_child_killed_in_a_save_leaves_whole_checkpoints(base: str, whole: Path, tmp_path: Path) -> None:
    copied(whole, tmp_path, 1)
    model = make_model(base, tmp_path)
    config = CONFIG.model_copy(update={"offload_while_sampling": "host"})  # an engine of its own keeps it where it is
    async with LocalBackend(config=config, in_process=False) as backend:
        await model.register(backend)
        assert backend.frontier == {"next": 1} and backend.step == backend.engine.version == 1
        await steps(model, backend, 3)
        assert_same(whole, tmp_path, 3)
        learner = backend._learner
        assert learner is not None
        (tmp_path / "policy").mkdir()
        await learner.write_policy(tmp_path / "policy")
        saved = model.path / "checkpoints" / "0003" / FILES[0]
        assert (tmp_path / "policy" / FILES[0]).read_bytes() == saved.read_bytes()
        segment = (await play(backend.engine, 99))[0].trajectories[0].segments[0]
        [logprobs] = await learner.token_logprobs([segment.tokens])
        for at, sampled in enumerate(segment.sampled):
            assert not sampled or logprobs[at - 1] == pytest.approx(segment.logprobs[at], abs=1e-4)
        await backend.train(model, await play(backend.engine, 3), save=False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_when, learner_of(backend), model.path / "checkpoints")
            with pytest.raises(EngineStop, match=r"killed while it saved, .*the same command continues"):
                await backend.save(model)
        with anyio.fail_after(10), pytest.raises(EngineStop, match="killed while it saved"):
            await backend.save(model)
    assert await model.get_step() == 3
    assert_same(whole, tmp_path, 3)


async def kill_when(process: psutil.Process, folder: Path) -> None:
    """Send SIGKILL as soon as the folder has a new entry."""
    before = set(folder.iterdir())  # noqa: ASYNC240
    while set(folder.iterdir()) <= before:  # noqa: ASYNC240
        await anyio.lowlevel.checkpoint()
    process.kill()
