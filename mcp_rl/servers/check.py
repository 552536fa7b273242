"""Whether a server is fit to train on: it is started, listed, called, disturbed, shared and closed."""

import time
from dataclasses import dataclass

import anyio

from mcp_rl.plugins.server import ToolServer
from mcp_rl.scenario import OneServer
from mcp_rl.servers.caller import Caller
from mcp_rl.servers.calls import Trials
from mcp_rl.servers.endings import ending
from mcp_rl.servers.episodes import episodes, remembered
from mcp_rl.servers.findings import Finding, Report, note, problem
from mcp_rl.servers.hardship import mistakes, odd_text, side_by_side
from mcp_rl.servers.inspection import offered_schemas, prompt_tokens
from mcp_rl.servers.isolation import effective_isolation
from mcp_rl.servers.listed import listing_findings
from mcp_rl.servers.stray import stray_output
from mcp_rl.servers.visible import shortened
from mcp_rl.toolserver.listing import list_tools

_CALLS_SECONDS = 180.0
"""For all calls on one connection."""
_EPISODES_SECONDS = 90.0


@dataclass(frozen=True)
class Wanted:
    """How thoroughly to check."""

    calls: int = 3
    """Calls of each tool, with sampled arguments."""
    seed: int = 0
    call_all: bool = False
    """Whether to call tools too that may destroy something."""


async def check(server: ToolServer, params: OneServer, wanted: Wanted) -> Report:
    """Everything that is found out about a server. Raises ServerError where it cannot be used at all."""
    started = time.monotonic()
    caller = Caller(server, params, seed=wanted.seed, seconds=_CALLS_SECONDS)
    async with caller:
        connected = time.monotonic() - started
        tools = list(caller.link.tools)
        isolation, reason = effective_isolation(server, tools)
        if isolation == "per-rollout":
            await caller.use_private_folder()
        schemas = offered_schemas(server, tools)
        report = Report(
            server.name, server.origin, params.transport, caller.connection.server_info, isolation, reason,
            schemas.hash, {"connect": connected},
        )  # fmt: skip
        cost = prompt_tokens(schemas.openai)
        report.findings += listing_findings(server, params, tools, caller.connection.warnings, schemas, cost)
        report.findings += [
            note("schemas", warning, "The model gets that much less.", "Leave it out of offer.")
            for warning in caller.link.warnings
            if warning not in caller.connection.warnings
        ]
        report.findings += await _listed_again(caller, report)
        report.findings += await _reset(caller, report)
        trials = Trials(caller, params, calls=wanted.calls, call_all=wanted.call_all)
        begun = anyio.current_time()
        await trials.run(trials.reading)
        report.findings += await trials.steadiness(begun)
        report.findings += await side_by_side(caller, trials, isolation)
        await trials.look()
        await trials.run(trials.changing)
        await trials.run([tool for tool in trials.reading if not trials.worked(tool.name)])
        report.findings += trials.judged()
        report.findings += await odd_text(caller, trials)
        report.findings += await mistakes(caller, [*trials.reading, *trials.changing])
        report.tools = list(trials.tools.values())
        report.seconds["close"], ends = await ending(caller, params)
    with anyio.move_on_after(_EPISODES_SECONDS) as scope:
        if not any(finding.check == "reset" for finding in report.problems):
            report.findings += await episodes(server, params, isolation, trials)
        report.findings += await remembered(server, params, isolation, trials)
    if scope.cancelled_caught:
        report.findings.append(
            problem(
                "isolation",
                f"Three episodes were not played within {_EPISODES_SECONDS:g} s.",
                "A run would stand still.",
                "Look at how long the server takes to start, to reset and to close.",
            )
        )
    report.findings += await stray_output(
        params, [reply for tool in trials.reading for reply in trials.worked(tool.name)[:1]], name=server.name
    )
    report.findings += ends
    return report


async def _listed_again(caller: Caller, report: Report) -> list[Finding]:
    started = time.monotonic()
    try:
        again, _ = await list_tools(caller.connection.ask)
    except Exception as error:  # whatever the server makes of it
        return [
            problem("schemas", f"It does not list its tools a second time: {shortened(str(error))}",
                    "A lost session cannot be opened again.", "Answer tools/list at any time.")
        ]  # fmt: skip
    report.seconds["list"] = time.monotonic() - started
    if again != caller.connection.tools:
        return [
            problem(
                "schemas",
                "It lists other tools when it is asked again.",
                "A run stops where the listing changes, since what was learned may not fit.",
                "Let the listing stay the same while the server runs.",
            )
        ]
    return []


async def _reset(caller: Caller, report: Report) -> list[Finding]:
    server = caller.server
    if server.reset_tool is None and server.reset is None:
        return []
    if server.reset_tool is not None and server.reset_tool not in {tool.name for tool in caller.connection.tools}:
        return [
            problem(
                "reset",
                f"There is no tool {shortened(server.reset_tool)} to reset it with.",
                "No episode can begin.",
                "Name a tool that the server lists.",
            )
        ]
    started = time.monotonic()
    if why := await caller.reset():
        return [
            problem(
                "reset",
                f"It could not be reset: {shortened(why, 300)}",
                "No episode can begin.",
                "The reset must work with no arguments, whatever happened before.",
            )
        ]
    report.seconds["reset"] = time.monotonic() - started
    if report.seconds["reset"] > 1:
        return [note("reset", f"A reset takes {report.seconds['reset']:.1f} s.", "Every episode begins with one.")]
    return []
