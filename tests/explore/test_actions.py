"""Tools that do several things are taken apart to be explored; scenarios have the server's own calls."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.explore import tried
from mcp_rl.explore.actions import actions_behind
from mcp_rl.explore.entities.keeping import read_world, world_file
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer
from mcp_rl.scenarios.generate import CheckedFile, GenerateRequest, check_file, generate_file
from mcp_rl.scenarios.reference import scenario_tools
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import ToolResult

PARAMS = StdioServer(command=sys.executable, args=("-S", str(Path(__file__).with_name("actions_server.py"))))


def test_an_action_needs_what_the_server_says_and_takes_what_is_not_for_others() -> None:
    async def learned() -> dict[str, tuple[list[str], list[str]]]:
        async with connect(PARAMS) as connection:
            actions = await actions_behind(connection, connection.tools)
            schemas = {tool.name: tool.input_schema for tool in actions.tools(connection.tools)}
            return {name: (list(one["properties"]), one["required"]) for name, one in schemas.items()}

    assert anyio.run(learned) == {
        "list_notes": (["title"], []),
        "get_notes": (["title"], ["title"]),
        "create_notes": (["title", "text", "tag"], ["title"]),
        "update_notes": (["title", "text"], ["title"]),
        "delete_notes": (["title"], []),  # calls that seem to destroy are not made before the state is known
    }


class Listing:
    """A link to tools that answer nothing."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = list(tools)

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        return ToolResult("Done.", None, False, 0.0)


def tool(name: str, **parameters: Any) -> Tool:
    return Tool(name, "", {"type": "object", "properties": parameters, "required": list(parameters)})


VERBS = ["list", "create"]


@pytest.mark.parametrize(
    "one",
    [
        tool("notes", action={"type": "string", "enum": VERBS}),
        tool("notes", action={"anyOf": [{"type": "string", "enum": VERBS}, {"type": "null"}]}),
        tool("notes", action={"oneOf": [{"const": verb} for verb in VERBS]}),
        tool("notes", operation={"type": "string", "description": "One of: list, create"}),
        replace(tool("notes", action={"type": "string"}), description="Notes.\n\n  action: one of 'list' or 'create'"),
        replace(
            tool("notes_manager", action={"$ref": "#/$defs/Verb"}),
            input_schema={
                "type": "object",
                "properties": {"action": {"$ref": "#/$defs/Verb"}},
                "$defs": {"Verb": {"type": "string", "enum": VERBS}},
            },
        ),
    ],
)
def test_actions_are_read_wherever_they_are_listed(one: Tool) -> None:
    link = Listing(one)
    actions = anyio.run(actions_behind, link, [one])
    assert [part.name for part in actions.tools([one])] == ["list_notes", "create_notes"]
    assert actions.served("list_notes", {}) == (one.name, {next(iter(one.input_schema["properties"])): "list"})


@pytest.mark.parametrize(
    "one",
    [
        tool("calculate", operation={"type": "string", "enum": ["add", "subtract", "multiply"]}, a={"type": "number"}),
        tool("sum", operation={"type": "string", "enum": ["add", "subtract"]}, a={"type": "number"}),
        tool("request", method={"type": "string", "enum": ["get", "post"]}, url={"type": "string"}),
        tool("lock", action={"type": "string", "enum": ["lock", "unlock"]}),
        tool("press", action={"type": "string", "enum": ["left", "right", "find"]}),
        tool("light", state={"type": "string", "enum": ["get", "set"]}),
        tool("run", command={"type": "string"}),
    ],
)
def test_other_choices_are_no_actions(one: Tool) -> None:
    assert not anyio.run(actions_behind, Listing(one), [one])


def test_changes_of_different_kinds_are_actions_too() -> None:
    one = tool("issue_write", method={"type": "string", "enum": ["create", "update"]})
    actions = anyio.run(actions_behind, Listing(one), [one])
    assert [part.name for part in actions.tools([one])] == ["create_issue", "update_issue"]


def test_a_tool_without_a_task_is_explained_by_its_own_name_and_calls() -> None:
    one = tool("notes", action={"type": "string", "enum": VERBS})
    actions = anyio.run(actions_behind, Listing(one), [one])
    with tried.tried_tools() as record:
        record.served = actions.served
        tried.note_kept_out("create_notes", tried.CHANGES)
        tried.note("list_notes", "refused", {}, "no key")
        tried.note_kept_out("create_notes", tried.CHANGES)
    [reason] = record.reasons(["notes"])
    assert reason.startswith("""notes: its only call was refused (for example {"action": "list"} → 'no key'); """)


def test_a_tool_stays_whole_where_another_has_the_name_of_a_part() -> None:
    action = {"type": "string", "enum": ["list", "create"]}
    both = [tool("notes", action=action), tool("list_notes"), tool("tag_manager", action=action)]
    actions = anyio.run(actions_behind, Listing(*both), both)
    assert [one.name for one in actions.tools(both)] == ["notes", "list_notes", "list_tag", "create_tag"]


@pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")
def test_goals_of_a_server_with_one_tool_are_proven_and_have_its_own_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server, out = ToolServer("actions", "", {"stdio": PARAMS}), tmp_path / "tasks.jsonl"
    order = GenerateRequest(Recipe(30, levels="spelled=0.4,told=0.3,brought-about=0.3", max_steps=2))

    async def made() -> tuple[list[McpScenario], CheckedFile]:
        generated = await generate_file(server, out, order)
        return list(generated.scenarios), await check_file(server, out)

    scenarios, checked = anyio.run(made)
    by_level = {level: [one for one in scenarios if one.level == level] for level in ("told", "brought-about")}
    assert all(len(several) >= 6 for several in by_level.values())
    solved = [one for one in scenarios if one.reference]
    assert {name for one in solved for name in scenario_tools(one)} == {"manage_notes"}
    looks = [look for one in solved if one.verifier is not None for look in one.verifier.reads]
    assert looks and all(look.tool == "manage_notes" and "action" in look.arguments for look in looks)
    spelled = [one.task_description for one in solved if one.level == "spelled"]
    assert spelled and all("manage_notes" in text or "anage notes" in text for text in spelled)
    assert not any("list_notes" in one.task_description for one in scenarios)
    assert checked.findings == [] and checked.opinion is not None and sum(checked.opinion.right.values()) > 6
    assert {effect.tool for effect in read_world(world_file(out)).effects} >= {"create_notes", "delete_notes"}
