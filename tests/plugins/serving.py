"""A bundled server over HTTP on a free port, for tests without our client."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx

from mcp_rl.scenario import SseServer, StreamableHttpServer
from mcp_rl.toolserver.connection.launch import launched, server_log
from mcp_rl.toolserver.tool_server import ToolServer


@asynccontextmanager
async def served(server: ToolServer, transport: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Run a server; give its address and an HTTP client with an MCP client's headers."""
    params = server.params(transport)
    assert isinstance(params, SseServer | StreamableHttpServer) and params.launch is not None
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    with server_log(server.name, None) as log:
        async with (
            launched(params.launch, params.url, server="The server", log=log, deadline=60) as (url, _),
            httpx.AsyncClient(headers=headers, timeout=30) as client,
        ):
            yield client, url


@asynccontextmanager
async def posted_to(client: httpx.AsyncClient, url: str) -> AsyncIterator[str]:
    """Give the address for posts; over SSE it is valid while the stream is open."""
    if not url.endswith("/sse"):
        yield url
        return
    async with client.stream("GET", url) as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "event: endpoint"
        yield urljoin(url, (await anext(lines)).removeprefix("data: "))


def initialize(**capabilities: Any) -> bytes:
    """Return the body of an `initialize` request."""
    info = {"name": "a test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
