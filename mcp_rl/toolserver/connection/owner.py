"""The owner task of a connection: it opens sessions, sends the queued calls, and closes the sessions again.

Nothing of the SDK is ever entered in one task and left in another, and a session that breaks down cancels only the
owner. Several calls may be in flight. A lost session is reopened for the next call; a call is repeated once, and only
if that is known to be safe. The state of a server process dies with it, so the process is restarted only if all its
tools are read-only or idempotent; otherwise every further call is a fault. If the caller relies on the server's state,
the end of the session ends the connection, whatever the tools' annotations say.

Tools are listed again in every new session and whenever the server says that they changed; calls wait for the listing.
Which era of the protocol a server speaks is found out when it is opened (`era.py`), and remembered for its other
connections; a process that ends at the question is started again and asked the older way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR

from mcp_rl.errors import ElicitationError, EngineError, SchemaChanged, ServerError
from mcp_rl.scenario import OneServer, SseServer, StdioServer
from mcp_rl.toolserver.connection.call import READING, Call, Delivery
from mcp_rl.toolserver.connection.deadlines import Deadlines, Steps
from mcp_rl.toolserver.connection.era import EndedAtProbe, EraError, begins_with_handshake, remember
from mcp_rl.toolserver.connection.failures import first_cause, in_words, unusable
from mcp_rl.toolserver.connection.launch import WrittenForMcp1, last_lines, server_log
from mcp_rl.toolserver.connection.raw_session import RawSession, open_session
from mcp_rl.toolserver.connection.rounds import result_of
from mcp_rl.toolserver.connection.transport import current_delivery, open_streams, reachable
from mcp_rl.toolserver.elicitation import MOST_QUESTIONS, answer, exchange
from mcp_rl.toolserver.known_secrets import redaction_for
from mcp_rl.toolserver.launchers.direct import direct, start_with_mcp_1
from mcp_rl.toolserver.sandbox.choice import surroundings
from mcp_rl.toolserver.sandbox.copied_paths import CopiedPaths
from mcp_rl.toolserver.sandbox.sandbox import Sandbox
from mcp_rl.toolserver.tools.listing import Tool, list_tools
from mcp_rl.toolserver.tools.relisting import changed_sentence, listing_change, schema_changed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anyio.abc import Process, TaskGroup

    from mcp_rl.config import Elicitation
    from mcp_rl.system.processes.process_log import ProcessLog
    from mcp_rl.toolserver.connection.stdio import Streams
    from mcp_rl.toolserver.elicitation import FillIn
    from mcp_rl.toolserver.sandbox.layer import Layer

log = logging.getLogger(__name__)

_LISTING_PAUSE = 1.0
"""Minimum seconds between two listings, however often a server says that its tools changed."""
_IDLE = 60.0
"""Seconds of silence after which a connection with a separate answer stream (SSE) is pinged before a call. The stream
may have been dropped without notice, and the call would wait in vain."""
_PING_SECONDS = 10.0
_EXIT_SECONDS = 2.0


class Owner:
    """The state and the work of the owner task; `Connection` adds the side of the callers."""

    def __init__(
        self,
        params: OneServer,
        deadlines: Deadlines,
        name: str,
        *,
        stateful: bool = False,
        allow_schema_change: bool = False,
        sandbox: Sandbox | None = None,
    ) -> None:
        self.name = name
        self.tools: list[Tool] = []
        """The tools in the order of the server's listing."""
        self.warnings: list[str] = []
        """A sentence for each tool that was left out."""
        self.server_info: dict[str, str] = {}
        """The server's name and version, as it reports them."""
        self.revision = ""
        """The protocol revision that is spoken, such as 2025-11-25."""
        self.elicitation: Elicitation | FillIn = "decline"
        """The policy that answers a server's requests for its user's input."""
        self.capabilities: frozenset[str] = frozenset()
        """The capabilities that the server declares: `tools`, `resources`, `prompts`, …"""
        self.listing_changed: str | None = None
        """A sentence on how the tools changed since they were first listed; None if they did not."""
        self._params = params
        self._deadlines = deadlines
        self._stateful = stateful
        self._allow_schema_change = allow_schema_change
        self._sandbox = sandbox or Sandbox("off")
        self.layer: Layer | None = None
        """The layer of files that the server's process has written; None if it does not run in a sandbox."""
        self._paths = CopiedPaths()
        self._redaction = redaction_for(params)
        self._server = f"The server {name}" if name != "server" else "The server"
        self._key = repr(params)
        self._handshake = isinstance(params, SseServer)
        """True if a session begins with the handshake of the older era."""
        self._calls: set[Call] = set()
        """The calls that are being answered."""
        self._repeatable: frozenset[str] = frozenset()
        self._waiting: deque[Call] = deque()
        self._interrupted: list[Call] = []
        self._own_request: Delivery | None = None
        """The request that the owner itself has in flight."""
        self._in_flight = 0
        self._wake = asyncio.Event()
        self._opened = asyncio.Event()
        self._opening = True
        self._with_mcp_1 = False
        """True once the server failed at its start, and was started with version 1 of the Python package mcp."""
        self._stopping = False
        self._doubted = False
        """True while a call has missed its deadline and the server has sent nothing since the call was sent."""
        self._frozen = False
        """True once the server's process answers nothing any more."""
        self._announced = False
        """True while the server has announced changed tools and they have not been listed again."""
        self._looked = -math.inf
        """When the tools were last listed after an announcement, on the loop's clock."""
        self._ended_by: str | None = None
        """Why we ended the session; None if the server did."""
        self._broken: str | None = None
        """Why no call can be made any more; None while calls are possible."""
        self._scope = anyio.CancelScope()

    async def _outcome(self, call: Call) -> dict[str, Any]:
        """Queue a call and await its outcome. A call that ends in the queue leaves it: opening a session takes long."""
        self._waiting.append(call)
        self._wake.set()
        try:
            return await call.outcome()
        finally:
            if call in self._waiting:
                self._waiting.remove(call)

    def _schema_changed(self) -> SchemaChanged | None:
        """Return the error for calls after the tools changed, unless that is allowed."""
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

    # -- the owner task

    async def _own(self, log_dir: Path | None) -> None:
        try:
            with self._scope, server_log(self.name, log_dir) as log_file:
                while await self._wanted():
                    await self._process_life(log_file)
        except Exception as error:
            self._broken = f"{self._server} cannot be used: {in_words(error)}."
            raise
        finally:
            self._broken = self._broken or f"{self._server} is closed."
            for call in (*self._waiting, *self._interrupted):
                call.fail(self._broken)
            self._opened.set()

    async def _wanted(self) -> bool:
        """Wait until a session is needed; return False once the connection is to be closed."""
        while not self._stopping:
            while self._waiting and self._waiting[0].ended:
                self._waiting.popleft()
            if self._opening or (self._waiting and self._broken is None):
                return True
            self._wake.clear()
            await self._wake.wait()
        return False

    async def _process_life(self, log: ProcessLog) -> None:
        """Start the server if it is ours to start, and run sessions until it or the connection ends."""
        self._frozen = False
        try:
            started = await direct(self._params, server=self._server)
            placed = surroundings(started, self._sandbox, server=self._server)
            with placed as around:
                self.layer, self._paths = around.layer, around.paths
                starting = reachable(
                    around.params, server=self._server, log=log, deadline=self._deadlines.spawn, layer=self.layer
                )
                async with starting as (params, process):
                    while await self._wanted():
                        problem: BaseException | None = None
                        if process is None or process.returncode is None:
                            problem = await self._session_life(params, log)
                        if process is not None and not isinstance(params, StdioServer) and not self._stopping:
                            await _wait_for_exit(process, params.url)
                        died = isinstance(params, StdioServer) or (
                            process is not None and (process.returncode is not None or self._frozen)
                        )
                        if not self._opening:
                            self._settle_interrupted(problem, died, log)
                        if died:
                            return
        except ServerError as error:
            if isinstance(error, WrittenForMcp1) and not self._with_mcp_1 and start_with_mcp_1(self._params):
                self._with_mcp_1 = True
                log.begin_again()
            else:
                self._refuse(error)

    async def _session_life(self, params: OneServer, log: ProcessLog) -> BaseException | None:
        """Open, use and close a session; return the error that ended it. Raises ServerError if the first one fails."""
        steps = Steps(asdict(self._deadlines))
        problem: BaseException | None = None
        self._ended_by, self._doubted = None, False
        try:
            with steps.scope:
                steps.begin("initialize")
                async with (
                    self._streams(params, log) as streams,
                    open_session(
                        streams,
                        one_way=isinstance(params, SseServer),
                        on_end=self._wake.set,
                        on_listing=self._announce,
                        on_flood=self._flooded,
                        on_question=self._answer_question,
                        redaction=self._redaction,
                    ) as session,
                ):
                    session.paths = self._paths
                    await self._begin(session)
                    steps.begin("list")
                    await self._list_first(session)
                    steps.begin("serve")
                    await self._serve(session)
                    steps.begin("close")
        except Exception as error:
            problem = error
        if isinstance(first_cause(problem), EndedAtProbe) and not self._handshake:
            self._handshake = True  # and a new process
        elif steps.name in ("initialize", "list") and not self._scope.cancel_called:
            self._frozen = steps.scope.cancelled_caught
            self._refuse(unusable(self._server, params, steps, problem, log, self._shown_url(params)))
        return problem

    def _streams(self, params: OneServer, log: ProcessLog) -> AbstractAsyncContextManager[Streams]:
        seconds = self._deadlines.initialize
        return open_streams(params, server=self._server, log=log, deadline=seconds, layer=self.layer)

    async def _begin(self, session: RawSession) -> None:
        """Agree on a revision. Raises ServerError if there is none in common."""
        try:
            with self._asking(session):
                await session.begin(handshake=self._handshake or begins_with_handshake(self._key))
        except EraError as error:
            raise ServerError(f"{self._server} {error}.") from None
        remember(self._key, session.agreement)

    async def _list_first(self, session: RawSession) -> None:
        try:
            with self._asking(session):
                await self._list(session)
        except MCPError as error:
            if not session.modern or error.code == CONNECTION_CLOSED:
                raise
            raise ServerError(
                f"{self._server} says that it speaks the protocol revision {session.revision}, and answers tools/list "
                f"of that revision with an error: {in_words(error)}."
            ) from None

    async def _answer_question(self, params: dict[str, Any], call: Call | None = None) -> dict[str, Any]:
        """Answer an elicitation by the caller's user, else by the policy, and keep both with the call that it belongs
        to, if that is known."""
        if call is None:
            current = current_delivery.get()
            alone = next(iter(self._calls)) if len(self._calls) == 1 else None
            call = current if isinstance(current, Call) else alone
        if call is None or len(call.asked) >= MOST_QUESTIONS:
            return {"action": "decline"}
        try:
            with call.asking_user() if call.user else nullcontext():
                answered = await answer(call.user or self.elicitation, params, call.params)
        except (ElicitationError, EngineError) as error:
            call.stop(error)
            call.abandon()
            return {"action": "cancel"}
        call.asked.append(self._redaction.value(exchange(params, answered)))
        return answered

    @contextmanager
    def _asking(self, session: RawSession, seconds: float = math.inf) -> Iterator[None]:
        """Enclose requests of the owner itself. Raises ConnectionError if an HTTP request failed, TimeoutError after
        `seconds`, MCPError if the server reports an error."""
        self._own_request = request = Delivery()
        token = current_delivery.set(request)
        try:
            with request.begin(session) as scope:
                scope.deadline = anyio.current_time() + seconds
                yield
        except MCPError as error:
            if request.halted is not None:
                raise ServerError(str(request.halted)) from None
            if session.flooded:
                raise ConnectionError(self._ended_by) from None
            if request.stands_for_status(error):
                raise ConnectionError(request.problem) from None
            raise
        finally:
            self._own_request = None
            current_delivery.reset(token)
        if scope.cancelled_caught:
            raise (
                ConnectionError(request.problem)
                if request.problem
                else TimeoutError(f"it did not answer within {seconds:g} s")
            )

    def _flooded(self, why: str) -> None:
        self._ended_by, self._frozen = self._ended_by or why, True

    def _announce(self) -> None:
        self._announced = True
        self._wake.set()

    async def _list(self, session: RawSession) -> None:
        """List the tools: keep the first listing, compare any later one with it."""
        self._announced = False
        listed, warnings = await list_tools(session.ask)
        tools, further = session.learn(listed)
        warnings += further
        self._repeatable = frozenset(tool.name for tool in tools if tool.repeatable)
        if not self._opening:
            self._compare(tools, warnings)
            return
        self.tools, self.warnings = tools, warnings
        self.server_info, self.capabilities = session.agreement.server_info, frozenset(session.agreement.capabilities)
        self.revision = session.revision
        if not self.tools:
            why = f"{self._server} lists no tools; see whether it needs an argument or a setting before it offers any."
            raise ServerError(" ".join([why, *self.warnings]))
        self._opening = False
        self._opened.set()

    def _compare(self, tools: list[Tool], warnings: list[str]) -> None:
        change = listing_change(self.tools, tools)
        if change is None:
            if not self._allow_schema_change:
                self.listing_changed = None
            return
        sentence = changed_sentence(self._server, change)
        if sentence != self.listing_changed:
            log.warning("%s", sentence)
        self.listing_changed = sentence
        if self._allow_schema_change:
            self.tools, self.warnings = tools, warnings

    def _refuse(self, error: ServerError) -> None:
        """Handle an unreachable server: end a connection that is opening, else fail the calls that wait."""
        if self._opening:
            raise error
        for call in (*self._waiting, *self._interrupted):
            call.fail(str(error))
        self._waiting.clear()
        self._interrupted.clear()

    async def _serve(self, session: RawSession) -> None:
        """Send the queued calls until the session is lost or the connection is to be closed."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as calls:
            if session.modern and session.agreement.announces_tools:
                calls.start_soon(self._listen, session)
            while not (self._stopping or session.over):
                self._wake.clear()
                pause = self._looked + _LISTING_PAUSE - loop.time() if self._announced else None
                if pause is not None and pause <= 0:
                    await self._look_again(session)
                    continue
                if self._doubted or (self._waiting and self._silent(session)):
                    self._doubted = False
                    if not await self._still_answers(session):
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

    async def _listen(self, session: RawSession) -> None:
        """Hear of changed tools from a server of the newer era, which tells only those who ask."""
        try:
            while not session.over:
                await session.listen()
                await anyio.sleep(_LISTING_PAUSE)
                self._announce()  # what changed meanwhile was not heard
        except MCPError as error:
            log.info("%s does not tell when its tools change: %s", self._server, in_words(error))

    async def _look_again(self, session: RawSession) -> None:
        """List the tools after the server announced changes; give up the session if it does not list them."""
        try:
            with self._asking(session, self._deadlines.list):
                await self._list(session)
        except (MCPError, OSError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and self._in_flight:  # the server may process one request at a time
                self._announced = True
                return
            self._give_up(session, f"it announced changed tools and did not list them: {in_words(error)}")
        finally:
            self._looked = asyncio.get_running_loop().time()

    def _silent(self, session: RawSession) -> bool:
        """Return whether the server may have vanished without notice."""
        quiet = asyncio.get_running_loop().time() - session.heard
        return session.one_way and self._in_flight == 0 and quiet > _IDLE

    async def _still_answers(self, session: RawSession) -> bool:
        try:
            with self._asking(session, _PING_SECONDS):
                await session.ask("ping", {}, notify_cancel=False)
        except (OSError, TimeoutError) as error:
            self._frozen = isinstance(error, TimeoutError)
            self._give_up(session, "it no longer answers")
        except MCPError as error:  # also an answer, unless the SDK made it up
            if error.code == CONNECTION_CLOSED:
                session.give_up()
        return not session.over

    def _give_up(self, session: RawSession, why: str) -> None:
        self._ended_by = self._ended_by or why
        session.give_up()

    def _send(self, session: RawSession, call: Call, calls: TaskGroup) -> None:
        if call.ended:
            return
        if call.tool is not None and (changed := self._schema_changed()):
            call.stop(changed)
            return
        self._in_flight += 1
        calls.start_soon(self._answer, session, call)

    async def _answer(self, session: RawSession, call: Call) -> None:
        current_delivery.set(call)
        clock = asyncio.get_running_loop().time
        started = clock()
        call.on_expiry = partial(self._doubt, session, started)
        self._calls.add(call)
        try:
            with call.begin(session):
                raw = await result_of(call, session, self._answer_question, partial(self._list, session))
                call.succeed(raw, clock() - started)
        except EraError as error:
            call.fail(f"{self._server} {error}.")
        except MCPError as error:
            if call.lost(error, session):
                call.problem = call.problem or (self._ended_by if session.flooded else error.message)
                session.give_up()
            elif call.failed_alone(error):
                self._settle(call, "it failed")
            elif error.code == PARSE_ERROR and error.message.startswith("Failed to parse"):
                call.fail(f"{self._server} answered a call of {call.name} with something that is not JSON-RPC.")
            else:
                call.refuse(error, clock() - started)
        finally:
            self._calls.discard(call)
            self._in_flight -= 1
            if not call.ended and call not in self._waiting:
                self._interrupted.append(call)

    def _doubt(self, session: RawSession, since: float) -> None:
        """Note that a call sent at `since` missed its deadline."""
        if session.heard < since:
            self._doubted = True
            self._wake.set()

    def _settle_interrupted(self, problem: BaseException | None, died: bool, log: ProcessLog) -> None:
        """After the end of a session, queue the calls that may be repeated and fail the others."""
        if self._stopping:
            return
        cause = self._ended_by or in_words(first_cause(problem) or ServerError("it was closed"))
        if died and (self._stateful or any(tool.name not in self._repeatable for tool in self.tools)):
            how = f"cannot be used any more: {cause}." if self._ended_by else "exited in the middle of the run."
            self._broken = f"{self._server} {how}{last_lines(log)}"
        elif self._stateful:
            self._broken = f"{self._server} lost its session, and the state with it: {cause}."
        for call in reversed(self._interrupted):
            self._settle(call, cause)
        self._interrupted.clear()
        if self._broken is not None:
            for call in self._waiting:
                call.fail(self._broken)
            self._waiting.clear()

    def _settle(self, call: Call, cause: str) -> None:
        if self._broken is None and call.attempts < 2 and (call.delivered is False or self._repeatable_call(call)):
            self._waiting.appendleft(call)
            self._wake.set()
        else:
            why = (call.problem or cause).rstrip(".")
            call.fail(self._broken or f"{self._server} was lost in a call of {call.name}: {why}.")

    def _repeatable_call(self, call: Call) -> bool:
        return call.tool in self._repeatable if call.tool is not None else call.method in READING

    def _shown_url(self, params: OneServer) -> str:
        """Return the address to show in an error; that of a server that others run keeps its references to secrets."""
        if isinstance(params, StdioServer) or isinstance(self._params, StdioServer):
            return ""
        return params.url if self._params.launch is not None else self._params.url


async def _wait_for_exit(process: Process, url: str) -> None:
    """Wait briefly for the process of a server that accepts no connections: it closes its port before it exits."""
    parts = urlsplit(url)
    with anyio.move_on_after(_EXIT_SECONDS):
        try:
            await (await anyio.connect_tcp(parts.hostname or "127.0.0.1", parts.port or 80)).aclose()
        except OSError:
            await process.wait()
