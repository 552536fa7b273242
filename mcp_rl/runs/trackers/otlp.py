"""Traces for any collector that speaks OTLP over HTTP.

The collector, headers, certificates and resource attributes come from OpenTelemetry's own environment variables, such
as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from mcp_rl.errors import NotDelivered
from mcp_rl.runs.trackers.otel_spans import SpanMaker, nanoseconds
from mcp_rl.runs.trackers.run_id import run_id
from mcp_rl.runs.trackers.spans import Span, message_parts, traces
from mcp_rl.system.version import own_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mcp_rl.config import RunConfig
    from mcp_rl.plugins.parts import Split
    from mcp_rl.trajectory import Period, TrajectoryGroup

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"
_MOST_SPANS = 512
"""Spans of one request, as of the SDK's own processor."""


class OpenTelemetryTraces:
    """A trace for each episode, step and evaluation.

    The ids follow from the run and from the place in it, so spans that are sent twice are the same spans.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        self._config = config
        self._exporter = OTLPSpanExporter()
        service = os.environ.get("OTEL_SERVICE_NAME") or "mcp-rl"
        resource = Resource.create({"service.name": service, "service.version": own_version() or ""})
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # as the variables of OpenTelemetry say
        self._longest = SpanLimits().max_span_attribute_length
        scope = InstrumentationScope("mcp_rl", own_version())
        self._maker = SpanMaker(run_id(folder), self._attributes, _events, resource, scope)
        self._metrics: Mapping[str, float] = {}

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics, which are attributes of the trace of the step or evaluation."""
        self._metrics = metrics

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Send the traces. Raises NotDelivered."""
        found = traces(self._config, split, step, self._metrics, groups, update)
        spans = [span for trace in found if self._is_sampled(trace) for span in self._maker.spans(trace)]
        for start in range(0, len(spans), _MOST_SPANS):
            if self._exporter.export(spans[start : start + _MOST_SPANS]) is not SpanExportResult.SUCCESS:
                address = next(filter(None, map(os.environ.get, _ENDPOINTS)), _DEFAULT_ENDPOINT)
                raise NotDelivered(f"the collector at {address} does not take spans (see logs/trackers.log).")

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _is_sampled(self, trace: Span) -> bool:
        sampled = self._sampler.should_sample(None, self._maker.trace_id(trace.key), trace.name)
        return sampled.decision is Decision.RECORD_AND_SAMPLE

    def _attributes(self, span: Span, trace_id: int) -> dict[str, Any]:
        kept = {name: value for name, value in span.attributes.items() if value is not None}
        error = {} if span.error is None else {"error.type": span.error}
        return {**kept, **error, **{name: text[: self._longest] for name, text in _texts(span).items()}}


def _events(span: Span) -> list[Event]:
    if "mcp_rl.reward" not in span.attributes:
        return []
    return [Event("gen_ai.evaluation.result", _verdict(span), nanoseconds(span.period[1]))]


def _texts(span: Span) -> dict[str, str]:
    """Return a span's texts as the conventions name them, as JSON; empty if it has none."""
    if span.kind == "tool":
        call = {"gen_ai.tool.call.arguments": span.inputs, "gen_ai.tool.call.result": span.outputs}
        return {name: text if isinstance(text, str) else _json(text) for name, text in call.items() if text is not None}
    found = {"gen_ai.input.messages": span.inputs, "gen_ai.output.messages": span.outputs}
    return {name: _json([message_parts(one) for one in messages]) for name, messages in found.items() if messages}


def _verdict(span: Span) -> dict[str, Any]:
    verdict = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": span.attributes["mcp_rl.reward"]}
    if (success := span.attributes.get("mcp_rl.success")) is not None:
        verdict["gen_ai.evaluation.score.label"] = "pass" if success else "fail"
    if explanation := span.attributes.get("mcp_rl.explanation"):
        verdict["gen_ai.evaluation.explanation"] = explanation
    return verdict


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
