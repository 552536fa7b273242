"""Two processes learn the same as one: gradients, checks and metrics, for every loss, over real messages."""

import functools
import math
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.tensor import DTensor

from mcp_rl.errors import CanaryError, ConfigError
from mcp_rl.learning.forward.forward import Forward
from mcp_rl.learning.forward.tree import build_tree, split_evenly
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.parallel import Ranks
from mcp_rl.learning.step import update
from mcp_rl.learning.undivided import undivided
from tests.learning.pair import Pair, pair
from tests.learning.test_whole_updates import LEASH, episodes, learner_of, one_step_on

Weights = dict[str, Tensor]
OF_THE_CUT = {"forward_tokens", "saved_share", "update_seconds"}
"""Metrics that depend on the division of the work."""
CORRECTED = {"max_staleness": 1, "importance_cap": 1.05}
FULL = {"method": "full", "learning_rate": 0.05}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("pair")) as made:
        yield made


def prepared(settings: dict[str, Any]) -> tuple[Learner, list[Any]]:
    learner = learner_of(settings)
    groups = episodes(learner)
    if settings.get("forward") == "rows":
        learner.forward = Forward(("rows", "tree"))
        learner.forward.take("rows", learner.model, learner.reference)
    if settings.get("max_staleness"):
        one_step_on(learner)
    return learner, groups


def learn(ranks: Ranks | None, settings: dict[str, Any], steps: int = 1) -> tuple[Weights, list[dict[str, float]]]:
    """Return the weights after some steps, and the metrics of each step."""
    learner, groups = prepared(settings)
    if ranks is not None:
        learner.join(ranks)
    metrics = [update(learner, groups, check_sampler=False) for _ in range(steps)]
    if learner.sharding is not None:
        whole = undivided(learner)
        return ({name: p.detach() for name, p in whole.parameters.items()} if whole else {}), metrics
    return {name: p.detach().clone() for name, p in learner.parameters.items()}, metrics


def assert_alike(found: tuple[Weights, list[Any]], known: tuple[Weights, list[Any]], tolerance: float = 1e-5) -> None:
    assert found[0].keys() == known[0].keys()
    for name, weight in known[0].items():
        torch.testing.assert_close(found[0][name], weight, atol=tolerance, rtol=1e-5)
    for own, other in zip(found[1], known[1], strict=True):
        assert own.keys() == other.keys()
        for name in own.keys() - OF_THE_CUT:
            assert own[name] == pytest.approx(other[name], rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "grpo", **LEASH},
        {"loss": "dr_grpo", "sequence_norm": 30, **CORRECTED},
        {"loss": "cispo", "aggregation": "seq-mean-token-mean", "prefix_sharing": False},
        {"loss": "gspo", "activation_checkpointing": True, **LEASH, **CORRECTED},
        {"loss": "grpo", "aggregation": "seq-mean-token-sum-norm", "minibatches": 16, "epochs": 1},
        {**FULL},
        {**FULL, **LEASH, **CORRECTED, "activation_checkpointing": True},
        {**FULL, **LEASH, "minibatches": 16, "epochs": 1},
        {**FULL, **LEASH, "forward": "rows"},
    ],
    ids=[
        "grpo",
        "dr_grpo corrected",
        "cispo",
        "gspo",
        "one has nothing to do",
        "full",
        "full leash",
        "full idle",
        "full rows",
    ],
)
def test_two_processes_update_as_one(two: Pair, settings: dict[str, Any]) -> None:
    first, second = two.do(learn, settings)
    assert_alike(first, learn(None, settings))
    assert first[1][0].keys() == second[1][0].keys()
    for name in first[1][0].keys() - {"update_seconds"}:
        assert first[1][0][name] == second[1][0][name]
    if settings.get("method") != "full":
        assert all(torch.equal(weight, second[0][name]) for name, weight in first[0].items())


@pytest.mark.parametrize("method", ["lora", "full"])
def test_three_steps_of_adamw_are_those_of_one_process(two: Pair, method: str) -> None:
    settings = {"method": method, "optimizer": "adamw", "learning_rate": 1e-3}
    first, second = two.do(learn, settings, 3)
    assert_alike(first, learn(None, settings, 3), tolerance=2e-5)
    if method == "lora":
        assert all(torch.equal(weight, second[0][name]) for name, weight in first[0].items())


def gradients(ranks: Ranks | None, settings: dict[str, Any]) -> Weights:
    """Return the gradients that the optimiser gets in the first update, before clipping."""
    learner, groups = prepared({**settings, "epochs": 1, "minibatches": 1, "max_grad_norm": 1e9})
    if ranks is not None:
        learner.join(ranks)
    found: Weights = {}

    def note(*_: Any) -> None:
        for name, parameter in learner.parameters.items():
            grad = parameter.grad
            assert grad is not None
            found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()

    learner.optimizer.register_step_pre_hook(note)
    update(learner, groups, check_sampler=False)
    return found


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [
        ("grpo", "token-mean"),
        ("grpo", "seq-mean-token-mean"),
        ("dr_grpo", "seq-mean-token-sum-norm"),
        ("cispo", "token-mean"),
        ("gspo", "seq-mean-token-mean"),
    ],
)
def test_gradients_are_those_of_one_process(two: Pair, loss: str, aggregation: str) -> None:
    settings = {"loss": loss, "aggregation": aggregation, "kl": 0.05}
    known = gradients(None, settings)
    for found in two.do(gradients, settings):
        for name, gradient in known.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-5)


def shard_sizes(ranks: Ranks) -> tuple[int, int, int]:
    learner, groups = prepared({**FULL, "optimizer": "adamw", "learning_rate": 1e-3, "kl": 0.1})
    learner.join(ranks)
    update(learner, groups, check_sampler=False)
    parameters = list(learner.parameters.values())
    assert all(isinstance(p, DTensor) for p in parameters)
    assert learner.reference is not None
    return (
        sum(p.to_local().numel() for p in parameters if isinstance(p, DTensor)),
        sum(learner.optimizer.state[p]["exp_avg"].to_local().numel() for p in parameters),
        sum(p.to_local().numel() for p in learner.reference.parameters() if isinstance(p, DTensor)),
    )


def test_model_optimiser_and_reference_are_divided(two: Pair) -> None:
    learner, _ = prepared(FULL)
    size = sum(p.numel() for p in learner.parameters.values())
    for column in zip(*two.do(shard_sizes), strict=True):
        assert sum(column) == size
        assert max(column) < 0.55 * size


def refuse_adafactor(ranks: Ranks) -> None:
    learner_of({**FULL, "optimizer": "adafactor"}).join(ranks)


def test_an_optimiser_that_cannot_be_divided_is_refused(two: Pair) -> None:
    for error in two.do(refuse_adafactor):
        assert isinstance(error, ConfigError)
        assert "adafactor" in str(error)


def learn_from_wrong_logprobs(ranks: Ranks) -> tuple[str, bool]:
    """Learn from a batch in which another model sampled one trajectory: its rank notices, and all must stop."""
    learner, groups = prepared({"minibatches": 1})
    segment = groups[-1].trajectories[-1].segments[0]
    segment.logprobs = [
        value - 5.0 if sampled else 0.0 for value, sampled in zip(segment.logprobs, segment.sampled, strict=True)
    ]
    learner.join(ranks)
    before = [p.detach().clone() for p in learner.parameters.values()]
    with pytest.raises(CanaryError) as caught:
        update(learner, groups)
    same = all(torch.equal(a, b) for a, b in zip(before, learner.parameters.values(), strict=True))
    return str(caught.value), same and learner.step == 0


def test_a_disagreeing_sampler_of_one_rank_stops_all(two: Pair) -> None:
    first, second = two.do(learn_from_wrong_logprobs)
    assert first == second
    assert "disagree" in first[0]
    assert first[1]


def learn_from_nothing_finite(ranks: Ranks) -> str:
    learner, groups = prepared({"minibatches": 1})
    learner.join(ranks)
    where = groups[-1].trajectories[-1].segments[0]
    where.logprobs = [math.nan if sampled else 0.0 for sampled in where.sampled]
    with pytest.raises(CanaryError) as caught:
        update(learner, groups, check_sampler=False)
    return str(caught.value).split("is ")[0]


def test_a_loss_that_is_not_finite_on_one_rank_stops_all(two: Pair) -> None:
    first, second = two.do(learn_from_nothing_finite)
    assert first == second


def drift(ranks: Ranks) -> None:
    """Flip a bit of one rank's weights before the second step."""
    learner, groups = prepared({})
    learner.join(ranks)
    update(learner, groups, check_sampler=False)
    if ranks.rank == 1:
        with torch.no_grad():
            weight = next(iter(learner.parameters.values()))
            weight.view(-1).view(torch.int32)[3] ^= 1
    update(learner, groups, check_sampler=False)


def test_weights_that_drift_apart_by_one_bit_stop_all(two: Pair) -> None:
    for error in two.do(drift):
        assert isinstance(error, CanaryError)
        assert "learner 1" in str(error)


class Ruse:
    """An object whose unpickling makes a folder, as an attacker at the port would send it."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def exchange(ranks: Ranks, folder: str) -> tuple[list[Any], bool]:
    known = ranks.gather([(ranks.rank, 0.1, torch.arange(3.0) + ranks.rank, None)] * (1 + 2 * ranks.rank))
    with pytest.raises(pickle.UnpicklingError):
        ranks.gather(Ruse(folder) if ranks.rank else None)
    return known, os.path.exists(folder)  # noqa: PTH110


def test_ranks_exchange_values_and_never_run_code(two: Pair, tmp_path: Path) -> None:
    for known, ran in two.do(exchange, str(tmp_path / "ran")):
        assert not ran
        assert [len(part) for part in known] == [1, 3]
        for rank, part in enumerate(known):
            for number, exact, values, nothing in part:
                assert (number, exact, nothing, values.tolist()) == (rank, 0.1, None, [rank, 1.0 + rank, 2.0 + rank])


def cost(part: list[int], sequences: list[list[int]]) -> int:
    return len(build_tree([sequences[i] for i in part], min_shared=1).tokens) if part else 0


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(TOKENS, min_size=1, max_size=10), st.integers(1, 4))
def test_shares_hold_every_sequence_once_and_evenly(sequences: list[list[int]], parts: int) -> None:
    shares = split_evenly(sequences, parts)
    assert len(shares) == parts
    assert sorted(i for share in shares for i in share) == list(range(len(sequences)))
    order = sorted(range(len(sequences)), key=lambda i: sequences[i])

    @functools.cache
    def least(first: int, left: int) -> int:
        """Return the smallest possible largest share of the remaining sequences."""
        if left == 1:
            return cost(order[first:], sequences)
        return min(max(cost(order[first:end], sequences), least(end, left - 1)) for end in range(first, len(order) + 1))

    assert max(cost(share, sequences) for share in shares) == least(0, parts)


def test_groups_stay_together_in_even_shares() -> None:
    sequences = [[7] * 50 + [group] * 20 + [member] for group in range(4) for member in range(6)]
    shares = split_evenly(sequences, 2)
    assert [{i // 6 for i in share} for share in shares] == [{0, 1}, {2, 3}]
