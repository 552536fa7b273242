"""A judge on loopback that speaks the OpenAI protocol and misbehaves as told."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Reply = Callable[[str, list[str]], "str | Response"]
"""From the user's message and the ids that stand in its fences to the text of the answer, or a whole HTTP response."""


def scores(values: dict[str, float]) -> str:
    return json.dumps({"scores": [{"id": id, "explanation": "because", "score": v} for id, v in values.items()]})


def fenced(prompt: str) -> dict[str, str]:
    """What stands between the fences, by id: all that a judge which is true to its instructions goes by."""
    return dict(re.findall(r'<trajectory id="([^"]+)">\n(.*?)\n</trajectory>', prompt, re.DOTALL))


@dataclass
class JudgeServer:
    """Answers each request with the next reply, the last one for ever."""

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
        message = {"role": "assistant", "content": answer}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "judge",
                "choices": [choice],
                "usage": usage,
            }
        )


@contextmanager
def serve(*replies: Reply) -> Iterator[JudgeServer]:
    judge = JudgeServer(list(replies))
    app = Starlette(routes=[Route("/v1/chat/completions", judge.complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        judge.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        yield judge
    finally:
        server.should_exit = True
        thread.join(10)
