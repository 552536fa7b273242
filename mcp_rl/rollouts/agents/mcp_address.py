"""The tools of an episode at an MCP address, over streamable HTTP: the path holds the episode's key."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mcp.server.context import ServerRequestContext
    from starlette.types import Receive, Scope, Send

    from mcp_rl.trajectory import CallRecord

_PATH = "/mcp/"


class ToolCaller(Protocol):
    """An episode whose program may call tools."""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """The tools as OpenAI functions."""
        ...

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> CallRecord:
        """Call a tool in the episode's session."""
        ...


class McpAddress:
    """An MCP server for all episodes of a run: each request finds its episode by the key in its path."""

    def __init__(self) -> None:
        self._callers: dict[str, ToolCaller] = {}
        server: Server[Any] = Server("mcp-rl", on_list_tools=self._list, on_call_tool=self._call)
        self._manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    def answers(self, scope: Scope) -> bool:
        """Return whether a request is for tools."""
        return scope["type"] == "http" and str(scope["path"]).startswith(_PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _key(scope["path"]) not in self._callers:
            refusal = {"error": "No episode has this address; it is in the variable MCP_RL_MCP_URL of its program."}
            await JSONResponse(refusal, 401)(scope, receive, send)
            return
        await self._manager.handle_request(scope, receive, send)

    @contextmanager
    def offering(self, key: str, caller: ToolCaller) -> Iterator[str]:
        """Offer an episode's tools; give the path of the address."""
        self._callers[key] = caller
        try:
            yield _PATH + key
        finally:
            del self._callers[key]

    async def _list(
        self, context: ServerRequestContext[Any, Any], _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        functions = [tool["function"] for tool in self._caller(context).tools]
        return types.ListToolsResult(
            tools=[
                types.Tool(name=one["name"], description=one.get("description"), input_schema=one["parameters"])
                for one in functions
            ]
        )

    async def _call(
        self, context: ServerRequestContext[Any, Any], asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        record = await self._caller(context).call_tool(asked.name, asked.arguments or {})
        content: list[Any] = [types.TextContent(type="text", text=record.result)]
        return types.CallToolResult(content=content, is_error=record.is_error)

    def _caller(self, context: ServerRequestContext[Any, Any]) -> ToolCaller:
        assert context.request is not None
        return self._callers[_key(context.request.url.path)]


def _key(path: str) -> str:
    return path.removeprefix(_PATH).strip("/")
