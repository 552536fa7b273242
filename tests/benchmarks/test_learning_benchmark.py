"""The contenders of `benchmarks/learning.py` work; tests do not judge its figures."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calculator_tasks import Calls, reward
from benchmarks.learning import TARGETS, Bench, success_part, summary, tables, targets
from benchmarks.learning_update import draw_memory, episodes, learner, peak_mb, sizes, speed
from mcp_rl.learning.step import update
from mcp_rl.scenario import McpScenario, StdioServer, Verifier


def test_contenders_learn_from_the_same_episodes() -> None:
    found = speed((2, 2, 40, 8, 12), rounds=1)
    groups = episodes(2, 2, 40, 8, 12)
    flat, unshared = sizes(groups)
    assert found["tree_tokens"] == flat == update(learner(shared=True), groups, check_sampler=False)["forward_tokens"]
    assert found["unshared_tokens"] == unshared
    assert update(learner(shared=False), groups, check_sampler=False)["forward_tokens"] == unshared
    assert set(found["cpu_seconds"]) == {"tree", "torch", "unshared", "padded"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak that Linux counts")
def test_peak_memory_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    groups, policy = episodes(1, 2, 20, 4, 8), learner(shared=True, budget=1 << 30)
    assert 0 < peak_mb(partial(update, policy, groups, check_sampler=False)) < 1000
    assert policy.step == 0
    row = {"episodes": 2, "tree_tokens": 50, "unshared_tokens": 90, "tree_mb": 10.0, "unshared_mb": 20.0}
    draw_memory([row], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_other_trainers_are_scored_by_the_same_verifier() -> None:
    scenario = McpScenario(
        task_description="What is 2 times 3?",
        server_params=StdioServer(command="none"),
        verifier=Verifier(kind="number", expected=6),
    )
    calls = Calls()
    asked = {"role": "assistant", "content": "", "tool_calls": [{}]}

    def said(result: str) -> float:
        tool = {"role": "tool", "name": "multiply", "content": result}
        return reward(scenario, [asked, tool, {"role": "assistant", "content": "6"}], calls.errors)

    assert said(calls("multiply", {"a": 2, "b": 3})) == 1.0
    assert said(calls("multiply", {"a": 2})) == 0.0, "no successful call"
    assert reward(scenario, [asked], calls.errors) == 0.0, "no answer"


def test_missed_targets_are_marked_and_absent_ones_omitted() -> None:
    first, last = map(str, TARGETS)
    seeds = {
        "0": {
            "ours": {"reached": {first: 4.0, last: 10.0}, "seconds": 20.0},
            "trl": {"reached": {first: 16.0, last: None}, "seconds": 25.0},
        }
    }
    update = {
        "share_of_the_allowed_factor": 0.5,
        "tree_tokens": 10,
        "factor_allowed_by_tokens": 3,
        "times_faster_than_unshared": 1.5,
        "trained_tokens_per_second": {"tree": 3, "unshared": 2, "padded": 1},
    }
    report = {
        "date": "2026-11-21",
        "machine": "here",
        "update": {"small": update},
        "success": {"seeds": seeds, "summary": summary(seeds)},
    }
    assert [(t["what"], t["measured"], t["reached"]) for t in targets(report)] == [
        ("share of the allowed factor, small", 0.5, False),
        (f"TRL's seconds over ours to {first}", 4.0, True),
        (f"TRL's seconds over ours to {last}", 2.5, False),
    ]
    shown = tables(json.loads(json.dumps(report)))
    assert "| share of the allowed factor, small | 0.5 | 0.6 | NO |" in shown
    assert "stopped" in shown


class Canned(Bench):
    """A bench whose contenders print prepared results."""

    def run(self, module: str, *arguments: object, python: str = sys.executable) -> Any:
        said = list(map(str, arguments))
        if module == "our_contender":
            curve = [{"step": 2, "seconds": 2.0, "success": 0.75}, {"step": 4, "seconds": 4.0, "success": 0.85}]
            return {"folder": "run", "steps": [], "curve": curve, "seconds": 9.0}
        assert said[said.index("--tasks") + 1] == "run"
        assert float(said[said.index("--seconds") + 1]) == 14.0, "3.5 times ours to the last target"
        assert ("--learning-rate" in said) == (module == "trl_contender") == (python == "other")
        return {"steps": [], "curve": [{"step": 2, "seconds": 10.0, "success": 0.7}], "seconds": 14.5}


def test_contenders_get_our_scenarios_and_a_time_limit(tmp_path: Path) -> None:
    found = success_part(Canned(tmp_path, trl="other", steps=1, small=True), 1e-3, seeds=[0, 1])
    assert found["summary"]["0.7"]["over_ours"] == {"naive": 5.0, "trl": 5.0}
    assert found["summary"]["0.8"]["seconds"] == {"ours": 4.0, "naive": 14.5, "trl": 14.5}
    assert found["summary"]["0.8"]["stopped"] == {"ours": 0, "naive": 2, "trl": 2}
