"""A run that learns nothing says so, why, and what would help: real runs of the built-in model."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.judge_server import fenced, scores, serve
from mcp_rl.config import RunConfig
from mcp_rl.runs.learned import Evidence, Learned
from mcp_rl.runs.report import RunReport, print_report
from mcp_rl.runs.steps.alike import Cause, alike_metrics, barren_streak, cause_of
from mcp_rl.runs.train import run_training
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, Verifier, scenario_lines
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory, TrajectoryGroup

ALWAYS = """
from mcp_rl.plugins.hookspecs import hookimpl

@hookimpl
def register_verifiers(register):
    register("always", lambda trajectory, scenario: True)
"""
BROKEN_SERVER = """
import os, sys
sys.path.insert(0, {place!r})
from by_hand import Refused, serve, tool

def add(name, given):
    {body}

serve("broken", [tool("add", "Add two numbers.", a="number", b="number")], add)
"""


@dataclass
class Run:
    report: RunReport
    said: str
    """Everything printed during the run and in its report."""

    @property
    def learned(self) -> Learned:
        assert self.report.learned is not None
        return self.report.learned


def scenarios(expected: Callable[[int], float], kind: str = "number", answer: str | None = None) -> list[McpScenario]:
    return [
        McpScenario(
            task_description=f"add {number} and 1",
            server_params=StdioServer(command="server"),
            verifier=Verifier(kind=kind, expected=expected(number)),
            reference=(ToolCall(tool="add", arguments={"a": number, "b": 1}),),
            reference_answer=answer and answer.format(number + 1),
            split="val" if number % 2 else "train",
        )
        for number in range(2, 8)
    ]


async def train(folder: Path, tasks: list[McpScenario], *, server: str = "mcp_calculator", **more: Any) -> Run:
    (folder / "scenarios.jsonl").write_text(scenario_lines(tasks))
    console = Console(file=StringIO(), width=10_000)
    config = RunConfig(
        server=server,
        name="barren",
        output_dir=folder,
        steps=more.pop("steps", 3),
        scenarios={"file": folder / "scenarios.jsonl"},
        rollout={"groups_per_step": 2, "group_size": 2, "max_turns": 3, **more.pop("rollout", {})},
        evaluation={"samples": 1},
        **more,
    )
    report = await run_training(config, console=console)
    print_report(report, console)
    written = json.loads((config.run_dir / "report.json").read_text())
    assert written["learned"] == json.loads(report.json_line())["learned"] == report.learned.model_dump(mode="json")
    return Run(report, console.file.getvalue())


def broken(folder: Path, body: str) -> str:
    """Write a server whose only tool runs this statement; return the command that starts it."""
    place = str(Path(__file__).parents[1] / "scenarios")
    (folder / "broken.py").write_text(BROKEN_SERVER.format(place=place, body=body))
    return f"{sys.executable} -S {folder / 'broken.py'}"


def barren(run: Run, cause: Cause, words: str) -> None:
    """Check that a run of three steps learned nothing for one cause, and said so after the third and at its end."""
    assert run.learned.outcome == "nothing"
    assert (run.learned.groups, run.learned.useful_groups, run.learned.alike) == (6, 0, {cause.value: 6})
    assert run.said.count("3 steps in a row have taught nothing.") == 1
    assert run.said.count(f"In 6 of 6 groups {words}") == 2
    assert "Nothing was learned: no token was trained on" in run.said
    assert "are still those that the run began with" in run.said
    assert "The trained adapter" not in run.said and "To train further" not in run.said


async def test_a_run_whose_every_try_fails_names_what_helps(tmp_path: Path) -> None:
    run = await train(tmp_path, scenarios(lambda number: 10**9))
    barren(run, Cause.FAILED, "every try failed")
    assert "The model solves none of the held-out tasks" in run.said
    assert "mcp-rl sft" in run.said and "--base-model" in run.said and "rollout.group_size" in run.said
    assert "refuses the reference solution" not in run.said


async def test_a_verifier_that_refuses_references_is_named(tmp_path: Path) -> None:
    run = await train(tmp_path, scenarios(lambda number: 10**9, answer="{}"))
    assert run.learned.refused_references == 3
    assert "refuses the reference solution of 3 of 3 scenarios" in run.said
    assert "mcp-rl generate --server mcp_calculator --check FILE" in run.said


async def test_a_run_whose_every_try_succeeds_asks_for_harder_tasks(tmp_path: Path) -> None:
    (tmp_path / "always.py").write_text(ALWAYS)
    run = await train(tmp_path, scenarios(float, "always", "{}"), plugins=[str(tmp_path / "always.py")])
    barren(run, Cause.SOLVED, "every try succeeded")
    assert "harder or longer tasks" in run.said and "solves none" not in run.said


async def test_a_server_whose_calls_all_fail_is_named(tmp_path: Path) -> None:
    server = broken(tmp_path, 'raise Refused("no such table")')
    run = await train(tmp_path, scenarios(lambda number: 10**9), server=server, steps=1)
    assert run.learned.outcome == "nothing"
    assert run.learned.alike.get("tool_errors", 0) > 0
    assert f"every tool call came back as an error: look at them with mcp-rl servers check '{server}'" in run.said


async def test_a_server_that_dies_at_every_call_is_named(tmp_path: Path) -> None:
    server = broken(tmp_path, "os._exit(3)")
    rollout = {"max_exceptions": 1.0}
    declared = {"isolation": "per-rollout"}  # else the tool is found to end the server, and left out
    run = await train(
        tmp_path, scenarios(lambda number: 10**9), server=server, steps=1, rollout=rollout, tools=declared
    )
    assert run.learned.outcome == "nothing"
    assert run.learned.alike.get("faults", 0) > 0
    assert "most tries ended in a fault of the server, the verifier or the machine (" in run.said


async def test_a_judge_that_always_ties_is_named(tmp_path: Path) -> None:
    with serve(lambda prompt, ids: scores(dict.fromkeys(fenced(prompt), 0.5))) as server:
        judge = {"model": "openai/judge", "base_url": server.url}
        run = await train(tmp_path, scenarios(lambda number: number + 1), judge=judge)
    barren(run, Cause.JUDGE_TIES, "the judge gave every try the same score")


# Causes and outcomes


def make_group(*members: dict[str, Any]) -> TrajectoryGroup:
    scenario = McpScenario(task_description="t", server_params=StdioServer(command="x"))
    return TrajectoryGroup(
        scenario=scenario, trajectories=[Trajectory(scenario_id="s", **fields) for fields in members]
    )


WRONG = {"reward": 0.0, "success": False}
RIGHT = {"reward": 1.0, "success": True}
ERROR = CallRecord(turn=0, name="add", tool="add", is_error=True)


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ([WRONG, RIGHT], None),
        ([WRONG, WRONG], Cause.FAILED),
        ([RIGHT, RIGHT], Cause.SOLVED),
        (
            [WRONG | {"stop_reason": StopReason.MAX_TURNS}, WRONG | {"stop_reason": StopReason.MAX_TOKENS}],
            Cause.CUT_OFF,
        ),
        ([WRONG | {"stop_reason": StopReason.MAX_TURNS}, WRONG], Cause.FAILED),
        ([WRONG | {"calls": [ERROR]}, WRONG], Cause.TOOL_ERRORS),
        ([{"stop_reason": StopReason.FAULT}, {"stop_reason": StopReason.TIMEOUT}], Cause.FAULTS),
        ([], Cause.FAULTS),
        ([{}, {}], Cause.UNSCORED),
        ([{"reward": 0.5, "metrics": {"ruler": 0.5}}] * 2, Cause.JUDGE_TIES),
        ([{"reward": 0.5}] * 2, Cause.EQUAL_SCORES),
        ([{"reward": 0.5, "success": False}, {"reward": 0.5, "success": True}], Cause.EQUAL_SCORES),
    ],
)
def test_the_cause_of_equal_rewards(members: list[dict[str, Any]], cause: Cause | None) -> None:
    group = make_group(*members)
    assert cause_of(group) is cause
    assert alike_metrics([group]) == ({} if cause is None else {f"alike_{cause.value}": 1.0})


def step(useful: float) -> dict[str, Any]:
    return {"split": "train", "groups": 2, "groups_useful": useful, "alike_failed": 2 - useful}


def test_a_streak_is_reported_once() -> None:
    steps = [step(0), step(1), step(0), step(0), step(0), step(0), step(1), step(0), step(0), step(0)]
    assert [n for n in range(len(steps) + 1) if barren_streak(steps[:n])] == [5]


def evaluation(rate: float, count: int = 100) -> dict[str, Any]:
    outcomes = {str(i): [float(i < rate * count), 0.0] for i in range(count)}
    return {"greedy": {"success": rate}, "outcomes": outcomes}


@pytest.mark.parametrize(
    ("before", "after", "outcome", "words"),
    [
        (0.3, 0.8, "better", "from 0.300 to 0.800 (95 % interval of the difference +0."),
        (0.8, 0.3, "worse", "): worse."),
        (0.5, 0.52, "no_clear_change", "): no clear change."),
        (0.0, 0.0, "no_clear_change", "solves none of the held-out tasks"),
    ],
)
def test_the_outcome_follows_from_the_paired_interval(before: float, after: float, outcome: str, words: str) -> None:
    sides = evaluation(before), evaluation(after)
    found = Learned.of([step(1)], *sides, trained_tokens=9, evidence=Evidence(server="s"))
    assert found.outcome == outcome
    assert words in " ".join(found.sentences)


def test_without_a_measured_success_only_nothing_is_certain() -> None:
    found = Learned.of([step(2)], {}, {}, trained_tokens=9, evidence=Evidence(server="s"))
    assert (found.outcome, found.sentences) == ("unmeasured", [])
