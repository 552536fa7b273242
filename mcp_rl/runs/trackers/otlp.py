"""Traces for any collector that speaks OTLP over HTTP.

The collector, headers, certificates and resource attributes come from OpenTelemetry's own environment variables, such
as OTEL_EXPORTER_OTLP_ENDPOINT.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, set_span_in_context

from mcp_rl.errors import NotDelivered
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
        self._ids = _Ids(run_id(folder))
        self._ended = _Ended()
        service = os.environ.get("OTEL_SERVICE_NAME") or "mcp-rl"
        resource = Resource.create({"service.name": service, "service.version": own_version() or ""})
        provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("mcp_rl", own_version())
        self._metrics: Mapping[str, float] = {}

    def log(self, split: Split, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics, which are attributes of the trace of the step or evaluation."""
        self._metrics = metrics

    def log_trajectories(
        self, split: Split, step: int, groups: Sequence[TrajectoryGroup], update: Period | None
    ) -> None:
        """Send the traces. Raises NotDelivered."""
        for trace in traces(self._config, split, step, self._metrics, groups, update):
            self._ids.begin(trace.key)
            self._record(trace, Context())
        spans = self._ended.take()
        for start in range(0, len(spans), _MOST_SPANS):
            if self._exporter.export(spans[start : start + _MOST_SPANS]) is not SpanExportResult.SUCCESS:
                address = next(filter(None, map(os.environ.get, _ENDPOINTS)), _DEFAULT_ENDPOINT)
                raise NotDelivered(f"the collector at {address} does not take spans (see logs/trackers.log).")

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _record(self, span: Span, parent: Context) -> None:
        recorded = self._tracer.start_span(
            span.name,
            parent,
            kind=SpanKind.CLIENT if span.kind in ("tool", "judge") else SpanKind.INTERNAL,
            attributes={**span.attributes, **_texts(span)},
            links=[Link(self._ids.root(key)) for key in span.about],
            start_time=_nanoseconds(span.period[0]),
        )
        for child in span.children:
            self._record(child, set_span_in_context(recorded, parent))
        if span.error is not None:
            recorded.set_attribute("error.type", span.error)
            recorded.set_status(Status(StatusCode.ERROR))
        if "mcp_rl.reward" in span.attributes:
            recorded.add_event("gen_ai.evaluation.result", _verdict(span), _nanoseconds(span.period[1]))
        recorded.end(_nanoseconds(span.period[1]))


class _Ids(IdGenerator):
    """Ids that are the same whenever the same trace is made."""

    def __init__(self, run: str) -> None:
        self._run, self._trace, self._spans = run, "", 0

    def begin(self, trace: str) -> None:
        """Begin a trace with this key."""
        self._trace, self._spans = trace, 0

    def generate_trace_id(self) -> int:
        return self._id(16, self._trace)

    def generate_span_id(self) -> int:
        self._spans += 1
        return self._id(8, self._trace, self._spans)

    def root(self, trace: str) -> SpanContext:
        """Return the root of a trace, which may not be made yet."""
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(self._id(16, trace), self._id(8, trace, 1), is_remote=True, trace_flags=sampled)

    def _id(self, length: int, *parts: object) -> int:
        return int.from_bytes(hashlib.sha256(repr((self._run, *parts)).encode()).digest()[:length], "big")


class _Ended(SpanProcessor):
    """Keeps the spans that have ended until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


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


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
