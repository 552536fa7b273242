"""The client for the official conformance suite: `client.py URL`, with the scenario in MCP_CONFORMANCE_SCENARIO.

It is a bare `Connection` that calls the tools that the scenario requires.
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp_rl.errors import ServerError
from mcp_rl.scenario import StreamableHttpServer
from mcp_rl.toolserver.connection.connection import Connection, connect


async def tools_call(connection: Connection) -> None:
    await call(connection, "add_numbers", a=5, b=3)


async def sse_retry(connection: Connection) -> None:
    await call(connection, "test_reconnection")


async def echo_the_schema(connection: Connection) -> None:
    schemas = {tool.name: tool.input_schema for tool in connection.tools}
    await call(connection, "json_schema_echo", schema=schemas["json_schema_2020_12_tool"])


async def only_list(connection: Connection) -> None:
    print([tool.name for tool in connection.tools])


async def call_all(connection: Connection) -> None:
    """Call each tool without arguments, and answer what it asks."""
    connection.elicitation = "defaults"
    for tool in connection.tools:
        await call(connection, tool.name)


async def calls_of_the_context(connection: Connection) -> None:
    for wanted in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
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


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    try:
        async with connect(StreamableHttpServer(url=url), name="the scenario") as connection:
            await PARTS[scenario](connection)
    except ServerError as error:
        bare = scenario in ("initialize", "request-metadata")  # our client refuses a server without tools
        if not bare or "lists no tools" not in str(error):
            raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
