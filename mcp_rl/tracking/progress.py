"""What a person sees while a run goes on: a bar over the rollouts with running means, a bar over the steps, and lines.

Where the output is no terminal there are no bars, only the lines, so that a log file stays readable.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from mcp_rl.boundary import without_secrets
from mcp_rl.tracking.means import RunningMeans
from mcp_rl.trajectory import Trajectory, TrajectoryGroup
from mcp_rl.visible import visible

Score = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup]]

_REFRESHES_PER_SECOND = 4
"""The cores belong to the training."""
_STEPS_TO_JUDGE_TIME_BY = 600.0
"""Seconds of history behind the time left: steps take seconds, not milliseconds."""


class Progress:
    """The progress of one run. A context manager; `say` and `step_done` work inside it and outside.

    `steps` is the number of all steps of the run, `done` how many an earlier session did.
    """

    def __init__(self, *, steps: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[means]}"),
            console=self.console,
            disable=not self.console.is_terminal,
            refresh_per_second=_REFRESHES_PER_SECOND,
            speed_estimate_period=_STEPS_TO_JUDGE_TIME_BY,
            transient=True,
        )
        self._steps = steps
        self._done = done
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        """Print a line above the bars. Nothing that a server says in it steers the terminal or tells a secret."""
        self.console.print(
            visible(without_secrets(sentence), lines=True), highlight=False, markup=False, soft_wrap=True
        )

    @contextmanager
    def rollouts(self, title: str, total: int) -> Iterator["RolloutBar"]:
        """A bar over `total` rollouts with the running means over those that finished and were scored by now."""
        bar = RolloutBar(self._bars, self._bars.add_task(title, total=total, means=""))
        try:
            yield bar
        finally:
            self._bars.remove_task(bar.task)

    def step_done(
        self, step: int, metrics: Mapping[str, float], *, seconds: float | None = None, spent_on: str = ""
    ) -> None:
        """Print the line of a step (counted from 1) and move the bar over the steps. `spent_on` says where its
        seconds went."""
        if self._bar is None:
            self._bar = self._bars.add_task("all steps", total=self._steps, completed=self._done, means="")
        self._bars.update(self._bar, completed=step)
        time = "" if seconds is None else f"  {seconds:.1f} s"
        time += f" ({spent_on})" if spent_on else ""
        self.say(f"step {step:>{len(str(self._steps))}}/{self._steps}  {metrics_sentence(metrics)}{time}")


@dataclass(frozen=True)
class RolloutBar:
    """The bar of one batch of rollouts."""

    bars: Bars
    task: TaskID
    means: RunningMeans = field(default_factory=RunningMeans)

    def finished(self, trajectory: Trajectory) -> None:
        """One more rollout ended; its reward is not known yet."""
        self.means.finished(trajectory)
        self.bars.update(self.task, advance=1, means=self.means.sentence())

    def expect(self, more: int) -> None:
        """So many rollouts more than were planned."""
        if more:
            total = next(task.total for task in self.bars.tasks if task.id == self.task) or 0
            self.bars.update(self.task, total=total + more)

    def scored(self, group: TrajectoryGroup) -> None:
        """A group got its rewards."""
        self.means.scored(group)
        self.bars.update(self.task, means=self.means.sentence())

    def around(self, score: Score) -> Score:
        """The same scoring, shown here."""

        async def scored(group: TrajectoryGroup) -> TrajectoryGroup:
            group = await score(group)
            self.scored(group)
            return group

        return scored


def metrics_sentence(metrics: Mapping[str, float]) -> str:
    """`reward 0.62  success 0.55`: names as they are, numbers short."""
    return "  ".join(f"{name} {short(value)}" for name, value in metrics.items())


def short(value: float) -> str:
    """A number for a person: whole ones without a point, others with three digits that count."""
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:.3f}" if 0.001 <= abs(value) < 1 else f"{value:.3g}"
