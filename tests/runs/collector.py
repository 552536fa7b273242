"""An OpenTelemetry collector on loopback: a server that decodes and keeps the spans sent to it over OTLP/HTTP."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.runs.receiver import Receiver, receiving


@dataclass
class Collector:
    """A running collector and the spans that it has received."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    """All spans, in the order of their arrival."""
    resource: dict[str, Any] = field(default_factory=dict)
    """The attributes of the senders, merged."""
    bodies: list[bytes] = field(default_factory=list)
    """The bodies of the requests, uncompressed."""
    status: int = 200
    """The HTTP status of its answers; with any but 200 it keeps nothing of a request."""

    def roots(self, name: str) -> list[Span]:
        """Return the roots of traces whose name begins like this."""
        return [span for span in self.spans if span.name.startswith(name) and not span.parent_span_id]

    def below(self, root: Span) -> list[Span]:
        """Return the children of a span in the order of their beginnings."""
        children = [span for span in self.spans if span.parent_span_id == root.span_id]
        return sorted(children, key=lambda span: span.start_time_unix_nano)


def attributes(thing: Any) -> dict[str, Any]:
    """Return the attributes of a span, event or resource as plain values."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in thing.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector."""
    collector = Collector()

    class Otlp(Receiver):
        def do_POST(self) -> None:
            body = self.body()
            body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
            assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if collector.status == 200:
                collector.bodies.append(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resource |= attributes(resource.resource)
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.answer(answer, "application/x-protobuf", collector.status)

    with receiving(Otlp) as collector.url:
        yield collector
