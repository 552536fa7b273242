"""Curves and traces in MLflow: at the server that MLFLOW_TRACKING_URI names, else in a database beside the runs."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import NotDelivered
from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.runs.trackers.spans import Kind, Span, traces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup

for _name, _value in {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",  # this thread may wait
    "MLFLOW_ENABLE_OTLP_EXPORTER": "false",  # the collector is that of the tracker otlp
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow  # noqa: E402 - reads these variables
from mlflow.entities import Metric, SpanStatusCode  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402

_TAG = "mcp_rl.run_id"
_TYPES: Mapping[Kind, str] = {"episode": "AGENT", "turn": "CHAT_MODEL", "tool": "TOOL", "judge": "EVALUATOR"}


class MlflowRun:
    """An MLflow run for all sessions of a run, in the experiment of its project, with traces of some episodes."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        runs = config.output_dir.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs / 'mlflow.db'}"
        mlflow.set_tracking_uri(uri)
        self._client = mlflow.MlflowClient(uri)
        where = None if "MLFLOW_TRACKING_URI" in os.environ else (runs / "mlflow").as_uri()
        known = self._client.get_experiment_by_name(config.project)
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(config.project, artifact_location=where)
        )
        self._run = self._opened(run_id(folder))

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Log each metric as `train/…` or `val/…`. Raises NotDelivered."""
        now = int(time.time() * 1000)
        values = [Metric(f"{split}/{name}", value, now, step) for name, value in metrics.items()]
        try:
            self._client.log_batch(self._run, values)
        except MlflowException as error:
            raise NotDelivered(f"MLflow takes no metrics: {error}") from error

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Log the traces of `tracking.episodes` episodes."""
        for trace in traces(self._config, split, step, {}, groups, update, self._config.tracking.episodes):
            if trace.kind == "episode":
                self._record(trace, None)

    def close(self) -> None:
        self._client.set_terminated(self._run)

    def _opened(self, ours: str) -> str:
        """Continue the run of earlier sessions, or begin one; return its id there."""
        found = self._client.search_runs([self._experiment], f"tags.`{_TAG}` = '{ours}'", max_results=1)
        if found:
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return str(found[0].info.run_id)
        begun = self._client.create_run(self._experiment, run_name=self._config.name, tags={_TAG: ours})
        return str(begun.info.run_id)

    def _record(self, span: Span, parent: Any) -> None:
        recorded = mlflow.start_span_no_context(
            span.name,
            _TYPES.get(span.kind, "UNKNOWN"),
            parent,
            inputs=span.inputs,
            attributes=span.attributes,
            metadata={"mlflow.sourceRun": self._run, "mlflow.trace.session": span.key} if parent is None else None,
            experiment_id=self._experiment if parent is None else None,
            start_time_ns=round(span.period[0] * 1e9),
        )
        for child in span.children:
            self._record(child, recorded)
        status = SpanStatusCode.ERROR if span.error else SpanStatusCode.OK
        recorded.end(outputs=span.outputs, status=status, end_time_ns=round(span.period[1] * 1e9))
