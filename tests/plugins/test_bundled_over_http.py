"""The bundled servers over HTTP serve this machine within limits, and refuse everything else."""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
import pytest_asyncio

from mcp_rl.plugins.manager import load_plugins
from tests.plugins.serving import initialize, posted_to, served

SERVERS = Path(__file__).parents[2] / "servers"
PROGRAMS = {
    "mcp_calculator": [sys.executable, SERVERS / "python" / "mcp_calculator" / "server.py"],
    "mcp_notes": ["node", SERVERS / "node" / "mcp_notes" / "mcp_notes.mjs"],
}
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
BUNDLED = ["mcp_calculator", pytest.param("mcp_notes", marks=needs_node)]
REFUSED = {403, 421}
Reached = tuple[httpx.AsyncClient, str]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BUNDLED)
async def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sse", "streamable-http"])
async def reached(name: str, request: pytest.FixtureRequest) -> AsyncIterator[Reached]:
    async with served(load_plugins().server(name), request.param) as (client, url):
        yield client, url


async def test_a_page_of_another_site_is_refused_whatever_it_claims(reached: Reached) -> None:
    client, url = reached
    strange = {
        "host": ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", ""],
        "origin": ["http://evil.example", "http://localhost.evil.example", "null", "no address"],
    }
    async with posted_to(client, url) as address:
        for header, values in strange.items():
            for value in values:
                answer = await client.post(address, content=initialize(), headers={header: value})
                assert answer.status_code in REFUSED, (header, value)
                async with client.stream("GET", url, headers={header: value}) as stream:
                    assert stream.status_code in REFUSED, (header, value)
        for origin in ("http://localhost:6274", "http://127.0.0.1:6274"):
            answer = await client.post(address, content=initialize(), headers={"origin": origin})
            assert answer.status_code in {200, 202}


async def test_no_other_address_of_this_machine_is_listened_on(reached: Reached) -> None:
    _, url = reached
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", urlsplit(url).port)


async def test_what_is_too_large_is_refused_declared_or_not(reached: Reached) -> None:
    client, url = reached

    async def undeclared() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 1_000_000

    async with posted_to(client, url) as address:
        for body in (b" " * 5_000_000, undeclared()):
            with suppress(httpx.WriteError):  # the server may close the connection before the whole body is sent
                assert (await client.post(address, content=body)).status_code == 413
        assert (await client.post(address, content=initialize())).status_code in {200, 202}


async def test_who_is_slow_keeps_nobody_waiting_and_is_sent_away() -> None:
    names = ["mcp_calculator", *(["mcp_notes"] if shutil.which("node") else [])]

    async def besiege(name: str, transport: str) -> None:
        async with (
            served(load_plugins().server(name), transport) as (client, url),
            posted_to(client, url) as address,
        ):
            where = urlsplit(address)
            head = f"POST {where.path}?{where.query} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            json = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
            half = f"{head}{json}Content-Length: 100\r\n\r\n{{"
            slow = []
            for start in [head] * 20 + [half] * 20:
                reader, writer = await asyncio.open_connection(where.hostname, where.port)
                writer.write(start.encode())
                slow.append((reader, writer))
            assert (await client.post(address, content=initialize())).status_code in {200, 202}
            for reader, _ in slow[20:]:
                assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 408 ")
            for _, writer in slow:
                writer.close()

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            for transport in ("sse", "streamable-http"):
                tasks.create_task(besiege(name, transport))


@pytest.mark.parametrize("name", BUNDLED)
async def test_it_listens_nowhere_else(name: str) -> None:
    run = await anyio.run_process([*PROGRAMS[name], "--host", "0.0.0.0"], check=False)
    assert run.returncode == 2 and b"0.0.0.0" in run.stderr and b"Traceback" not in run.stderr
