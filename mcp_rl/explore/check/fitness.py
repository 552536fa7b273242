"""Is a server fit to train on? It is started, listed, called, disturbed, shared and closed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from mcp_rl.explore.check import catalogue
from mcp_rl.explore.check.caller import ServerCaller
from mcp_rl.explore.check.endings import ending
from mcp_rl.explore.check.episodes import episodes, remembered
from mcp_rl.explore.check.findings import CheckReport, Finding
from mcp_rl.explore.check.hardship import mistakes, odd_text, side_by_side
from mcp_rl.explore.check.inspection import offered_schemas
from mcp_rl.explore.check.listed import listing_findings
from mcp_rl.explore.check.stray import stray_output
from mcp_rl.explore.check.trials import Trials
from mcp_rl.system.visible import shortened
from mcp_rl.toolserver.isolation import effective_isolation
from mcp_rl.toolserver.tools.listing import list_tools

if TYPE_CHECKING:
    from mcp_rl.scenario import OneServer
    from mcp_rl.toolserver.tool_server import ToolServer

_CALLS_SECONDS = 180.0
"""Time for all calls on one connection."""
_EPISODES_SECONDS = 90.0


@dataclass(frozen=True)
class CheckOptions:
    """Thoroughness of a check."""

    calls: int = 3
    """Number of calls of each tool, with sampled arguments."""
    seed: int = 0
    call_all: bool = False
    """True to call tools too that may destroy something."""


async def check_fitness(server: ToolServer, params: OneServer, options: CheckOptions) -> CheckReport:
    """Return everything that a check finds out about a server. Raises ServerError where it cannot be used at all."""
    started = time.monotonic()
    caller = ServerCaller(server, params, seed=options.seed, seconds=_CALLS_SECONDS)
    async with caller:
        connected = time.monotonic() - started
        tools = list(caller.link.tools)
        isolation, reason = effective_isolation(server, tools)
        if isolation == "per-rollout":
            await caller.use_private_folder()
        schemas = offered_schemas(server, tools)
        report = CheckReport(
            server.name, server.origin, params.transport, caller.connection.server_info, isolation, reason,
            schemas.hash, {"connect": connected},
        )  # fmt: skip
        found, left_out = report.findings, caller.connection.warnings
        found += listing_findings(server, params, tools, left_out, schemas)
        found += [catalogue.OFFER_INCOMPLETE.found(warning=w) for w in caller.link.warnings if w not in left_out]
        found += await _listed_again(caller, report)
        found += await _reset(caller, report)
        trials = Trials(caller, params, calls=options.calls, call_all=options.call_all)
        begun = anyio.current_time()
        await trials.run(trials.reading)
        found += await trials.steadiness(begun)
        found += await side_by_side(caller, trials, isolation)
        await trials.look()
        await trials.run(trials.changing)
        await trials.run([tool for tool in trials.reading if not trials.worked(tool.name)])
        found += trials.findings()
        found += await odd_text(caller, trials)
        found += await mistakes(caller, [*trials.reading, *trials.changing])
        report.tools = list(trials.tools.values())
        report.seconds["close"], ends = await ending(caller, params)
    with anyio.move_on_after(_EPISODES_SECONDS) as scope:
        if not any(finding.check == "reset" for finding in report.problems):
            found += await episodes(server, params, isolation, trials)
        found += await remembered(server, params, isolation, trials)
    if scope.cancelled_caught:
        found.append(catalogue.EPISODES_TOO_SLOW.found(seconds=_EPISODES_SECONDS))
    calls = [reply for tool in trials.reading for reply in trials.worked(tool.name)[:1]]
    found += await stray_output(params, calls, name=server.name)
    found += ends
    return report


async def _listed_again(caller: ServerCaller, report: CheckReport) -> list[Finding]:
    started = time.monotonic()
    try:
        again, _ = await list_tools(caller.connection.ask)
    except Exception as error:  # anything that the server makes of it
        return [catalogue.NOT_LISTED_AGAIN.found(why=shortened(str(error)))]
    report.seconds["list"] = time.monotonic() - started
    return [catalogue.LISTED_DIFFERENTLY.found()] if again != caller.connection.tools else []


async def _reset(caller: ServerCaller, report: CheckReport) -> list[Finding]:
    tool = caller.server.reset_tool
    if tool is None and caller.server.reset is None:
        return []
    if tool is not None and tool not in {listed.name for listed in caller.connection.tools}:
        return [catalogue.NO_RESET_TOOL.found(tool=shortened(tool))]
    started = time.monotonic()
    if why := await caller.reset():
        return [catalogue.RESET_FAILED.found(why=shortened(why, 300))]
    seconds = report.seconds["reset"] = time.monotonic() - started
    return [catalogue.SLOW_RESET.found(seconds=seconds)] if seconds > 1 else []
