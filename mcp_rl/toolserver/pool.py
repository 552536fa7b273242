"""Open connections by server, shared by everyone who asks: opened at first use, and again after one broke for good."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from mcp_rl.scenario import ServerParams
from mcp_rl.toolserver.connection import Connection, Deadlines, connect
from mcp_rl.toolserver.schema import ToolSchemas


@dataclass(frozen=True)
class Session:
    """An open connection and what a model may call on it."""

    connection: Connection
    schemas: ToolSchemas

    @cached_property
    def read_only(self) -> frozenset[str]:
        """Server names of the tools that are annotated as changing nothing."""
        return frozenset(t.name for t in self.connection.tools if (t.annotations or {}).get("readOnlyHint") is True)


class Sessions:
    """`async with Sessions() as sessions: session = await sessions.get(params)`. All close with the context.

    Inside the context they are the sessions that `sessions_in_use` gives.
    """

    def __init__(
        self, *, deadlines: Deadlines | None = None, log_dir: Path | None = None, name: str = "server"
    ) -> None:
        self._deadlines = deadlines
        self._log_dir = log_dir
        self._name = name
        self._open: dict[str, Session] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._stack = AsyncExitStack()
        self._before: Token[Sessions | None] | None = None

    async def __aenter__(self) -> Self:
        self._before = _in_use.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            with suppress(ValueError):  # left in another task than it was entered in
                _in_use.reset(self._before)
        self._open.clear()
        await self._stack.aclose()

    async def get(self, params: ServerParams) -> Session:
        """The open session of this server, a new one where there is none or the last one broke for good.

        Raises ServerError where it cannot be opened.
        """
        key = repr(params)
        session = self._open.get(key)
        if session is not None and session.connection.alive:
            return session
        async with self._locks.setdefault(key, anyio.Lock()):
            session = self._open.get(key)
            if session is None or not session.connection.alive:
                session = self._open[key] = await self._connect(params)
            return session

    async def _connect(self, params: ServerParams) -> Session:
        opening = connect(params, deadlines=self._deadlines, log_dir=self._log_dir, name=self._name)
        connection = await self._stack.enter_async_context(opening)
        return Session(connection, ToolSchemas(connection.tools))


_in_use: ContextVar[Sessions | None] = ContextVar("sessions in use", default=None)


@asynccontextmanager
async def sessions_in_use() -> AsyncIterator[Sessions]:
    """The sessions of the innermost `async with Sessions()` around us, or new ones for just this context."""
    if sessions := _in_use.get():
        yield sessions
        return
    async with Sessions() as sessions:
        yield sessions
