"""The requests to a run's judges, one line each on disk: tokens, cost, seconds and any problem.

A continued run reads the costs of its earlier sessions, so that a cost limit holds for the whole run.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mcp_rl.inference.apis.language_model import ModelRequest, Spent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Ledger:
    """The requests of a run. `path` is a JSON Lines file, or None to keep them in memory alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._since = Spent()
        self._verdicts: list[Mapping[str, Any]] = []
        self.spent = Spent()
        """Totals of all sessions, shared with the judges."""
        content = path.read_bytes() if path and path.exists() else b""
        self._cut_off = bool(content) and not content.endswith(b"\n")
        for line in content.splitlines():
            self._read(line)

    def _read(self, line: bytes) -> None:
        try:
            call = ModelRequest(**json.loads(line))
        except (ValueError, TypeError):  # a line cut off by a kill
            return
        _count(self.spent, call)

    def add(self, call: ModelRequest) -> None:
        """Record a request that has ended."""
        _count(self._since, call)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n" * self._cut_off + json.dumps(asdict(call), ensure_ascii=False) + "\n")
            self._cut_off = False

    def recall(self, call: ModelRequest) -> None:
        """Count a request that an earlier session paid for to the step that is played again."""
        _count(self._since, call)

    def judged(self, about: Mapping[str, Any]) -> None:
        """Record the verdict on a group, its `metadata["judge"]`."""
        self._verdicts.append(about)

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call: requests, refused requests, tokens, cost in US dollars, mean seconds
        of a request, share of groups from the cache, and agreement and noise if measured. Empty if there was nothing.
        """
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


def _count(spent: Spent, call: ModelRequest) -> None:
    spent.calls += 1
    spent.refused += call.problem is not None
    spent.prompt_tokens += call.prompt_tokens
    spent.completion_tokens += call.completion_tokens
    spent.cost_usd += call.cost_usd
    spent.seconds += call.seconds
