"""A server on standard input and output: its process under the watchdog, and messages as lines.

The SDK has the same; this one reads a line in time that grows with its length alone (50 MB over the SDK's keep
everybody waiting for half a minute), has a limit on it, and leaves the end of the process to the watchdog.
"""

import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter

from mcp_rl.processes.process_log import ProcessLog
from mcp_rl.processes.spawn import end_process
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.launch import start

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 16 * 2**20
"""Bytes of one message. What is longer is read and thrown away, and an error takes its place."""
_KEPT = 512
"""Bytes of both ends of a line that is too long, to find the request in that it answers."""
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST = re.compile(
    rb'[\]}]\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)

Streams = tuple[Any, Any]
"""As the SDK wants them: SessionMessage or Exception comes, SessionMessage goes."""


@asynccontextmanager
async def stdio_streams(params: StdioServer, *, whose: str, log: ProcessLog) -> AsyncIterator[Streams]:
    """Start the server; what it says and what is said to it. The first ends when the server closes its output.

    Raises ServerError where there is no such program.
    """
    process = await start(params, whose=whose, log=log, stdin="pass")
    said, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, asked = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as pipes:
            pipes.start_soon(_read, process, said)
            pipes.start_soon(_write, process, asked, said)
            try:
                yield reading, writing
            finally:
                reading.close()
                writing.close()
                await end_process(process)
                pipes.cancel_scope.cancel()
    finally:
        for stream in (said, reading, writing, asked):
            stream.close()


async def _read(process: Process, said: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Hand on the messages; when nobody wants them any more, read on, so that the server can end."""
    assert process.stdout is not None
    lines, wanted = Lines(), True
    try:
        async for chunk in process.stdout:
            for message in lines.messages(chunk) if wanted else ():
                try:
                    await said.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    wanted = False
                    break
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        pass  # its end, however it comes
    finally:
        said.close()


async def _write(
    process: Process,
    asked: MemoryObjectReceiveStream[SessionMessage],
    said: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        async for message in asked:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        said.close()  # or nobody would learn that there are no more answers


class Lines:
    """Messages from the chunks that a server writes."""

    def __init__(self, longest: int = LONGEST_MESSAGE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0
        self._last = b""

    def messages(self, chunk: bytes) -> Iterator[SessionMessage | Exception]:
        """The messages whose lines end in this chunk; an exception for a line that is none."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._add(end)
            if self._size:
                yield self._message()
            self._parts, self._size, self._last = [], 0, b""
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._longest:
            self._parts = [b"".join(self._parts)[:_KEPT]]
            self._last = (self._last + part)[-_KEPT:]

    def _message(self) -> SessionMessage | Exception:
        line = b"".join(self._parts)
        if self._size > self._longest:
            return self._too_long(line)
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            try:
                text = line.decode(errors="replace")  # names and results may hold any bytes
                return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
            except ValueError:
                return error

    def _too_long(self, beginning: bytes) -> SessionMessage | Exception:
        """An error for the request that the line answers."""
        words = (
            f"The answer has {self._size / 2**20:.0f} MB, and more than {self._longest / 2**20:.0f} MB are not read."
        )
        found = _ID_FIRST.match(beginning) or _ID_LAST.search(self._last)
        if found is None:
            return ValueError(words)
        error = ErrorData(code=INVALID_REQUEST, message=words)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))
