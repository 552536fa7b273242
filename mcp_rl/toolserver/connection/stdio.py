"""The stdio transport: a server's process under the watchdog, with one message per line.

It replaces the SDK's, which takes quadratic time on long lines (half a minute for 50 MB): this one takes linear time,
limits the length of a line, and leaves the end of the process to the watchdog.
"""

from __future__ import annotations

import logging
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, jsonrpc_message_adapter

from mcp_rl.system.processes.spawn import end_process
from mcp_rl.toolserver.connection.launch import start
from mcp_rl.toolserver.known_secrets import redaction_for
from mcp_rl.toolserver.tools.budgets import MOST_VALUES, has_too_many_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from anyio.abc import Process
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from mcp_rl.scenario import StdioServer
    from mcp_rl.system.processes.process_log import ProcessLog
    from mcp_rl.system.redaction import Redaction
    from mcp_rl.toolserver.sandbox.layer import Layer

log = logging.getLogger(__name__)

LONGEST_MESSAGE = 16 * 2**20
"""Bytes of one message. A longer one is read and discarded, and an error takes its place."""
_KEPT = 512
"""Bytes kept of both ends of a line that is too long, to find the id of the request that it answers."""
_STRAY_LINES = 12
"""Lines without JSON that are kept."""
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST = re.compile(
    rb'[\]}]\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
)

Streams = tuple[Any, Any]
"""A pair as the SDK wants it: one stream of incoming SessionMessage or Exception, one of outgoing SessionMessage."""


@asynccontextmanager
async def stdio_streams(
    params: StdioServer, *, server: str, log: ProcessLog, layer: Layer | None = None
) -> AsyncIterator[Streams]:
    """Start the server and give its message streams. The incoming one ends when the server closes its output.

    Raises ServerError if the program does not exist.
    """
    process = await start(params, server=server, log=log, stdin="pass", layer=layer)
    received, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        async with anyio.create_task_group() as pipes:
            pipes.start_soon(_read, process, received, StrayLines(log, redaction_for(params)))
            pipes.start_soon(_write, process, to_send, received)
            try:
                yield reading, writing
            finally:
                reading.close()
                writing.close()
                await end_process(process)
                pipes.cancel_scope.cancel()
    finally:
        for stream in (received, reading, writing, to_send):
            stream.close()


async def _read(
    process: Process, received: MemoryObjectSendStream[SessionMessage | Exception], stray: StrayLines
) -> None:
    """Pass on the messages. Once the receiver is closed, keep reading, so that the server can end."""
    assert process.stdout is not None
    lines, wanted = Lines(stray), True
    try:
        async for chunk in process.stdout:
            for message in lines.messages(chunk) if wanted else ():
                try:
                    await received.send(message)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    wanted = False
                    break
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        pass  # the end of the process
    finally:
        received.close()


async def _write(
    process: Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert process.stdin is not None
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await process.stdin.send(text.encode() + b"\n")
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        received.close()  # tells the reader that no more answers come


class StrayLines:
    """Keeps the first lines that are no JSON in the server's log: a banner, or how the program is used."""

    def __init__(self, log: ProcessLog, redaction: Redaction) -> None:
        self._log, self._redaction, self._left = log, redaction, _STRAY_LINES

    def keep(self, line: bytes) -> None:
        if self._left and not line.lstrip().startswith((b"{", b"[")):
            self._left -= 1
            self._log.file.write(self._redaction.text(line[:_KEPT].decode(errors="replace").rstrip()) + "\n")
            self._log.file.flush()


class Lines:
    """Splits the chunks that a server writes into messages."""

    def __init__(self, stray: StrayLines | None = None, longest: int = LONGEST_MESSAGE) -> None:
        self._stray, self._longest = stray, longest
        self._parts: list[bytes] = []
        self._size = 0
        self._last = b""

    def messages(self, chunk: bytes) -> Iterator[SessionMessage | Exception]:
        """Yield the messages whose lines end in this chunk, and an exception for each malformed line."""
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
            return self._refused(line, f"has {self._size / 2**20:.0f} MB; the limit is {self._longest / 2**20:.0f} MB")
        if has_too_many_values(line):
            self._last = line[-_KEPT:]
            return self._refused(line[:_KEPT], f"has more than {MOST_VALUES:,} values, which is the limit")
        try:
            return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            try:
                text = line.decode(errors="replace")  # names and results may contain bytes that are not UTF-8
                return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
            except ValueError:
                if self._stray is not None:
                    self._stray.keep(line)
                return error

    def _refused(self, beginning: bytes, why: str) -> SessionMessage | Exception:
        """Return an error in answer to the request that the line answers."""
        words = f"The answer {why}."
        found = _ID_FIRST.match(beginning) or _ID_LAST.search(self._last)
        if found is None:
            return ValueError(words)
        error = ErrorData(code=INVALID_REQUEST, message=words)
        return SessionMessage(JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))
