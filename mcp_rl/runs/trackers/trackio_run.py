"""Curves and traces in Trackio: on this machine, or in the Space or at the server that its own variables name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trackio

from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.runs.trackers.run_summary import settings_of
from mcp_rl.runs.trackers.spans import Kind, Span, traces

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup

_KINDS: Mapping[Kind, str] = {"turn": "generation", "judge": "generation", "tool": "tool"}


class TrackioRun:
    """A Trackio run for all sessions of a run, with traces of some episodes.

    Trackio continues runs by their names, so the name ends with a part of the run's id.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        self._run: Any = trackio.init(
            project=config.project,
            name=f"{config.name}-{run_id(folder)[:6]}",
            config=settings_of(config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric under `train/` or `val/`."""
        self._run.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log the traces of `tracking.episodes` episodes."""
        found = traces(self._config, split, step, {}, groups, update, self._config.tracking.episodes)
        logged = [_trace(trace) for trace in found if trace.kind == "episode"]
        if logged:
            self._run.log({f"{split}/episodes": logged}, step=step)

    def close(self) -> None:
        self._run.finish()


def _trace(trace: Span) -> Any:
    messages = [*(trace.inputs or ()), *(trace.outputs or ())]
    spans = [_span(span, str(number), parent) for number, (span, parent) in enumerate(_flat(trace))]
    return trackio.Trace(messages, metadata=dict(trace.attributes), spans=spans)


def _flat(trace: Span) -> Iterator[tuple[Span, str | None]]:
    """Yield the spans of an episode, each with the id of its parent: the root has the id 0."""
    yield trace, None
    for child in trace.children:
        yield child, "0"


def _span(span: Span, own: str, parent: str | None) -> dict[str, Any]:
    usage = {
        name: span.attributes[f"gen_ai.usage.{name}"]
        for name in ("input_tokens", "output_tokens")
        if f"gen_ai.usage.{name}" in span.attributes
    }
    return {
        "id": own,
        "parent_id": parent,
        "name": span.name,
        "kind": _KINDS.get(span.kind, "span"),
        "start_time": span.period[0],
        "end_time": span.period[1],
        "duration_ms": 1000 * (span.period[1] - span.period[0]),
        "status": "error" if span.error else "ok",
        "error": span.error,
        "input": span.inputs,
        "output": span.outputs,
        "usage": usage or None,
    }
