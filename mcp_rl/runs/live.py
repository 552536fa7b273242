"""Write the current state of a run to its folder `live/`, which `mcp-rl watch` reads.

A thread replaces `status.json` every second, so that a reader can tell a running run from a killed one. It appends
episodes to `episodes.jsonl` as they end, before their step is complete. The run never reads these files, no digest
covers them, and errors in writing them are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from mcp_rl.evaluation.progress import ALL_STEPS, Doing
from mcp_rl.system.activity import Activity, Clock
from mcp_rl.system.boundary import first_error, verdict
from mcp_rl.system.processes.marker import this_process
from mcp_rl.system.redaction import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from mcp_rl.evaluation.progress import Progress
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup

log = logging.getLogger(__name__)
FOLDER = "live"
STATUS = f"{FOLDER}/status.json"
EPISODES = f"{FOLDER}/episodes.jsonl"
PERIOD = 1.0
"""Seconds between two writes."""
_MOST_AT_ONCE = 100
"""Episodes that are written in one period; if more have ended, the newest ones."""
_LARGEST = 8_000_000
"""Size of `episodes.jsonl` in bytes from which the next batch starts a new file."""


class WorkUnderWay(BaseModel):
    """The activities of one kind that are in progress, such as tool calls."""

    model_config = ConfigDict(extra="ignore")

    kind: Activity
    count: int
    what: str
    """Name of the oldest one, such as the tool that is called; empty for a kind without names."""
    seconds: float
    """Seconds since the oldest began."""


class LiveStatus(BaseModel):
    """The content of `live/status.json`."""

    model_config = ConfigDict(extra="ignore")

    owner: str
    """The process of the run, as `system/processes/marker.py` writes it."""
    host: str
    at: float
    """Time of writing, in seconds since 1970."""
    moved: float
    """Time at which an activity last began or ended, in seconds since 1970."""
    steps: int
    """Steps of the whole run."""
    doing: list[Doing]
    work: list[WorkUnderWay]
    ended: str | None = None
    """`finished`, `interrupted` or `failed`; None while the run goes on."""
    said: str | None = None
    """The error that ended the run, in a sentence."""


def read_status(folder: Path) -> LiveStatus | None:
    """Return the newest status of the run in a folder; None if there is none or it is unreadable."""
    try:
        return LiveStatus.model_validate_json((folder / STATUS).read_bytes())
    except (OSError, ValidationError):
        return None


class Live:
    """A context manager around the work of a run, which writes the state of `progress` and `clock` to its folder."""

    def __init__(self, folder: Path, progress: Progress, clock: Clock | None = None) -> None:
        self._folder, self._progress, self._clock = folder, progress, clock or Clock()
        self._own = {"owner": this_process(), "host": socket.gethostname()}
        self._moved, self._seen = time.time(), ""
        self._ended: deque[tuple[str, Trajectory | None]] = deque()
        """Since the last write: ended episodes with the titles of their batches, and (title, None) for new batches."""
        self._anew = ""
        """Title of the newest batch that began while no other was in progress."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            (self._folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
            (self._folder / EPISODES).unlink(missing_ok=True)
        self._progress.follower = self
        self._write()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.follower = None
        self._stop.set()
        self._thread.join(5 * PERIOD)
        self._write(*_ending(error))

    # -- called by the run, in its event loop

    def batch(self, title: str) -> None:
        """Begin a batch, and a new file of episodes if no batch of the current file is still in progress."""
        others = [each for each in self._progress.doing() if each.total and each.title not in (title, ALL_STEPS)]
        self._ended.append((title, None))
        if not others:
            self._anew = title

    def finished(self, title: str, trajectory: Trajectory) -> None:
        self._ended.append((title, trajectory))

    def scored(self, title: str, group: TrajectoryGroup) -> None:
        """Write the episodes again that had no reward when they ended, since a judge compares whole groups."""
        if any(trajectory.reward is not None and "ruler" in trajectory.metrics for trajectory in group):
            self._ended.extend((title, trajectory) for trajectory in group)

    # -- runs in the thread

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            self._write()

    def _write(self, ended: str | None = None, said: str | None = None) -> None:
        try:
            self._append()
            self._write_status(ended, said)
        except Exception:  # the status is only shown: no reason to end a run
            log.debug("Cannot write the status of the run in %s", self._folder, exc_info=True)

    def _write_status(self, ended: str | None, said: str | None) -> None:
        now, doing = time.time(), self._progress.doing()
        seen = repr([(each.title, each.done, each.total, list(each.parts)) for each in doing]) + str(self._clock.ended)
        if seen != self._seen:
            self._moved, self._seen = now, seen
        work = [each.model_dump(mode="json") for each in _by_kind(self._clock)]
        status = {"at": now, "moved": self._moved, "doing": [asdict(each) for each in doing], "work": work}
        path = self._folder / STATUS
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(
            json.dumps({**self._own, "steps": self._progress.steps, **status, "ended": ended, "said": said}),
            encoding="utf-8",
        )
        temporary.replace(path)

    def _append(self) -> None:
        ended = [self._ended.popleft() for _ in range(len(self._ended))]
        path, lines = self._folder / EPISODES, []
        for title, trajectory in ended:
            if trajectory is not None:
                episode = trajectory.model_dump_json(exclude={"segments"})
                lines.append(f'{{"batch": {json.dumps(title)}, "episode": {episode}}}\n')
            elif title == self._anew or (path.exists() and path.stat().st_size > _LARGEST):
                path.unlink(missing_ok=True)
                lines.clear()
        if lines:
            with path.open("ab") as file:
                file.write("".join(lines[-_MOST_AT_ONCE:]).encode("utf-8", "replace"))


def _by_kind(clock: Clock) -> Iterator[WorkUnderWay]:
    now, under_way = time.perf_counter(), clock.under_way
    for kind in Activity:
        if found := [work for work in under_way if work.kind is kind]:
            oldest = min(found, key=lambda work: work.since)
            yield WorkUnderWay(kind=kind, count=len(found), what=oldest.what, seconds=now - oldest.since)


def _ending(error: BaseException | None) -> tuple[str, str | None]:
    if error is None:
        return "finished", None
    first = first_error(error)
    if isinstance(first, KeyboardInterrupt | asyncio.CancelledError):
        return "interrupted", None
    said = verdict(first)[0] or f"{type(first).__name__}: {first}"
    return "failed", without_secrets(said)
