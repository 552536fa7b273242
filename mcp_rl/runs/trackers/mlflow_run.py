"""Curves and traces in MLflow: at the server that MLFLOW_TRACKING_URI names, else in a database beside the runs."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from mcp_rl.errors import NotDelivered
from mcp_rl.runs.trackers.otel_spans import SpanMaker
from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.runs.trackers.spans import Kind, Span, traces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup

for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "true",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow  # noqa: E402 - reads these variables
from mlflow.entities import Metric  # noqa: E402
from mlflow.entities import Span as MlflowSpan  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.tracing.client import TracingClient  # noqa: E402
from mlflow.tracing.constant import SpanAttributeKey  # noqa: E402

_TAG = "mcp_rl.run_id"
_MOST_LINKS = 100
"""Traces that one request links to a run, as MLflow allows."""
_TYPES: Mapping[Kind, str] = {"episode": "AGENT", "turn": "CHAT_MODEL", "tool": "TOOL", "judge": "EVALUATOR"}


class MlflowRun:
    """An MLflow run for all sessions of a run, in the experiment of its project, with traces of some episodes."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        runs = config.output_dir.absolute()
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs / 'mlflow.db'}"
        mlflow.set_tracking_uri(uri)
        self._client = mlflow.MlflowClient(uri)
        self._tracing = TracingClient(uri)
        where = None if "MLFLOW_TRACKING_URI" in os.environ else (runs / "mlflow").as_uri()
        known = self._client.get_experiment_by_name(config.project)
        self._experiment = (
            known.experiment_id if known else self._client.create_experiment(config.project, artifact_location=where)
        )
        self._run = self._opened(run_id(folder))
        self._maker = SpanMaker(run_id(folder), _attributes)

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
        """Log the traces of `tracking.episodes` episodes, all in one request. Raises NotDelivered.

        Through MLflow's functions for one span, which make a transaction of each, it would take ten times as long.
        """
        found = traces(self._config, split, step, {}, groups, update, self._config.tracking.episodes)
        spans = [MlflowSpan(span) for trace in found if trace.kind == "episode" for span in self._maker.spans(trace)]
        ids = [span.trace_id for span in spans if span.parent_id is None]
        try:
            self._tracing.log_spans(self._experiment, spans)
            for start in range(0, len(ids), _MOST_LINKS):
                self._client.link_traces_to_run(ids[start : start + _MOST_LINKS], self._run)
        except MlflowException as error:
            raise NotDelivered(f"MLflow takes no traces: {error}") from error
        except NotImplementedError as error:  # folders as stores, and servers before 3.4
            print(f"MLflow at {self._tracing.tracking_uri} keeps no traces, only curves: {error}")

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


def _attributes(span: Span, trace_id: int) -> dict[str, str]:
    """Return the attributes of a span as MLflow keeps them: as JSON, with some of its own names."""
    attributes = {
        **span.attributes,
        SpanAttributeKey.REQUEST_ID: f"tr-{trace_id:032x}",
        SpanAttributeKey.SPAN_TYPE: _TYPES.get(span.kind, "UNKNOWN"),
        SpanAttributeKey.INPUTS: span.inputs,
        SpanAttributeKey.OUTPUTS: span.outputs,
        SpanAttributeKey.LLM_COST: {},  # else MLflow looks for a price, and imports LiteLLM for it: 4 s
        "error.type": span.error,
    }
    return {name: json.dumps(value) for name, value in attributes.items() if value is not None}
