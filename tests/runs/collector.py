"""A collector on loopback: an OTLP/HTTP receiver that decodes what it is sent."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What was received, in order."""

    url: str
    spans: list[Span] = field(default_factory=list)
    resource: dict[str, Any] = field(default_factory=dict)
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200

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

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
            assert self.path == "/v1/traces" and self.headers["content-type"] == "application/x-protobuf"
            if collector.status == 200:
                collector.bodies.append(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    collector.resource |= attributes(resource.resource)
                    collector.spans += [span for scope in resource.scope_spans for span in scope.spans]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(collector.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
