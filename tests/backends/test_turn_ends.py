"""A run ends its turns at the base's end tokens, learns them, and continues with those it began with."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mcp_rl.backends.base.base_model import load_ends
from mcp_rl.backends.local import LocalBackend, loaded_chat
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import LoraConfig, TrainConfig
from mcp_rl.inference.engine import Sampling
from mcp_rl.model import TrainableModel
from mcp_rl.rollouts.rollout import play
from mcp_rl.rollouts.speaker import PolicySetting
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.tiny import weights_path
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.session import Session
from mcp_rl.trajectory import Trajectory, TrajectoryGroup
from tests.two_ends import OTHER, OWN, write_base

CALCULATOR = StdioServer(
    command="{python}", args=("{bundled}/servers/python/mcp_calculator/server.py", "--transport", "stdio")
)
TASK = McpScenario(task_description="Use multiply with a 6 and b 7.", server_params=CALCULATOR, max_turns=3)
CONFIG = TrainConfig(checkpoint_every=1, lora=LoraConfig(rank=4, alpha=8))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("ends") / "base")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def calculator() -> AsyncIterator[Session]:
    async with Sessions() as sessions:
        yield await sessions.get(CALCULATOR)


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def played(backend: LocalBackend, session: Session, *, seeds: int = 6) -> TrajectoryGroup:
    setting = PolicySetting(backend.engine, backend.chat, session)
    group = TrajectoryGroup(scenario=TASK)
    for seed in range(seeds):
        trajectory = await play(setting, TASK, seed=seed)
        trajectory.reward = float(seed % 2)
        group.trajectories.append(trajectory)
    return group


def sampled_ends(trajectory: Trajectory) -> list[int]:
    """Return the last sampled id of each turn."""
    [segment] = trajectory.segments
    pairs = list(zip(segment.tokens, segment.sampled, [*segment.sampled[1:], False], strict=True))
    return [token for token, sampled, goes_on in pairs if sampled and not goes_on]


async def test_a_turn_ends_at_an_end_outside_the_template(base: Path, calculator: Session, tmp_path: Path) -> None:
    model: TrainableModel[None] = TrainableModel("two", "ends", str(base), base_path=tmp_path)
    async with LocalBackend(config=CONFIG) as backend:
        await model.register(backend)
        group = await played(backend, calculator)
        result = await backend.train(model, [group])
        assert result.metrics["ratio_mean"] == pytest.approx(1, abs=1e-3), "not the probabilities that were sampled"
        assert backend._choices is not None
        assert loaded_chat(backend._choices.settings, backend.loaded).stop_token_ids == (OWN, OTHER)
    ends = [end for trajectory in group for end in sampled_ends(trajectory)]
    assert OTHER in ends and set(ends) <= {OWN, OTHER}, "a turn ran on to its limit"
    continued = [t for t in group if t.turns > 1 and sampled_ends(t)[0] == OTHER]
    assert continued, "no turn that ended otherwise was followed by another"
    [segment] = continued[0].segments
    at = segment.tokens.index(OTHER)
    assert segment.sampled[at] and not segment.sampled[at + 1]
    assert segment.tokens[at + 1] == OWN, "the frame of the turn is not closed"
    assert "endoftext" not in json.dumps(continued[0].messages)
    assert json.loads((model.path / "model.json").read_bytes())["loaded"]["turn_ends"] == [OWN, OTHER]


async def test_a_run_keeps_the_ends_that_it_began_with(base: Path, tmp_path: Path) -> None:
    async def ends() -> tuple[int, ...]:
        model: TrainableModel[None] = TrainableModel("old", "ends", str(folder), base_path=tmp_path)
        async with LocalBackend(config=CONFIG) as backend:
            await model.register(backend)
            if backend.step == 0:
                backend.learner.step = 1
                await backend.save(model)
            return backend.chat.stop_token_ids

    folder = tmp_path / "base"
    shutil.copytree(base, folder)
    assert await ends() == (OWN, OTHER)
    shutil.copy(weights_path() / "generation_config.json", folder)
    assert await ends() == (OWN, OTHER), "the base's file has changed, and the run with it"
    shutil.copy(base / "generation_config.json", folder)
    about = tmp_path / "ends" / "models" / "old" / "model.json"
    content = json.loads(about.read_bytes())
    del content["loaded"]["turn_ends"]  # as an earlier version wrote it
    about.write_text(json.dumps(content))
    assert await ends() == (OWN,), "a run of an earlier version knew no other end"
    del content["loaded"]
    about.write_text(json.dumps(content))
    assert await ends() == (OWN,)
    assert json.loads(about.read_bytes())["loaded"]["turn_ends"] == []


async def test_serving_ends_turns_as_the_base_says(base: Path, tmp_path: Path) -> None:
    async with LocalPolicies(str(base)) as policies:
        assert policies.chat.stop_token_ids == (OWN, OTHER)
        prompt = policies.chat.initial([{"role": "user", "content": "What is 6 times 7?"}], [])
        async with policies.engine.episode(seed=0) as episode:
            turn = await episode.generate(prompt, Sampling(temperature=0, max_tokens=200))
    assert (turn.token_ids[-1], turn.finish) == (OTHER, "stop")
    assert load_ends(str(base)) == (OWN, OTHER)
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(base / "config.json", bare)
    assert load_ends(str(bare)) == (OWN,) and load_ends(str(tmp_path)) == ()
