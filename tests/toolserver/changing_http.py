"""The server of `changing_server.py` over HTTP in this process, so that a test can inspect and control it."""

import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mcp_rl.scenario import SseServer, StdioServer, StreamableHttpServer
from tests.toolserver.changing_server import Service

TRANSPORTS = ("stdio", "sse", "streamable-http")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.service = Service()
        self.sessions = 0
        """Number of sessions so far."""
        self.streams: dict[str, queue.Queue[dict[str, Any] | None]] = {}
        """The streams of each session that the server knows."""
        self.lost: set[str] = set()
        """Sessions whose streams are open and carry nothing any more."""
        self.post_status = 0
        """An HTTP status for every message that is posted; 0: the right one."""

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that have disconnected."""

    def new_session(self) -> str:
        self.sessions += 1
        session = f"s{self.sessions}"
        self.streams[session] = queue.Queue()
        return session

    def tell(self, method: str) -> None:
        """Send a notification on every stream that a client keeps open for notifications."""
        for stream in self.streams.values():
            stream.put({"jsonrpc": "2.0", "method": method})

    def forget_sessions(self) -> None:
        """Behave like a restarted server: end the streams and forget the sessions."""
        for stream in self.streams.values():
            stream.put(None)
        self.streams.clear()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        session = self.headers["mcp-session-id"] if self.path == "/mcp" else self.server.new_session()
        self.begin_stream()
        stream = self.server.streams[session]
        if self.path == "/sse":
            self.event("endpoint", f"/messages?{session}")
        while (message := stream.get()) is not None:
            self.event("message", json.dumps(message))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.post_status:
            self.empty(self.server.post_status)
            return
        if self.path == "/mcp":
            self.answer_in_place(request)
            return
        session = self.path.partition("?")[2]
        stream = self.server.streams.get(session)
        self.empty(202 if stream else 404)
        if stream and session not in self.server.lost:
            self.server.service.handle(request, stream.put)

    def do_DELETE(self) -> None:
        self.empty(200)

    def answer_in_place(self, request: dict[str, Any]) -> None:
        first = request["method"] == "initialize"
        session = self.server.new_session() if first else self.headers["mcp-session-id"]
        if session not in self.server.streams or "id" not in request:
            self.empty(202 if session in self.server.streams else 404)
            return
        self.begin_stream(("mcp-session-id", session))
        while session in self.server.lost and session in self.server.streams:
            time.sleep(0.02)
        self.server.service.handle(request, lambda message: self.event("message", json.dumps(message)))

    def begin_stream(self, *headers: tuple[str, str]) -> None:
        self.close_connection = True
        self.send_response(200)
        for name, value in (("content-type", "text/event-stream"), ("connection", "close"), *headers):
            self.send_header(name, value)
        self.end_headers()

    def event(self, kind: str, data: str) -> None:
        self.wfile.write(f"event: {kind}\ndata: {data}\n\n".encode())
        self.wfile.flush()

    def empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()


@contextmanager
def serving(transport: str) -> Iterator[tuple[Server, SseServer | StreamableHttpServer]]:
    """Run the server over HTTP in this process; give it with its connection parameters."""
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield server, SseServer(url=f"{url}/sse") if transport == "sse" else StreamableHttpServer(url=f"{url}/mcp")
        finally:
            server.forget_sessions()
            server.shutdown()
            thread.join()


@contextmanager
def reached(transport: str) -> Iterator[StdioServer | SseServer | StreamableHttpServer]:
    """Give the connection parameters of the server for a transport."""
    if transport == "stdio":
        yield StdioServer(command="{python}", args=("-S", str(Path(__file__).with_name("changing_server.py"))))
        return
    with serving(transport) as (_, params):
        yield params
