"""The owner's side of a connection: the one task that opens sessions, sends what is queued, and closes them again.

Nothing of the SDK is ever entered in one task and left in another, and a session that breaks down cancels nobody but
the owner. Several calls may be in flight. Where a session is lost it is opened again for the next call; a call is
repeated only where that is known to be safe, once. A server process that died took its state along: it is started
again only where all its tools are read-only or idempotent, else every further call is a fault. Where the caller
relies on a state, the end of the session is the end of the connection, whatever the tools say.

The tools are listed again in every session that is opened anew and whenever the server says that they changed; calls
wait for it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
from anyio.abc import Process, TaskGroup
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR

from mcp_rl.errors import SchemaChanged, ServerError
from mcp_rl.processes.process_log import ProcessLog
from mcp_rl.scenario import OneServer, SseServer, StdioServer
from mcp_rl.toolserver.call import READING, Call, Carried
from mcp_rl.toolserver.deadlines import Deadlines, Steps
from mcp_rl.toolserver.launch import exited, own_folder, said, server_log
from mcp_rl.toolserver.listing import Tool, list_tools
from mcp_rl.toolserver.relisting import changed_sentence, listing_change, schema_changed
from mcp_rl.toolserver.session import Session, session_over
from mcp_rl.toolserver.transport import carried, open_streams, reachable

log = logging.getLogger(__name__)

_LISTING_PAUSE = 1.0
"""Seconds between two listings, however often a server says that its tools changed."""
_IDLE = 60.0
"""Seconds of silence after which a connection whose answers come on a stream of their own is tried before a call: it
may have been dropped on the way without a word, and the call would wait for an answer that cannot come."""
_TRY_SECONDS = 10.0
_EXIT_SECONDS = 2.0


class Owner:
    """What the owner task does, and what it knows."""

    def __init__(
        self,
        params: OneServer,
        deadlines: Deadlines,
        name: str,
        *,
        stateful: bool = False,
        allow_schema_change: bool = False,
        private: bool = False,
    ) -> None:
        self.name = name
        self.tools: list[Tool] = []
        """In the order of the server's listing."""
        self.warnings: list[str] = []
        """A sentence for each tool that was left out."""
        self.server_info: dict[str, str] = {}
        """Name and version, as the server says."""
        self.capabilities: frozenset[str] = frozenset()
        """What the server says that it offers: `tools`, `resources`, `prompts`, …"""
        self.listing_changed: str | None = None
        """What became of the tools since they were listed first, in a sentence; None where nothing did."""
        self._params = params
        self._deadlines = deadlines
        self._stateful = stateful
        self._allow_schema_change = allow_schema_change
        self._private = private
        self._whose = f"The server {name}" if name != "server" else "The server"
        self._repeatable: frozenset[str] = frozenset()
        self._waiting: deque[Call] = deque()
        self._interrupted: list[Call] = []
        self._own_request: Carried | None = None
        """What the owner itself asks at the moment."""
        self._in_flight = 0
        self._wake = asyncio.Event()
        self._opened = asyncio.Event()
        self._opening = True
        self._stopping = False
        self._doubted = False
        """Whether a call missed its deadline and the server has said nothing since it was sent."""
        self._frozen = False
        """Whether the process of a server answers nothing any more."""
        self._announced = False
        """Whether the server said that its tools changed, and nobody has looked since."""
        self._looked = -math.inf
        """When the tools were last listed because of that, on the loop's clock."""
        self._ended_by: str | None = None
        """Why we gave up the session, where it was us."""
        self._broken: str | None = None
        """Why no call can be made any more."""
        self._scope = anyio.CancelScope()

    def _queue(self, call: Call) -> None:
        self._waiting.append(call)
        self._wake.set()

    def _schema_changed(self) -> SchemaChanged | None:
        """What a call gets where the listing is not what the model was told."""
        if self.listing_changed is None or self._allow_schema_change:
            return None
        return schema_changed(self.listing_changed)

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._own_request is not None:
            self._own_request.abandon()
        if self._opening:
            self._scope.cancel()

    # What follows runs in the owner's task.

    async def _own(self, log_dir: Path | None) -> None:
        try:
            with self._scope, server_log(self.name, log_dir) as log_file:
                while await self._wanted():
                    await self._process_life(log_file)
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
            while self._waiting and self._waiting[0].future.done():
                self._waiting.popleft()
            if self._opening or (self._waiting and self._broken is None):
                return True
            self._wake.clear()
            await self._wake.wait()
        return False

    async def _process_life(self, log: ProcessLog) -> None:
        """From starting the server, where it is ours to start, to its end or ours."""
        self._frozen = False
        try:
            with own_folder(self._params, wanted=self._private) as given:
                async with reachable(given, whose=self._whose, log=log, deadline=self._deadlines.spawn) as (
                    params,
                    process,
                ):
                    while await self._wanted():
                        problem: BaseException | None = None
                        if process is None or process.returncode is None:
                            problem = await self._session_life(params, log)
                        if process is not None and not isinstance(params, StdioServer) and not self._stopping:
                            await _exit_told(process, params.url)
                        died = isinstance(params, StdioServer) or (
                            process is not None and (process.returncode is not None or self._frozen)
                        )
                        self._settle_interrupted(problem, died, log)
                        if died:
                            return
        except ServerError as error:
            self._refuse(error)

    async def _session_life(self, params: OneServer, log: ProcessLog) -> BaseException | None:
        """One session, opened, used and closed; what ended it. Raises ServerError where the first cannot be opened."""
        steps = Steps(asdict(self._deadlines))
        problem: BaseException | None = None
        self._ended_by, self._doubted = None, False
        try:
            with steps.scope:
                steps.begin("initialize")
                async with (
                    open_streams(params, whose=self._whose, log=log, deadline=self._deadlines.initialize) as streams,
                    session_over(
                        streams,
                        one_way=isinstance(params, SseServer),
                        on_end=self._wake.set,
                        on_listing=self._announce,
                    ) as session,
                ):
                    with self._asking(session):
                        await session.initialize()
                        steps.begin("list")
                        await self._list(session)
                    steps.begin("serve")
                    await self._serve(session)
                    steps.begin("close")
        except Exception as error:
            problem = error
        if steps.name in ("initialize", "list") and not self._scope.cancel_called:
            self._frozen = steps.scope.cancelled_caught
            self._refuse(self._unusable(steps, problem, params, log))
        return problem

    @contextmanager
    def _asking(self, session: Session, seconds: float = math.inf) -> Iterator[None]:
        """For requests of the owner's own. Raises ConnectionError where an HTTP request failed, TimeoutError after
        `seconds`, MCPError where the server reports an error."""
        self._own_request = request = Carried()
        token = carried.set(request)
        try:
            with request.begin(session) as scope:
                scope.deadline = anyio.current_time() + seconds
                yield
        except MCPError as error:
            if request.stands_for_status(error):
                raise ConnectionError(request.problem) from None
            raise
        finally:
            self._own_request = None
            carried.reset(token)
        if scope.cancelled_caught:
            raise (
                ConnectionError(request.problem)
                if request.problem
                else TimeoutError(f"it did not answer within {seconds:g} s")
            )

    def _announce(self) -> None:
        self._announced = True
        self._wake.set()

    async def _list(self, session: Session) -> None:
        """List the tools, for the first time or to see whether they are still the same."""
        self._announced = False
        tools, warnings = await list_tools(session.ask)
        self._repeatable = frozenset(tool.name for tool in tools if tool.repeatable)
        if not self._opening:
            self._compare(tools, warnings)
            return
        self.tools, self.warnings = tools, warnings
        self.server_info, self.capabilities = session.server_info, session.capabilities
        if not self.tools:
            raise ServerError(" ".join([f"{self._whose} lists no tools.", *self.warnings]))
        self._opening = False
        self._opened.set()

    def _compare(self, tools: list[Tool], warnings: list[str]) -> None:
        change = listing_change(self.tools, tools)
        if change is None:
            if not self._allow_schema_change:
                self.listing_changed = None
            return
        sentence = changed_sentence(self._whose, change)
        if sentence != self.listing_changed:
            log.warning("%s", sentence)
        self.listing_changed = sentence
        if self._allow_schema_change:
            self.tools, self.warnings = tools, warnings

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
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as calls:
            while not (self._stopping or session.over):
                self._wake.clear()
                pause = self._looked + _LISTING_PAUSE - loop.time() if self._announced else None
                if pause is not None and pause <= 0:
                    await self._look_again(session)
                    continue
                if self._doubted or (self._waiting and self._silent(session)):
                    self._doubted = False
                    if not await self._still_there(session):
                        calls.cancel_scope.cancel()
                        break
                while self._waiting:
                    self._send(session, self._waiting.popleft(), calls)
                if pause is None:
                    await self._wake.wait()
                else:
                    with anyio.move_on_after(pause):
                        await self._wake.wait()
            if self._stopping:
                calls.cancel_scope.cancel()

    async def _look_again(self, session: Session) -> None:
        """The server said that its tools changed. A session that does not list them is of no more use."""
        try:
            with self._asking(session, self._deadlines.list):
                await self._list(session)
        except (MCPError, OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._in_flight:  # it may do one thing at a time
                self._announced = True
                return
            self._give_up(session, f"it said that its tools changed, and did not list them: {_words(error)}")
        finally:
            self._looked = asyncio.get_running_loop().time()

    def _silent(self, session: Session) -> bool:
        """Whether the server may have gone without our hearing of it."""
        quiet = asyncio.get_running_loop().time() - session.heard
        return session.one_way and self._in_flight == 0 and quiet > _IDLE

    async def _still_there(self, session: Session) -> bool:
        try:
            with self._asking(session, _TRY_SECONDS):
                await session.ask("ping", {}, take_back=False)
        except (OSError, TimeoutError) as error:
            self._frozen = isinstance(error, TimeoutError)
            self._give_up(session, "it answers no more")
        except MCPError as error:  # an answer too, unless the SDK made it
            if error.code == CONNECTION_CLOSED:
                session.give_up()
        return not session.over

    def _give_up(self, session: Session, why: str) -> None:
        self._ended_by = self._ended_by or why
        session.give_up()

    def _send(self, session: Session, call: Call, calls: TaskGroup) -> None:
        if call.future.done():
            return
        if call.tool is not None and (changed := self._schema_changed()):
            call.stop(changed)
            return
        self._in_flight += 1
        calls.start_soon(self._answer, session, call)

    async def _answer(self, session: Session, call: Call) -> None:
        carried.set(call)
        clock = asyncio.get_running_loop().time
        started = clock()
        call.on_expiry = partial(self._doubt, session, started)
        try:
            with call.begin(session):
                raw = await session.ask(call.method, call.params, call.sign_of_life)
                call.succeed(raw, clock() - started)
        except MCPError as error:
            if call.lost(error, session):
                call.problem = call.problem or error.message
                session.give_up()
            elif call.failed_alone(error):
                self._settle(call, "it failed")
            elif error.code == PARSE_ERROR and error.message.startswith("Failed to parse"):
                call.fail(f"{self._whose} sent what is no JSON-RPC in answer to a call of {call.what}.")
            else:
                call.refuse(error, clock() - started)
        finally:
            self._in_flight -= 1
            if not call.future.done() and call not in self._waiting:
                self._interrupted.append(call)

    def _doubt(self, session: Session, since: float) -> None:
        """A call that was sent at that time missed its deadline."""
        if session.heard < since:
            self._doubted = True
            self._wake.set()

    def _settle_interrupted(self, problem: BaseException | None, died: bool, log: ProcessLog) -> None:
        """After the end of a session: what may be repeated waits for the next one, the rest are faults."""
        if self._stopping:
            return
        cause = self._ended_by or _words(first_cause(problem) or ServerError("it was closed"))
        if died and (self._stateful or any(tool.name not in self._repeatable for tool in self.tools)):
            how = f"cannot be used any more: {cause}." if self._ended_by else "exited in the middle of the run."
            self._broken = f"{self._whose} {how}{said(log)}"
        elif self._stateful:
            self._broken = f"{self._whose} lost its session, and the state with it: {cause}."
        for call in reversed(self._interrupted):
            self._settle(call, cause)
        self._interrupted.clear()
        if self._broken is not None:
            for call in self._waiting:
                call.fail(self._broken)
            self._waiting.clear()

    def _settle(self, call: Call, cause: str) -> None:
        if self._broken is None and call.attempts < 2 and (call.delivered is False or self._safe_twice(call)):
            self._waiting.appendleft(call)
            self._wake.set()
        else:
            why = (call.problem or cause).rstrip(".")
            call.fail(self._broken or f"{self._whose} was lost in a call of {call.what}: {why}.")

    def _safe_twice(self, call: Call) -> bool:
        return call.tool in self._repeatable if call.tool is not None else call.method in READING

    def _unusable(self, steps: Steps, problem: BaseException | None, params: OneServer, log: ProcessLog) -> ServerError:
        """The one sentence for a session that could not be opened."""
        cause = first_cause(problem)
        if isinstance(cause, ServerError):
            return cause
        if steps.scope.cancelled_caught:
            wanted = "answer" if steps.name == "initialize" else "list its tools"
            return ServerError(f"{self._whose} did not {wanted} within {steps.seconds:g} s.{said(log)}")
        if isinstance(params, StdioServer) or isinstance(self._params, StdioServer):
            if isinstance(cause, MCPError) and cause.code == CONNECTION_CLOSED:
                return ServerError(exited(self._whose, log))
            return ServerError(f"{self._whose} cannot be used: {_words(cause)}.{said(log)}")
        hint = "" if isinstance(params, SseServer) else " If it speaks SSE, choose the transport sse."
        url = params.url if self._params.launch is not None else self._params.url  # which may hide a secret
        return ServerError(f"{self._whose} cannot be used at {url}: {_words(cause)}.{hint}")


async def _exit_told(process: Process, url: str) -> None:
    """Where a server takes no connections any more, wait a little to hear of its end: what it held is closed first."""
    parts = urlsplit(url)
    with anyio.move_on_after(_EXIT_SECONDS):
        try:
            await (await anyio.connect_tcp(parts.hostname or "127.0.0.1", parts.port or 80)).aclose()
        except OSError:
            await process.wait()


def _words(error: BaseException | None) -> str:
    """What went wrong, in one line that holds no address: that may hold a secret."""
    if isinstance(error, httpx2.HTTPStatusError):
        return f"HTTP status {error.response.status_code}"
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def first_cause(error: BaseException | None) -> BaseException | None:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
