"""Schedules against their formulas, and optimisers whose state survives a checkpoint bit for bit."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.config import TrainConfig
from mcp_rl.learning.disk.checkpoint import newest_checkpoint
from mcp_rl.learning.disk.state import ModelCard, restore, save_learner
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.schedule import learning_rate
from mcp_rl.learning.step import update
from tests.learning.models import make_groups, make_learner


def rates(steps: list[int], **settings: object) -> list[float]:
    config = TrainConfig.model_validate({"learning_rate": 1.0, "decay_steps": 10, "floor": 0.2, **settings})
    return [learning_rate(config, step) for step in steps]


def test_inverse_falls_without_an_end() -> None:
    assert rates([0, 10, 30], schedule="inverse") == pytest.approx([1, 1 / 2, 1 / 4])
    assert rates([0, 1000], schedule="inverse", decay_steps=0) == [1, 1]
    assert rates([0, 1, 10], schedule="inverse", warmup_steps=1) == pytest.approx([0.5, 10 / 11, 0.5])


def test_linear_and_cosine_fall_to_the_floor_and_stay_there() -> None:
    assert rates([0, 5, 10, 99], schedule="linear") == pytest.approx([1, 0.6, 0.2, 0.2])
    quarter = 0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2
    assert rates([0, 5, 10, 99], schedule="cosine") == pytest.approx([1, 0.6, 0.2, 0.2])
    assert rates([2], schedule="cosine", decay_steps=8) == pytest.approx([quarter])


def test_the_fall_begins_where_the_warm_up_ends() -> None:
    assert rates([0, 1, 2, 6, 10], schedule="linear", warmup_steps=2) == pytest.approx([1 / 3, 2 / 3, 1, 0.6, 0.2])
    assert rates([0, 4, 9], schedule="constant", warmup_steps=4) == pytest.approx([0.2, 1, 1])


@given(
    schedule=st.sampled_from(["inverse", "constant", "linear", "cosine"]),
    warmup=st.integers(0, 20),
    decay=st.integers(1, 50),
    floor=st.floats(0, 1),
)
def test_a_rate_rises_once_then_falls_within_bounds(schedule: str, warmup: int, decay: int, floor: float) -> None:
    found = rates(list(range(80)), schedule=schedule, warmup_steps=warmup, decay_steps=decay, floor=floor)
    assert all(0 <= rate <= 1 + 1e-12 for rate in found)
    peak = found.index(max(found))
    assert all(a <= b + 1e-12 for a, b in pairwise(found[: peak + 1]))
    assert all(a >= b - 1e-12 for a, b in pairwise(found[peak:]))


@pytest.mark.parametrize("name", ["adamw", "adafactor", "sgd"])
def test_a_resumed_learner_continues_bit_for_bit(name: str, tmp_path: Path) -> None:
    settings = {"optimizer": name, "schedule": "cosine", "decay_steps": 4, "weight_decay": 0.1, "warmup_steps": 1}

    def learn(learner: Learner, steps: int) -> None:
        for _ in range(steps):
            update(learner, make_groups(learner, seed=learner.step))

    straight = make_learner(**settings)
    learn(straight, 2)
    save_learner(tmp_path, straight, {}, ModelCard("t", "base"), frontier={})
    learn(straight, 2)
    resumed = make_learner(seed=9, **settings)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    restore(resumed, checkpoint)
    resumed.seed = straight.seed
    learn(resumed, 2)
    assert resumed.step == straight.step == 4
    for key, value in straight.parameters.items():
        assert torch.equal(value, resumed.parameters[key]), key


@pytest.mark.parametrize(("name", "rate"), [("adamw", 3e-3), ("adafactor", 0.1), ("sgd", 1.0)])
def test_each_optimiser_lowers_the_loss(name: str, rate: float) -> None:
    learner = make_learner(optimizer=name, learning_rate=rate)
    groups = make_groups(learner)
    losses = [update(learner, groups, check_sampler=False)["loss"] for _ in range(5)]
    assert losses[-1] < losses[0] - 0.005


@pytest.mark.parametrize(("name", "rate"), [("adamw", 1e-3), ("adafactor", 0.1), ("sgd", 0.1)])
def test_weight_decay_shrinks_the_weights(name: str, rate: float) -> None:
    sizes = []
    for decay in (0.0, 0.5):
        learner = make_learner(optimizer=name, learning_rate=rate, weight_decay=decay)
        update(learner, make_groups(learner))
        sizes.append(sum(float(p.detach().square().sum()) for p in learner.parameters.values()))
    assert sizes[1] < sizes[0]
