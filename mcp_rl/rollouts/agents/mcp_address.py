"""The tools of an episode at an MCP address, over streamable HTTP: the path holds the episode's key.

Listing and calling are answered here, in both eras of the protocol, since each turn of each episode asks for them: the
SDK's server takes three times the processor time, and gives schemas in another order than the model sees in our own
loop. The SDK answers everything else, such as handshakes.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from mcp import MCPError, types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from mcp_rl.inference.openai_api.bodies import Bodies
from mcp_rl.inference.openai_api.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mcp.server.context import ServerRequestContext
    from starlette.types import Message, Receive, Scope, Send

    from mcp_rl.trajectory import CallRecord

_PATH = "/mcp/"
_VERSION = "mcp-protocol-version"


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
        self._bodies = Bodies()
        server: Server[Any] = Server("mcp-rl", on_list_tools=_never, on_call_tool=_never)
        self._manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    def answers(self, scope: Scope) -> bool:
        """Return whether a request is for tools."""
        return scope["type"] == "http" and str(scope["path"]).startswith(_PATH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = self._callers.get(scope["path"].removeprefix(_PATH).strip("/"))
        if caller is None:
            refusal = {"error": "No episode has this address; it is in the variable MCP_RL_MCP_URL of its program."}
            await JSONResponse(refusal, 401)(scope, receive, send)
            return
        request = Request(scope, receive)
        with self._bodies.holding() as held, suppress(ClientDisconnect):
            try:
                body = await self._bodies.read(request, held) if request.method == "POST" else b""
            except Refusal as refusal:
                await JSONResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send)
                return
            answer = await _answered(caller, body, request.headers.get(_VERSION))
            if answer is None:
                await self._manager.handle_request(scope, _again(body, receive), send)
            else:
                await Response(json.dumps(answer).encode(), media_type="application/json")(scope, receive, send)

    @contextmanager
    def offering(self, key: str, caller: ToolCaller) -> Iterator[str]:
        """Offer an episode's tools; give the path of the address."""
        self._callers[key] = caller
        try:
            yield _PATH + key
        finally:
            del self._callers[key]


async def _answered(caller: ToolCaller, body: bytes, version: str | None) -> dict[str, Any] | None:
    """Answer a request that lists or calls tools; return None for any other, which is the SDK's."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or asked.get("jsonrpc") != "2.0" or not isinstance(asked.get("id"), int | str):
        return None
    if version is not None and version not in (*HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION):
        return None
    modern: dict[str, Any] = {"resultType": "complete"} if version == LATEST_MODERN_VERSION else {}
    if asked.get("method") == "tools/list":
        cached = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
        return _result(asked, modern | cached | {"tools": [_listed(tool["function"]) for tool in caller.tools]})
    given = asked.get("params")
    if asked.get("method") != "tools/call" or not isinstance(given, dict):
        return None
    name, arguments = given.get("name"), given.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict | None):
        return _error(asked, types.INVALID_PARAMS, "tools/call takes a name and an object of arguments.")
    try:
        record = await caller.call_tool(name, arguments or {})
    except Refusal as refusal:
        return _error(asked, types.INTERNAL_ERROR, str(refusal))
    return _result(asked, modern | {"content": [{"type": "text", "text": record.result}], "isError": record.is_error})


def _listed(function: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as MCP lists it, with its schema exactly as our own loop shows it."""
    about = {"description": function["description"]} if function.get("description") is not None else {}
    return {"name": function["name"], **about, "inputSchema": function["parameters"]}


def _result(asked: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "result": result}


def _error(asked: dict[str, Any], code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": message}}


def _again(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body which was read already, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def give() -> Message:
        return left.pop() if left else await receive()

    return give


async def _never(context: ServerRequestContext[Any, Any], asked: Any) -> Any:
    """Tell the SDK that there are tools; those requests that it gets of them have no valid form."""
    raise MCPError(types.INVALID_REQUEST, "This is no valid request of tools.")
