"""A judge on loopback that speaks the OpenAI protocol and can misbehave."""

import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from benchmarks.loopback import serving

Reply = Callable[[str, list[str]], "str | Response"]
"""(the user's message, the ids in its fences) -> the text of the answer, or a whole HTTP response."""


def scores(values: dict[str, float]) -> str:
    return json.dumps({"scores": [{"id": id, "explanation": "because", "score": v} for id, v in values.items()]})


def fenced(prompt: str) -> dict[str, str]:
    """Return the text between the fences by id: all that a judge true to its instructions considers."""
    return dict(re.findall(r"<trajectory-([0-9a-f]+)>\n(.*?)\n</trajectory-\1>", prompt, re.DOTALL))


@dataclass
class JudgeServer:
    """Answer each request with the next reply; repeat the last one."""

    replies: list[Reply]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        return [request["messages"][1]["content"] for request in self.requests]

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(body)
        prompt = body["messages"][1]["content"]
        answer = reply(prompt, list(fenced(prompt)))
        if isinstance(answer, Response):
            return answer
        return completion(answer)


def completion(text: str, finish_reason: str = "stop") -> JSONResponse:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    choices = [{"index": 0, "message": message, "finish_reason": finish_reason}]
    return JSONResponse(
        {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": choices, "usage": usage}
    )


class Hangs(Response):
    """Send nothing until the client has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Drips(Response):
    """Send white space, a byte every 50 ms, until the client has gone."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def drip() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", JSON_TYPE)]})
            while True:
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                await anyio.sleep(0.05)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drip)
            await Hangs()(scope, receive, send)
            tasks.cancel_scope.cancel()


class Breaks(Response):
    """Send the first half of an answer, then break the connection: by a reset, or by closing it."""

    def __init__(self, answer: JSONResponse, *, reset: bool) -> None:
        super().__init__()
        self._answer, self._reset = bytes(answer.body), reset

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", JSON_TYPE), (b"content-length", str(len(self._answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        half = self._answer[: len(self._answer) // 2]
        await send({"type": "http.response.body", "body": half, "more_body": True})
        await anyio.sleep(0.01)
        transport = scope[CONNECTION].transport
        if self._reset and not transport.is_closing():  # a linger of 0 seconds turns the close into a reset
            found = transport.get_extra_info("socket")
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
        await Hangs()(scope, receive, send)


JSON_TYPE = b"application/json"
CONNECTION = "connection"
"""Key of uvicorn's connection object in a request's scope, for answers that break the connection."""


def _with_connection(app: ASGIApp) -> ASGIApp:
    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CONNECTION: getattr(send, "__self__", None)}, receive, send)

    return wrapped


@contextmanager
def serve(*replies: Reply) -> Iterator[JudgeServer]:
    judge = JudgeServer(list(replies))
    app = Starlette(routes=[Route("/v1/chat/completions", judge.complete, methods=["POST"])])
    with serving(_with_connection(app)) as address:
        judge.url = f"{address}/v1"
        yield judge
