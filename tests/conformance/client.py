"""The client for the official conformance suite: `client.py URL`, with the scenario in MCP_CONFORMANCE_SCENARIO.

It is a bare `Connection` that calls the tools that the scenario requires.
"""

import asyncio
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
}


async def main(url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    try:
        async with connect(StreamableHttpServer(url=url), name="the scenario") as connection:
            await PARTS[scenario](connection)
    except ServerError as error:
        if scenario != "initialize" or "lists no tools" not in str(error):  # our client refuses a server without tools
            raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
