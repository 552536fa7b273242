"""Read the episodes of unfinished batches as they are appended to `live/episodes.jsonl`."""

from __future__ import annotations

import json
import os
import re
from typing import IO, TYPE_CHECKING, Any

from pydantic import ValidationError

from mcp_rl.errors import McpRlError
from mcp_rl.evaluation.page.episodes import pack_unfinished
from mcp_rl.evaluation.page.of_run import source_label
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.live import EPISODES
from mcp_rl.trajectory import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from pathlib import Path

    from mcp_rl.scenario import McpScenario

_MOST_BYTES = 4_000_000
"""Bytes that are read at once; the rest is read the next time."""
_MOST_GROUPS = 60
"""Groups that are told at once, the newest."""
_BATCH = re.compile(r"(?:(step)|evaluation, after step) (\d+)|evaluation, (?:base model|before training)")


def batch_label(title: str) -> tuple[str, str]:
    """Return what the page will call the episodes of a batch once it is done, and their split."""
    if (found := _BATCH.fullmatch(title)) is None:
        return title, "val"
    split = "train" if found[1] else "val"
    return source_label(split, int(found[2] or 0)), split


class EpisodeTail:
    """The groups of unfinished batches, read as far as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: tuple[int, int] = 0, 0
        """The file's inode, and the bytes of it that were read."""
        self._groups: dict[tuple[str, str], TrajectoryGroup] = {}
        self._changed: dict[tuple[str, str], int] = {}
        self._scenarios: dict[str, McpScenario] = {}
        self.at = 0
        """Number of the newest change."""

    def read(self) -> None:
        """Read what was appended since the last call."""
        try:
            with (self._folder / EPISODES).open("rb") as file:
                lines = self._new_lines(file)
        except OSError:
            return
        for line in lines:
            self._take(line)

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the groups that changed since a number of `at`, the oldest change first, packed for the page."""
        changed = sorted((at, key) for key, at in self._changed.items() if at > number)[-_MOST_GROUPS:]
        found = []
        for _, key in changed:
            label, split = batch_label(key[0])
            found.append({"label": label, "split": split, **pack_unfinished(self._groups[key])})
        return found

    def _new_lines(self, file: IO[bytes]) -> list[bytes]:
        inode, taken = self._file
        file.seek(0, 2)
        found = os.fstat(file.fileno())
        if found.st_ino != inode or found.st_size < taken:
            taken, self._groups, self._changed = 0, {}, {}
        file.seek(taken)
        content = file.read(_MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        self._file = found.st_ino, taken + len(whole)
        return whole.splitlines()

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            title, episode = str(entry["batch"]), Trajectory.model_validate(entry["episode"])
        except (ValueError, KeyError, TypeError, ValidationError):
            return
        if (scenario := self._scenario(episode.scenario_id)) is None:
            return
        key = title, scenario.id
        group = self._groups.setdefault(key, TrajectoryGroup(scenario=scenario))
        seeds = [each.seed for each in group]
        if episode.seed in seeds:  # a judge has scored it since
            group.trajectories[seeds.index(episode.seed)] = episode
        else:
            group.trajectories.append(episode)
        self.at += 1
        self._changed[key] = self.at

    def _scenario(self, id: str) -> McpScenario | None:
        if not self._scenarios:
            try:
                run = RunDirectory(self._folder)
                every = [scenario for split in ("train", "val") for scenario in run.scenarios(split) or ()]
            except McpRlError:
                every = []
            self._scenarios = {scenario.id: scenario for scenario in every}
        return self._scenarios.get(id)
