"""Spans as objects of OpenTelemetry's SDK, with ids that follow from the run and from the place in it.

They are made as finished spans rather than through a tracer: a tracer takes several times as long for each span, and
these spans have ended long ago.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from mcp_rl.runs.trackers.spans import Span

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NO_RESOURCE = Resource.get_empty()
"""Without a resource, the SDK would look at the machine for each span, with threads."""


class SpanMaker:
    """Makes the spans of one run. `attributes(span, trace_id)` returns the attributes of a span."""

    def __init__(
        self,
        run: str,
        attributes: Callable[[Span, int], Mapping[str, Any]],
        events: Callable[[Span], list[Event]] = lambda span: [],
        resource: Resource = _NO_RESOURCE,
        scope: InstrumentationScope | None = None,
    ) -> None:
        self._run, self._attributes, self._events = run, attributes, events
        self._resource, self._scope = resource, scope

    def trace_id(self, key: str) -> int:
        """Return the id of the trace with this key, which need not exist yet."""
        return self._id(16, key)

    def spans(self, trace: Span) -> list[ReadableSpan]:
        """Return the spans of a trace, its root first."""
        made: list[ReadableSpan] = []
        self._add(trace, trace.key, None, made)
        return made

    def _add(self, span: Span, trace: str, parent: SpanContext | None, made: list[ReadableSpan]) -> None:
        context = self._context(trace, len(made) + 1, is_remote=False)
        made.append(
            ReadableSpan(
                span.name,
                context,
                parent,
                attributes=self._attributes(span, context.trace_id),
                events=self._events(span),
                links=[Link(self._context(key, 1, is_remote=True)) for key in span.about],
                kind=SpanKind.CLIENT if span.kind in ("tool", "judge") else SpanKind.INTERNAL,
                status=Status(StatusCode.UNSET if span.error is None else StatusCode.ERROR),
                start_time=nanoseconds(span.period[0]),
                end_time=nanoseconds(span.period[1]),
                resource=self._resource,
                instrumentation_scope=self._scope,
            )
        )
        for child in span.children:
            self._add(child, trace, context, made)

    def _context(self, trace: str, number: int, *, is_remote: bool) -> SpanContext:
        """Return the context of a trace's span; 1 is the root."""
        return SpanContext(self._id(16, trace), self._id(8, trace, number), is_remote, _SAMPLED)

    def _id(self, length: int, *parts: object) -> int:
        return int.from_bytes(hashlib.sha256(repr((self._run, *parts)).encode()).digest()[:length], "big")


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
