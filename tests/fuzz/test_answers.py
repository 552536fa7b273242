"""Whatever a server over HTTP answers to a call, the call ends as a result or a fault, and the next one is made."""

import asyncio
import gzip
import json
import random

import httpx2
import pytest

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.toolserver.connection.bodies import UNCOMPRESSED, limit_body
from mcp_rl.toolserver.connection.connection import connect
from tests.fuzz.answering_server import AnsweringServer, answering
from tests.fuzz.limits import limited, watched_loop

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


EVENTS = b"text/event-stream"


def reached(server: AnsweringServer) -> StreamableHttpServer:
    return StreamableHttpServer(url=f"http://127.0.0.1:{server.port}/mcp")


async def test_a_stream_that_ends_again_and_again_is_opened_ever_more_slowly() -> None:
    """It says that no pause is needed: hundreds of requests in a second."""
    again = b"id: 1\nretry: 0\ndata:\n\n"
    async with (
        answering([(200, EVENTS, again)], opened=again) as server,
        connect(reached(server)) as connection,
    ):
        with pytest.raises(ServerFault, match="did not answer"):
            await connection.call("act", {}, deadline=1.0)
        assert 2 < server.opening < 25
        assert not (await connection.call("act", {})).is_error


@pytest.mark.parametrize("field", [b"retry: " + b"9" * 400, b"retry: " + b"9" * 5000, b"id: " + b"9" * 70_000])
async def test_odd_fields_of_events_are_a_fault_of_their_call(field: bytes) -> None:
    answers = [(200, EVENTS, b"id: 1\n" + field + b"\ndata:\n\n")]
    async with answering(answers) as server, connect(reached(server)) as connection:
        with pytest.raises(ServerFault):
            await connection.call("act", {}, deadline=1.0)
        assert not (await connection.call("act", {})).is_error


@pytest.mark.parametrize("kind", [EVENTS, b"application/json"])
async def test_an_answer_of_too_many_values_takes_neither_time_nor_memory(kind: bytes) -> None:
    values = b"[]," * 2_000_000
    body = b'{"jsonrpc":"2.0","id":"NUMBER","result":{"content":[],"structuredContent":{"a":[' + values + b"1]}}}"
    told = json.dumps({**GOOD, "result": {"content": [{"type": "text", "text": "a,b[{" * 200_000}]}}).encode()
    answers = [b"data: " + one + b"\n\n" if kind == EVENTS else one for one in (body, told)]
    with limited(holds_loop=False), watched_loop():
        async with answering([(200, kind, one) for one in answers]) as server, connect(reached(server)) as connection:
            try:
                assert "more than 250,000 values" in (await connection.call("act", {})).text
            except ServerFault as fault:
                assert kind == EVENTS and "was lost in a call of act" in str(fault)
            assert not (await connection.call("act", {})).is_error, "a text may have as many commas as it likes"


async def test_a_compressed_stream_holds_no_loop() -> None:
    """A hundred kilobytes unfold to a hundred megabytes of comments."""
    bomb, headers = gzip.compress(b":\n" * (50 * 2**20), 1), b"content-encoding: gzip\r\n"
    with watched_loop():
        async with (
            answering([(200, EVENTS, bomb)], opened=b"", headers=headers) as server,
            connect(reached(server)) as connection,
        ):
            with pytest.raises(ServerFault, match=r"it compresses its answer \(gzip\)"):
                await connection.call("act", {})


async def test_a_body_that_only_a_library_reads_is_limited() -> None:
    """Of redirects and logins, such as the answer 401 before a token is renewed."""
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 X\r\ncontent-type: application/json\r\n\r\n")
        while sent < 2**30:
            writer.write(b" " * 2**20)
            sent += 2**20
            await writer.drain()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, httpx2.AsyncClient(headers=UNCOMPRESSED, event_hooks={"response": [limit_body]}) as client:
        with pytest.raises(httpx2.ReadError, match="longer than the limit of 16 MB"):
            await client.get(url)
        assert sent < 40 * 2**20
