"""The servers of `soak.py`, which break at random, and the log of their calls."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcp_rl.config import Isolation
from mcp_rl.scenario import Launch, OneServer, SseServer, StdioServer, StreamableHttpServer

HOSTILE = Path(__file__).resolve().parent.parent / "tests/faults/hostile_server.py"


@dataclass(frozen=True)
class Kind:
    """A kind of server, and the file in which it logs its calls."""

    transport: str
    isolation: Isolation
    log: Path
    place: Path
    """A folder in which its calls leave files."""
    collector: int
    """The port to which it sends the lines of its log; 0 if it writes them."""

    @property
    def name(self) -> str:
        return f"{self.transport}-{self.isolation}"

    def params(self, chance: float, seed: int, bad_start: float) -> OneServer:
        drawn = ("--chance", str(chance), "--seed", str(seed), "--bad-start", str(bad_start))
        args = ("-I", "-S", str(HOSTILE), "--transport", self.transport, "--log", str(self.log), *drawn)
        if self.collector:
            args += ("--collector", str(self.collector))
            args += ("--place", str(self.place)) if self.isolation in ("layer", "per-rollout") else ()
        if self.transport == "stdio":
            return StdioServer(command="{python}", args=args)
        launch = Launch(command="{python}", args=(*args, "--port", "{port}"))
        if self.transport == "sse":
            return SseServer(url="http://127.0.0.1:{port}/sse", launch=launch)
        return StreamableHttpServer(url="http://127.0.0.1:{port}/mcp", launch=launch)


class _Line(socketserver.StreamRequestHandler):
    """Writes a line that a server sends into the log that it names."""

    def handle(self) -> None:
        line = json.loads(self.rfile.readline())
        with Path(line.pop("log")).open("a") as log:
            log.write(json.dumps(line) + "\n")
        self.wfile.write(b".")


class _Collector(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 128


@contextmanager
def collecting(wanted: bool) -> Iterator[int]:
    """Give the port to which servers in sandboxes send their logs; 0 if that is not wanted."""
    if not wanted:
        yield 0
        return
    with _Collector(("127.0.0.1", 0), _Line) as collector:
        thread = threading.Thread(target=collector.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector.server_address[1]
        finally:
            collector.shutdown()
            thread.join()
