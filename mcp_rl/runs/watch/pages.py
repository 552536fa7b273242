"""The pages that are served: each is made again when the files of its runs have changed, but not too often."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import McpRlError
from mcp_rl.evaluation.page.of_run import KeptEpisodes, training_findings
from mcp_rl.evaluation.page.page import render
from mcp_rl.evaluation.page.plots import plots_page
from mcp_rl.run_directory import read_history, readable
from mcp_rl.runs.history import History
from mcp_rl.runs.watch.state import describe
from mcp_rl.runs.watch.tail import EpisodeTail, batch_label
from mcp_rl.system.collector import collector_paused
from mcp_rl.system.seals import HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mcp_rl.evaluation.tables import Grid

    Describe = Callable[[Sequence[History]], tuple[list[str], list[Grid]]]
    """Returns sentences and tables about histories."""

NOT_DRAWN = "0"
"""Version of the page that is served until the first one is drawn."""
BEING_DRAWN = "The curves and episodes are being drawn, and appear here in a few seconds."
SHARE = 0.1
"""Share of one processor that drawing a page may take."""
_SHOWN = ("model.json", "state.json", HISTORY, "report.json")
"""Files of a run that change when its page does."""


class ServedPage(ABC):
    """A page, its versions, and what it tells of runs that go on."""

    def __init__(self, folders: Sequence[Path], names: Sequence[str]) -> None:
        self.folders, self.names = list(folders), list(names)
        self.html = b""
        self.version = 0
        self.problem: str | None = None
        """The reason why the newest version could not be made, in a sentence."""
        self._longest = [0.0] * len(self.folders)
        """For each run the seconds of its longest step, as of this version."""
        self._shows: object = None
        self._not_before = 0.0

    @property
    def due(self) -> bool:
        """True if a new version should be made."""
        return time.monotonic() >= self._not_before and self._shows != self._signature()

    def make(self) -> None:
        """Make a new version. A run that cannot be read leaves the last one, and a sentence."""
        signature, began = self._signature(), time.thread_time()
        try:
            with collector_paused(), readable(self.folders[0]):
                html = self._render(str(self.version + 1))
            self.problem = None
        except McpRlError as error:
            self.problem, html = str(error), self.html or self.empty(str(self.version + 1))
        if html is not self.html:
            self.html, self.version = html, self.version + 1
        self._shows, self._longest = signature, [_longest_step(folder) for folder in self.folders]
        self._not_before = time.monotonic() + (time.thread_time() - began) / SHARE

    def status(self) -> dict[str, Any]:
        """Return what changes from second to second."""
        runs = self._runs()
        counts = [f"{run['step']}/{run['steps']}" for run in runs if not run["ended"] and run["steps"]]
        title = f"{', '.join(counts)} {', '.join(self.names)}" if counts else ", ".join(self.names)
        return {
            "title": title.strip(),
            "runs": runs,
            "page": str(self.version),
            "problem": self.problem,
            "playing": sorted({batch_label(doing["title"])[0] for run in runs for doing in run["doing"]}),
            "episodes": 0,
        }

    def episodes(self, since: int) -> dict[str, Any]:
        """Return the groups of unfinished batches that changed since this number."""
        return {"at": 0, "groups": []}

    @abstractmethod
    def _render(self, version: str) -> bytes:
        """Return the page. Raises McpRlError."""

    def _runs(self) -> list[dict[str, Any]]:
        return [
            describe(folder, name, longest)
            for folder, name, longest in zip(self.folders, self.names, self._longest, strict=True)
        ]

    def empty(self, version: str) -> bytes:
        """Return a page without content, which asks for the next version."""
        sentences = (BEING_DRAWN,) if version == NOT_DRAWN else ()
        return plots_page({name: [] for name in self.names}, sentences, (), live=version)

    def _signature(self) -> object:
        return [_state_of(folder / name) for folder in self.folders for name in _SHOWN]


class RunPage(ServedPage):
    """The report of one run."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__([folder], [name])
        self._kept = KeptEpisodes()
        self._tail = EpisodeTail(folder)

    def status(self) -> dict[str, Any]:
        self._tail.read()
        return super().status() | {"episodes": self._tail.at}

    def episodes(self, since: int) -> dict[str, Any]:
        return {"at": self._tail.at, "groups": self._tail.since(since)}

    def _render(self, version: str) -> bytes:
        findings = training_findings(self.folders[0], self._kept)
        html = render(findings, live=version)
        self._kept.forget()
        return html.encode("utf-8", "replace")


class SeveralRunsPage(ServedPage):
    """The curves of several runs side by side, with their numbers; or of one run that has no episodes."""

    def __init__(self, folders: Sequence[Path], names: Sequence[str], describe: Describe) -> None:
        super().__init__(folders, names)
        self._describe = describe

    def _render(self, version: str) -> bytes:
        histories = [History.read(folder, name) for folder, name in zip(self.folders, self.names, strict=True)]
        sentences, tables = self._describe([history for history in histories if history.lines])
        return plots_page({each.name: each.lines for each in histories}, sentences, tables, live=version)

    def _runs(self) -> list[dict[str, Any]]:
        several = len(self.folders) > 1
        return [run | ({"href": f"{number}/"} if several else {}) for number, run in enumerate(super()._runs(), 1)]


def _state_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _longest_step(folder: Path) -> float:
    with suppress(McpRlError):
        return max((line.get("step_seconds") or 0.0 for line in read_history(folder)), default=0.0)
    return 0.0
