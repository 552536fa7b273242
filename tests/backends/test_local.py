"""The whole loop in one process, on a random model with the built-in tokenizer: sample, learn, save, continue."""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
import torch
from peft import PeftModel
from pydantic import BaseModel
from transformers import AutoModelForCausalLM

from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.processes.in_process import InProcessSampler
from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.errors import CanaryError, ConfigError
from mcp_rl.inference.engine import Sampling
from mcp_rl.model import TrainableModel
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup

CONFIG = TrainConfig(checkpoint_every=1, learning_rate=5e-3, lora=LoraConfig(rank=4, alpha=8))


def make_model(base: str, folder: Path) -> TrainableModel[None]:
    return TrainableModel("calc-001", "demo", base, base_path=folder)


async def play(backend: LocalBackend, seed: int, temperature: float = 1.0) -> list[TrajectoryGroup]:
    """Sample two groups of four; the reward is the share of even ids."""
    groups = []

    async def one(group: TrajectoryGroup, prompt: list[int], seed: int) -> None:
        async with backend.engine.episode(seed=seed) as episode:
            segment = Segment()
            for new in (prompt, [9, 8, 7]):
                segment.observe(new)
                turn = await episode.generate(new, Sampling(temperature=temperature, max_tokens=6))
                segment.act(turn.token_ids, turn.logprobs, turn.version)
            reward = sum(t % 2 == 0 for t, s in zip(segment.tokens, segment.sampled, strict=True) if s) / 12
            group.trajectories.append(Trajectory(scenario_id=group.scenario.id, segments=[segment], reward=reward))

    for number in range(2):
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        group = TrajectoryGroup(scenario=scenario)
        groups.append(group)
        for member in range(4):  # one after the other: the order of the trajectories is part of the result
            await one(group, [*range(20, 40), number], 1000 * seed + 10 * number + member)
    return groups


async def steps(model: TrainableModel[None], backend: LocalBackend, until: int) -> None:
    while backend.learner.step < until:
        groups = await play(backend, backend.learner.step)
        result = await backend.train(model, groups, frontier={"next": backend.learner.step + 1})
        assert result.metrics["ratio_mean"] == pytest.approx(1, abs=1e-3)
        await model.log(groups, "train", step=result.step, metrics=result.metrics)


async def test_learns_saves_and_goes_on_as_if_never_stopped(base: str, tmp_path: Path) -> None:
    whole, parts = make_model(base, tmp_path / "whole"), make_model(base, tmp_path / "parts")
    assert await whole.get_step() == 0
    async with LocalBackend(config=CONFIG) as backend:
        await whole.register(backend)
        assert backend.engine.version == 0
        await steps(whole, backend, 4)
        assert (await whole.get_step(), backend.engine.version) == (4, 4)
    for until in (1, 3, 4):
        async with LocalBackend(config=CONFIG) as backend:
            await parts.register(backend)
            assert backend.frontier == ({"next": backend.learner.step} if backend.learner.step else {})
            assert backend.engine.version == backend.learner.step == await parts.get_step()
            await steps(parts, backend, until)
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        one, other = ((m.path / "checkpoints" / "0004" / name).read_bytes() for m in (whole, parts))
        assert one == other
    for split_file in ("trajectories/train/0004.jsonl",):
        one, other = ((m.path / split_file).read_text() for m in (whole, parts))
        assert one == other
    assert len((parts.path / "history.jsonl").read_text().splitlines()) == 4


async def test_a_reward_that_is_no_number_stops_the_run(base: str, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        groups = await play(backend, 0)
        groups[1].trajectories[2].reward = float("nan")
        with pytest.raises(CanaryError, match="The reward is nan"):
            await backend.train(model, groups)
        assert backend.step == 0


async def test_plain_peft_gives_the_engines_logprobs(base: str, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        await steps(model, backend, 2)
        segment = (await play(backend, 99))[0].trajectories[0].segments[0]
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), model.path / "checkpoints" / "0002")
    with torch.no_grad():
        logprobs = plain(torch.tensor([segment.tokens])).logits[0].log_softmax(-1)
    for i, sampled in enumerate(segment.sampled):
        if sampled:
            assert float(logprobs[i - 1, segment.tokens[i]]) == pytest.approx(segment.logprobs[i], abs=1e-4)


async def test_a_damaged_newest_checkpoint_is_passed_over_aloud(
    base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(base, tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        await steps(model, backend, 2)
    (model.path / "checkpoints" / "0002" / "optimizer.safetensors").write_bytes(b"rubbish")
    assert await model.get_step() == 1
    with caplog.at_level(logging.WARNING):
        async with LocalBackend(config=CONFIG) as backend:
            await model.register(backend)
            assert backend.learner.step == 1
            assert "0002 is damaged" in backend.skipped[0]
    assert "0002 is damaged" in caplog.text


async def test_the_best_checkpoint_stays_until_another_is_better(base: str, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)

    def kept() -> list[str]:
        return sorted(path.name for path in (model.path / "checkpoints").iterdir())

    async with LocalBackend(config=CONFIG.model_copy(update={"keep_checkpoints": 2})) as backend:
        await model.register(backend)
        backend.protect([0])
        await steps(model, backend, 3)
        assert kept() == ["0000", "0002", "0003"]
        backend.protect([3])
        assert kept() == ["0002", "0003"]
    assert (model.path / "tensors" / "batch.safetensors").is_file()


async def test_full_training_continues_as_if_never_stopped(base: str, tmp_path: Path) -> None:
    whole, parts = make_model(base, tmp_path / "whole"), make_model(base, tmp_path / "parts")
    config = CONFIG.model_copy(update={"method": "full", "learning_rate": 1e-3, "kl": 0.01})
    async with LocalBackend(config=config) as backend:
        await whole.register(backend)
        await steps(whole, backend, 3)
    for until in (1, 3):
        async with LocalBackend(config=config) as backend:
            await parts.register(backend)
            await steps(parts, backend, until)
            segment = (await play(backend, 99))[0].trajectories[0].segments[0]
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = ((m.path / "checkpoints" / "0003" / name).read_bytes() for m in (whole, parts))
        assert one == other
    plain = AutoModelForCausalLM.from_pretrained(parts.path / "checkpoints" / "0003")
    with torch.no_grad():
        logprobs = plain(torch.tensor([segment.tokens])).logits[0].log_softmax(-1)
    for i, sampled in enumerate(segment.sampled):
        if sampled:
            assert float(logprobs[i - 1, segment.tokens[i]]) == pytest.approx(segment.logprobs[i], abs=1e-4)


async def stops(
    base: str, folder: Path, spoil: Callable[[LocalBackend, list[TrajectoryGroup]], object], match: str
) -> None:
    model = make_model(base, folder)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        await steps(model, backend, 1)
        groups = await play(backend, 1)
        spoil(backend, groups)
        with pytest.raises(CanaryError, match=match):
            await backend.train(model, groups)
    assert await model.get_step() == 1


async def test_an_engine_that_ignores_new_weights_stops_the_run(base: str, tmp_path: Path) -> None:
    def ignore(backend: LocalBackend, _: list[TrajectoryGroup]) -> None:
        async def nothing(weights: object, version: int) -> None: ...

        backend.engine.load_policy = nothing  # type: ignore[method-assign, assignment]

    await stops(base, tmp_path, ignore, "The engine samples policy version 1, but the learner is at step 2")


async def test_an_engine_that_pretends_new_weights_stops_the_run(base: str, tmp_path: Path) -> None:
    def pretend(backend: LocalBackend, _: list[TrajectoryGroup]) -> None:
        async def only_the_number(weights: object, version: int) -> None:
            backend.engine._policy.version = version

        backend.engine.load_policy = only_the_number  # type: ignore[method-assign, assignment]

    await stops(base, tmp_path, pretend, "its weights are not the learner's")


async def test_episodes_of_an_older_policy_stop_the_run(base: str, tmp_path: Path) -> None:
    def age(_: LocalBackend, groups: list[TrajectoryGroup]) -> None:
        segment = groups[1].trajectories[2].segments[0]
        segment.versions = [0 if version == 1 else version for version in segment.versions]

    await stops(base, tmp_path, age, "the batch is stale")


async def test_logprobs_of_another_temperature_stop_the_run(base: str, tmp_path: Path) -> None:
    def cool(backend: LocalBackend, _: list[TrajectoryGroup]) -> None:
        backend.learner.temperature = 0.5

    await stops(base, tmp_path, cool, "disagree")


async def test_an_engine_wakes_after_a_refused_update(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    for name in ("rest", "wake"):

        async def note(sampler: InProcessSampler, name: str = name) -> None:
            asked.append(name)

        monkeypatch.setattr(InProcessSampler, name, note)
    async with LocalBackend(config=CONFIG) as backend:
        model = make_model(base, tmp_path)
        await model.register(backend)
        with pytest.raises(CanaryError, match="Sampler and learner disagree"):
            await backend.train(model, await play(backend, 0, temperature=0.3))
        assert asked == ["rest", "wake"] and backend.step == 0
        await backend.train(model, await play(backend, 0))
        assert asked == ["rest", "wake", "rest", "wake"] and backend.step == 1


async def test_the_event_loop_lives_while_the_learner_works(base: str, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        groups = await play(backend, 0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            await backend.train(model, groups)
            tasks.cancel_scope.cancel()
    assert ticks >= 3


async def test_what_the_user_got_wrong_is_one_sentence(base: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot load the base model '/no/such/folder'"):
        await make_model("/no/such/folder", tmp_path).register(LocalBackend())
    with pytest.raises(ConfigError, match="no backend yet"):
        _ = make_model(base, tmp_path).engine
    with pytest.raises(ConfigError, match="cannot be a folder"):
        TrainableModel("a/b", "demo", base)
    with pytest.raises(ConfigError, match="no model yet"):
        _ = LocalBackend().engine


async def test_the_users_config_slot_and_a_log_that_is_written_again(base: str, tmp_path: Path) -> None:
    class Mine(BaseModel):
        colour: str = "blue"

    model = TrainableModel("m", "p", base, config=Mine(), base_path=tmp_path)
    assert model.config.colour == "blue"
    scenario = McpScenario(id="s", task_description="t", server_params=StdioServer(command="x"))
    group = TrajectoryGroup(
        scenario=scenario, trajectories=[Trajectory(scenario_id="s", reward=r, success=r == 1) for r in (1.0, 0.0)]
    )
    for _ in range(2):
        await model.log([group], "val", step=3)
    lines = (model.path / "history.jsonl").read_text().splitlines()
    assert len(lines) == 1
    assert '"success": 0.5' in lines[0] and '"reward_std_dev": 0.5' in lines[0]
    read = TrajectoryGroup.model_validate_json((model.path / "trajectories/val/0003.jsonl").read_text())
    assert read.rewards == [1.0, 0.0]


async def test_groups_that_nothing_has_scored_are_refused(base: str, tmp_path: Path) -> None:
    model = make_model(base, tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        groups = await play(backend, 0)
        for trajectory in groups[1]:
            trajectory.reward = None
        with pytest.raises(ConfigError, match=r"scenario 's1' has 4 finished rollouts and no reward.*verify_group"):
            await backend.train(model, groups)
        assert backend.step == 0
        groups[1].exceptions.append("JudgeError: the judge gave no verdict")  # unscored for a known reason
        assert (await backend.train(model, groups)).step == 1
