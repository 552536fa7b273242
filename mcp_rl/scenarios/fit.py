"""Checks that scenarios belong to the server that they are to be played on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_rl.errors import ScenarioError
from mcp_rl.scenarios.mapped import REQUIRE_TOOL, compared_as

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.schema import ToolSchemas

_CHARACTERS = 4
"""Characters of a token of English or JSON in most vocabularies, or fewer: a longer result is most likely cut."""
_DENSE = 2
"""Characters of a token where a result is full of ids and numbers."""


def check_made_for(scenarios: Sequence[McpScenario], name: str, known: Collection[str]) -> None:
    """Check scenarios before anything is started. Raises ScenarioError for one made for a server of another name.

    A server may have two names, one of them from a URL or a command. So unless both names are `known`, a scenario with
    a hash of the tool schemas is left to `check_fit`.
    """
    strangers = [
        s for s in scenarios if s.server not in ("", name) and (s.schema_hash is None or {s.server, name} <= set(known))
    ]
    if strangers:
        raise ScenarioError(
            f"{strangers[0].label}{_others(strangers)} was made for the server {strangers[0].server!r}, "
            f"not for {name!r}; name that server, or give scenarios made for this one."
        )


def check_fit(scenarios: Sequence[McpScenario], name: str, schemas: ToolSchemas) -> None:
    """Check scenarios against the listed tools. Raises ScenarioError for missing tools and for another schema hash."""
    strange = [(s, tool) for s in scenarios for tool in sorted(_tools(s)) if tool not in schemas.to_openai]
    if strange:
        scenario, tool = strange[0]
        of = f"; it was made for the server {scenario.server!r}" if scenario.server not in ("", name) else ""
        raise ScenarioError(
            f"{scenario.label}{_others({s.id for s, _ in strange})} needs the tool {tool!r}, which the server "
            f"{name!r} does not have{of}."
        )
    changed = [s for s in scenarios if s.schema_hash not in (None, schemas.hash)]
    if changed:
        raise ScenarioError(
            f"{changed[0].label}{_others(changed)} was made for different tool schemas "
            f"({changed[0].schema_hash}; the server {name!r} has {schemas.hash}); make new scenarios with "
            "`mcp-rl generate`, or remove schema_hash."
        )


def check_no_user(scenarios: Sequence[McpScenario], agent: str | None) -> None:
    """Check that no scenario has a user if an agent program plays them. Raises ScenarioError."""
    talking = [scenario for scenario in scenarios if scenario.has_user] if agent else []
    if talking:
        raise ScenarioError(
            f"{talking[0].label}{_others(talking)} has a user who answers, which an agent program cannot hear: leave "
            "--agent out, or remove user_turns and user."
        )


def without_server(scenario: McpScenario) -> McpScenario:
    """Return a scenario as it is played without a server: a right answer counts though no tool was used.

    Raises ScenarioError if it needs a tool or requires that one is used, or has a state to begin with.
    """
    if tools := sorted(_tools(scenario)):
        raise ScenarioError(f"{scenario.label} needs the tool {tools[0]!r}, and without a server there is none.")
    if scenario.initial_state is not None:
        raise ScenarioError(f"{scenario.label} has an initial_state, and without a server there is none; remove it.")
    verifier = scenario.verifier
    if verifier is None or verifier.options.get(REQUIRE_TOOL) is False:
        return scenario
    if REQUIRE_TOOL in verifier.options:
        raise ScenarioError(f"{scenario.label} requires a tool to be used, and without a server there is none.")
    options = {**verifier.options, REQUIRE_TOOL: False}
    return scenario.model_copy(update={"verifier": verifier.model_copy(update={"options": options})})


def notices(scenarios: Sequence[McpScenario], server: ToolServer, config: RunConfig) -> list[str]:
    """Return sentences about scenarios that are read or played otherwise than their file or solution says."""
    found = (
        compared_as(scenarios, config.scenarios),
        other_params(scenarios, server),
        short_of_turns(scenarios, config.rollout.max_turns),
        cut_short(scenarios, config.rollout.max_result_tokens),
    )
    return [notice for notice in found if notice]


def other_params(scenarios: Sequence[McpScenario], server: ToolServer) -> str | None:
    """Return a notice about scenarios whose `server_params` are not the server's, which are not used; None without."""
    own = [server.params(transport).model_dump(mode="json") for transport in (None, *server.transports)]
    others = [s for s in scenarios if s.server_params.model_dump(mode="json") not in own]
    if not others:
        return None
    have = f"{others[0].label}{_others(others)} {'has' if len(others) == 1 else 'have'}"
    return f"{have} server_params that differ from those of the server {server.name!r}: the server's own are used."


def short_of_turns(scenarios: Sequence[McpScenario], max_turns: int) -> str | None:
    """Return a warning where a solution with one call a turn and an answer needs more turns than there are, or None."""
    long = [s for s in scenarios if len(s.reference) + 1 > min(max_turns, s.max_turns)]
    if not long:
        return None
    longest = max(len(s.reference) for s in long)
    return (
        f"{len(long)} of {len(scenarios)} scenarios have solutions of up to {longest} calls, and an episode has "
        f"{max_turns} turns: only several calls in a turn can solve them; rollout.max_turns={longest + 2} leaves room."
    )


def cut_short(scenarios: Sequence[McpScenario], max_result_tokens: int) -> str | None:
    """Return a warning where a solution must read a result of which an episode likely shows only a part, or None."""
    shown = _CHARACTERS * max_result_tokens
    cut = [s for s in scenarios if s.proof is not None and s.proof.longest_result > shown]
    if not cut:
        return None
    longest = max(s.proof.longest_result for s in cut if s.proof is not None)
    needed = 1 << (longest // _DENSE - 1).bit_length()
    return (
        f"{len(cut)} of {len(scenarios)} scenarios must read results of up to {longest:,} characters, and an episode "
        f"shows {max_result_tokens} tokens of each: what they ask for may be in the part that is cut out; "
        f"rollout.max_result_tokens={needed} leaves room."
    )


def _tools(scenario: McpScenario) -> set[str]:
    """Return the tools that a scenario's reference and verifier call, and those that its seats get."""
    verifier = scenario.verifier
    named: set[str] = {tool for seat in scenario.seats for tool in seat.tools}
    for listed in (verifier.expected, verifier.options.get("reads")) if verifier else ():
        calls = listed if isinstance(listed, list) else []
        named |= {str(call["tool"]) for call in calls if isinstance(call, dict) and "tool" in call}
    submission = {verifier.submit_tool} if verifier else set()
    return ({call.tool for call in scenario.reference} | named) - submission


def _others(found: Collection[object]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
