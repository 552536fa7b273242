"""A server on loopback with what Weave's client needs to send calls: a login, a project, and places for calls."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.runs.receiver import Receiver, receiving


@dataclass
class WeaveServer:
    """A running server and the requests posted to it."""

    url: str = ""
    sent: list[tuple[str, Any]] = field(default_factory=list)
    """The path and the body of each request; the body is decoded if it is JSON."""

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
    found = WeaveServer()

    class Weave(Receiver):
        def do_POST(self) -> None:
            body = self.body()
            is_json = self.headers.get("content-type", "").startswith("application/json")
            found.sent.append((self.path, json.loads(body) if is_json else body))
            viewer = {"username": "me", "entity": "me", "defaultEntity": {"name": "me"}, "teams": {"edges": []}}
            answer: dict[str, Any] = {"digest": "d" * 20, "res": []}
            if self.path == "/graphql":
                model = {"model": {"name": "default", "id": "1"}, "project": {"name": "default"}}
                answer = {"data": {"viewer": viewer, "upsertModel": model, "project": {"name": "default"}}}
            self._json(answer)

        def do_GET(self) -> None:
            self._json({"min_required_weave_python_version": "0.0.1", "trace_server_version": "1.0.0"})

        def _json(self, answer: dict[str, Any]) -> None:
            self.answer(json.dumps(answer).encode(), "application/json")

    with receiving(Weave) as found.url:
        yield found
