"""Whether scenarios that somebody gives belong to the server that they are to be played on."""

from collections.abc import Collection, Sequence

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario
from mcp_rl.toolserver.schema import ToolSchemas


def check_server(scenarios: Sequence[McpScenario], name: str, known: Collection[str]) -> None:
    """Before anything is started. Raises ScenarioError where a scenario was made for a server of another name.

    The same server may have two names, one of them from a URL or a command. So where not both are `known`, and the
    hash of the tool schemas will tell, `check_fit` decides.
    """
    strangers = [
        s for s in scenarios if s.server not in ("", name) and (s.schema_hash is None or {s.server, name} <= set(known))
    ]
    if strangers:
        raise ScenarioError(
            f"Scenario {strangers[0].id}{_others(strangers)} was made for the server {strangers[0].server!r}, "
            f"not for {name!r}; name that server, or give scenarios made for this one."
        )


def check_fit(scenarios: Sequence[McpScenario], name: str, schemas: ToolSchemas) -> None:
    """Once the server has listed its tools. Raises ScenarioError for tools it does not have, and for another hash."""
    strange = [(s, tool) for s in scenarios for tool in sorted(_tools(s)) if tool not in schemas.to_openai]
    if strange:
        scenario, tool = strange[0]
        of = f"; it was made for the server {scenario.server!r}" if scenario.server not in ("", name) else ""
        raise ScenarioError(
            f"Scenario {scenario.id}{_others({s.id for s, _ in strange})} needs the tool {tool!r}, which the server "
            f"{name!r} does not have{of}."
        )
    changed = [s for s in scenarios if s.schema_hash not in (None, schemas.hash)]
    if changed:
        raise ScenarioError(
            f"Scenario {changed[0].id}{_others(changed)} was made for other tool schemas ({changed[0].schema_hash}; "
            f"the server {name!r} has {schemas.hash}); make new ones with `mcp-rl generate`, or remove schema_hash."
        )


def short_of_turns(scenarios: Sequence[McpScenario], max_turns: int) -> str | None:
    """A sentence where solutions have more calls than there are turns for, one call in a turn and an answer."""
    long = [s for s in scenarios if len(s.reference) + 1 > min(max_turns, s.max_turns)]
    if not long:
        return None
    longest = max(len(s.reference) for s in long)
    return (
        f"{len(long)} of {len(scenarios)} scenarios have solutions of up to {longest} calls, and an episode has "
        f"{max_turns} turns: only calls made together can solve them; rollout.max_turns={longest + 2} leaves room."
    )


def _tools(scenario: McpScenario) -> set[str]:
    """The tools that a scenario's reference and verifier call."""
    verifier = scenario.verifier
    named: set[str] = set()
    for listed in (verifier.expected, verifier.options.get("reads")) if verifier else ():
        calls = listed if isinstance(listed, list) else []
        named |= {str(call["tool"]) for call in calls if isinstance(call, dict) and "tool" in call}
    submission = {verifier.submit_tool} if verifier else set()
    return ({call.tool for call in scenario.reference} | named) - submission


def _others(found: Collection[object]) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
