"""The canaries in the whole loop: a real engine, learner and backend on a random model, with one defect each.

Each stops the run with one sentence, with nothing learned and nothing saved. Single checks are tested in `test_step`,
the swap that never happens and the forged version in `tests/backends/test_local`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from mcp_rl.backends.local import LocalBackend
from mcp_rl.config import LoraConfig, RunConfig, TrainConfig
from mcp_rl.errors import CanaryError
from mcp_rl.inference.batch import DecodingBatch
from mcp_rl.inference.engine import Sampling
from mcp_rl.learning.canaries import SMALLEST_OVERLAP, check_overlap
from mcp_rl.model import TrainableModel
from mcp_rl.rollouts.gather import gather_groups
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import Segment, Trajectory, TrajectoryGroup
from tests.random_base import write_random_base

CONFIG = TrainConfig(checkpoint_every=1, learning_rate=5e-2, lora=LoraConfig(rank=4, alpha=8))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Qwen2 of the built-in vocabulary."""
    return write_random_base(tmp_path_factory.mktemp("base"), hidden=48, intermediate=64)


async def play(backend: LocalBackend, seed: int, temperature: float = 1.0) -> list[TrajectoryGroup]:
    """Play two groups of three, rewarded for even ids, with the same prompts each time."""
    groups = []
    for number in range(2):
        scenario = McpScenario(id=f"s{number}", task_description="t", server_params=StdioServer(command="x"))
        groups.append(TrajectoryGroup(scenario=scenario))
        for member in range(3):
            async with backend.engine.episode(seed=100 * seed + 10 * number + member) as episode:
                segment = Segment()
                for new in ([*range(20, 60), number], [9, 8, 7]):
                    segment.observe(new)
                    turn = await episode.generate(new, Sampling(temperature=temperature, max_tokens=8))
                    segment.act(turn.token_ids, turn.logprobs, turn.version)
            reward = sum(t % 2 == 0 for t, s in zip(segment.tokens, segment.sampled, strict=True) if s) / 16
            groups[-1].trajectories.append(Trajectory(scenario_id=scenario.id, segments=[segment], reward=reward))
    return groups


class Loop:
    """A run after its first step."""

    def __init__(self, model: TrainableModel[None], backend: LocalBackend) -> None:
        self.model, self.backend = model, backend

    async def step(self, temperature: float = 1.0) -> list[TrajectoryGroup]:
        groups = await play(self.backend, self.backend.step, temperature)
        await self.backend.train(self.model, groups)
        return groups

    def weights(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.backend.learner.parameters.items()}

    @contextmanager
    def stops(self, match: str, *, learned: bool = False) -> Iterator[None]:
        """Expect the block to end in one sentence, with weights and checkpoints unchanged."""
        before, step = self.weights(), self.backend.step
        checkpoints = sorted((self.model.path / "checkpoints").iterdir())
        with pytest.raises(CanaryError, match=match) as caught:
            yield
        assert "\n" not in str(caught.value)
        assert sorted((self.model.path / "checkpoints").iterdir()) == checkpoints
        if not learned:
            assert self.backend.step == step
            after = self.weights()
            assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture
async def loop(base: str, tmp_path: Path) -> Any:
    model: TrainableModel[None] = TrainableModel("canary", "demo", base, base_path=tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        loop = Loop(model, backend)
        await loop.step()
        yield loop


async def test_a_loop_without_a_defect_continues(loop: Loop) -> None:
    await loop.step()
    assert loop.backend.step == 2


async def test_weights_other_than_the_learners_stop_the_run(loop: Loop) -> None:
    """The engine gets another adapter under the new version: the update is done, but neither saved nor sampled from."""
    load = loop.backend.engine.load_policy

    async def another(weights: Mapping[str, Tensor], version: int) -> None:
        await load({name: weight + 1e-3 for name, weight in weights.items()}, version)

    loop.backend.engine.load_policy = another  # type: ignore[method-assign, assignment]
    with loop.stops("its weights are not the learner's", learned=True):
        await loop.step()


async def test_a_cache_that_forgets_nothing_stops_the_run(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodingBatch, "clear", lambda self: None)
    await loop.step()  # all it samples is of this step's version; the cache that it leaves is stale in the next step
    with loop.stops("The prefix cache holds what policy version 1 computed, but version 2 is being sampled"):
        await loop.step()


async def test_a_stale_cache_with_forged_versions_stops_the_run(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine cannot notice it, but its log-probabilities are not the learner's."""

    def forge(self: DecodingBatch) -> None:
        entries = [*self._held._entries.values(), *(entry for _, entry in self._trunks.values())]
        for entry in entries:
            entry.version = self.policy.version
        for trunk, _ in self._trunks.values():
            object.__setattr__(trunk, "version", self.policy.version)

    monkeypatch.setattr(DecodingBatch, "clear", forge)
    await loop.step()
    with loop.stops("Sampler and learner disagree before the update"):
        await loop.step()


@pytest.mark.parametrize("temperature", [0.7, 1.4])
async def test_rollouts_at_another_temperature_stop_the_run(loop: Loop, temperature: float) -> None:
    with loop.stops("look for a wrong temperature"):
        await loop.step(temperature)


async def test_a_batch_that_is_learned_from_again_stops_the_run(loop: Loop) -> None:
    groups = await loop.step()
    with loop.stops("the batch is stale"):
        await loop.backend.train(loop.model, groups)


async def test_a_group_that_is_in_the_batch_twice_stops_the_run(loop: Loop) -> None:
    groups = await play(loop.backend, 1)
    with loop.stops("A trajectory of the prompt 's1' is in the batch twice"):
        await loop.backend.train(loop.model, [*groups, groups[1]])


async def test_a_group_that_vanishes_stops_the_run(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gathering of the run command's own loop drops a group of the second step."""
    calls = 0

    async def forgetful(*args: Any, follow: Callable[[TrajectoryGroup], Any], **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        finished: list[TrajectoryGroup] = []

        def hold_back(group: TrajectoryGroup) -> None:
            finished.append(group)

        result = await gather_groups(*args, follow=hold_back, **kwargs)
        for group in finished[:-1] if calls == 2 else finished:
            follow(group)
        return result

    monkeypatch.setattr("mcp_rl.runs.steps.collect.gather_groups", forgetful)
    scenarios = [
        McpScenario(
            task_description=f"add {i} and 1",
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind="number", expected=i + 1),
            reference=(ToolCall(tool="add", arguments={"a": i, "b": 1}),),
            split="val" if i < 2 else "train",
        )
        for i in range(8)
    ]
    (tmp_path / "s.jsonl").write_text(scenario_lines(scenarios))
    config = RunConfig.model_validate(
        {
            "server": "mcp_calculator",
            "transport": "stdio",
            "name": "lost",
            "output_dir": tmp_path,
            "base_model": base,
            "scenarios": {"file": tmp_path / "s.jsonl"},
            "steps": 3,
            "rollout": {"groups_per_step": 2, "group_size": 2, "max_turn_tokens": 6, "max_tokens": 6, "refills": 0},
            "evaluation": {"samples": 1, "greedy": False},
        }
    )
    with pytest.raises(CanaryError, match="1 of 2 prompts were lost"):
        await run_training(config, console=Console(file=StringIO(), width=200))
    history = (config.run_dir / "history.jsonl").read_text()
    assert history.count('"split": "train"') == 1
    assert not (config.run_dir / "checkpoints" / "0002").exists()


def test_a_learner_that_left_its_episodes_is_stopped() -> None:
    check_overlap(SMALLEST_OVERLAP, 5.0)
    with pytest.raises(CanaryError, match=r"it would play 5\.0% of them .* 0\.3 nats away"):
        check_overlap(0.05, 0.3)
