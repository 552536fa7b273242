"""Whatever a server over HTTP answers to a call, the call ends as a result or a fault, and the next one is made."""

import json
import random

import pytest

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.toolserver.connection.connection import connect
from tests.fuzz.answering_server import answering
from tests.fuzz.limits import watched_loop

GOOD = {"jsonrpc": "2.0", "id": "NUMBER", "result": {"content": [{"type": "text", "text": "fine"}]}}
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
TYPES = (
    b"application/json",
    b"text/event-stream",
    b"Text/Event-Stream; x=y",
    b"text/html",
    b"",
    b"\xff/json",
    b"a/b;" * 500,
)
BODIES: tuple[bytes, ...] = (
    b"", b"null", b"[]", b"{}", b"7", b"\xff", b"[" * 5000, b"9" * 5000, b"NaN", b'{"jsonrpc": "2.0"}', b"data: \n\n",
    *(
        json.dumps(one).encode()
        for one in (
            GOOD, [GOOD], [], GOOD | {"id": 99}, GOOD | {"id": None}, GOOD | {"id": 10**30}, GOOD | {"result": [1]},
            GOOD | {"result": {"content": {"a": 1}, "isError": "x", "structuredContent": [None]}}, PING, [PING] * 50,
            {"jsonrpc": "2.0", "id": "NUMBER", "error": {"code": "x", "message": 5}},
            {"jsonrpc": "2.0", "id": "NUMBER", "error": {"code": -32601, "message": "\x1b[31m" * 50, "data": [1]}},
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": {}, "progress": "x"}},
            {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": [1]},
            {"jsonrpc": "2.0", "id": "s", "method": "sampling/createMessage", "params": {"messages": "x" * 100_000}},
            {"jsonrpc": "2.0", "id": "e", "method": "elicitation/create", "params": {"requestedSchema": {"$ref": "#"}}},
        )
    ),
)  # fmt: skip


def drawn_answer(drawn: random.Random) -> tuple[int, bytes, bytes]:
    body = drawn.choice(BODIES)
    if drawn.random() < 0.3:
        body = bytearray(body or b"x")
        body[drawn.randrange(len(body))] = drawn.randrange(256)
    if drawn.random() < 0.5:
        kinds = [
            b"event: message\ndata: " + bytes(body) + b"\n\n",
            b"data:" + bytes(body),
            b"id: \xff\n\n" * 99 + bytes(body),
        ]
        body = drawn.choice(kinds)
    return drawn.choice((200, 200, 200, 202, 400, 401, 404, 429, 500, 503)), drawn.choice(TYPES), bytes(body)


@pytest.mark.parametrize("seed", range(2))
async def test_answers_of_any_kind(seed: int) -> None:
    drawn = random.Random(seed)
    with watched_loop():
        for _ in range(4):
            answers = [drawn_answer(drawn) for _ in range(5)]
            async with answering(answers) as server:
                params = StreamableHttpServer(url=f"http://127.0.0.1:{server.port}/mcp")
                async with connect(params) as connection:
                    for _ in answers:
                        try:
                            result = await connection.call("act", {}, deadline=1.0)
                            assert len(result.text) < 50_000
                        except ServerFault as fault:
                            assert str(fault).endswith("."), fault
                    server.answers.clear()
                    assert not (await connection.call("act", {})).is_error, "the next call is made"
