"""Differences between two models on the same scenarios, and pass^k."""

import random
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, permutation_test  # type: ignore[import-untyped]

from mcp_rl.evaluation.statistics import (
    adjusted_p_values,
    difference_interval,
    paired_p_value,
    pass_at_k,
    pass_hat_k,
    success_interval,
)

BINARY = st.sampled_from([0.0, 1.0])


Outcomes = list[list[float]]


def runs(draw: random.Random, scenarios: int, k: int, change: float) -> tuple[Outcomes, Outcomes]:
    """Play two models on scenarios of different difficulty, 0.5 on average; the second closes `change` of the gap."""
    before = [draw.betavariate(0.6, 0.6) for _ in range(scenarios)]
    after = [p + change * (1 - p) for p in before]
    one, other = ([[float(draw.random() < p) for _ in range(k)] for p in rates] for rates in (before, after))
    return one, other


@pytest.mark.parametrize(("k", "change"), [(1, 0.3), (4, 0.0)])
def test_intervals_cover_the_truth_in_93_to_97_of_100_runs(k: int, change: float) -> None:
    """Simulate 1,000 runs: the success of one model and the difference of two."""
    draw = random.Random(f"{k} {change}")
    held = np.zeros(2)
    for _ in range(1000):
        one, other = runs(draw, 60, k, change)
        low, high = success_interval(one)
        held[0] += low <= 0.5 <= high
        low, high = difference_interval(one, other)
        held[1] += low <= change / 2 <= high
    assert np.all((held / 1000 >= 0.93) & (held / 1000 <= 0.97)), held / 1000


@settings(max_examples=60)
@given(st.lists(st.tuples(st.lists(BINARY, max_size=4), st.lists(BINARY, max_size=4)), min_size=1, max_size=25))
def test_an_interval_holds_its_difference_and_is_antisymmetric(pairs: list[tuple[list[float], list[float]]]) -> None:
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    both = [(sum(a) / len(a), sum(b) / len(b)) for a, b in pairs if a and b]
    if not both:
        with pytest.raises(ValueError, match="at least one scenario"):
            difference_interval(one, other)
        return
    low, high = difference_interval(one, other)
    mean = sum(b - a for a, b in both) / len(both)
    assert -1 <= low <= mean + 1e-9 and mean - 1e-9 <= high <= 1 and low < high
    assert difference_interval(other, one) == pytest.approx((-high, -low))


def test_two_models_that_never_differed_may_still_differ() -> None:
    same = [[1.0]] * 30 + [[0.0]] * 20
    low, high = difference_interval(same, same)
    assert -0.1 < low < -0.02 and high == pytest.approx(-low)


def test_pairing_narrows_the_interval() -> None:
    draw = random.Random(1)
    one, other = runs(draw, 100, 8, 0.05)
    paired = difference_interval(one, other)
    draw.shuffle(other)
    unpaired = difference_interval(one, other)
    assert paired[1] - paired[0] < 0.6 * (unpaired[1] - unpaired[0])


@pytest.mark.parametrize(("won", "lost"), [(8, 1), (5, 5), (3, 0), (0, 9)])
def test_with_one_episode_each_the_p_value_is_mcnemars(won: int, lost: int) -> None:
    differences = [1.0] * won + [-1.0] * lost + [0.0] * 40
    assert paired_p_value(differences) == pytest.approx(binomtest(won, won + lost).pvalue)


def test_a_p_value_is_rarely_small_without_a_difference() -> None:
    draw = random.Random(3)
    found = []
    for _ in range(200):
        one, other = runs(draw, 30, 2, 0.0)
        found.append(paired_p_value([sum(b) / 2 - sum(a) / 2 for a, b in zip(one, other, strict=True)], resamples=499))
    assert 0.01 <= np.mean(np.array(found) <= 0.05) <= 0.09


@pytest.mark.parametrize(("scenarios", "resamples", "off"), [(7, 9999, 1e-12), (13, 9999, 1e-12), (40, 20_000, 0.01)])
def test_the_p_value_is_that_of_scipys_permutation_test(scenarios: int, resamples: int, off: float) -> None:
    rng = np.random.default_rng(scenarios)
    for shift in (0.0, 0.1, 0.2):
        differences = rng.integers(-4, 5, scenarios) / 4 + shift
        theirs = permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=2 * resamples, rng=rng
        )
        assert paired_p_value(differences.tolist(), resamples=resamples) == pytest.approx(theirs.pvalue, abs=off)


def test_without_differences_the_p_value_is_1() -> None:
    assert paired_p_value([]) == paired_p_value([0.0] * 9) == paired_p_value([1.0]) == 1.0


def test_holms_correction() -> None:
    assert adjusted_p_values([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjusted_p_values([]) == [] and adjusted_p_values([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("n", [1, 4, 6])
def test_pass_hat_k_is_the_share_of_draws_without_a_failure(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            draws = list(combinations(outcomes, k))
            assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))
            assert pass_hat_k(n, c, k) <= c / n + 1e-12 <= pass_at_k(n, c, k) + 2e-12
