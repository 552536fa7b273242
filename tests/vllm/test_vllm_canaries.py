"""A failed swap stops the run before anything is sampled with it (law 9)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.errors import CanaryError
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion
from mcp_rl.inference.vllm.server import VllmServer
from tests.vllm.policies import MovingLearner, sampling


class Deaf(MovingLearner):
    """A learner that keeps writing an old policy after some step."""

    stopped_at: Path | None = None

    async def write_policy(self, folder: Path) -> None:
        if self.stopped_at is None:
            await super().write_policy(folder)
        else:
            shutil.copytree(self.stopped_at, folder, dirs_exist_ok=True)


@pytest.mark.parametrize("size", [0.02, 0.0002])
async def test_the_file_of_an_old_adapter_under_a_new_name(
    vllm_server: VllmServer, tmp_path: Path, size: float
) -> None:
    learner = Deaf(tmp_path / "deaf")
    async with sampling(learner, vllm_server) as sampler:
        for _ in range(2):
            learner.move(size)
            await sampler.take(learner, learner.step)
        before = sampler.engine.policy
        shutil.copytree(before.folder or Path(), old := tmp_path / "old")
        learner.stopped_at = old
        learner.move(size)
        with pytest.raises(CanaryError, match=r"policy of step 3 did not arrive in the sampler: since step 2"):
            await sampler.take(learner, 3)
        assert sampler.engine.policy is before  # nothing was sampled with it


async def test_the_base_in_place_of_a_continued_policy(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = Deaf(tmp_path / "base")
    await learner.open()
    await MovingLearner.write_policy(learner, _made(tmp_path / "untrained"))
    learner.move()
    trained = learner.learner
    learner.open = _nothing  # type: ignore[assignment, method-assign]  # it is open
    learner.stopped_at = tmp_path / "untrained"
    assert learner.learner is trained
    with pytest.raises(CanaryError, match=r"have the base model's"):
        async with sampling(learner, vllm_server):
            pass


async def test_an_adapter_at_another_scale(vllm_server: VllmServer, tmp_path: Path) -> None:
    class Louder(MovingLearner):
        async def write_policy(self, folder: Path) -> None:
            await super().write_policy(folder)
            config = json.loads((folder / "adapter_config.json").read_text())
            config["lora_alpha"] *= 1.5
            (folder / "adapter_config.json").write_text(json.dumps(config))

    learner = Louder(tmp_path / "louder")
    async with sampling(learner, vllm_server) as sampler:
        learner.move()
        with pytest.raises(CanaryError, match=r"not have the learner's policy of step 1: .* adapter scale"):
            await sampler.take(learner, 1)


class Reloading(VllmClient):
    """Loads every version under one name from one folder, as a trainer might that trusts reloading."""

    def __init__(self, server: Any, folder: Path) -> None:
        super().__init__(server)
        self.folder = folder

    async def load_adapter(self, name: str, folder: Path) -> None:
        shutil.copytree(folder, self.folder, dirs_exist_ok=True)
        body = {"lora_name": name, "lora_path": str(self.folder), "load_inplace": True}
        await self._post("/v1/load_lora_adapter", body)


async def test_a_stale_prefix_cache_after_a_reload(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "stale")
    async with sampling(learner, vllm_server) as sampler:
        client = Reloading(sampler.server, tmp_path / "one")
        engine = sampler.engine
        for step in range(1, 3):
            learner.move(0.005)
            await learner.write_policy(folder := _made(tmp_path / f"{step}"))
            await client.load_adapter("always-the-same", folder)
            policy = PolicyVersion(step, "always-the-same", folder)
            if step == 1:
                await sampler.probe.check(learner, policy)
                continue
            with pytest.raises(CanaryError, match=r"prefix cache is not of the policy of step 2"):
                await sampler.probe.check(learner, policy)
        assert engine.version == 0
        await client.unload_adapter("always-the-same")
        await client.aclose()


async def test_many_small_moves_raise_no_false_alarm(vllm_server: VllmServer, tmp_path: Path) -> None:
    learner = MovingLearner(tmp_path / "fine")
    async with sampling(learner, vllm_server) as sampler:
        for number in range(24):
            learner.move(10 ** -(2 + number % 6))
            await sampler.take(learner, learner.step)
            if number % 8 == 7:  # a step without any group to learn from
                learner.learner.step += 1
                await sampler.take(learner, learner.step)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


async def _nothing() -> None: ...
