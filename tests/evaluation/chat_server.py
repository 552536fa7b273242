"""A chat-completions server on loopback whose turns come from a function."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.loopback import serving

Says = Callable[[dict[str, Any], int], "dict[str, Any] | Response"]
"""Answers a request, given its body and number, with a message that may hold `finish_reason`."""


def call(name: str, arguments: dict[str, Any] | str, id: str = "toolu_7") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"tool_calls": [{"id": id, "type": "function", "function": {"name": name, "arguments": text}}]}


def failure(status: int, message: str, code: str | None = None, **headers: str) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error", "code": code}}, status, headers)


@dataclass
class ChatServer:
    """A server that records its requests' bodies and keys."""

    says: Says
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        number = len(self.requests)
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        said = self.says(body, number)
        if isinstance(said, Response):
            return said
        finish = said.pop("finish_reason", "tool_calls" if said.get("tool_calls") else "stop")
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **said}, "finish_reason": finish}
        usage = {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}
        fields = {"id": "x", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
        return JSONResponse({**fields, "choices": [choice]})


@contextmanager
def serve(says: Says) -> Iterator[ChatServer]:
    chat = ChatServer(says)
    app = Starlette(routes=[Route("/v1/chat/completions", chat.complete, methods=["POST"])])
    with serving(app) as address:
        chat.url = f"{address}/v1"
        yield chat
