"""A streamable-HTTP server in this process whose answers to calls are given as bytes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

TOOL = {"name": "act", "description": "Act.", "inputSchema": {"type": "object", "properties": {}}}


@dataclass
class AnsweringServer:
    """Answers each call with the next of `answers`: a status, a type of content, and a body."""

    answers: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    port: int = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
                body = await reader.readexactly(length)
                status, kind, answer = self.answer(json.loads(body) if body else {})
                writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n" % (status, kind))
                writer.write(b"mcp-session-id: 1\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
        writer.close()

    def answer(self, asked: dict) -> tuple[int, bytes, bytes]:
        number, method = asked.get("id"), asked.get("method")
        if number is None or method is None:
            return (202 if asked else 405), b"text/plain", b""
        if method == "tools/call" and self.answers:
            status, kind, body = self.answers.pop(0)
            return status, kind, body.replace(b'"NUMBER"', json.dumps(number).encode())
        result: dict = {"result": {}}
        if method == "initialize":
            info = {"name": "answering", "version": "0"}
            version = asked["params"]["protocolVersion"]
            result = {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
        elif method == "tools/list":
            result = {"result": {"tools": [TOOL]}}
        elif method not in ("ping", "tools/call"):
            result = {"error": {"code": -32601, "message": "Method not found"}}
        return 200, b"application/json", json.dumps({"jsonrpc": "2.0", "id": number, **result}).encode()


@contextlib.asynccontextmanager
async def answering(answers: Sequence[tuple[int, bytes, bytes]]) -> AsyncIterator[AnsweringServer]:
    one = AnsweringServer(list(answers))
    server = await asyncio.start_server(one.connection, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
