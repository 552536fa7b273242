"""Summarize the failures of a model by tool, by kind of task and by the way it failed, with examples in the page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_rl.evaluation.evaluate import CLAIMED_DIFFICULTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mcp_rl.scenario import McpScenario
    from mcp_rl.trajectory import Trajectory

_MOST_ROWS = 8
_MOST_EXAMPLES = 3
_REQUEST = 160
"""Characters of a request that name an example."""
_LENGTH = re.compile(r"\w+-step")
"""Tags that repeat the number of calls."""


@dataclass(frozen=True)
class Attempt:
    """An episode that has a verdict."""

    scenario: McpScenario
    trajectory: Trajectory
    number: int | None
    """Number of the episode in the page; None if the page does not hold it."""

    @property
    def failed(self) -> bool:
        return not self.trajectory.success


@dataclass
class FailureRow:
    """The episodes of one kind."""

    name: str
    of: int = 0
    failed: list[Attempt] = field(default_factory=list)

    @property
    def examples(self) -> list[tuple[int, str]]:
        """Numbers and requests of a few failed episodes, each of another scenario."""
        found: dict[str, tuple[int, str]] = {}
        for attempt in self.failed:
            if attempt.number is not None:
                found.setdefault(attempt.scenario.id, (attempt.number, _short(attempt.scenario.task_description)))
        return list(found.values())[:_MOST_EXAMPLES]


@dataclass(frozen=True)
class FailureTable:
    """The kinds of episodes with failures, those with the most first."""

    title: str
    rows: Sequence[FailureRow]


@dataclass(frozen=True)
class Failures:
    """The failures of one model."""

    model: str
    failed: int
    of: int
    greedy: bool
    tables: Sequence[FailureTable]

    @property
    def sentence(self) -> str:
        kind = "greedy" if self.greedy else "sampled"
        return f"{self.failed or 'None'} of {self.of} {kind} episodes failed ({self.model})."


def find_failures(model: str, attempts: Sequence[Attempt], *, greedy: bool) -> Failures | None:
    """Summarize the failures among a model's episodes; None if no episode has a verdict."""
    if not attempts:
        return None
    failed = [attempt for attempt in attempts if attempt.failed]
    tables = (
        FailureTable("by tool of the reference solution", _rows(attempts, _tools)),
        FailureTable("by kind of task", _rows(attempts, _kinds)),
        FailureTable("by the way they failed", _rows(failed, _ways, of=len(failed))),
    )
    return Failures(model, len(failed), len(attempts), greedy, [table for table in tables if table.rows])


def _rows(
    attempts: Iterable[Attempt], kinds_of: Callable[[Attempt], Iterable[str]], of: int | None = None
) -> list[FailureRow]:
    """Return the kinds with failures. `of` is the number to compare with, if it is not the kind's own."""
    rows: dict[str, FailureRow] = {}
    for attempt in attempts:
        for name in dict.fromkeys(kinds_of(attempt)):
            row = rows.setdefault(name, FailureRow(name))
            row.of += 1
            if attempt.failed:
                row.failed.append(attempt)
    if of is not None:
        for row in rows.values():
            row.of = of
    found = sorted(rows.values(), key=lambda row: (-len(row.failed), row.of, row.name))
    return [row for row in found if row.failed][:_MOST_ROWS]


def _tools(attempt: Attempt) -> list[str]:
    return [call.tool for call in attempt.scenario.reference]


def _kinds(attempt: Attempt) -> Iterator[str]:
    """Yield the number of calls that the task takes, and its tags that say more than that and its tools."""
    calls = len(attempt.scenario.reference)
    yield f"{calls} {'call' if calls == 1 else 'calls'}" if calls else "no call"
    for tag in attempt.scenario.tags:
        if not (tag in _tools(attempt) or _LENGTH.fullmatch(tag) or tag.startswith(CLAIMED_DIFFICULTY)):
            yield tag


def _ways(attempt: Attempt) -> Iterator[str]:
    """Yield how the episode differs from the reference solution."""
    stop, calls = attempt.trajectory.stop_reason.value, attempt.trajectory.calls
    if stop != "answered":
        yield f"ended by {stop.replace('_', ' ')}"
    elif not attempt.scenario.reference and not calls:
        yield "a wrong answer without a call"
    elif not calls:
        yield "no tool called"
    elif sorted(call.tool or call.name for call in calls) == sorted(_tools(attempt)):
        yield "the expected tools, with other arguments or another answer"
    else:
        yield "other tools than expected"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REQUEST else f"{line[: _REQUEST - 1]}…"
