"""Every loss, value and gradient, against its paper's equation in plain code; and the aggregation of losses."""

import math
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_rl.config import TrainConfig
from mcp_rl.learning.losses import AGGREGATIONS, Tokens, Totals, kl_to_reference, objective
from mcp_rl.learning.losses.importance import masked_weights, sequence_mask, truncated_weights

Sequences = Sequence[tuple[np.ndarray, np.ndarray, float]]
"""New logprobs, old ones, advantage."""


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def grpo(sequences: Sequences, frozen: Sequences) -> float:
    """DAPO, equation 8."""
    total = 0.0
    for new, old, gain in sequences:
        for a, b in zip(new, old, strict=True):
            ratio = math.exp(a - b)
            total += min(ratio * gain, clip(ratio, 0.8, 1.28) * gain)
    return -total / sum(len(new) for new, _, _ in sequences)


def dr_grpo(sequences: Sequences, frozen: Sequences) -> float:
    """Dr. GRPO, figure 1, with a generation budget of 100 tokens."""
    total = 0.0
    for new, old, gain in sequences:
        for a, b in zip(new, old, strict=True):
            ratio = math.exp(a - b)
            total += min(ratio * gain, clip(ratio, 0.8, 1.2) * gain) / 100
    return -total / len(sequences)


def cispo(sequences: Sequences, frozen: Sequences) -> float:
    """MiniMax-M1, equation 4; no gradient goes through `frozen`."""
    total = 0.0
    for (new, old, gain), (still, _, _) in zip(sequences, frozen, strict=True):
        for a, b, c in zip(new, old, still, strict=True):
            total += min(math.exp(c - b), 5.0) * gain * a
    return -total / sum(len(new) for new, _, _ in sequences)


def gspo(sequences: Sequences, frozen: Sequences) -> float:
    """GSPO, equation 5."""
    total = 0.0
    for new, old, gain in sequences:
        ratio = (math.exp(new.sum()) / math.exp(old.sum())) ** (1 / len(new))
        total += min(ratio * gain, clip(ratio, 1 - 3e-4, 1 + 4e-4) * gain)
    return -total / len(sequences)


def draw_sequences(spread: float) -> Sequences:
    draw = np.random.default_rng(0)
    sequences = []
    for length in (1, 7, 3, 12, 5, 9):
        old = -draw.exponential(1.0, length)
        sequences.append((old + draw.normal(0, spread, length), old, float(draw.normal())))
    return sequences


def pack(sequences: Sequences) -> Tokens:
    lengths = torch.tensor([len(new) for new, _, _ in sequences])
    new, old = (torch.tensor(np.concatenate([row[i] for row in sequences])) for i in (0, 1))
    gains = torch.tensor([gain for _, _, gain in sequences], dtype=torch.float64).repeat_interleave(lengths)
    return Tokens(new.requires_grad_(), old, gains, lengths)


def slopes(loss: Callable[[Sequences, Sequences], float], sequences: Sequences) -> np.ndarray:
    """Return central differences with respect to every new logprob."""
    result = []
    for number, (new, old, gain) in enumerate(sequences):
        for i in range(len(new)):
            sides = []
            for step in (1e-6, -1e-6):
                moved = list(sequences)
                moved[number] = (new + step * (np.arange(len(new)) == i), old, gain)
                sides.append(loss(moved, sequences))
            result.append((sides[0] - sides[1]) / 2e-6)
    return np.asarray(result)


@pytest.mark.parametrize(
    ("name", "reference", "spread"),
    [("grpo", grpo, 0.3), ("dr_grpo", dr_grpo, 0.3), ("cispo", cispo, 1.5), ("gspo", gspo, 1e-3)],
)
def test_values_and_gradients_are_those_of_the_papers(
    name: str, reference: Callable[[Sequences, Sequences], float], spread: float
) -> None:
    sequences = draw_sequences(spread)
    tokens = pack(sequences)
    goal = objective(TrainConfig.model_validate({"loss": name, "sequence_norm": 100}))
    losses, clipped = goal.function(tokens, goal.clip_low, goal.clip_high)
    loss = goal.aggregate(losses, tokens.lengths, Totals.of(tokens.lengths.tolist(), 100))
    loss.backward()
    assert loss.item() == pytest.approx(reference(sequences, sequences), rel=1e-9)
    np.testing.assert_allclose(tokens.logprobs.grad, slopes(reference, sequences), atol=1e-8)
    assert 0 < clipped.sum() < len(clipped)
    if name != "cispo":
        assert torch.equal(clipped, tokens.logprobs.grad == 0)


def test_settings_override_the_bounds_of_the_loss() -> None:
    given = objective(TrainConfig(loss="gspo", clip_low=0.1, clip_high=0.3, aggregation="token-mean"))
    assert (given.clip_low, given.clip_high) == (0.1, 0.3)
    assert given.aggregate is AGGREGATIONS["token-mean"]
    own = objective(TrainConfig(loss="gspo"))
    assert (own.clip_low, own.clip_high) == (3e-4, 4e-4)
    assert own.aggregate is AGGREGATIONS["seq-mean-token-mean"]


PLAIN = {
    "token-mean": lambda rows: sum(map(sum, rows)) / sum(map(len, rows)),
    "seq-mean-token-mean": lambda rows: sum(sum(row) / len(row) for row in rows) / len(rows),
    "seq-mean-token-sum-norm": lambda rows: sum(map(sum, rows)) / len(rows) / 50,
}


@given(
    rows=st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=9), min_size=1, max_size=8),
    cut=st.integers(0, 8),
    name=st.sampled_from(sorted(AGGREGATIONS)),
)
def test_parts_of_a_minibatch_add_up_to_the_whole(rows: list[list[float]], cut: int, name: str) -> None:
    totals = Totals.of(map(len, rows), 50)
    parts = [
        AGGREGATIONS[name](torch.tensor([*chain(*part)], dtype=torch.float64), torch.tensor([*map(len, part)]), totals)
        for part in (rows[:cut], rows[cut:])
        if part
    ]
    assert float(sum(parts)) == pytest.approx(PLAIN[name](rows), abs=1e-9)


def test_importance_weights_are_capped_and_without_gradient() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weights = truncated_weights(logprobs, torch.tensor([-1.5, -0.5, -3.0]), 2.0)
    np.testing.assert_allclose(weights, [math.exp(0.5), math.exp(-0.5), 2.0], rtol=1e-6)
    assert not weights.requires_grad


def test_a_token_outside_of_the_bounds_is_left_out_and_one_inside_is_weighted() -> None:
    ratios = torch.tensor([0.4, 0.5, 0.9, 2.0, 2.1])
    weights = masked_weights(ratios.log(), torch.zeros(5), 2.0)
    torch.testing.assert_close(weights, torch.tensor([0.0, 0.5, 0.9, 2.0, 0.0]))


def test_a_sequence_is_left_out_by_the_product_of_its_ratios() -> None:
    ratios = torch.tensor([1.5, 1.5, 1.5, 1.5, 0.1, 9.0])  # no token of the first three is far off; all of it is
    mask = sequence_mask(ratios.log(), torch.zeros(6), torch.tensor([3, 3]), 3.0)
    assert mask.tolist() == [0.0, 1.0]


def test_uncapped_importance_sampling_is_unbiased() -> None:
    draw = torch.Generator().manual_seed(0)
    policy, sampler = (torch.randn(8, generator=draw).mul(0.3).log_softmax(0) for _ in range(2))
    value = torch.randn(8, generator=draw)
    drawn = torch.multinomial(sampler.exp(), 200_000, replacement=True, generator=draw)
    weights = truncated_weights(policy[drawn], sampler[drawn], 100.0)
    assert float((weights * value[drawn]).mean()) == pytest.approx(float((policy.exp() * value).sum()), abs=0.01)


def test_kl_estimate_is_unbiased_and_never_negative() -> None:
    torch.manual_seed(0)
    policy, reference = (torch.randn(50).log_softmax(0) for _ in range(2))
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True)
    estimate = kl_to_reference(policy[drawn], reference[drawn])
    assert estimate.min() >= 0
    assert float(estimate.mean()) == pytest.approx(float((policy.exp() * (policy - reference)).sum()), rel=0.05)
