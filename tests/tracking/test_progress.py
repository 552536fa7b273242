import io

from rich.console import Console

from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.tracking.means import RunningMeans
from mcp_rl.tracking.progress import Progress, metrics_sentence
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
        with progress.rollouts("step 4", 2) as bar:
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


def test_a_rollout_without_a_reward_yet_pulls_no_mean_down() -> None:
    means = RunningMeans()
    means.finished(played())
    assert "reward" not in means.metrics() and means.sentence() == "tokens 4.0  turns 2.0  exceptions 0 %"
    means.scored(group(played(reward=1.0)))
    assert means.metrics()["reward"] == 1.0


def test_a_timeout_counts_as_an_exception_and_not_as_a_zero() -> None:
    means = RunningMeans()
    late = played(reward=0.0, stop=StopReason.TIMEOUT)
    means.finished(late)
    means.scored(group(late))
    assert means.metrics() == {"exceptions": 1.0}


def test_a_terminal_sees_bars_with_running_means_and_a_line_per_step() -> None:
    text = shown(terminal=True)
    assert "1/2" in text and "reward 1.00" in text and "exceptions 0 %" in text
    assert "all steps" in text and "4/20" in text
    assert "step  4/20  reward 0.625  success 0.500  1.2 s" in text


def test_a_file_gets_plain_lines_only() -> None:
    assert shown(terminal=False) == "step  4/20  reward 0.625  success 0.500  1.2 s\n"


def test_what_a_server_is_called_is_not_read_as_markup() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=40)
    Progress(steps=1, console=console).say("[bold]/x[/nope] " + "long " * 20)
    assert console.file.getvalue() == "[bold]/x[/nope] " + "long " * 20 + "\n"  # type: ignore[attr-defined]


def test_numbers_are_short() -> None:
    assert metrics_sentence({"a": 3.0, "b": 0.12345, "c": 1e-7, "d": 12345.678, "e": 0.0}) == (
        "a 3  b 0.123  c 1e-07  d 1.23e+04  e 0"
    )
    assert metrics_sentence({"a": float("nan"), "b": float("inf")}) == "a nan  b inf"
