"""The client for the official conformance suite: a bare `Connection` that calls the tools that a scenario requires.

The suite starts a command for each scenario. That is `handover.py`, which imports next to nothing, gives the address to
the tests' own process, where this client is already imported, and ends as the client did.
"""

import json
import re
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_rl.errors import LoginNeeded, ServerError
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.system.notices import noticed_by
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.logins.login import LoginWishes, log_in

HANDOVER = Path(__file__).with_name("handover.py")


async def tools_call(connection: Connection, context: str) -> None:
    await call(connection, "add_numbers", a=5, b=3)


async def sse_retry(connection: Connection, context: str) -> None:
    await call(connection, "test_reconnection")


async def echo_the_schema(connection: Connection, context: str) -> None:
    schemas = {tool.name: tool.input_schema for tool in connection.tools}
    await call(connection, "json_schema_echo", schema=schemas["json_schema_2020_12_tool"])


async def only_list(connection: Connection, context: str) -> None:
    print([tool.name for tool in connection.tools])


async def call_all(connection: Connection, context: str) -> None:
    """Call each tool without arguments, and answer what it asks."""
    connection.elicitation = "defaults"
    for tool in connection.tools:
        await call(connection, tool.name)


async def calls_of_the_context(connection: Connection, context: str) -> None:
    for wanted in json.loads(context)["toolCalls"]:
        await call(connection, wanted["name"], **wanted["arguments"])


async def call(connection: Connection, tool: str, **arguments: Any) -> None:
    result = await connection.call(tool, arguments)
    print(f"{tool}: {result.text}")
    assert not result.is_error, result.text


PARTS = {
    "initialize": only_list,
    "tools_call": tools_call,
    "sse-retry": sse_retry,
    "json-schema-2020-12-preservation": echo_the_schema,
    "json-schema-ref-no-deref": only_list,
    "request-metadata": only_list,
    "http-standard-headers": call_all,
    "http-custom-headers": calls_of_the_context,
    "http-invalid-tool-headers": call_all,
    "sep-2322-client-request-state": call_all,
    "elicitation-sep1034-client-defaults": call_all,
}


async def log_in_and_call(url: str, scenario: str, context: str) -> None:
    """Log in as `mcp-rl servers login` does, with a task in place of the browser, and call every tool."""
    about = json.loads(context or "{}")
    issuer = await authorization_server(url) if scenario.startswith("auth/client-credentials") else None
    wishes = LoginWishes(about.get("client_id"), about.get("client_secret"), issuer, browser=False)
    async with anyio.create_task_group() as browser, httpx2.AsyncClient(follow_redirects=True) as client:

        def visit(said: str) -> None:
            if found := re.search(r"https?://\S+", said):
                browser.start_soon(client.get, found[0])

        with noticed_by(visit):
            for _ in range(2):  # a server that moved to another authorization server asks for another login
                await log_in(url, server="The server", wishes=wishes, seconds=20)
                try:
                    async with connect(StreamableHttpServer(url=url), name="the scenario") as connection:
                        for tool in connection.tools:
                            await call(connection, tool.name)
                    break
                except (LoginNeeded, ServerError) as error:
                    if "run `mcp-rl servers login" not in str(error):
                        raise


async def authorization_server(url: str) -> str:
    """Return the address of a server's authorization server, as a user would give it with --issuer."""
    parts = urlsplit(url)
    async with httpx2.AsyncClient() as client:
        place = f"{parts.scheme}://{parts.netloc}/.well-known/oauth-protected-resource{parts.path}"
        return str((await client.get(place)).json()["authorization_servers"][0])


async def play(url: str, scenario: str, context: str) -> None:
    """Play the client's part in a scenario; an exception is a failure."""
    if scenario.startswith("auth/"):
        await log_in_and_call(url, scenario, context)
        return
    try:
        async with connect(StreamableHttpServer(url=url), name="the scenario") as connection:
            await PARTS[scenario](connection, context)
    except ServerError as error:
        bare = scenario in ("initialize", "request-metadata")  # our client refuses a server without tools
        if not bare or "lists no tools" not in str(error):
            raise


async def answer(errors: dict[str, str], stream: SocketStream) -> None:
    """Play the scenario that a handover names; tell it the error, empty if there was none, and keep that."""
    async with stream:
        asked = json.loads(await BufferedByteReceiveStream(stream).receive_until(b"\n", 1 << 20))
        try:
            await play(**asked)
            error = ""
        except Exception:
            error = traceback.format_exc()
        errors[asked["scenario"]] = error
        await stream.send(error.encode())


@asynccontextmanager
async def clients() -> AsyncIterator[tuple[int, dict[str, str]]]:
    """Play scenarios for handovers; yield the port that they ask at, and the errors of the scenarios played so far."""
    errors: dict[str, str] = {}
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, partial(answer, errors))
        yield listener.extra(SocketAttribute.local_port), errors
        tasks.cancel_scope.cancel()
