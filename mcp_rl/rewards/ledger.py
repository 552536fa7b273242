"""Every request to a judge, a line each on disk: what it took and what came of it.

Money that was spent stays spent: a run that is continued reads what its earlier sessions took, so that a cost limit
holds for the whole run.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from mcp_rl.language_model import Call, Spent


class Ledger:
    """The requests of a run. `path` is a JSON Lines file, or None to keep them in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._since = Spent()
        self._verdicts: list[Mapping[str, Any]] = []
        self.spent = Spent()
        """All sessions together. A judge that shares it adds to it."""
        content = path.read_bytes() if path and path.exists() else b""
        self._cut_off = bool(content) and not content.endswith(b"\n")
        for line in content.splitlines():
            self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            call = Call(**json.loads(line))
        except (ValueError, TypeError):  # cut off by a kill
            return
        _count(self.spent, call)

    def add(self, call: Call) -> None:
        """One request is over."""
        _count(self._since, call)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" * self._cut_off + json.dumps(asdict(call), ensure_ascii=False) + "\n")
            self._cut_off = False

    def recall(self, call: Call) -> None:
        """A request that an earlier session paid for belongs to the step that is played again."""
        _count(self._since, call)

    def judged(self, about: Mapping[str, Any]) -> None:
        """A group got its verdict, `metadata["judge"]`."""
        self._verdicts.append(about)

    def take(self) -> dict[str, float]:
        """Metrics since the last time: requests, refused ones, tokens, cost in US dollars, mean seconds of a request,
        share of groups from the cache, and where they were measured agreement and noise. Empty where nothing was."""
        since, verdicts = self._since, self._verdicts
        self._since, self._verdicts = Spent(), []
        if not since.calls and not verdicts:
            return {}
        metrics = {
            "judge_calls": float(since.calls),
            "judge_refused": float(since.refused),
            "judge_tokens": float(since.prompt_tokens + since.completion_tokens),
            "judge_cost_usd": since.cost_usd,
        }
        if since.calls:
            metrics["judge_seconds"] = since.seconds / since.calls
        if verdicts:
            metrics["judge_cached"] = fmean(bool(about["cached"]) for about in verdicts)
        for name in ("agreement", "noise"):
            if measured := [float(about[name]) for about in verdicts if name in about]:
                metrics[f"judge_{name}"] = fmean(measured)
        return metrics


def _count(spent: Spent, call: Call) -> None:
    spent.calls += 1
    spent.refused += call.problem is not None
    spent.prompt_tokens += call.prompt_tokens
    spent.completion_tokens += call.completion_tokens
    spent.cost_usd += call.cost_usd
    spent.seconds += call.seconds
