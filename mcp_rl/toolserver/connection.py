"""A connection to a tool server: one task owns it (`owner.py`), everybody else awaits futures."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from mcp_rl.errors import ServerFault
from mcp_rl.scenario import OneServer
from mcp_rl.toolserver.call import Call, Refused, unsendable
from mcp_rl.toolserver.deadlines import Deadlines
from mcp_rl.toolserver.listing import Tool, entries, pages
from mcp_rl.toolserver.owner import Owner
from mcp_rl.toolserver.results import ToolResult, read_result

log = logging.getLogger(__name__)
__all__ = ["Connection", "Deadlines", "Refused", "Tool", "ToolResult", "connect"]


class Connection(Owner):
    """An open connection; made by `connect`."""

    def __init__(
        self,
        params: OneServer,
        deadlines: Deadlines,
        name: str,
        *,
        tool_deadlines: Mapping[str, float] | None = None,
        **options: bool,
    ) -> None:
        super().__init__(params, deadlines, name, **options)
        self._tool_deadlines = dict(tool_deadlines or {})

    @property
    def alive(self) -> bool:
        """Whether a call has a chance: False once the connection is closed or its server's state is gone."""
        return self._broken is None

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        """Call a tool by the server's own name for it and await its result.

        It may take as many seconds as the tool's own deadline says, else `deadline`, else the connection's; where the
        server reports progress, as many again from then on, up to `Deadlines.longest_call` in all.

        What the tool or the server reports about the call is in the result, with `is_error`. Raises ServerFault where
        the server died or did not answer in time, SchemaChanged where it lists other tools than it did at first.
        """
        if complaint := unsendable(arguments):
            return ToolResult(complaint, is_error=True)
        if changed := self._schema_changed():
            raise changed
        seconds = self._tool_deadlines.get(tool_name, self._deadlines.call if deadline is None else deadline)
        call = self._new_call("tools/call", {"name": tool_name, "arguments": arguments}, seconds)
        try:
            raw = await call.outcome()
        except Refused as refused:
            return ToolResult(str(refused), None, True, call.took)
        return read_result(raw, call.took)

    async def ask(
        self, method: str, params: dict[str, Any] | None = None, *, deadline: float | None = None
    ) -> dict[str, Any]:
        """Send any request (`resources/read`, `prompts/get`, …) and give its result as it came.

        `deadline` is in seconds, by default that of a call. Raises Refused, which is a ServerFault with the `code` and
        the words of the server, where the server answers with an error, so that who wants to can tell that apart;
        ServerFault where it died or did not answer in time.
        """
        seconds = self._deadlines.call if deadline is None else deadline
        return await self._new_call(method, params or {}, seconds).outcome()

    async def ping(self, deadline: float) -> bool:
        """Whether the server answers within `deadline` seconds; a lost session is opened again where it may be."""
        try:
            await self.ask("ping", deadline=deadline)
        except Refused:
            return True
        except ServerFault:
            return False
        return True

    async def resources(self) -> list[dict[str, Any]]:
        """The resources that the server lists, as it describes them; none where it has none to list.

        Each has a `uri`. Whatever goes wrong is read as the end of the list: resources are nice to have.
        """
        return await self._listed_all("resources", "uri")

    async def prompts(self) -> list[dict[str, Any]]:
        """The prompts that the server lists, as it describes them, each with a `name`; otherwise as `resources`."""
        return await self._listed_all("prompts", "name")

    def _new_call(self, method: str, params: dict[str, Any], seconds: float) -> Call:
        if self._broken is not None:
            raise ServerFault(self._broken, delivered=False)
        call = Call(method, params, whose=self._whose, seconds=seconds, longest=self._deadlines.longest_call)
        self._queue(call)
        return call

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
            log.info("%s did not list its %s to the end: %s", self._whose, kind, error)
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
    private: bool = False,
) -> AsyncIterator[Connection]:
    """Start the server where it is ours to start, connect, and list its tools; undo all of it afterwards.

    `tool_deadlines` are seconds for single tools, by the server's names, which win over every other deadline of a call.
    The server's stderr goes to a file under `log_dir`, or nowhere. `stateful` says that a session which was lost must
    not be opened again, since the caller relies on what the server knew. `allow_schema_change`: calls go on where the
    server comes to list other tools, and `tools` is a new list then. `private` gives a server that we start a temporary
    directory (TMPDIR) of its own. The context may be left in another task than the one that entered it.

    Raises ServerError where the server does not start, never answers or lists no tools.
    """
    deadlines = deadlines or Deadlines()
    connection = Connection(
        params,
        deadlines,
        name,
        tool_deadlines=tool_deadlines,
        stateful=stateful,
        allow_schema_change=allow_schema_change,
        private=private,
    )
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
