"""A request on its way to a server: what is known of its delivery, how long it may take, and who waits for it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anyio
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, METHOD_NOT_FOUND

from mcp_rl.errors import RunStop, ServerFault
from mcp_rl.toolserver.session import Session

READING = frozenset(
    {
        "ping",
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
    }
)
"""Requests that change nothing, so that they may be sent twice."""

_SYNTHETIC = ("Session terminated", "Not Found", "Server returned an error response", "Unexpected content type")
"""How the SDK's streamable-HTTP transport words an HTTP error status that came without a JSON-RPC error."""

_NO_SESSION = "HTTP status 404"
"""The answer to a session that is not known (any more), whatever its body says: specification 2025-11-25, Transports,
Session Management. Some servers also send it with the error "method not found"."""


class Refused(ServerFault):
    """The server answered a request with an error of its own; `code` is that of JSON-RPC."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, delivered=True)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return Refused, (self.args[0], self.code)


class Carried:
    """What becomes of the requests that are sent on somebody's behalf.

    `delivered` is False while they surely never reached the server, None where nobody knows.
    """

    def __init__(self) -> None:
        self.delivered: bool | None = False
        self.problem: str | None = None
        """What became of the HTTP request, where that failed."""
        self._session: Session | None = None
        self._scope: anyio.CancelScope | None = None

    def begin(self, session: Session) -> anyio.CancelScope:
        """It is about to be sent; the scope is cancelled when there is nothing to wait for any more."""
        self._session, self._scope, self.problem = session, anyio.CancelScope(), None
        self.delivered = False if session.over else None
        return self._scope

    def abandon(self) -> None:
        """Nobody waits any more."""
        if self._scope is not None:
            self._scope.cancel()

    def answered(self, status: int) -> None:
        """The server answered the HTTP request."""
        self.delivered = True if status < 400 else False if status < 500 else None
        if status >= 400:
            self.problem = f"HTTP status {status}"
            self._carrier_failed()

    def broke(self, error: Exception, *, never_sent: bool) -> None:
        """The HTTP request failed."""
        self.delivered = False if never_sent else self.delivered
        self.problem = str(error) or type(error).__name__
        self._carrier_failed()

    def stands_for_status(self, error: MCPError) -> bool:
        """Whether the SDK made up an error, since an HTTP error status came without one."""
        return self.problem is not None and error.message.startswith(_SYNTHETIC)

    def _carrier_failed(self) -> None:
        """Over SSE nobody would answer any more; streamable HTTP answers by itself."""
        if self._session is not None and self._session.one_way:
            self._session.give_up()
            self.abandon()


class Call(Carried):
    """A request, for whoever awaits its `outcome`.

    `seconds` is its deadline, which begins anew with every sign of progress, but never so that it takes more than
    `longest`.
    """

    def __init__(self, method: str, params: dict[str, Any], *, whose: str, seconds: float, longest: float = 0) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.method = method
        self.params = params
        self.tool: str | None = params["name"] if method == "tools/call" else None
        self.future: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.attempts = 0
        self.took = 0.0
        """Seconds from its sending to its answer."""
        self.on_expiry: Callable[[], None] | None = None
        """Called when it misses its deadline."""
        self._whose = whose
        self._seconds = seconds
        self._longest = max(seconds, longest)
        self._progressed = False
        now = loop.time()
        self._due = now + seconds
        self._limit = now + self._longest
        self._timer = loop.call_at(self._due, self._expire)

    @property
    def what(self) -> str:
        return self.tool or self.method

    async def outcome(self) -> dict[str, Any]:
        """Await the raw result; whoever is cancelled meanwhile takes the request back.

        Raises Refused, ServerFault, and RunStop where the call must not be made.
        """
        try:
            return await self.future
        except asyncio.CancelledError:
            self.abandon()
            raise
        finally:
            self._timer.cancel()

    def begin(self, session: Session) -> anyio.CancelScope:
        self.attempts += 1
        return super().begin(session)

    def sign_of_life(self) -> None:
        """The server reports progress."""
        self._progressed = True
        self._due = min(asyncio.get_running_loop().time() + self._seconds, self._limit)

    def succeed(self, raw: dict[str, Any], took: float) -> None:
        if not self.future.done():
            self.took = took
            self.future.set_result(raw)

    def refuse(self, error: MCPError, took: float) -> None:
        """The server answered with an error."""
        self.took = took
        self._raise(Refused(error.message, error.code))

    def fail(self, message: str) -> None:
        self._raise(ServerFault(message, delivered=self.delivered))

    def stop(self, error: RunStop) -> None:
        self._raise(error)

    def lost(self, error: MCPError, session: Session) -> bool:
        """Whether an error speaks of the connection rather than of the call."""
        if error.code == CONNECTION_CLOSED:
            return session.over or error.message.startswith(("Connection closed", "SSE stream"))
        if self.problem == _NO_SESSION:
            return error.code != METHOD_NOT_FOUND
        return self.stands_for_status(error) and not self.failed_alone(error)

    def failed_alone(self, error: MCPError) -> bool:
        """Whether the server failed at this request, and the session may be as good as before."""
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
        self.fail(f"{self._whose} did not answer a call of {self.what} {within}.")
        self.abandon()
        if self.on_expiry is not None:
            self.on_expiry()

    def _raise(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # a caller that has gone need not hear of it


def unsendable(arguments: dict[str, Any]) -> str | None:
    """What is wrong with arguments that are no JSON; NaN or half a surrogate pair would end the session."""
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return f"The arguments are no valid JSON: {error}"
    return None
