"""The batches in flight: being played, or waiting for the learner, in order.

With `train.max_staleness` = k the batch of step b begins once the learner has taken b - 1 - k steps, so nothing that it
learns from is more than k steps old; with k = 0 it begins when everything before it is learned. Each batch is played by
a task inside `open`. The batches in flight can be saved and restored: finished groups are kept and the others played
again, so that no scenario is skipped and none is used twice.
"""

from __future__ import annotations

import json
import math
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import CheckpointError
from mcp_rl.runs.steps.collect import Collector, RolloutBatch
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from anyio.abc import TaskGroup

    from mcp_rl.scenario import McpScenario

PENDING = "pending.jsonl"
"""File in a checkpoint with the batches in flight, one per line; absent if nothing was in flight."""


class Pipeline:
    """A queue of batches: `async with pipeline.open(): pipeline.begin(step); batch = await pipeline.next()`."""

    def __init__(self, collector: Collector, *, staleness: int, last: int) -> None:
        """Make an empty pipeline. `last` is the last step that gets a batch."""
        self._collector, self._staleness, self._last = collector, staleness, last
        self._batches: deque[RolloutBatch] = deque()
        self._restored = 0
        """Number of the last batch that was restored from an earlier session."""
        self._tasks: TaskGroup | None = None
        self._begun = 0
        """Number of `_batches` that have a task."""
        self._errors: list[Exception] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the tasks of batches inside this context. The first error, of a batch or of the body, cancels everything
        else and is raised unwrapped; what the body shields finishes first."""
        async with anyio.create_task_group() as tasks:
            self._tasks, self._begun, self._errors = tasks, 0, []
            try:
                yield
            except Exception as error:
                self._stop(error)
        if self._errors:
            raise self._errors[0]

    def begin(self, step: int, episode_tokens: float = 0.0) -> None:
        """Start every batch that may be in flight once the learner has taken `step` steps.

        `episode_tokens`: cost of an episode as last measured (`metrics.episode_tokens`); 0: unknown.
        """
        newest = min(step + 1 + self._staleness, self._last)
        for number in range(self._batches[-1].number + 1 if self._batches else step + 1, newest + 1):
            self._batches.append(self._collector.take(number, episode_tokens))
        assert self._tasks is not None
        for batch in list(self._batches)[self._begun :]:
            if batch.number <= newest:
                self._tasks.start_soon(self._play, batch)
                self._begun += 1

    async def next(self) -> RolloutBatch:
        """Wait for the batch of the next step. It counts as in flight until `learned`."""
        await self._batches[0].done.wait()
        return self._batches[0]

    def learned(self) -> None:
        """Remove the first batch, whose step the learner has taken."""
        self._batches.popleft()
        self._begun -= 1

    def cancel(self) -> None:
        """Stop playing the batches in flight, which stay in flight."""
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()

    async def _play(self, batch: RolloutBatch) -> None:
        try:
            await self._collector.play(batch)
        except Exception as error:
            self._stop(error)
        else:
            batch.done.set()

    def _stop(self, error: Exception) -> None:
        assert self._tasks is not None
        self._errors.append(error)
        self._tasks.cancel_scope.cancel()

    def pending(self) -> dict[str, bytes]:
        """Return the file of the batches in flight, by its name; empty if there are none."""
        return {PENDING: "".join(map(_line, self._batches)).encode()} if self._batches else {}

    def overlaps(self, step: int) -> bool:
        """Return whether batches in flight after `step` steps began before that step, so that its checkpoint must hold
        them."""
        return self._staleness > 0 or step < self._restored

    def restore(self, content: bytes | None, scenarios: Mapping[str, McpScenario]) -> None:
        """Restore the batches in flight; groups that are too old after a change of the setting are played again.

        Raises CheckpointError if `content` is another run's.
        """
        for batch in _batches(content or b"", scenarios):
            oldest = batch.number - 1 - self._staleness
            batch.finished = {name: group for name, group in batch.finished.items() if _age(group) >= oldest}
            self._batches.append(batch)
            self._restored = batch.number


def _age(group: TrajectoryGroup) -> float:
    """Return the oldest policy version that sampled any token of the group."""
    segments = (segment for trajectory in group for segment in trajectory.segments)
    return min((version for segment in segments for version in segment.versions if version >= 0), default=math.inf)


def _line(batch: RolloutBatch) -> str:
    entry = {
        "batch": batch.number,
        "began_with": batch.began_with,
        "scenarios": [scenario.id for scenario in batch.scenarios],
        "groups": [
            batch.finished[scenario.id].model_dump(mode="json")
            for scenario in batch.scenarios
            if scenario.id in batch.finished
        ],
    }
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _batches(content: bytes, scenarios: Mapping[str, McpScenario]) -> Iterator[RolloutBatch]:
    try:
        for line in content.splitlines():
            entry: dict[str, Any] = json.loads(line)
            groups = [TrajectoryGroup.model_validate(group) for group in entry["groups"]]
            for group in groups:
                group.scenario = scenarios[group.scenario.id]  # the written scenario lacks secrets
            yield RolloutBatch(
                entry["batch"],
                [scenarios[name] for name in entry["scenarios"]],
                entry["began_with"],
                {group.scenario.id: group for group in groups},
            )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The checkpoint's {PENDING} was not written by this run ({error}); start over with --fresh."
        ) from error
