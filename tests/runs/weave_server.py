"""A server on loopback with what Weave's client needs to send calls: a login, a project, and places for calls."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class WeaveServer:
    """Its address, and what was posted there."""

    url: str
    sent: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a client."""
        return {"WANDB_API_KEY": "a" * 40, "WANDB_BASE_URL": self.url, "WF_TRACE_SERVER_URL": self.url}

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The finished calls."""
        return [call for path, body in self.sent if path.endswith("/calls/complete") for call in body["batch"]]


@contextmanager
def serving_weave() -> Iterator[WeaveServer]:
    """Run the server."""

    class Weave(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            is_json = self.headers.get("content-type", "").startswith("application/json")
            found.sent.append((self.path, json.loads(body) if is_json else body))
            viewer = {"username": "me", "entity": "me", "defaultEntity": {"name": "me"}, "teams": {"edges": []}}
            answer: dict[str, Any] = {"digest": "d" * 20, "res": []}
            if self.path == "/graphql":
                model = {"model": {"name": "default", "id": "1"}, "project": {"name": "default"}}
                answer = {"data": {"viewer": viewer, "upsertModel": model, "project": {"name": "default"}}}
            self._answer(answer)

        def do_GET(self) -> None:
            self._answer({"min_required_weave_python_version": "0.0.1", "trace_server_version": "1.0.0"})

        def _answer(self, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Weave) as server:
        found = WeaveServer(f"http://127.0.0.1:{server.server_port}")
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
