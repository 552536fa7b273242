"""A connection to a tool server: one task owns it (`owner.py`), all others await futures."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.toolserver.connection.call import Call, HurriedCall, Refused, unsendable
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.connection.owner import Owner
from mcp_rl.toolserver.tools.listing import entries, pages
from mcp_rl.toolserver.tools.results import ToolResult, read_result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)


class Connection(Owner):
    """An open connection, made by `connect`."""

    def __init__(
        self,
        params: OneServer,
        deadlines: Deadlines,
        name: str,
        *,
        tool_deadlines: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(params, deadlines, name, **options)
        self._tool_deadlines = dict(tool_deadlines or {})
        self._hurried = deadlines.hurried - self._tool_deadlines.keys()

    @property
    def alive(self) -> bool:
        """True until the connection is closed or its server's state is lost."""
        return self._broken is None

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool by the server's own name for it and await its result.

        The deadline in seconds is the tool's own, else `deadline`, else the connection's. It begins anew whenever the
        server reports progress, up to `Deadlines.longest_call` in all. A tool that is `Deadlines.hurried` and has no
        deadline of its own gets `Deadlines.slow_call` seconds; where these are too few, that is an error of the tool.

        Errors that the tool or the server reports are results with `is_error`. Raises ServerFault if the server died
        or did not answer in time, SchemaChanged if it lists other tools than at first, EngineError if the server
        asks the episode's user, who cannot be asked.
        """
        if complaint := unsendable(arguments):
            return ToolResult(complaint, is_error=True)
        if changed := self._schema_changed():
            raise changed
        call = self._tool_call(tool_name, arguments, deadline)
        try:
            raw = await self._outcome(call)
        except Refused as refused:
            return ToolResult(str(refused), None, True, call.took, tuple(call.asked))
        result = read_result(raw, call.took)
        return replace(result, asked=tuple(call.asked)) if call.asked else result

    async def ask(
        self, method: str, params: dict[str, Any] | None = None, *, deadline: float | None = None
    ) -> dict[str, Any]:
        """Send any request (`resources/read`, `prompts/get`, …) and return its raw result.

        `deadline` is in seconds; the default is the deadline of a call. Raises ServerFault if the server died or did
        not answer in time; if it answered with an error, its subclass Refused with the server's `code` and message.
        """
        seconds = self._deadlines.call if deadline is None else deadline
        return await self._outcome(self._new_call(method, params or {}, seconds))

    async def ping(self, deadline: float) -> bool:
        """Return whether the server answers within `deadline` seconds; reopen a lost session where that is allowed."""
        try:
            await self.ask("ping", deadline=deadline)
        except Refused:
            return True
        except ServerFault:
            return False
        return True

    async def resources(self) -> list[dict[str, Any]]:
        """Return the server's descriptions of its resources, each with a `uri`.

        Resources are optional, so any failure is read as the end of the list.
        """
        return await self._listed_all("resources", "uri")

    async def prompts(self) -> list[dict[str, Any]]:
        """Return the server's descriptions of its prompts, each with a `name`; failures end the list."""
        return await self._listed_all("prompts", "name")

    def _tool_call(self, tool_name: str, arguments: dict[str, Any], deadline: float | None) -> Call:
        params = {"name": tool_name, "arguments": arguments}
        if tool_name in self._hurried:
            return self._new_call("tools/call", params, self._deadlines.slow_call, HurriedCall)
        seconds = self._tool_deadlines.get(tool_name, self._deadlines.call if deadline is None else deadline)
        return self._new_call("tools/call", params, seconds)

    def _new_call(self, method: str, params: dict[str, Any], seconds: float, kind: type[Call] = Call) -> Call:
        if self._broken is not None:
            raise ServerFault(self._broken, delivered=False)
        return kind(method, params, server=self._server, seconds=seconds, longest=self._deadlines.longest_call)

    async def _listed_all(self, kind: str, key: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if kind not in self.capabilities:
            return found
        try:
            async with asyncio.timeout(self._deadlines.list):
                async for page, _ in pages(self._ask_for_page, f"{kind}/list"):
                    found += [
                        entry
                        for entry in entries(page, kind)
                        if isinstance(entry, dict) and isinstance(entry.get(key), str)
                    ]
        except (ServerFault, TimeoutError) as error:
            log.info("%s did not list all of its %s: %s", self._server, kind, error)
        return found

    async def _ask_for_page(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.ask(method, params, deadline=self._deadlines.list)


@asynccontextmanager
async def connect(
    params: OneServer,
    *,
    deadlines: Deadlines | None = None,
    tool_deadlines: Mapping[str, float] | None = None,
    log_dir: Path | None = None,
    name: str = "server",
    stateful: bool = False,
    allow_schema_change: bool = False,
    sandbox: Sandbox | None = None,
) -> AsyncIterator[Connection]:
    """Connect to a server and list its tools; start it first if `params` say how. Undo everything afterwards.

    `tool_deadlines` are seconds by the server's names of its tools, and override every other deadline of a call. The
    server's stderr goes to a file under `log_dir`, or nowhere. With `stateful`, a lost session is not reopened, since
    the caller relies on the server's state. With `allow_schema_change`, calls continue if the server lists other tools,
    and `tools` becomes a new list. A server that we start runs in `sandbox`, by default in none; what it writes is then
    in `layer`. The context may be left in another task than the one that entered it.

    Raises ServerError if the server does not start, never answers or lists no tools.
    """
    deadlines = deadlines or Deadlines()
    connection = Connection(
        params,
        deadlines,
        name,
        tool_deadlines=tool_deadlines,
        stateful=stateful,
        allow_schema_change=allow_schema_change,
        sandbox=sandbox,
    )
    # Not in a task group, which would have to be closed by the task that opened it.
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
            log.warning("%s did not close in time.", connection._server)
        elif not owner.cancelled():
            owner.exception()  # reported already, by the first await or to the calls that it failed
