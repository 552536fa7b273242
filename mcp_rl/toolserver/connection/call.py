"""A request to a server: its delivery, its deadline, and the future that its caller awaits."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from mcp.types import CONNECTION_CLOSED, METHOD_NOT_FOUND, REQUEST_TIMEOUT

from mcp_rl.errors import EngineError, RunStop, ServerFault
from mcp_rl.system.redaction import without_secrets
from mcp_rl.toolserver.elicitation import present_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mcp import MCPError

    from mcp_rl.toolserver.connection.raw_session import RawSession

READING = frozenset(
    {
        "ping",
        "server/discover",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
    }
)
"""Requests that change nothing and so may be sent twice."""

_SYNTHETIC = ("Session terminated", "Not Found", "Server returned an error response", "Unexpected content type")
"""Beginnings of the errors that the SDK's streamable-HTTP transport makes up for an HTTP error status."""

_NO_SESSION = "HTTP status 404"
"""The answer for an unknown session, whatever its body says (specification 2025-11-25, Transports, Session Management).
Some servers also send it with the error "method not found"."""


class Refused(ServerFault):
    """The server answered a request with an error; `code` is its JSON-RPC code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, delivered=True)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return Refused, (self.args[0], self.code)


class Delivery:
    """The delivery of a request, or of several that are sent in turn.

    `delivered` is False while no request can have reached the server, None if that is unknown.
    """

    def __init__(self) -> None:
        self.delivered: bool | None = False
        self.problem: str | None = None
        """The error of the HTTP request, if it failed."""
        self.halted: RunStop | None = None
        """The error after which nothing can be sent any more."""
        self._session: RawSession | None = None
        self._scope: anyio.CancelScope | None = None

    def begin(self, session: RawSession) -> anyio.CancelScope:
        """Begin to send; return a scope that is cancelled once no answer can come or is wanted."""
        self._session, self._scope, self.problem = session, anyio.CancelScope(), None
        self.delivered = False if session.over else None
        return self._scope

    def abandon(self) -> None:
        """Stop waiting for the answer."""
        if self._scope is not None:
            self._scope.cancel()

    def answered(self, status: int) -> None:
        """Note the status of the answer to the HTTP request. A call that arrived in part stays delivered."""
        if self.delivered is not True:
            self.delivered = True if status < 400 else False if status < 500 else None
        if status >= 400:
            self.problem = f"HTTP status {status}"
            self._http_failed()

    def broke(self, error: Exception, *, never_sent: bool) -> None:
        """Note that the HTTP request failed."""
        self.delivered = False if never_sent and self.delivered is not True else self.delivered
        self.problem = without_secrets(str(error)) or type(error).__name__
        self._http_failed()

    def halt(self, error: RunStop) -> None:
        """Note that nothing can be sent any more, and that no attempt will change that."""
        self.halted, self.delivered, self.problem = error, False, str(error)
        self._http_failed()

    def stands_for_status(self, error: MCPError) -> bool:
        """Return whether the SDK made up this error for an HTTP error status."""
        return self.problem is not None and error.message.startswith(_SYNTHETIC)

    def _http_failed(self) -> None:
        """End the session over SSE, where no answer can come any more; streamable HTTP answers by itself."""
        if self._session is not None and self._session.one_way:
            self._session.give_up()
            self.abandon()


class Call(Delivery):
    """A request whose caller awaits `outcome`.

    Its deadline is `seconds` and begins anew with every sign of progress, up to `longest` seconds in all.
    """

    def __init__(self, method: str, params: dict[str, Any], *, server: str, seconds: float, longest: float = 0) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.method = method
        self.params = params
        self.tool: str | None = params["name"] if method == "tools/call" else None
        self._future: asyncio.Future[dict[str, Any]] | None = loop.create_future()
        self.attempts = 0
        self.asked: list[dict[str, Any]] = []
        """The server's questions to its user during the call, with the answers."""
        self.user = present_user()
        """The caller's user, who answers them; None: the connection's policy does."""
        self.took = 0.0
        """Seconds from sending to the answer."""
        self.on_expiry: Callable[[], None] | None = None
        """Called when the deadline is missed."""
        self._server = server
        self._seconds = seconds
        self._longest = max(seconds, longest)
        self._progressed = False
        now = loop.time()
        self._due = now + seconds
        self._limit = now + self._longest
        self._timer = loop.call_at(self._due, self._expire)

    @property
    def name(self) -> str:
        """The tool, else the method."""
        return self.tool or self.method

    @property
    def ended(self) -> bool:
        """True once there is an outcome, or nobody awaits one any more."""
        return self._future is None or self._future.done()

    async def outcome(self) -> dict[str, Any]:
        """Await the raw result, once; cancelling takes the request back.

        Raises Refused, ServerFault, RunStop if the call must not be made, EngineError if the user cannot be asked.
        """
        assert self._future is not None
        try:
            return await self._future
        except asyncio.CancelledError:
            self.abandon()
            raise
        finally:
            self._timer.cancel()
            self._future = None  # an error in it would hold the frames of all callers, and these the call

    def begin(self, session: RawSession) -> anyio.CancelScope:
        self.attempts += 1
        self.asked.clear()
        return super().begin(session)

    def sign_of_life(self) -> None:
        """Extend the deadline, since the server reports progress."""
        self._progressed = True
        self._due = min(asyncio.get_running_loop().time() + self._seconds, self._limit)

    @contextmanager
    def asking_user(self) -> Iterator[None]:
        """Let the deadline wait while the user is asked: it begins anew after that."""
        self._due = self._limit
        try:
            yield
        finally:
            self.sign_of_life()
            self._timer.cancel()
            if not self.ended:
                self._timer = asyncio.get_running_loop().call_at(self._due, self._expire)

    def succeed(self, raw: dict[str, Any], took: float) -> None:
        if self._future is not None and not self._future.done():
            self.took = took
            self._future.set_result(raw)

    def refuse(self, error: MCPError, took: float) -> None:
        """Raise the server's error in the caller."""
        self.took = took
        self._raise(Refused(error.message, error.code))

    def halt(self, error: RunStop) -> None:
        self.stop(error)
        super().halt(error)

    def fail(self, message: str) -> None:
        self._raise(ServerFault(message, delivered=self.delivered))

    def stop(self, error: RunStop | EngineError) -> None:
        self._raise(error)

    def lost(self, error: MCPError, session: RawSession) -> bool:
        """Return whether an error concerns the connection rather than the call."""
        if error.code == CONNECTION_CLOSED:
            return session.over or error.message.startswith(("Connection closed", "SSE stream"))
        if self.problem == _NO_SESSION:
            return error.code != METHOD_NOT_FOUND
        return self.stands_for_status(error) and not self.failed_alone(error)

    def failed_alone(self, error: MCPError) -> bool:
        """Return whether the server failed at this request alone, so that the session may still be usable."""
        return self.stands_for_status(error) and str(self.problem).startswith("HTTP status 5")

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if now < self._due:
            self._timer = loop.call_at(self._due, self._expire)
            return
        if not self._progressed:
            within = f"within {self._seconds:g} s"
        elif now >= self._limit:
            within = f"within {self._longest:g} s, although it reported progress"
        else:
            within = f"within {self._seconds:g} s of its last sign of progress"
        self.fail(f"{self._server} did not answer a call of {self.name} {within}.")
        self.abandon()
        if self.on_expiry is not None:
            self.on_expiry()

    def _raise(self, error: Exception) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
            self._future.exception()  # retrieved, so that asyncio does not report it if the caller is gone


class HurriedCall(Call):
    """A call of a tool that is known to be slow: no progress extends its deadline, and to miss it is an error of the
    tool, which says nothing of the server."""

    def sign_of_life(self) -> None:
        """Leave the deadline as it is."""

    def _expire(self) -> None:
        self.took = self._seconds
        self._raise(Refused(f"The tool did not answer within {self._seconds:g} s.", REQUEST_TIMEOUT))
        self.abandon()


def unsendable(arguments: dict[str, Any]) -> str | None:
    """Return an error message for arguments that are not JSON: NaN or half a surrogate pair would end the session."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"The arguments are not valid JSON: {error}"
    return None
