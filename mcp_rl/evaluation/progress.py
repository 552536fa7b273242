"""Progress in the terminal: a bar over the rollouts with running means, a bar over the steps, and lines.

A line that is too long for the terminal gives up metrics, whole ones, before the bar, the count and the time left. If
the output is not a terminal there are only lines, all of them whole, so that a log file stays readable.
"""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, Self

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import Progress as Bars
from rich.progress import Task, TaskID
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.visible import visible

if TYPE_CHECKING:
    from types import TracebackType

    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

Score = Callable[["TrajectoryGroup"], Awaitable["TrajectoryGroup"]]

_REFRESHES_PER_SECOND = 4
"""Few, since the cores belong to the training."""
_STEPS_TO_JUDGE_TIME_BY = 600.0
"""Seconds of history from which the remaining time is estimated; steps take seconds, not milliseconds."""
_WIDEST_BAR, _NARROWEST_BAR = 24, 8
_BAR_SHARE = 0.2
"""Share of a line that the bar takes, within these limits, so that metrics have room."""
_GAP = "  "
ALL_STEPS = "all steps"
"""Title of the bar over the steps."""


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class RunningMeans:
    """Running means of reward, success, sampled tokens and turns, and the share of rollouts that faulted.

    Rollouts that the world ended (StopReason.FAULT, TIMEOUT) count in the exception rate alone. A rollout is scored
    after it finishes, together with its group, and enters the means of reward and success only then.
    """

    groups: int = 0
    """Number of groups that are expected."""
    scored_groups: int = 0
    reward: _Mean = field(default_factory=_Mean)
    success: _Mean = field(default_factory=_Mean)
    tokens: _Mean = field(default_factory=_Mean)
    turns: _Mean = field(default_factory=_Mean)
    exceptions: _Mean = field(default_factory=_Mean)

    def finished(self, trajectory: Trajectory) -> None:
        """Count a rollout that ended, not scored yet."""
        self.exceptions.add(float(not trajectory.stop_reason.trainable))
        if trajectory.stop_reason.trainable:
            self.tokens.add(trajectory.sampled_tokens)
            self.turns.add(trajectory.turns)

    def scored(self, group: TrajectoryGroup) -> None:
        """Count the rewards of a group."""
        self.scored_groups += 1
        for trajectory in group:
            if trajectory.stop_reason.trainable:
                self.reward.add(trajectory.reward)
                self.success.add(None if trajectory.success is None else float(trajectory.success))

    def metrics(self) -> dict[str, float]:
        """Return the means known so far: reward, success, tokens, turns, exceptions."""
        means = {
            "reward": self.reward,
            "success": self.success,
            "tokens": self.tokens,
            "turns": self.turns,
            "exceptions": self.exceptions,
        }
        return {name: mean.value for name, mean in means.items() if mean.value is not None}

    def parts(self) -> list[str]:
        """Return `reward ~0.62`, `success ~0.55` and so on, the most important first.

        Short rollouts end first, and solved ones are short. So means are withheld until half of the groups are scored,
        and marked as approximate from then on. Exceptions are told at once.
        """
        known = self.metrics()
        failed = known.get("exceptions", 0.0)
        parts = [f"exceptions {100 * failed:.0f} %"] if failed else []
        if self.scored_groups and 2 * self.scored_groups >= self.groups:
            same = known.get("success") == known.get("reward")
            parts += [f"{name} ~{known[name]:.2f}" for name in ("success", *["reward"][same:]) if name in known]
            parts += [f"{name} ~{known[name]:.1f}" for name in ("turns", "tokens") if name in known]
        return parts


@dataclass(frozen=True)
class Doing:
    """A line of the progress at one moment."""

    title: str
    seconds: float
    """Time since it began."""
    done: int = 0
    total: int | None = None
    """Number of what is to be done; None if that is not known."""
    left: float | None = None
    """Estimated seconds until all is done."""
    parts: Sequence[str] = ()
    """Running means and counts, in words."""


class EpisodeFollower(Protocol):
    """Is told of the episodes of a run as they end, by the title of their batch."""

    def batch(self, title: str) -> None:
        """A batch begins."""

    def finished(self, title: str, trajectory: Trajectory) -> None:
        """An episode ended. A judge has not scored it yet."""

    def scored(self, title: str, group: TrajectoryGroup) -> None:
        """A group is complete and scored."""


class Progress:
    """The progress of one run: a context manager. `say` and `step_done` work inside and outside of it.

    `steps` is the number of all steps of the run, `done` the number that earlier sessions took.
    """

    def __init__(self, *, steps: int, done: int = 0, console: Console | None = None) -> None:
        self.console = console or Console()
        self._bars = _Bars(
            console=self.console,
            disable=not self.console.is_terminal,
            refresh_per_second=_REFRESHES_PER_SECOND,
            speed_estimate_period=_STEPS_TO_JUDGE_TIME_BY,
            transient=True,
        )
        self.steps = steps
        self._done = done
        self._bar: TaskID | None = None
        self.follower: EpisodeFollower | None = None

    def doing(self) -> list[Doing]:
        """Return what the terminal shows at this moment; any thread may ask."""
        return [
            Doing(
                task.description,
                task.elapsed or 0.0,
                int(task.completed),
                None if task.total is None else int(task.total),
                task.time_remaining,
                [without_secrets(part) for part in task.fields["parts"]()],
            )
            for task in self._bars.tasks
        ]

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def say(self, sentence: str) -> None:
        """Print a line above the bars, as the function `say` does."""
        say(sentence, self.console)

    @contextmanager
    def waiting(self, title: str, parts: Callable[[], Sequence[str]] = list) -> Iterator[None]:
        """Show a spinner and the elapsed time with `title` and what `parts` returns, asked several times a second."""
        task = self._bars.add_task(title, total=None, parts=parts)
        try:
            yield
        finally:
            self._bars.remove_task(task)

    @contextmanager
    def rollouts(self, title: str, groups: int, size: int) -> Iterator[RolloutBar]:
        """Show a bar over the rollouts of `groups` groups of `size`, with the running means of those scored so far."""
        means = RunningMeans(groups=groups)
        task = self._bars.add_task(title, total=groups * size, parts=means.parts)
        bar = RolloutBar(self._bars, task, means, title, self.follower)
        if self.follower is not None:
            self.follower.batch(title)
        try:
            yield bar
        finally:
            self._bars.remove_task(bar.task)

    def end_at(self, step: int) -> None:
        """Make this the last step."""
        self.steps = step
        if self._bar is not None:
            self._bars.update(self._bar, total=step)

    def step_done(
        self, step: int, metrics: Mapping[str, float], *, seconds: float | None = None, spent_on: str = ""
    ) -> None:
        """Print the line of a step (counted from 1) and move the bar over the steps. `spent_on` tells how its seconds
        were spent."""
        if self._bar is None:
            self._bar = self._bars.add_task(ALL_STEPS, total=self.steps, completed=self._done, parts=list)
        self._bars.update(self._bar, completed=step)
        first = f"step {step:>{len(str(self.steps))}}/{self.steps}"
        last = [] if seconds is None else [f"{seconds:.1f} s"]
        parts = [f"{name} {short(value)}" for name, value in metrics.items()]
        spent = f" ({spent_on})" if spent_on else ""
        width = self.console.width if self.console.is_terminal else None
        fitting = _fitting(parts, None if width is None else width - cell_len(_GAP.join([first, *last])))
        line = _GAP.join([first, *fitting, *last])
        if spent and (width is None or (len(fitting) == len(parts) and cell_len(line + spent) <= width)):
            line += spent
        self.say(line)


def say(sentence: str, console: Console) -> None:
    """Print a line without secrets and without control characters that steer the terminal.

    A terminal gets it broken between words; a word that is longer than a line, such as a path, stays whole.
    """
    text = visible(without_secrets(sentence), lines=True)
    if console.is_terminal:
        broken = (
            textwrap.wrap(line, console.width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
            for line in text.split("\n")
        )
        text = "\n".join("\n".join(lines) for lines in broken)
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def spinner(sentence: str, console: Console) -> AbstractContextManager[object]:
    """Show a sentence with a spinner in a terminal until the context ends; show nothing elsewhere."""
    text = Text(visible(without_secrets(sentence)), no_wrap=True, overflow="ellipsis")
    return console.status(text) if console.is_terminal else nullcontext()


def _fitting(parts: Iterable[str], room: int | None) -> list[str]:
    """Return the first parts that fit into `room` characters, each after a gap; all of them if `room` is None."""
    chosen: list[str] = []
    for part in parts:
        if room is not None:
            room -= cell_len(_GAP + part)
            if room < 0:
                break
        chosen.append(part)
    return chosen


class _Bars(Bars):
    """Bars whose columns are aligned and whose lines fit the terminal."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """Return the lines of all tasks."""
        table = Table.grid(expand=True)
        shown = [_BarLine(task) for task in tasks if task.visible]
        counts = max((cell_len(line.count) for line in shown), default=0)
        titles = max((cell_len(line.task.description) for line in shown if line.count), default=0)
        for line in shown:
            line.count_width, line.title_width = counts, titles
            table.add_row(line)
        return table


@dataclass
class _BarLine:
    """The line of one task: the title, a bar, the count and the time left; then the metrics that fit. A task without a
    total has a spinner and the elapsed time."""

    task: Task
    count_width: int = 0
    title_width: int = 0

    @property
    def count(self) -> str:
        return "" if self.task.total is None else f"{self.task.completed:.0f}/{self.task.total:.0f}"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        cells: list[RenderableType]
        if self.task.total is None:
            elapsed = f"{_clock(self.task.elapsed)} so far"
            title = _cut(self.task.description, width - cell_len(elapsed) - 5)
            cells = [_spinner(), Text(title), Text(elapsed, "progress.elapsed")]
            used = 2 + cell_len(title) + 1 + cell_len(elapsed)
        else:
            left = f"{_clock(self.task.time_remaining)} left"
            count = self.count.rjust(self.count_width)
            fixed = 1 + 1 + cell_len(count) + 1 + cell_len(left)
            title = _cut(self.task.description.ljust(self.title_width), width - fixed - _NARROWEST_BAR)
            size = min(_bar_width(width), max(1, width - fixed - cell_len(title)))
            bar = ProgressBar(total=self.task.total, completed=self.task.completed, width=size)
            cells = [Text(title), bar, Text(count, "progress.download"), Text(left, "progress.remaining")]
            used = fixed + cell_len(title) + size
        parts: Callable[[], Sequence[str]] = self.task.fields["parts"]
        cells += [Text(" " + part) for part in _fitting(parts(), width - used)]
        line = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
        for _ in cells:
            line.add_column(no_wrap=True)
        line.add_row(*cells)
        yield line


def _spinner() -> Spinner:
    """Return a spinner that goes on where the one of the last refresh was."""
    spinner = Spinner("dots")
    spinner.start_time = 0.0
    return spinner


def _bar_width(width: int) -> int:
    return max(_NARROWEST_BAR, min(_WIDEST_BAR, round(_BAR_SHARE * width)))


def _clock(seconds: float | None) -> str:
    """Return `0:01:23`, or `-:--:--` if the time is not known."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=int(seconds)))


def _cut(title: str, most: int) -> str:
    return title if cell_len(title) <= most else f"{title[: max(0, most - 1)]}…"


@dataclass(frozen=True)
class RolloutBar:
    """The bar of one batch of rollouts."""

    bars: Bars
    task: TaskID
    means: RunningMeans
    title: str = ""
    follower: EpisodeFollower | None = None

    def finished(self, trajectory: Trajectory) -> None:
        """Count a rollout that ended; its reward is not known yet."""
        self.means.finished(trajectory)
        self.bars.update(self.task, advance=1)
        if self.follower is not None:
            self.follower.finished(self.title, trajectory)

    def expect(self, more: int, *, groups: int = 0) -> None:
        """Expect that many more rollouts than planned, and groups that they complete."""
        self.means.groups += groups
        if more:
            total = next(task.total for task in self.bars.tasks if task.id == self.task) or 0
            self.bars.update(self.task, total=total + more)

    def scored(self, group: TrajectoryGroup) -> None:
        """Count a group's rewards."""
        self.means.scored(group)
        if self.follower is not None:
            self.follower.scored(self.title, group)

    def around(self, score: Score) -> Score:
        """Wrap a scoring function so that the bar shows its rewards."""

        async def scored(group: TrajectoryGroup) -> TrajectoryGroup:
            group = await score(group)
            self.scored(group)
            return group

        return scored


def short(value: float) -> str:
    """Format a number: whole ones without a point, others with three significant digits."""
    if abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:.3f}" if 0.001 <= abs(value) < 1 else f"{value:.3g}"
