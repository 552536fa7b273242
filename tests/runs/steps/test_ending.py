"""A run ends before its last step once its training scenarios are nearly all solved, and can go on as if it had not."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.config import CurriculumConfig, RunConfig
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.fork import fork
from mcp_rl.runs.steps.curriculum import Curriculum
from mcp_rl.runs.steps.ending import WINDOW, Ending, pool_metrics
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Trajectory, TrajectoryGroup
from tests.runs.steps.test_trainer import ground, groups_of, history_of, settings  # noqa: F401  # a fixture

SCENARIOS = [
    McpScenario(task_description=f"Task {i}", server_params=StdioServer(command="true"), id=f"s{i}") for i in range(80)
]


def played(scenario: McpScenario, solved: int, of: int = 4) -> TrajectoryGroup:
    tries = [Trajectory(scenario_id=scenario.id, success=i < solved, reward=float(i < solved)) for i in range(of)]
    return TrajectoryGroup(scenario=scenario, trajectories=tries)


def test_a_scenario_counts_for_those_that_an_epoch_leaves_out() -> None:
    """60 of 80 scenarios are solved always, 20 half the time: 0.875, though later steps play mostly the others."""
    curriculum = Curriculum(SCENARIOS, seed=1, config=CurriculumConfig(solved_share=0.25))
    solved = {scenario.id: 2 if i < 20 else 4 for i, scenario in enumerate(SCENARIOS)}
    plain = []
    for step, size in enumerate([*[10] * 11, 5], 1):  # eight steps are the first epoch, in which nothing is known
        groups = [played(scenario, solved[scenario.id]) for scenario in curriculum.take(size)]
        found = pool_metrics(groups, curriculum.weight)
        curriculum.learned(groups, step)
        plain.append((sum(solved[group.scenario.id] / 4 for group in groups), found))
    for epoch in plain[:8], plain[8:]:
        assert sum(found["pool_weight"] for _, found in epoch) == 80
        assert sum(found["pool_success"] * found["pool_weight"] for _, found in epoch) == pytest.approx(70)
    assert sum(passed for passed, _ in plain[8:]) == 25, "of 35"


def test_what_was_not_scored_says_nothing() -> None:
    unscored = TrajectoryGroup(scenario=SCENARIOS[0], trajectories=[Trajectory(scenario_id="s0")])
    assert pool_metrics([unscored], lambda name: 1.0) == {}


def lines(*successes: float, weight: float = 20.0) -> list[dict[str, Any]]:
    imitation = {"step": 1, "split": "train", "demonstrations": 9.0}
    return [imitation] + [
        {"step": step, "split": "train", "pool_success": success, "pool_weight": weight}
        for step, success in enumerate(successes, 2)
    ]


def config(target: float | None = 0.9, steps: int = 40) -> RunConfig:
    return RunConfig.model_validate({"server": "mcp_calculator", "steps": steps, "target_success": target})


def test_a_run_is_over_where_its_newest_window_reaches_the_target() -> None:
    history = lines(*[0.5] * 5, *[1.0] * 30)
    over = [step for step in range(1, 37) if Ending(config(0.94), history[:step]).over(step)]
    assert over == list(range(1 + 5 + WINDOW - 1, 37))
    ending = Ending(config(0.94), history[:15])
    assert ending.reached == pytest.approx(0.95)
    assert "after step 15 of 40: 95.0 % of the training scenarios" in ending.sentence
    assert not ending.over(14), "the checkpoint is behind the history"
    heavy = [*lines(0.5, weight=900.0), *lines(*[1.0] * 9)[1:]]
    assert Ending(config(), heavy).reached is None, "scenarios count, not steps"


def test_a_run_that_went_on_is_judged_by_its_newest_steps() -> None:
    history = lines(*[1.0] * 10, *[0.5] * 5)
    assert Ending(config(), history[:11]).over(11) and not Ending(config(), history).over(16)
    assert Ending(config(steps=16), history).sentence == "All 16 steps of this run are done."


@pytest.mark.parametrize(
    ("settings", "successes"), [(config(None), [1.0] * 30), (config(), [1.0] * 9), (config(steps=11), [1.0] * 10)]
)
def test_it_takes_all_steps(settings: RunConfig, successes: list[float]) -> None:
    ending = Ending(settings, lines(*successes))
    assert ending.reached is None and ending.over(settings.steps)
    assert ending.over(len(successes) + 1) == (settings.steps == 11)


async def test_a_run_ends_and_goes_on_as_if_it_had_not(ground: Path) -> None:  # noqa: F811
    """A batch is in flight when it ends, which the next session plays."""

    def run(name: str, target: float | None) -> RunConfig:
        return settings(
            ground,
            name,
            kind="number",
            server="mcp_calculator",
            steps=WINDOW + 2,
            target_success=target,
            rollout={"groups_per_step": 3, "group_size": 4, "probes": 0},
            train={"max_staleness": 1, "sft_steps": 0},
            evaluation={"samples": 2, "samples_between": 1, "greedy": False, "subset": 0},
        )

    output = StringIO()
    early = run("early", 0.01)
    assert len(await history_of(early, output)) == WINDOW
    assert f"ended after step {WINDOW} of {WINDOW + 2}" in output.getvalue()
    assert {len(group) for group in groups_of(early, "val", WINDOW)} == {2}, "the last evaluation is a whole one"
    report = RunDirectory(early.run_dir).read_json("report.json") or {}
    assert report["step"] == WINDOW and report["target_reached"] > 0.01
    again = StringIO()
    await history_of(early, again)
    assert again.getvalue().startswith("Training ended after step 10"), again.getvalue()

    assert "target_success=none" in fork(early.run_dir, WINDOW).command

    assert len(await history_of(run("early", None))) == WINDOW + 2
    done = StringIO()
    await history_of(early, done)
    assert done.getvalue().startswith(f"All {WINDOW + 2} steps"), done.getvalue()
    whole = run("whole", None)
    await history_of(whole)
    ends = [one.run_dir / f"checkpoints/{WINDOW + 2:04d}/adapter_model.safetensors" for one in (early, whole)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
