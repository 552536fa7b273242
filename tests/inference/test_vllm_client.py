"""The client of a vLLM server, against a server that counts connections and requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from mcp_rl.errors import EngineStop
from mcp_rl.inference.vllm import client as module
from mcp_rl.inference.vllm.client import VllmClient


class Counting:
    """Answers /v1/completions with the prompt's first id as the sampled token, after a while."""

    api_key = "key"
    starts = 1

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.in_flight = self.most_in_flight = 0
        self.bodies: list[dict[str, Any]] = []
        self.seconds = 0.0

    async def ready(self) -> None: ...

    async def serve(self, stream: SocketStream) -> None:
        self.connections += 1
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):  # the client has gone
            async with stream:
                await self._answer_all(stream)

    async def _answer_all(self, stream: SocketStream) -> None:
        buffer = b""
        while True:
            while b"\r\n\r\n" not in buffer:
                buffer += await stream.receive()
            head, _, buffer = buffer.partition(b"\r\n\r\n")
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(lines.get(b"content-length", b"0"))
            while len(buffer) < length:
                buffer += await stream.receive()
            body, buffer = json.loads(buffer[:length]), buffer[length:]
            self.bodies.append(body)
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            await anyio.sleep(self.seconds)
            self.in_flight -= 1
            answer = json.dumps(self.answer(body)).encode()
            await stream.send(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
                + answer
            )

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        if wanted := body.get("logprob_token_ids"):
            choices = [
                {"index": i, "logprobs": {"top_logprobs": [{f"token_id:{t}": -float(p[0] * t) for t in wanted}]}}
                for i, p in enumerate(body["prompt"])
            ]
            return {"choices": choices[::-1]}
        tokens = {"tokens": [f"token_id:{body['prompt'][0]}"], "token_logprobs": [-0.5]}
        return {"choices": [{"logprobs": tokens, "finish_reason": "stop"}]}


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[Counting, VllmClient]]:
    server = Counting()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        server.url = f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        tasks.start_soon(listener.serve, server.serve)
        client = VllmClient(server)
        try:
            yield server, client
        finally:
            await client.aclose()
            tasks.cancel_scope.cancel()


async def sample(client: VllmClient, first: int, found: dict[int, list[int]]) -> None:
    answer = await client.sample("m", [first, 1], max_tokens=1, temperature=1.0, stop_token_ids=[])
    found[first] = answer.token_ids


async def test_hundreds_in_flight_have_connections_that_are_reused() -> None:
    async with counting() as (server, client):
        server.seconds = 0.3
        for _ in range(2):
            found: dict[int, list[int]] = {}
            async with anyio.create_task_group() as tasks:
                for first in range(150):
                    tasks.start_soon(sample, client, first, found)
            assert found == {first: [first] for first in range(150)}
        assert server.most_in_flight <= server.connections <= 150
        assert len(server.bodies) == 300


async def test_turns_one_after_another_take_one_connection() -> None:
    async with counting() as (server, client):
        for first in range(5):
            await sample(client, first, {})
        assert server.connections == 1


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with counting() as (server, client):
        server.seconds = 30
        with anyio.move_on_after(0.3) as scope:
            await sample(client, 7, {})
        assert scope.cancelled_caught
        server.seconds = 0
        found: dict[int, list[int]] = {}
        await sample(client, 8, found)
        assert found == {8: [8]}
        assert server.connections == 2


@pytest.mark.parametrize("after", range(4, 25))
async def test_a_cancelled_request_never_blocks_others(after: int) -> None:
    async with counting() as (server, client):
        server.seconds = 0.5
        asked = asyncio.create_task(client.logprobs("m", [1, 2]))
        for _ in range(after):
            await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.seconds = 0
        with anyio.fail_after(20):
            for number in (7, 8, 9):
                found: dict[int, list[int]] = {}
                await sample(client, number, found)
                assert found == {number: [number]}


async def test_next_tokens_come_from_one_request_in_order() -> None:
    async with counting() as (server, client):
        assert await client.next_logprobs("m", [[2], [3], [5]], [10, 7, 10]) == [-20.0, -21.0, -50.0]
        (body,) = server.bodies
        assert body["logprob_token_ids"] == [7, 10]
        assert "cache_salt" not in body  # it must read the prefix cache


async def test_a_server_that_is_gone_for_good_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.01)
    async with counting() as (server, client):
        await sample(client, 1, {})
        server.url = "http://127.0.0.1:9"
        with pytest.raises(EngineStop, match="no longer answers: ConnectError"):
            await sample(client, 2, {})
