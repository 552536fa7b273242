"""Models are compared on the scenarios that both played, and a judge with the verifier on the episodes both scored."""

import pytest
from scipy.stats import kendalltau, mannwhitneyu  # type: ignore[import-untyped]

from mcp_rl.evaluation.agreement import agreement_metrics, judge_agreement
from mcp_rl.evaluation.comparison import compare
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import StopReason, Trajectory, TrajectoryGroup


def group(id: str, outcomes: list[bool | None], scores: list[float] | None = None) -> TrajectoryGroup:
    """Make a group from the successes of its episodes; None is a fault."""
    scenario = McpScenario(id=id, task_description="x", server_params=StdioServer(command="x"))
    trajectories = []
    for index, success in enumerate(outcomes):
        stop = StopReason.FAULT if success is None else StopReason.ANSWERED
        metrics = {"ruler": scores[index]} if scores else {}
        trajectories.append(Trajectory(scenario_id=id, success=success, stop_reason=stop, metrics=metrics))
    return TrajectoryGroup(scenario=scenario, trajectories=trajectories, metadata={"judge": {"model": "j"}})


def test_the_first_episode_of_a_group_is_the_greedy_one() -> None:
    base = [group(str(i), [False, True, True]) for i in range(8)]
    tuned = [group(str(i), [True, True, True]) for i in range(8)]
    greedy, sampled = compare({"base": base, "tuned": tuned}, {"base": True, "tuned": True})
    assert (greedy.kind, greedy.model, greedy.against, greedy.difference) == ("greedy", "tuned", "base", 1.0)
    assert (greedy.wins, greedy.losses, greedy.scenarios) == (8, 0, 8)
    assert greedy.p_value == pytest.approx(2 / 2**8)
    assert (sampled.kind, sampled.difference, sampled.p_value) == ("sampled", 0.0, 1.0)
    assert sampled.ci95[0] < 0 < sampled.ci95[1]


def test_sampled_episodes_alone_are_compared_too() -> None:
    base = [group(str(i), [False, True]) for i in range(4)]
    chat = [group(str(i), [True]) for i in range(4)]
    [sampled] = compare({"base": base, "chat": chat}, {"base": True, "chat": False})
    assert (sampled.kind, sampled.difference) == ("sampled", 0.0)


def test_scenarios_that_one_of_them_did_not_finish_are_left_out() -> None:
    base = [group("a", [True]), group("b", [None]), group("c", [False])]
    other = [group("c", [True]), group("b", [True]), group("a", [True])]
    [found] = compare({"base": base, "other": other}, {"base": False, "other": False})
    assert (found.scenarios, found.wins, found.losses, found.difference) == (2, 1, 0, 0.5)


def test_p_values_of_several_comparisons_are_adjusted() -> None:
    models = {name: [group(str(i), [i < wins]) for i in range(12)] for name, wins in (("a", 0), ("b", 6), ("c", 12))}
    found = compare(models, dict.fromkeys(models, False))
    assert len(found) == 3
    assert all(comparison.p_adjusted >= comparison.p_value for comparison in found)
    assert [c.p_adjusted > c.p_value for c in found] != [False] * 3


def test_a_judge_is_compared_with_the_verifier_by_pairs() -> None:
    groups = [
        group("a", [True, False], [0.9, 0.2]),
        group("b", [True, False, False], [0.5, 0.5, 0.7]),
        group("c", [True, True], [0.1, 0.9]),
        group("d", [None, False], [0.3, 0.4]),
    ]
    found = judge_agreement(groups)
    assert found is not None
    assert (found.groups, found.pairs, found.ties, found.judge) == (2, 3, 1, "j")
    assert found.agreement == pytest.approx((1 + (0.5 + 0) / 2) / 2)
    assert found.rank_correlation == pytest.approx((1.0 - 0.5) / 2, abs=1e-6)
    assert found.mean_passed == pytest.approx((0.9 + 0.5 + 0.1 + 0.9) / 4)
    assert sum(part.episodes for part in found.bins) == 8
    assert found.bins[4].verified == 1.0


def test_without_a_judge_there_is_no_agreement() -> None:
    assert judge_agreement([group("a", [True, False])]) is None


def test_a_judge_that_scores_everything_alike_agrees_by_chance() -> None:
    found = judge_agreement([group("a", [True, False], [0.5, 0.5]), group("b", [False, True], [1.0, 1.0])])
    assert found is not None
    assert (found.agreement, found.rank_correlation, found.ties) == (0.5, 0.0, 2)


def test_agreement_and_rank_correlation_equal_those_of_scipy() -> None:
    passed = [True, False, True, False, False, True]
    scores = [0.5, 0.5, 0.9, 0.1, 0.9, 0.5]
    found = judge_agreement([group("a", list(passed), scores)])
    assert found is not None
    wins = mannwhitneyu([0.5, 0.9, 0.5], [0.5, 0.1, 0.9]).statistic
    assert found.agreement == pytest.approx(wins / 9) == pytest.approx(5.5 / 9)
    assert found.rank_correlation == pytest.approx(kendalltau(scores, passed).statistic)
    assert (found.pairs, found.ties) == (9, 3)


def test_agreement_of_a_step_is_the_mean_over_mixed_groups() -> None:
    groups = [group("a", [True, False], [0.9, 0.2]), group("b", [True, False, False], [0.5, 0.5, 0.7])]
    alike = group("c", [True, True], [0.1, 0.9])
    found = agreement_metrics([*groups, alike])
    assert found["judge_pairwise_agreement"] == pytest.approx((1 + 0.25) / 2)
    expected = (1 + kendalltau([0.5, 0.5, 0.7], [True, False, False]).statistic) / 2
    assert found["judge_rank_correlation"] == pytest.approx(expected)
    assert agreement_metrics([alike]) == agreement_metrics([group("d", [True, False])]) == {}


def test_a_scenario_of_several_models_counts_once() -> None:
    once = judge_agreement([group(str(i), [True, False], [0.9, 0.1 + 0.85 * (i % 2)]) for i in range(10)])
    many = judge_agreement([group(str(i % 10), [True, False], [0.9, 0.1 + 0.85 * (i % 2)]) for i in range(40)])
    assert once is not None and many is not None
    assert (many.agreement, many.ci95) == (once.agreement, once.ci95)
    assert many.ci95 is not None and many.agreement is not None and many.ci95[0] <= many.agreement <= many.ci95[1]
