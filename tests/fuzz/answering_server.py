"""A server over HTTP in this process, of both HTTP transports, whose answers to calls are given as bytes."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

TOOL = {"name": "act", "description": "Act.", "inputSchema": {"type": "object", "properties": {}}}
Ending = Literal["close", "hang", "abort"]


@dataclass
class AnsweringServer:
    """Answers each call with the next of `answers`: a status, a type of content, and a body.

    Over streamable HTTP, `/mcp`, the answer is the body of the POST's response; over SSE, `/sse`, it is written to the
    stream, whatever its status and type. `opened` is the stream that a GET opens: without one, there is none.
    """

    answers: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    opened: bytes | None = None
    ending: Ending = "close"
    """End of the connection after a body that is an event stream."""
    headers: bytes = b""
    """Further headers of event streams, such as their encoding."""
    port: int = 0
    opening: int = 0
    """How many streams were opened by GET."""
    _stream: asyncio.StreamWriter | None = None

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._request(reader, writer):
                pass
        writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection stays."""
        line, _, head = (await reader.readuntil(b"\r\n\r\n")).lower().partition(b"\r\n")
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
        body = await reader.readexactly(length)
        asked = json.loads(body) if body else {}
        if line.startswith(b"get /sse"):
            return await self._sse(reader, writer)
        if line.startswith(b"get") and self.opened is not None:
            self.opening += 1
            return await self._streamed(writer, 200, b"text/event-stream", self.opened)
        if line.startswith(b"post /messages"):
            await self._posted(writer, asked)
            return True
        called = asked.get("method") == "tools/call"
        status, kind, answer = self.answer(asked)
        if called and self.opened is not None:
            return await self._streamed(writer, status, kind, answer)
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %b\r\n" % (status, kind))
        writer.write(b"mcp-session-id: 1\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
        await writer.drain()
        return True

    async def _streamed(self, writer: asyncio.StreamWriter, status: int, kind: bytes, body: bytes) -> bool:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-type: %b\r\nconnection: close\r\n%b\r\n" % (status, kind, self.headers))
        writer.write(body)
        await writer.drain()
        if self.ending == "hang":
            await asyncio.sleep(60)
        if self.ending == "abort":
            writer.transport.abort()
        return False

    async def _sse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 X\r\ncontent-type: text/event-stream\r\nconnection: close\r\n%b\r\n" % self.headers)
        writer.write(b"event: endpoint\ndata: /messages\n\n" + (self.opened or b""))
        self._stream = writer
        await reader.read()
        return False

    async def _posted(self, writer: asyncio.StreamWriter, asked: dict) -> None:
        writer.write(b"HTTP/1.1 202 X\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        if asked.get("id") is None or self._stream is None:
            return
        spoiled = asked.get("method") == "tools/call" and self.answers
        _, _, answer = self.answer(asked)
        self._stream.write(answer if spoiled else b"event: message\ndata: " + answer + b"\n\n")
        await self._stream.drain()
        if spoiled and self.ending == "abort":
            self._stream.transport.abort()

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
async def answering(
    answers: Sequence[tuple[int, bytes, bytes]],
    *,
    opened: bytes | None = None,
    ending: Ending = "close",
    headers: bytes = b"",
) -> AsyncIterator[AnsweringServer]:
    one = AnsweringServer(list(answers), opened, ending, headers)
    server = await asyncio.start_server(one.connection, "127.0.0.1", 0)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
