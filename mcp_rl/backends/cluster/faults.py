"""The log of what a run lost on its cluster, and what was done about it: `logs/cluster.jsonl`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from mcp_rl.system.notices import notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAULTS = "cluster.jsonl"


class FaultLog:
    """Appends a line for each event, and tells the user of those that matter."""

    def __init__(self, logs: Path, say: Callable[[str], None] = notice) -> None:
        self._path, self._say = logs / FAULTS, say

    def add(self, who: str, what: str, *, told: bool = True) -> None:
        """Log that something happened to a part of the cluster; tell the user too unless not `told`."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"unix_seconds": round(time.time(), 3), "who": who, "what": what}) + "\n")
        if told:
            self._say(f"{who}: {what}.")
