"""Opening connections, with patience for a server that has worked before."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from mcp_rl.errors import ServerError
from mcp_rl.toolserver.connection.connection import Connection, connect
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.sandbox.choice import sandbox_of
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mcp_rl.config import ToolsConfig
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.tool_server import ToolServer

_ATTEMPTS = 4
"""Attempts to start a server that has worked before."""
_FIRST_PAUSE = 0.5
"""Seconds between the first two attempts; each further pause is twice as long."""
_WAITED = 1.0
"""Seconds. A caller that waited this long while the attempts of another caller failed gets the same error."""


@dataclass(frozen=True)
class _Down:
    """A server that did not come up again."""

    error: str
    at: float
    """When the last attempt failed, on the monotonic clock."""


class Connector:
    """Opens connections to one server, on any of its transports, with the deadlines of the server and the settings."""

    def __init__(
        self,
        name: str,
        settings: ToolsConfig,
        *,
        server: ToolServer | None = None,
        deadlines: Deadlines | None = None,
        log_dir: Path | None = None,
    ) -> None:
        self.name = name
        self.closed = False
        """While True, nothing more is opened."""
        slow = frozenset(server.measured.slow if server and server.measured else ())
        usual = replace(deadlines or Deadlines(), longest_call=settings.longest_call, slow=slow)
        self.deadlines = usual.of_steps(server.deadlines) if server else usual
        self.log_dir = log_dir
        self._settings = settings
        self._tool_deadlines = {
            **(server.tool_deadlines if server else {}),
            **{tool.removeprefix(f"{name}{BETWEEN}"): seconds for tool, seconds in settings.deadlines.items()},
        }
        self.sandbox = sandbox_of(server, settings)
        """The sandbox of the servers that we start."""
        self._elicitation = server.elicitation if server else settings.elicitation or "decline"
        self._worked: set[str] = set()
        self._down: dict[str, _Down] = {}

    def refuse_when_closed(self) -> None:
        """Raise ServerError if nothing may be opened any more."""
        if self.closed:
            raise ServerError(f"The connections to the server {self.name} are closed.")

    @asynccontextmanager
    async def open(
        self, params: OneServer, asked: float, *, stateful: bool, private: bool = False
    ) -> AsyncIterator[Connection]:
        """Open a connection, with several attempts if the server has worked before.

        `asked` is when the caller asked for it, on the monotonic clock; `stateful` is that of `connect`, and
        `private` gives a server that we start its own temporary directory.
        Raises ServerError.
        """
        key = repr(params)
        down = self._down.get(key)
        if down is not None and down.at - asked > _WAITED:
            raise ServerError(down.error)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(_ATTEMPTS if key in self._worked else 1),
            wait=wait_exponential(multiplier=_FIRST_PAUSE),
            retry=retry_if_exception_type(ServerError),
            reraise=True,
        )
        async with AsyncExitStack() as stack:
            try:
                connection: Connection = await retrying(self._connect, stack, params, stateful, private)
            except ServerError as error:
                if key in self._worked:
                    self._down[key] = _Down(str(error), time.monotonic())
                raise
            self._worked.add(key)
            self._down.pop(key, None)
            yield connection

    async def _connect(self, stack: AsyncExitStack, params: OneServer, stateful: bool, private: bool) -> Connection:
        self.refuse_when_closed()
        connection = await stack.enter_async_context(
            connect(
                params,
                deadlines=self.deadlines,
                log_dir=self.log_dir,
                name=self.name,
                stateful=stateful,
                tool_deadlines=self._tool_deadlines,
                allow_schema_change=self._settings.allow_schema_change,
                sandbox=replace(self.sandbox, private=private),
            )
        )
        connection.elicitation = self._elicitation
        return connection
