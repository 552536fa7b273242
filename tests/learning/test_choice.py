"""The choice between two ways to compute a batch."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mcp_rl.errors import ConfigError
from mcp_rl.learning.disk.checkpoint import Checkpoint, newest_checkpoint
from mcp_rl.learning.disk.state import ModelCard, restore, save_learner
from mcp_rl.learning.forward import forward
from mcp_rl.learning.forward.attention import NAME
from mcp_rl.learning.forward.choice import Trial, attempt, choose
from mcp_rl.learning.forward.forward import Forward
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.measure import measure_forward
from mcp_rl.learning.samples import take_in
from mcp_rl.learning.step import update
from tests.learning.models import make_groups, make_learner

VALUES = np.asarray([-1.0, -2.0], np.float32)


def test_the_faster_of_two_that_agree_is_taken() -> None:
    choice = choose({"tree": Trial(2.0, VALUES), "rows": Trial(1.0, VALUES + 1e-4)}, reference="rows", tolerance=1e-3)
    assert choice.name == "rows" and choice.seconds == {"tree": 2.0, "rows": 1.0}
    choice = choose({"tree": Trial(1.0, VALUES), "rows": Trial(1.0, VALUES)}, reference="rows", tolerance=1e-3)
    assert choice.name == "tree"


@pytest.mark.parametrize("wrong", [VALUES + 0.1, VALUES[:1], VALUES * math.nan], ids=["off", "fewer", "nan"])
def test_a_fast_way_with_other_values_is_not_taken(wrong: np.ndarray) -> None:
    choice = choose({"tree": Trial(0.1, wrong), "rows": Trial(9.0, VALUES)}, reference="rows", tolerance=1e-3)
    assert choice.name == "rows" and "tree is off" in choice.reason


def test_ways_that_fail_are_not_taken() -> None:
    def out_of_memory() -> np.ndarray:
        raise torch.OutOfMemoryError("no room")

    failed = attempt(out_of_memory)
    assert choose({"tree": failed, "rows": Trial(9.0, VALUES)}, reference="rows", tolerance=1e-3).name == "rows"
    assert choose({"tree": Trial(9.0, VALUES), "rows": failed}, reference="rows", tolerance=1e-3).name == "tree"
    with pytest.raises(RuntimeError, match="tree: OutOfMemoryError: no room; rows"):
        choose({"tree": failed, "rows": failed}, reference="rows", tolerance=1e-3)


def test_the_first_time_does_not_count() -> None:
    now = [0.0]

    def compute() -> np.ndarray:
        now[0] += 100.0 if now[0] == 0 else 1.0
        return VALUES

    assert attempt(compute, clock=lambda: now[0]).seconds == 1.0


def with_both(**settings: object) -> Learner:
    learner = make_learner(**settings)
    learner.forward = Forward(("tree", "rows"))
    return learner


def slower(function: Callable[..., object], times: int) -> Callable[..., object]:
    def slow(*args: Any, **kwargs: Any) -> object:
        for _ in range(times):
            with torch.no_grad():
                function(*args, **kwargs)
        return function(*args, **kwargs)

    return slow


@pytest.mark.parametrize(("slow", "taken"), [("rows", "tree"), ("tree", "rows")])
def test_the_way_that_is_really_slower_is_left(slow: str, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = {"rows": "row_logprobs", "tree": "sampled_logprobs"}[slow]
    monkeypatch.setattr(forward, name, slower(getattr(forward, name), 40))
    learner = with_both()
    groups = make_groups(make_learner())
    before = {name: parameter.detach().clone() for name, parameter in learner.parameters.items()}
    choice = measure_forward(learner, take_in(groups).samples)
    assert choice.name == learner.forward.kind == taken and learner.forward.decided
    assert choice.seconds[slow] > choice.seconds[taken]
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in learner.parameters.items())
    attention = learner.model.get_base_model().config._attn_implementation
    assert (attention == NAME) == (taken == "tree")


def test_a_tree_with_other_values_is_left_in_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = with_both()
    groups = make_groups(make_learner())
    original = forward.sampled_logprobs

    def wrong(*args: Any, **kwargs: Any) -> object:
        logprobs, entropy = original(*args, **kwargs)
        return logprobs + 0.2, entropy

    monkeypatch.setattr(forward, "sampled_logprobs", wrong)
    metrics = update(learner, groups)
    assert metrics["forward_rows"] == 1.0 and metrics["tree_seconds"] > 0 and metrics["rows_seconds"] > 0
    assert "tree is off by 0.2" in learner.forward.note
    again = update(learner, groups, check_sampler=False)
    assert again["forward_rows"] == 1.0 and "rows_seconds" not in again, "measured once"


def test_a_continued_run_keeps_the_measured_choice(tmp_path: Path) -> None:
    learner = with_both()
    save_learner(tmp_path, learner, {}, ModelCard("t", "b"))
    undecided = with_both()
    restore(undecided, checkpoint_in(tmp_path))
    assert not undecided.forward.decided
    learner.forward.take("rows", learner.model)
    learner.step = 1
    save_learner(tmp_path, learner, {}, ModelCard("t", "b"))
    again, only_tree = with_both(), make_learner()
    for fresh in (again, only_tree):
        restore(fresh, checkpoint_in(tmp_path))
    assert again.forward.kind == "rows" and again.forward.decided
    assert only_tree.forward.kind == "tree", "an unsupported way is not taken"


def checkpoint_in(folder: Path) -> Checkpoint:
    newest = newest_checkpoint(folder)
    assert newest is not None
    return newest


def test_without_a_working_way_the_error_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> object:
        raise RuntimeError("no kernel")

    learner, groups = with_both(), make_groups(make_learner())
    for name in ("row_logprobs", "sampled_logprobs"):
        monkeypatch.setattr(forward, name, fails)
    with pytest.raises(ConfigError, match=r"cannot be trained here: every way .* no kernel"):
        update(learner, groups)
    assert learner.step == 0


def test_values_that_are_not_finite_cannot_be_the_reference() -> None:
    nothing = Trial(1.0, np.full(3, np.nan, np.float32))
    with pytest.raises(RuntimeError, match="no way to compute the batch gives finite values"):
        choose({"tree": nothing, "rows": nothing}, reference="rows", tolerance=1e-3)
