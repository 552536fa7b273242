"""The process of a run's trackers, `python -m mcp_rl.runs.trackers.host`; `trackers.py` starts it.

It reads lines of JSON: first the configuration, then an entry for each step and evaluation. It answers with lines about
its trackers. Each tracker has a thread and a bounded queue. An entry names the file of its episodes, so a queue holds
little, and entries wait there for a service that is down.

Trackers start at normal priority, since the run waits for that. Afterwards they have the lowest one, and at the end
the normal one again, where the system allows it.

The newest step that a tracker was given is kept in the run's folder: a later session sends what a killed one did not,
and nothing twice.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from queue import Full, Queue
from typing import IO, TYPE_CHECKING, Any, cast

import psutil

from mcp_rl.config import RunConfig
from mcp_rl.errors import NotDelivered, UserError
from mcp_rl.plugins.manager import Plugins, load_plugins, place
from mcp_rl.run_directory import read_groups, read_history
from mcp_rl.runs.trackers.run_id import RECORDS
from mcp_rl.runs.trackers.trackers import finite
from mcp_rl.system.privacy import seal_process
from mcp_rl.system.redaction import without_secrets
from mcp_rl.system.visible import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.plugins.parts import EpisodeTracker, RewindingTracker, Split, Tracker
    from mcp_rl.trajectory import Period, TrajectoryGroup

_MOST_WAITING = 10_000
_NICE = 19
"""Niceness of the trackers' threads while the run trains."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
"""Seconds after which a service that takes nothing is tried again."""


@dataclass(frozen=True)
class LoggedStep:
    """A training step or an evaluation."""

    split: Split
    step: int
    metrics: dict[str, float]
    episodes: Path | None = None
    update: Period | None = None
    again: bool = False
    """True if an earlier session recorded it."""


def set_niceness(niceness: int, threads: Iterable[int]) -> None:
    """Set the niceness of these threads. Lowering it needs root on most systems; what is not allowed is not done.

    Off Linux, where threads have none of their own, the whole process gets it.
    """
    for thread in threads if sys.platform == "linux" else (0,):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def _all_threads() -> list[int]:
    """Return the ids of all threads of this process and of its children, such as the one of wandb."""
    this, threads = psutil.Process(), []
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):
            threads += [thread.id for thread in process.threads()]
    return threads


class Record:
    """The newest step of each split that a tracker was given, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: dict[str, int] = {}
        with suppress(OSError, ValueError, AttributeError, TypeError):
            self._newest = {str(split): int(step) for split, step in json.loads(path.read_bytes()).items()}

    def has(self, entry: LoggedStep) -> bool:
        return entry.step <= self._newest.get(entry.split, -1)

    @property
    def newest(self) -> int:
        """The newest step of any split; -1 if there is none."""
        return max(self._newest.values(), default=-1)

    def add(self, entry: LoggedStep) -> None:
        self._newest[entry.split] = entry.step
        self._write()

    def rewind(self, step: int) -> None:
        """Forget what was given from a training step on."""
        self._newest = {split: min(newest, step - 1) for split, newest in self._newest.items()}

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self._newest), encoding="utf-8")
        temporary.replace(self._path)


@lru_cache(maxsize=2)
def _groups(path: Path) -> list[TrajectoryGroup]:
    return list(read_groups(path))


_reading = threading.Lock()


def groups_of(path: Path | None) -> list[TrajectoryGroup]:
    """Read the groups of an episode file, for all trackers once."""
    with _reading:
        return _groups(path) if path is not None and path.exists() else []


class Answers:
    """The lines to the run."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._lock = file, threading.Lock()

    def send(self, tracker: str, event: str, **more: Any) -> None:
        with self._lock, suppress(OSError):
            self._file.write(json.dumps({"tracker": tracker, "event": event, **more}) + "\n")
            self._file.flush()


@dataclass
class Worker:
    """The thread of one tracker."""

    name: str
    origin: str
    folder: Path
    config: RunConfig
    plugins: Plugins
    earlier: list[LoggedStep]
    answers: Answers
    queue: Queue[LoggedStep | None] = field(default_factory=lambda: Queue(_MOST_WAITING))
    closing: threading.Event = field(default_factory=threading.Event)
    first: bool = True
    """True until the tracker is given an entry in this session."""

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"tracker {self.name}", daemon=True).start()

    def give(self, entry: LoggedStep | None) -> None:
        """Queue an entry, or the end; lose it if the queue is full."""
        if entry is None:
            self.closing.set()
        with suppress(Full):
            self.queue.put_nowait(entry)

    def _run(self) -> None:
        tracker = self._started()
        if tracker is None:
            return
        self.answers.send(self.name, "started")
        set_niceness(_NICE, [0])
        try:
            record = Record(self.folder / RECORDS / f"{self.name}.json")
            entry: LoggedStep | None
            for entry in self.earlier:
                if not self._handle(tracker, record, entry):
                    break
                self.answers.send(self.name, "busy")
            while (entry := self.queue.get()) is not None and self._handle(tracker, record, entry):
                self.answers.send(self.name, "taken")
            tracker.close()
        except (Exception, SystemExit) as error:
            self._failed(error)
            with suppress(Exception, SystemExit):
                tracker.close()
            return
        self.answers.send(self.name, "closed")

    def _started(self) -> Tracker | None:
        try:
            tracker = self.plugins.trackers.pick(self.name, self.plugins.problems)(self.folder, self.config)
            missing = [method for method in ("log", "close") if not callable(getattr(tracker, method, None))]
            if not missing:
                return tracker
            said = f"The tracker {self.name!r} ({self.origin}) made {tracker!r:.80}, which has no {missing[0]}()."
        except UserError as error:
            self.answers.send(self.name, "unstartable", sentence=without_secrets(str(error)), config=True)
            return None
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            where = place(error, self.origin)
            said = f"The tracker {self.name!r} ({where}) cannot be started: {_in_words(error)}"
        self.answers.send(self.name, "unstartable", sentence=without_secrets(said), config=False)
        return None

    def _handle(self, tracker: Tracker, record: Record, entry: LoggedStep) -> bool:
        """Give an entry to the tracker, again and again while its service takes nothing; return whether it took it."""
        if record.has(entry):
            rewind = getattr(tracker, "rewind", None)
            if entry.again or entry.split != "train" or rewind is None:
                return True
            cast("RewindingTracker", tracker).rewind(entry.step)
            record.rewind(entry.step)
        elif self.first and entry.step > record.newest and hasattr(tracker, "rewind"):
            cast("RewindingTracker", tracker).rewind(entry.step)  # a killed session may have logged it unrecorded
        self.first = False
        pause = _FIRST_PAUSE
        while True:
            try:
                self._log(tracker, entry)
                record.add(entry)
                return True
            except NotDelivered as error:
                if pause == _FIRST_PAUSE:
                    said = f"The tracker {self.name!r} waits: {error} It is tried again until the run ends."
                    self.answers.send(self.name, "waits", sentence=without_secrets(said))
            if self.closing.wait(pause):
                return False
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _log(self, tracker: Tracker, entry: LoggedStep) -> None:
        tracker.log(entry.split, entry.step, dict(entry.metrics))
        if hasattr(tracker, "log_trajectories"):
            groups = groups_of(entry.episodes)
            cast("EpisodeTracker", tracker).log_trajectories(entry.split, entry.step, groups, entry.update)

    def _failed(self, error: BaseException) -> None:
        traceback.print_exception(error)
        said = (
            f"The tracker {self.name!r} ({place(error, self.origin)}) failed, and the run goes on without it: "
            f"{_in_words(error)}"
        )
        self.answers.send(self.name, "failed", sentence=without_secrets(said))


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {shortened(str(error), 400)}"


def _earlier(folder: Path) -> list[LoggedStep]:
    """Return what earlier sessions of the run recorded, in order."""
    entries = []
    for line in read_history(folder):
        split: Split = "train" if line["split"] == "train" else "val"
        metrics = finite({name: value for name, value in line.items() if name not in ("split", "step")})
        episodes = folder / "trajectories" / line["split"] / f"{line['step']:04d}.jsonl"
        entries.append(LoggedStep(split, line["step"], metrics, episodes, again=True))
    return entries


def main() -> None:
    seal_process()
    lines, answers = os.fdopen(os.dup(0), "rb"), Answers(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what trackers print goes to the log
    begin = json.loads(lines.readline())
    os.environ.update(begin["environment"])
    folder, config = Path(begin["folder"]), RunConfig.model_validate(begin["config"])
    plugins = load_plugins(config.plugins, demand=False)
    earlier = _earlier(folder)
    workers = [
        Worker(name, origin, folder, config, plugins, earlier, answers) for name, origin in begin["origins"].items()
    ]
    for worker in workers:
        worker.start()
    begun = False
    for line in lines:
        message = json.loads(line)
        if "close" in message:
            entry = None
            set_niceness(0, _all_threads())
        else:
            message["episodes"] = message["episodes"] and Path(message["episodes"])
            entry = LoggedStep(**message)
            if not begun:
                begun = True
                gc.freeze()  # the collector would look through the imported packages again and again
                set_niceness(_NICE, _all_threads())
        for worker in workers:
            worker.give(entry)
    sys.stderr.flush()
    os._exit(0)  # the run has gone; threads and exit handlers of packages could hang


if __name__ == "__main__":
    main()
