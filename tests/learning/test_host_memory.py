"""A learner that leaves its device between two updates comes back bit for bit the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mcp_rl.backends.base.base_model import make_learner as make_loaded
from mcp_rl.backends.base.base_model import open_base
from mcp_rl.backends.base.options import plan_loading
from mcp_rl.backends.hosts import CheckpointExtras, LocalSettings
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import EngineError, EngineStop
from mcp_rl.learning import host_memory
from mcp_rl.learning.host_memory import HostMemory
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from mcp_rl.trajectory import TrajectoryGroup
from tests.learning.models import make_groups, make_learner, qwen2
from tests.learning.test_full_fine_tuning import make_full_learner


def in_4_bits() -> Learner:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    config = TrainConfig(epochs=1)
    base = open_base(plan_loading(TINY, UnslothConfig(load_in_4bit=True), config))
    return make_loaded(base.model, TINY, config, plan=base.plan)


KINDS: dict[str, Callable[[], Learner]] = {
    "lora": make_learner,
    "bfloat16": lambda: make_learner(qwen2().bfloat16()),
    "full with a reference": lambda: make_full_learner(kl=0.1),
    "4-bit": in_4_bits,
}


def held(learner: Learner) -> dict[str, torch.Tensor]:
    """Return everything that a learner holds, by name."""
    models = {"": learner.model, "reference ": learner.reference}
    found = {
        f"{name}{key}": v for name, one in models.items() if one is not None for key, v in one.state_dict().items()
    }
    state = learner.optimizer.state
    moments = {f"{key} {n}": v for n, p in learner.parameters.items() for key, v in state.get(p, {}).items()}
    return {**found, **moments}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_with_moves_between_are_the_same_bits(kind: str) -> None:
    staying, moving = KINDS[kind](), KINDS[kind]()
    groups = make_groups(staying)
    memory = HostMemory(moving)
    metrics = []
    for _ in range(2):
        memory.rest()
        assert memory.at_rest and memory.seconds > 0
        memory.wake()
        pair = [update(learner, groups, check_sampler=False) for learner in (staying, moving)]
        metrics.append([{key: value for key, value in one.items() if not key.endswith("seconds")} for one in pair])
    memory.rest()
    assert all(there == here for there, here in metrics)
    there, here = held(staying), held(moving)
    assert there.keys() == here.keys() and all(torch.equal(there[name], here[name]) for name in there)
    assert any(name.startswith("exp_avg ") for name in here)


@pytest.mark.parametrize("kind", ["lora", "4-bit"])
def test_at_rest_nothing_is_left_on_the_device(kind: str) -> None:
    learner = KINDS[kind]()
    update(learner, make_groups(learner))
    before = {name: value.clone() for name, value in held(learner).items()}
    device = {StorageWeakRef(value.untyped_storage()) for value in held(learner).values()}  # type: ignore[no-untyped-call]
    size = sum(parameter.nbytes for parameter in learner.model.parameters())
    memory = HostMemory(learner)
    memory.rest()
    left = [storage for storage in device if not storage.expired()]  # type: ignore[no-untyped-call]
    assert not left, "the device's memory is not freed"
    assert memory.bytes >= size
    on_host = {parameter.untyped_storage().data_ptr() for parameter in learner.model.parameters()}
    assert all(torch.equal(value, before[name]) for name, value in held(learner).items()), "it can be saved"
    memory.wake()
    assert not on_host & {parameter.untyped_storage().data_ptr() for parameter in learner.model.parameters()}
    taken = memory.bytes
    memory.rest()
    assert memory.bytes == taken, "the host's memory is used again"


def test_a_move_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    staying, moving = make_learner(), make_learner()
    memory, groups = HostMemory(moving), make_groups(staying)

    def full(device: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    for move, at_rest in ((memory.rest, True), (memory.wake, False)):
        where = {name: value.data_ptr() for name, value in held(moving).items()}
        with monkeypatch.context() as broken, pytest.raises(RuntimeError, match="out of memory"):
            broken.setattr(host_memory, "_wait", full)
            move()
        assert memory.at_rest is not at_rest
        assert where == {name: value.data_ptr() for name, value in held(moving).items()}
        move()
        assert memory.at_rest is at_rest
    for learner in (staying, moving):
        update(learner, groups)
    there, here = held(staying), held(moving)
    assert all(torch.equal(there[name], here[name]) for name in there)


def groups_for(learner: InProcessLearner) -> list[TrajectoryGroup]:
    return make_groups(learner.learner, groups=1, size=2)


async def test_a_run_that_breaks_off_in_a_move_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(epochs=1, offload_while_sampling="host")
    settings = LocalSettings(base_model=TINY, run=tmp_path / "run", title="test/rest", train=config)
    learner = InProcessLearner(settings)
    await learner.open()
    assert list(await learner.rest()) == ["to_host_seconds"] and await learner.rest() == {}
    with pytest.raises(EngineError, match="in the machine's memory while vLLM samples"):
        await learner.token_logprobs([[1, 2, 3]])
    assert list(await learner.wake()) == ["to_device_seconds"] and await learner.wake() == {}
    groups = groups_for(learner)
    await learner.rest()
    assert (await learner.update(groups, config))["to_device_seconds"] > 0  # it wakes by itself
    await learner.rest()
    await learner.save(CheckpointExtras())
    saved = {name: value.clone() for name, value in held(learner.learner).items()}

    def full(device: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    with monkeypatch.context() as broken, pytest.raises(EngineStop, match="ran out of memory while it moved between"):
        broken.setattr(host_memory, "_wait", full)
        await learner.update(groups, config)
    assert learner.step == 1
    await learner.close()

    again = InProcessLearner(settings)
    assert (await again.open()).checkpoint is not None and again.step == 1
    assert all(torch.equal(saved[name], value) for name, value in held(again.learner).items())
    await again.close()


async def test_a_learner_stays_unless_it_is_told_to_move(tmp_path: Path) -> None:
    learner = InProcessLearner(LocalSettings(base_model=TINY, run=tmp_path / "run", title="test/stay"))
    await learner.open()
    assert await learner.rest() == {}
    assert len((await learner.token_logprobs([[1, 2, 3]]))[0]) == 2
    await learner.close()
