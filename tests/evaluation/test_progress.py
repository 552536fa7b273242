import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from mcp_rl.evaluation.progress import Progress, RunningMeans, short
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.trajectory import Segment, StopReason, Trajectory, TrajectoryGroup

SCENARIO = McpScenario(task_description="x", server_params=StdioServer(command="true"))


def played(*, reward: float | None = None, tokens: int = 4, stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    segment = Segment()
    segment.act([1] * tokens, [-0.5] * tokens, 0)
    success = None if reward is None else reward == 1
    return Trajectory(
        scenario_id=SCENARIO.id, segments=[segment], reward=reward, success=success, turns=2, stop_reason=stop
    )


def group(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(scenario=SCENARIO, trajectories=list(trajectories))


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
    with Progress(steps=20, done=3, console=console) as progress:
        with progress.rollouts("step 4", 1, 2) as bar:
            bar.finished(played())
            bar.scored(group(played(reward=1.0)))
            progress._bars.refresh()
        progress.step_done(4, {"reward": 0.625, "success": 0.5}, seconds=1.25)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_means_are_over_the_rollouts_that_count() -> None:
    means = RunningMeans()
    finished = [played(reward=1.0, tokens=2), played(reward=0.0, tokens=4), played(tokens=90, stop=StopReason.FAULT)]
    for trajectory in finished:
        means.finished(trajectory)
    means.scored(group(*finished))
    assert means.metrics() == {"reward": 0.5, "success": 0.5, "tokens": 3.0, "turns": 2.0, "exceptions": 1 / 3}


def test_an_unscored_rollout_is_in_no_mean() -> None:
    means = RunningMeans()
    means.finished(played())
    assert means.metrics() == {"tokens": 4.0, "turns": 2.0, "exceptions": 0.0}
    means.scored(group(played(reward=1.0)))
    assert means.metrics()["reward"] == 1.0


def test_means_are_withheld_until_half_of_the_groups_are_scored() -> None:
    means = RunningMeans(groups=4)
    means.finished(played(stop=StopReason.FAULT))
    means.scored(group(played(reward=1.0)))
    assert means.parts() == ["exceptions 100 %"]
    means.scored(group(played(reward=0.0)))
    assert means.parts() == ["exceptions 100 %", "success ~0.50"]


def test_a_timeout_counts_as_an_exception_and_not_as_a_zero() -> None:
    means = RunningMeans()
    late = played(reward=0.0, stop=StopReason.TIMEOUT)
    means.finished(late)
    means.scored(group(late))
    assert means.metrics() == {"exceptions": 1.0}


def test_a_terminal_shows_bars_means_and_a_line_per_step() -> None:
    text = shown(terminal=True)
    assert "1/2" in text and "success ~1.00" in text and "exceptions" not in text
    assert "all steps" in text and "4/20" in text
    assert "step  4/20  reward 0.625  success 0.500  1.2 s" in text


def test_a_file_gets_plain_lines_only() -> None:
    assert shown(terminal=False) == "step  4/20  reward 0.625  success 0.500  1.2 s\n"


def test_names_are_not_read_as_markup() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=40)
    Progress(steps=1, console=console).say("[bold]/x[/nope] " + "long " * 20)
    assert console.file.getvalue() == "[bold]/x[/nope] " + "long " * 20 + "\n"  # type: ignore[attr-defined]


def test_numbers_are_short() -> None:
    assert [short(value) for value in (3.0, 0.12345, 1e-7, 12345.678, 0.0)] == ["3", "0.123", "1e-07", "1.23e+04", "0"]
    assert [short(value) for value in (float("nan"), float("inf"))] == ["nan", "inf"]


SENTENCE = "base model: greedy success 0.250 [0.181, 0.334], sampled success 0.404 [0.346, 0.465] on 120 val scenarios."
METRICS = {"reward": 0.625, "success": 0.5, "tokens": 17.25, "turns": 1.5, "useful groups": 12.0, "entropy": 0.25}


def screen(width: int) -> list[str]:
    """Return the lines of a terminal of this width, in the middle of an evaluation and a step."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    with Progress(steps=120, done=3, console=console) as progress:
        progress.say(SENTENCE)
        progress.say("ab" * 100)
        progress.step_done(4, METRICS, seconds=1.25, spent_on="sampling 61 %, updating 25 %")
        with progress.waiting("exploring mcp_calculator", lambda: ["512 calls", "340 results"]):
            progress._bars.refresh()
        with progress.rollouts("evaluation, base model", 120, 5) as bar:
            for _ in range(300):
                bar.finished(played())
            for _ in range(60):
                bar.scored(group(played(reward=1.0), played(reward=0.0)))
            progress._bars.refresh()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())  # type: ignore[attr-defined]
    return [line.rstrip() for line in re.split(r"[\r\n]+", text)]


@pytest.mark.parametrize("width", [60, 80, 110, 160])
def test_no_line_wraps_and_bar_count_and_time_left_are_whole(width: int) -> None:
    lines = screen(width)
    assert [line for line in lines if cell_len(line) > width and line != "ab" * 100] == []
    bars = [line for line in lines if re.match(r"evaluation, base .*━", line) and "300/600" in line]
    assert bars and all(re.search(r" [━╸╺ ]{8,32} 300/600 [-:0-9]{7} left( |$)", line) for line in bars)
    assert any(re.match(r"all steps +[━╸╺ ]{8,32} +4/120 [-:0-9]{7} left$", line) for line in lines)
    assert any(re.match(r"\S exploring mcp_calculator 0:00:0\d so far", line) for line in lines)
    step = next(line for line in lines if line.startswith("step   4/120"))
    assert "reward 0.625" in step and re.search(r"  1\.2 s( \(sampling 61 %, updating 25 %\))?$", step)
    assert " ".join(SENTENCE.split()) in " ".join(lines)


@pytest.mark.parametrize(("width", "shown"), [(60, 0), (80, 1), (110, 3), (160, 3)])
def test_metrics_give_way_whole_where_the_line_is_short(width: int, shown: int) -> None:
    line = [line for line in screen(width) if "300/600" in line][-1]
    assert line.partition("left")[2].split("  ")[1:] == ["success ~0.50", "turns ~2.0", "tokens ~4.0"][:shown]
