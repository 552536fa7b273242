"""A connection to a tool server: one task owns it, everybody else awaits futures.

The owner opens the session, sends the calls that are queued for it, and closes it again, so that nothing of the SDK is
ever entered in one task and left in another, and a session that breaks down cancels nobody but the owner. Several calls
may be in flight. Where a session is lost it is opened again for the next call; a call is repeated only where that is
known to be safe, once. A server process that died took its state along: it is started again only where all its tools
are read-only or idempotent, else every further call is a fault. Where the caller relies on a state, the end of the
session is the end of the connection, whatever the tools say.
"""

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, METHOD_NOT_FOUND, PARSE_ERROR

from mcp_rl.errors import ServerError, ServerFault
from mcp_rl.scenario import OneServer, SseServer, StdioServer
from mcp_rl.toolserver.launch import ServerLog, exited, said, server_log
from mcp_rl.toolserver.listing import Tool, list_tools
from mcp_rl.toolserver.results import ToolResult, read_result
from mcp_rl.toolserver.session import Session, Steps, session_over
from mcp_rl.toolserver.transport import carried, open_streams, reachable

log = logging.getLogger(__name__)
__all__ = ["Connection", "Deadlines", "Tool", "ToolResult", "connect"]

_SYNTHETIC = ("Session terminated", "Not Found", "Server returned an error response", "Unexpected content type")
"""How the SDK's streamable-HTTP transport words an HTTP error status that came without a JSON-RPC error."""

_NO_SESSION = "HTTP status 404"
"""The answer to a session that is not known (any more), whatever its body says: specification 2025-11-25, Transports,
Session Management. Some servers also send it with the error "method not found"."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds that each step may take."""

    spawn: float = 30.0
    """From starting a network server to its first open port."""
    initialize: float = 60.0
    """Connecting and the handshake. Generous, since `npx` and `uvx` download the server before they start it."""
    list: float = 30.0
    """All pages of the tools."""
    call: float = 60.0
    """One tool call, with whatever it takes to open a lost session again."""
    close: float = 5.0
    longest_call: float = 600.0
    """A call whose server tells of progress, in all."""


class Connection:
    """An open connection; made by `connect`."""

    def __init__(self, params: OneServer, deadlines: Deadlines, name: str, *, stateful: bool = False) -> None:
        self.name = name
        self.tools: list[Tool] = []
        """In the order of the server's listing."""
        self.warnings: list[str] = []
        """A sentence for each tool that was left out."""
        self.server_info: dict[str, str] = {}
        """Name and version, as the server says."""
        self._params = params
        self._deadlines = deadlines
        self._stateful = stateful
        self._whose = f"The server {name}" if name != "server" else "The server"
        self._waiting: deque[_Call] = deque()
        self._interrupted: list[_Call] = []
        self._wake = asyncio.Event()
        self._opened = asyncio.Event()
        self._opening = True
        self._stopping = False
        self._broken: str | None = None
        """Why no call can be made any more."""
        self._scope = anyio.CancelScope()

    @property
    def alive(self) -> bool:
        """Whether a call has a chance: False once the connection is closed or its server's state is gone."""
        return self._broken is None

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool by the server's own name for it and await its result.

        What the tool or the server reports about the call is in the result, with `is_error`. Raises ServerFault where
        the server died or did not answer within `deadline` seconds (default: that of the connection).
        """
        if complaint := _unsendable(arguments):
            return ToolResult(complaint, is_error=True)
        if self._broken is not None:
            raise ServerFault(self._broken, delivered=False)
        call = _Call(tool_name, arguments, asyncio.get_running_loop().create_future())
        return await self._result(call, self._deadlines.call if deadline is None else deadline)

    async def ping(self, deadline: float) -> bool:
        """Whether the server still answers."""
        return self.alive

    async def resources(self) -> list[dict[str, Any]]:
        """The resources that the server lists on its first page, as it describes them; none where it has none to list.

        Each has a `uri`. Whatever goes wrong is read as an empty list: resources are nice to have.
        """
        call = _Call("", {}, asyncio.get_running_loop().create_future(), method="resources/list")
        try:
            raw = (await self._result(call, self._deadlines.list)).structured if self.alive else None
        except ServerFault:
            return []
        listed = raw.get("resources") if isinstance(raw, dict) else None
        entries = listed if isinstance(listed, list) else []
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("uri"), str)]

    async def _result(self, call: "_Call", seconds: float) -> ToolResult:
        self._waiting.append(call)
        self._wake.set()
        try:
            async with asyncio.timeout(seconds):
                return await call.future
        except TimeoutError:
            raise ServerFault(
                f"{self._whose} did not answer a call of {call.tool or call.method} within {seconds:g} s.",
                delivered=call.delivered,
            ) from None

    # What follows runs in the owner's task.

    async def _own(self, log_dir: Path | None) -> None:
        try:
            with self._scope, server_log(self.name, log_dir) as log:
                while await self._wanted():
                    await self._process_life(log)
        except Exception as error:
            self._broken = f"{self._whose} cannot be used: {_words(error)}."
            raise
        finally:
            self._broken = self._broken or f"{self._whose} is closed."
            for call in (*self._waiting, *self._interrupted):
                call.fail(self._broken)
            self._opened.set()

    async def _wanted(self) -> bool:
        """Wait until a session is needed; False when the connection is to be closed."""
        while not self._stopping:
            if self._opening or (self._waiting and self._broken is None):
                return True
            self._wake.clear()
            await self._wake.wait()
        return False

    async def _process_life(self, log: ServerLog) -> None:
        """From starting the server, where it is ours to start, to its end or ours."""
        try:
            async with reachable(self._params, whose=self._whose, log=log, deadline=self._deadlines.spawn) as (
                params,
                process,
            ):
                while await self._wanted():
                    problem: BaseException | None = None
                    if process is None or process.returncode is None:
                        problem = await self._session_life(params, log)
                    died = isinstance(params, StdioServer) or (process is not None and process.returncode is not None)
                    self._settle_interrupted(problem, died, log)
                    if died:
                        return
        except ServerError as error:
            self._refuse(error)

    async def _session_life(self, params: OneServer, log: ServerLog) -> BaseException | None:
        """One session, opened, used and closed; what ended it. Raises ServerError where the first cannot be opened."""
        steps = Steps(asdict(self._deadlines))
        problem: BaseException | None = None
        try:
            with steps.scope:
                steps.begin("initialize")
                async with (
                    open_streams(params, whose=self._whose, log=log, deadline=self._deadlines.initialize) as streams,
                    session_over(streams, one_way=isinstance(params, SseServer), on_end=self._wake.set) as session,
                ):
                    await session.initialize()
                    if self._opening:
                        steps.begin("list")
                        await self._list(session)
                    steps.begin("serve")
                    await self._serve(session)
                    steps.begin("close")
        except Exception as error:
            problem = error
        if steps.name in ("initialize", "list") and not self._scope.cancel_called:
            self._refuse(self._unusable(steps, problem, params, log))
        return problem

    async def _list(self, session: Session) -> None:
        self.tools, self.warnings = await list_tools(session.ask)
        self.server_info = session.server_info
        if not self.tools:
            raise ServerError(" ".join([f"{self._whose} lists no tools.", *self.warnings]))
        self._opening = False
        self._opened.set()

    def _refuse(self, error: ServerError) -> None:
        """The server could not be reached: the end of the connection at first, later the fault of who waits for it."""
        if self._opening:
            raise error
        for call in (*self._waiting, *self._interrupted):
            call.fail(str(error))
        self._waiting.clear()
        self._interrupted.clear()

    async def _serve(self, session: Session) -> None:
        """Send what is queued until the session is lost or the connection is to be closed."""
        async with anyio.create_task_group() as calls:
            while not (self._stopping or session.over):
                while self._waiting:
                    calls.start_soon(self._answer, session, self._waiting.popleft())
                self._wake.clear()
                await self._wake.wait()
            if self._stopping:
                calls.cancel_scope.cancel()

    async def _answer(self, session: Session, call: "_Call") -> None:
        if call.future.done():
            return
        carried.set(call)
        started = time.perf_counter()
        try:
            with call.begin(session):
                raw = await session.ask(call.method, call.params)
                seconds = time.perf_counter() - started
                is_call = call.method == "tools/call"
                call.succeed(read_result(raw, seconds) if is_call else ToolResult("", raw, False, seconds))
        except MCPError as error:
            if _lost(error, session, call):
                call.problem = call.problem or error.message
                session.give_up()
            elif error.code == PARSE_ERROR and error.message.startswith("Failed to parse"):
                call.fail(f"{self._whose} sent what is no JSON-RPC: {error.message}")
            else:
                call.succeed(ToolResult(error.message, None, True, time.perf_counter() - started))
        finally:
            if not call.future.done():
                self._interrupted.append(call)

    def _settle_interrupted(self, problem: BaseException | None, died: bool, log: ServerLog) -> None:
        """After the end of a session: what may be repeated waits for the next one, the rest are faults."""
        if self._stopping:
            return
        repeatable = {tool.name for tool in self.tools if tool.repeatable}
        if died and (self._stateful or len(repeatable) < len(self.tools)):
            self._broken = f"{self._whose} exited in the middle of the run.{said(log)}"
        elif self._stateful:
            why = _words(first_cause(problem) or ServerError("it was closed"))
            self._broken = f"{self._whose} lost its session, and the state with it: {why}."
        for call in reversed(self._interrupted):
            if self._broken is None and call.attempts < 2 and (call.delivered is False or call.tool in repeatable):
                self._waiting.appendleft(call)
            else:
                cause = call.problem or first_cause(problem) or "it was closed"
                call.fail(self._broken or f"{self._whose} was lost in a call of {call.tool}: {cause}.")
        self._interrupted.clear()
        if self._broken is not None:
            for call in self._waiting:
                call.fail(self._broken)
            self._waiting.clear()

    def _unusable(self, steps: Steps, problem: BaseException | None, params: OneServer, log: ServerLog) -> ServerError:
        """The one sentence for a session that could not be opened."""
        cause = first_cause(problem)
        if isinstance(cause, ServerError):
            return cause
        if steps.scope.cancelled_caught:
            wanted = "answer" if steps.name == "initialize" else "list its tools"
            return ServerError(f"{self._whose} did not {wanted} within {steps.seconds:g} s.{said(log)}")
        if isinstance(params, StdioServer):
            if isinstance(cause, MCPError) and cause.code == CONNECTION_CLOSED:
                return ServerError(exited(self._whose, log))
            return ServerError(f"{self._whose} cannot be used: {_words(cause)}.{said(log)}")
        hint = "" if isinstance(params, SseServer) else " If it speaks SSE, choose the transport sse."
        return ServerError(f"{self._whose} cannot be used at {params.url}: {_words(cause)}.{hint}")

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._opening:
            self._scope.cancel()


@asynccontextmanager
async def connect(
    params: OneServer,
    *,
    deadlines: Deadlines | None = None,
    log_dir: Path | None = None,
    name: str = "server",
    stateful: bool = False,
    tool_deadlines: Mapping[str, float] | None = None,
    allow_schema_change: bool = False,
    private: bool = False,
) -> AsyncIterator[Connection]:
    """Start the server where it is ours to start, connect, and list its tools; undo all of it afterwards.

    The server's stderr goes to a file under `log_dir`, or nowhere. `stateful` says that a session which was lost must
    not be opened again, since the caller relies on what the server knew. The context may be left in another task than
    the one that entered it. Raises ServerError where the server does not start, never answers or lists no tools.
    """
    deadlines = deadlines or Deadlines()
    connection = Connection(params, deadlines, name, stateful=stateful)
    # Not a task group's task: a task group belongs to the task that opened it, which the caller need not know of.
    owner = asyncio.create_task(connection._own(log_dir), name=f"owner of {name}")
    try:
        await connection._opened.wait()
        if connection._opening:
            await owner
        yield connection
    finally:
        connection._stop()
        with anyio.CancelScope(shield=True):
            done, _ = await asyncio.wait({owner}, timeout=deadlines.close)
            if not done:
                connection._scope.cancel()
                done, _ = await asyncio.wait({owner}, timeout=deadlines.close)
        if not done:
            owner.cancel()
            log.warning("%s did not close in time.", connection._whose)
        elif not owner.cancelled():
            owner.exception()  # told already: by the first await, or to the calls that it failed


@dataclass
class _Call:
    """A call on its way. `delivered` is False while it surely never reached the server, None where nobody knows."""

    tool: str
    arguments: dict[str, Any]
    future: asyncio.Future[ToolResult]
    delivered: bool | None = False
    attempts: int = 0
    problem: str | None = None
    session: Session | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    method: str = "tools/call"

    @property
    def params(self) -> dict[str, Any]:
        return {"name": self.tool, "arguments": self.arguments} if self.tool else {}

    def __post_init__(self) -> None:
        self.future.add_done_callback(self._let_go)

    def begin(self, session: Session) -> anyio.CancelScope:
        self.session, self.scope, self.problem = session, anyio.CancelScope(), None
        self.attempts += 1
        self.delivered = False if session.over else None
        return self.scope

    def succeed(self, result: ToolResult) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, message: str) -> None:
        if not self.future.done():
            self.future.set_exception(ServerFault(message, delivered=self.delivered))
            self.future.exception()  # a caller that has gone need not hear of it

    def answered(self, status: int) -> None:
        """The server answered the HTTP request that carried this call."""
        self.delivered = True if status < 400 else False if status < 500 else None
        if status >= 400:
            self.problem = f"HTTP status {status}"
            self._abandon()

    def broke(self, error: Exception, *, never_sent: bool) -> None:
        """The HTTP request that carried this call failed."""
        self.delivered = False if never_sent else self.delivered
        self.problem = str(error) or type(error).__name__
        self._abandon()

    def _abandon(self) -> None:
        """Over SSE nobody would answer any more; streamable HTTP answers by itself."""
        if self.session is not None and self.session.one_way:
            self.session.give_up()
            self.scope.cancel()

    def _let_go(self, future: asyncio.Future[ToolResult]) -> None:
        if future.cancelled():
            self.scope.cancel()


def _lost(error: MCPError, session: Session, call: _Call) -> bool:
    """Whether an error speaks of the connection rather than of the call."""
    if error.code == CONNECTION_CLOSED:
        return session.over or error.message.startswith(("Connection closed", "SSE stream"))
    if call.problem == _NO_SESSION:
        return error.code != METHOD_NOT_FOUND
    return call.problem is not None and error.message.startswith(_SYNTHETIC)


def _unsendable(arguments: dict[str, Any]) -> str | None:
    """What is wrong with arguments that are no JSON; NaN or half a surrogate pair would end the session."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"The arguments are no valid JSON: {error}"
    return None


def _words(error: BaseException | None) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def first_cause(error: BaseException | None) -> BaseException | None:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
