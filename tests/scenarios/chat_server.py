"""A chat-completions server on loopback that plays an author, good or bad."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.loopback import serving

Answer = Callable[["Asked"], "str | Response"]


@dataclass(frozen=True)
class Asked:
    """A request to the server."""

    body: dict[str, Any]
    number: int
    """Number of earlier requests."""

    @property
    def question(self) -> str:
        """The whole conversation as text."""
        return "\n".join(message["content"] for message in self.body["messages"])

    @property
    def kind(self) -> str:
        """The kind of reply asked for: "rewrites", "readings" or "tasks"."""
        return re.findall(r'Reply with \{"(\w+)"', self.question)[-1]

    def fence(self, name: str) -> list[Any]:
        """The entries in a fence."""
        return [json.loads(line) for line in self.fence_text(name).splitlines()]

    def fence_text(self, name: str) -> str:
        [found] = re.findall(rf"<{name}>\n(.*?)\n?</{name}>", self.question, re.DOTALL)
        return str(found)


def rewrites(asked: Asked, words: Callable[[str], str]) -> str:
    entries = [{"id": entry["id"], "request": words(entry["request"])} for entry in asked.fence("requests")]
    return json.dumps({"rewrites": entries})


def readings(asked: Asked, calls: Callable[[str], list[tuple[str, dict[str, Any]]]]) -> str:
    entries = [{"id": e["id"], "calls": call_list(calls(e["request"]))} for e in asked.fence("requests")]
    return json.dumps({"readings": entries})


def tasks(*proposed: dict[str, Any]) -> str:
    return json.dumps({"tasks": [{"answer": "result", "checks": [], **task} for task in proposed]})


def call_list(calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, str]]:
    return [{"tool": tool, "arguments": json.dumps(arguments)} for tool, arguments in calls]


def completion(text: str, finish: str = "stop") -> Response:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    fields = {"id": "x", "object": "chat.completion", "created": 0, "model": "gpt-4.1-mini", "choices": [choice]}
    return JSONResponse({**fields, "usage": usage})


def failure(status: int, message: str = "no", headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers)


@dataclass
class ChatServer:
    """A server that answers each request by a function."""

    answer: Answer
    url: str = ""
    asked: list[Asked] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        asked = Asked(await request.json(), len(self.asked))
        self.asked.append(asked)
        answer = self.answer(asked)
        return answer if isinstance(answer, Response) else completion(answer)


@contextmanager
def serve(answer: Answer) -> Iterator[ChatServer]:
    chat = ChatServer(answer)
    app = Starlette(routes=[Route("/v1/chat/completions", chat.complete, methods=["POST"])])
    with serving(app) as address:
        chat.url = f"{address}/v1"
        yield chat
