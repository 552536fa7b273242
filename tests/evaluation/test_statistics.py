import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit  # type: ignore[import-untyped]
from scipy.stats import binomtest

from mcp_rl.evaluation.statistics import _student, success_interval, wilson_interval

OUTCOMES = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=40)


@pytest.mark.parametrize(("successes", "size"), [(0, 10), (1, 10), (7, 20), (118, 120), (120, 120)])
def test_one_episode_per_scenario_is_wilsons_interval(successes: int, size: int) -> None:
    outcomes = [[1.0]] * successes + [[0.0]] * (size - successes)
    reference = binomtest(successes, size).proportion_ci(method="wilson")
    assert success_interval(outcomes) == pytest.approx(
        (reference.low, reference.high), abs=1e-3 if 1 < successes < size else 1e-9
    )


def test_repeating_the_same_outcome_adds_no_certainty() -> None:
    once = [[1.0], [0.0], [1.0], [1.0], [0.0], [1.0]]
    assert success_interval([episode * 8 for episode in once]) == pytest.approx(success_interval(once))


def test_independent_episodes_narrow_the_interval() -> None:
    mixed = [[1.0, 0.0, 1.0, 0.0]] * 50
    low, high = success_interval(mixed)
    assert (low, high) == pytest.approx(wilson_interval(0.5, 50), abs=1e-9)  # no scatter is no evidence of independence
    spread = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]] * 20
    assert success_interval(spread)[1] - success_interval(spread)[0] < 0.25


@given(OUTCOMES)
def test_the_interval_holds_the_mean_and_stays_within_0_and_1(outcomes: list[list[float]]) -> None:
    low, high = success_interval(outcomes)
    mean = sum(sum(episodes) / len(episodes) for episodes in outcomes) / len(outcomes)
    assert 0 <= low <= mean + 1e-12 and mean - 1e-12 <= high <= 1
    assert low < high


def test_scenarios_without_an_episode_do_not_count() -> None:
    assert success_interval([[1.0], [], [0.0]]) == success_interval([[1.0], [0.0]])
    with pytest.raises(ValueError, match="at least one episode"):
        success_interval([[], []])


@pytest.mark.parametrize("degrees", [*range(1, 41), 99, 100, 5001])
def test_students_quantile_is_scipys(degrees: int) -> None:
    assert _student(degrees) == pytest.approx(float(stdtrit(degrees, 0.975)), abs=1e-11)


def test_students_quantile_is_that_of_the_tables() -> None:
    assert [round(_student(n), 3) for n in (1, 2, 3, 5, 10, 30)] == [12.706, 4.303, 3.182, 2.571, 2.228, 2.042]
