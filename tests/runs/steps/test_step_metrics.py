"""The line of a step, and the best evaluated step."""

import pytest

from mcp_rl.runs.steps.metrics import best_step, episode_tokens, shown_metrics, time_sentence


@pytest.mark.parametrize(
    ("history", "best"),
    [
        ([], None),
        ([{"step": 3, "split": "train", "success": 1.0}], None),
        ([{"step": 0, "split": "val", "greedy_success": None}], None),
        ([{"step": 0, "split": "val", "greedy_success": 0.0}], 0),
        ([{"step": s, "split": "val", "greedy_success": g} for s, g in ((0, 0.2), (5, 0.6), (10, 0.5))], 5),
        ([{"step": s, "split": "val", "sampled_success": g} for s, g in ((0, 0.2), (5, 0.6), (10, 0.6))], 10),
        ([{"step": 5, "split": "val", "greedy_success": 0.3, "sampled_success": 0.9}], 5),
    ],
)
def test_the_best_step_is_the_last_with_most_success(history: list[dict[str, float]], best: int) -> None:
    assert best_step(history) == best


def test_a_steps_line_leaves_out_zero_counts() -> None:
    shown = shown_metrics({"reward": 0.0, "groups_refilled": 0.0, "staleness_mean": 0.0, "groups_useful": 3.0})
    assert shown == {"reward": 0.0, "useful groups": 3.0}
    assert shown_metrics({"groups_refilled": 2.0, "refills_short": 1.0}) == {"refilled": 2.0, "not refilled": 1.0}


def test_the_main_kinds_of_work_are_named() -> None:
    shares = {"sampling_time_share": 0.614, "tools_time_share": 0.05, "overhead_time_share": 0.1}
    assert time_sentence(shares) == "sampling 61 %, overhead 10 %"


def test_the_cost_of_an_episode_is_the_last_one_measured() -> None:
    before = {"split": "val", "step": 0, "sampled_tokens_mean": 80.0, "prompt_tokens": 1000.0, "rollouts": 2}
    imitated = {"split": "train", "step": 1, "demonstrations": 64.0}
    later = {"split": "train", "step": 2, "sampled_tokens_mean": 30.0, "prompt_tokens": 0.0, "rollouts": 4}
    after = {**before, "step": 2, "sampled_tokens_mean": 20.0}
    assert episode_tokens([], 0) == episode_tokens([imitated], 1) == 0
    assert episode_tokens([before], 0) == episode_tokens([before, imitated], 1) == 160
    assert episode_tokens([before, imitated, later, after], 2) == 30
    assert episode_tokens([before, imitated, later, after], 1) == 160
