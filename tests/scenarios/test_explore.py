"""Scenarios explored on the calculator, and on a server of odd tools."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import Isolation
from mcp_rl.errors import ScenarioError
from mcp_rl.explore.explorable import explorable, reads_only
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import McpScenario, StdioServer, ToolCall, scenario_lines
from mcp_rl.scenarios.broken import BrokenScenario, broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.scenarios.split import overlap, split
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool


async def explored(server: ToolServer, recipe: Recipe) -> list[McpScenario]:
    async with Sessions(server=server) as sessions:
        return await explored_scenarios(sessions, server=server, params=server.params("stdio"), recipe=recipe)


async def findings(server: ToolServer, scenarios: Sequence[McpScenario]) -> list[BrokenScenario]:
    async with Sessions(server=server) as sessions:
        return await broken_scenarios(sessions, server.params("stdio"), scenarios)


def solvable(count: int, seed: int = 0, max_steps: int = 2) -> Recipe:
    return Recipe(count, seed, max_steps, unsolvable=0, without_tools=0)


@pytest.fixture
def calculator() -> ToolServer:
    return load_plugins().server("mcp_calculator")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the changing tools of the odd server write to."""
    return tmp_path_factory.mktemp("odd") / "changed"


@pytest.fixture(scope="module")
def odd(changed: Path) -> ToolServer:
    script = str(Path(__file__).with_name("odd_server.py"))
    params = StdioServer(command=sys.executable, args=(script, str(changed)))
    return ToolServer("odd", "Odd tools.", {"stdio": params}, sandbox="off")  # the test reads what it wrote


@pytest.fixture(scope="module")
def of_odd(odd: ToolServer) -> list[McpScenario]:
    return anyio.run(explored, odd, solvable(60))


@pytest.fixture(scope="module")
def of_calculator() -> list[McpScenario]:
    return anyio.run(explored, load_plugins().server("mcp_calculator"), solvable(150))


def test_the_calculator_gives_distinct_balanced_scenarios(of_calculator: list[McpScenario]) -> None:
    found = of_calculator
    assert len(found) == 150
    assert len({s.id for s in found}) == len({s.task_description for s in found}) == 150
    steps = Counter(len(s.reference) for s in found)
    assert 0.35 <= steps[2] / 150 <= 0.45
    by_tool = Counter(call.tool for s in found for call in s.reference)
    assert len(by_tool) == 7
    assert min(by_tool.values()) > 0.08 * sum(by_tool.values())
    for scenario in found:
        assert scenario.server == "mcp_calculator" and scenario.schema_hash and scenario.reference_answer
        assert scenario.verifier is not None and scenario.verifier.kind == "number"
    train, val = split(found, val_count=30, seed=0)
    assert len(val) == 30 and not overlap(train, val)


async def test_the_same_seed_gives_the_same_list_to_the_byte(
    calculator: ToolServer, of_calculator: list[McpScenario]
) -> None:
    first, again = await asyncio.gather(*(explored(calculator, Recipe(20, seed=3)) for _ in range(2)))
    assert scenario_lines(first) == scenario_lines(again)
    assert not {s.task_description for s in first} <= {s.task_description for s in of_calculator}, "of another seed"


async def test_every_reference_solution_holds_when_executed_again(
    calculator: ToolServer, of_calculator: list[McpScenario]
) -> None:
    assert await findings(calculator, of_calculator) == []


async def test_broken_scenarios_are_named(calculator: ToolServer, of_calculator: list[McpScenario]) -> None:
    good, wrong, gone, failing, stale, empty = (s.model_copy() for s in of_calculator[:6])
    assert wrong.verifier is not None
    wrong.verifier = wrong.verifier.model_copy(update={"expected": 123456.5})
    gone.reference = (ToolCall(tool="cube", arguments={}),)
    failing.reference = (ToolCall(tool="divide", arguments={"a": 1, "b": 0}),)
    stale.schema_hash = "0" * 16
    empty.reference = ()
    wrong.reference_answer = "123456.5"
    found = await findings(calculator, [good, wrong, gone, failing, stale, empty])
    problems = {finding.id: finding.problem for finding in found}
    assert set(problems) == {wrong.id, gone.id, failing.id, stale.id, empty.id}
    assert "123456.5" in problems[wrong.id]
    assert "no longer has the tool cube" in problems[gone.id]
    assert "is now an error" in problems[failing.id]
    assert "different tool schemas" in problems[stale.id]
    assert "no reference" in problems[empty.id]


def test_slow_unsteady_secret_and_changing_tools_are_left_out(of_odd: list[McpScenario], changed: Path) -> None:
    used = {call.tool for s in of_odd for call in s.reference}
    assert used == {"list_books", "title_of", "double", "open_page", "stamp"}
    assert not changed.exists()
    assert "12345-abcdef" not in scenario_lines(of_odd)


def test_resources_that_the_server_lists_become_arguments(of_odd: list[McpScenario]) -> None:
    opened = [call.arguments for s in of_odd for call in s.reference if call.tool == "open_page"]
    assert opened and all(arguments == {"uri": "book://emma/first-page"} for arguments in opened)


async def test_a_time_in_a_result_changes_nothing(odd: ToolServer, of_odd: list[McpScenario]) -> None:
    stamped = [s for s in of_odd if [call.tool for call in s.reference] == ["stamp"]]
    assert stamped and all(s.reference_answer is None for s in stamped)
    assert all(s.verifier is not None and s.verifier.kind == "calls" for s in stamped)
    assert scenario_lines(await explored(odd, solvable(60))) == scenario_lines(of_odd)


def test_values_seen_in_a_result_become_arguments_and_lookups(of_odd: list[McpScenario]) -> None:
    found = of_odd
    titles = [s for s in found if [call.tool for call in s.reference] == ["title_of"]]
    lookups = [s for s in found if [call.tool for call in s.reference] == ["list_books", "title_of"]]
    assert titles and lookups
    assert all(s.verifier is not None and s.verifier.kind == "text" for s in titles)
    assert all(s.verifier is not None and s.verifier.kind == "calls" for s in lookups)


async def test_a_server_that_only_changes_things_is_refused(odd: ToolServer) -> None:
    odd = replace(odd, isolation="shared")
    async with Sessions(server=odd) as sessions:
        connection = (await sessions.get(odd.params())).connection
        connection.tools = [tool for tool in connection.tools if tool.name in ("delete_book", "tidy")]
        with pytest.raises(ScenarioError, match="no tool that may be called freely"):
            await explored_scenarios(sessions, server=odd, params=odd.params(), recipe=solvable(10))


def test_explorable_tools_follow_hints_names_and_isolation() -> None:
    tools = [
        Tool("get", "", {}),
        Tool("delete_item", "", {}),
        Tool("write_safely", "", {}, annotations={"readOnlyHint": True}),
        Tool("look", "", {}, annotations={"destructiveHint": True}),
        Tool("note", "", {}, annotations={"readOnlyHint": False, "destructiveHint": False}),
    ]

    def free(isolation: Isolation | None, tools: list[Tool] = tools) -> list[str]:
        reset = "start_over" if isolation == "reset" else None
        server = ToolServer("s", "S.", {"stdio": StdioServer(command="s")}, isolation, reset_tool=reset)
        return [tool.name for tool in explorable(tools, server)]

    assert free("shared") == free(None) == ["get", "write_safely"]
    assert free("per-rollout") == ["get", "delete_item", "write_safely", "note"]
    assert free("reset") == ["get", "delete_item", "write_safely", "look", "note"]
    outside = Tool("wipe", "", {}, annotations={"destructiveHint": True, "openWorldHint": True})
    assert free("reset", [outside]) == []
    assert [reads_only(tool) for tool in tools] == [True, False, True, False, False]
    names = ("notes__delete_item", "add_todo", "addNote", "add", "add_numbers", "add_two_ints", "address")
    assert [name for name in names if reads_only(Tool(name, "", {}))] == list(names[3:])


async def test_a_tool_that_takes_anything_does_not_drown_the_others(odd: ToolServer) -> None:
    found = await explored(odd, solvable(200, max_steps=1))
    calls = {(s.reference[0].tool, str(s.reference[0].arguments)) for s in found}
    by_tool = Counter(tool for tool, _ in calls)
    assert set(by_tool) == {"list_books", "title_of", "double", "open_page", "stamp"}
    assert by_tool["title_of"] == 5 and 40 <= by_tool["double"] <= 2 * 200 / 4 + 4  # a wave more
