"""Scenarios come from the configured source, and are checked before anything is played."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl.config import RunConfig
from mcp_rl.errors import CassetteMiss, McpRlError, PluginError, ScenarioError
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.runs.identity import check_inputs, identify
from mcp_rl.scenario import McpScenario, ToolCall, Verifier, scenario_lines
from mcp_rl.scenarios.sources import made_scenarios, run_scenarios, scenario_file
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer

SERVER = load_plugins().server("mcp_calculator")
PARAMS = SERVER.params("stdio")


def task(number: int, tool: str = "add") -> McpScenario:
    call = ToolCall(tool=tool, arguments={"a": number, "b": 1})
    right = Verifier(kind="number", expected=number + 1)
    return McpScenario(task_description=f"{number} and 1?", server_params=PARAMS, verifier=right, reference=(call,))


def offering(source: Any) -> Plugins:
    plugins = load_plugins()
    plugins.scenario_sources.add("own", source, "a test")
    return plugins


def gives(*made: Any) -> Any:
    return lambda sessions, *, server, params, recipe: made


async def slowly(sessions: Sessions, *, server: ToolServer, params: Any, recipe: Recipe) -> list[McpScenario]:
    answer = await (await sessions.get(params)).connection.call("add", {"a": recipe.seed, "b": recipe.count})
    return [task(int(answer.text))]


async def asked(sessions: Sessions, plugins: Plugins) -> list[McpScenario]:
    recipe = Recipe(3, seed=4)
    return await made_scenarios("own", plugins, sessions, server=SERVER, params=PARAMS, recipe=recipe)


def raises(sessions: Sessions, *, server: ToolServer, params: Any, recipe: Recipe) -> Any:
    yield task(1)
    raise KeyError("gone")


async def stopped(sessions: Sessions, *, server: ToolServer, params: Any, recipe: Recipe) -> Any:
    async def call() -> None:
        raise CassetteMiss("add was not recorded")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)


WRONG = [
    (raises, "test_sources.py, line"),
    (raises, "failed: KeyError: 'gone'"),
    (gives(), "'own' made no scenario"),
    (gives(task(1), {"task": "x"}), "returned {'task': 'x'}, which is not a scenario"),
    (lambda sessions, *, server, params, recipe: 5, "TypeError: 'int' object is not iterable"),
    (gives(task(1), task(2), task(1)), "'own', scenario 3: the id"),
    (gives(task(1), task(1, "sine")), "scenario 2: the request is the same as in scenario 1"),
    (gives(task(1, "sine")), "needs the tool 'sine', which the server 'mcp_calculator' does not have"),
]


async def test_a_source_may_call_the_server_and_its_faults_are_named() -> None:
    async with Sessions(server=SERVER) as sessions:
        assert await asked(sessions, offering(slowly)) == [task(7)]
        assert await asked(sessions, offering(gives(task(1), task(2)))) == [task(1), task(2)]
        for source, words in WRONG:
            with pytest.raises(ScenarioError) as error:
                await asked(sessions, offering(source))
            assert words in str(error.value)
        with pytest.raises(CassetteMiss, match="add was not recorded"):
            await asked(sessions, offering(stopped))


async def test_file_before_source_before_plugin_before_exploring(
    tmp_path: Path,
) -> None:
    plugins = offering(gives(task(1), task(2)))
    for name, number in (("users", 3), ("servers", 5)):
        (tmp_path / f"{name}.jsonl").write_text(scenario_lines([task(number)]))
    bringing = ToolServer("mcp_calculator", "", SERVER.transports, scenarios=str(tmp_path / "servers.jsonl"))

    async def first(server: ToolServer, **scenarios: Any) -> list[McpScenario]:
        config = RunConfig(server="mcp_calculator", scenarios={"val": 1, **scenarios}, transport="stdio")
        return await run_scenarios(config, server, PARAMS, sessions, plugins)

    async with Sessions(server=SERVER) as sessions:
        assert await first(bringing, file=tmp_path / "users.jsonl") == [task(3)]
        assert await first(bringing, source="own") == [task(1), task(2)]
        assert await first(bringing) == [task(5)]
        explored = await first(bringing, source="explore", count=4)
        assert len(explored) == 4 and all(scenario.reference for scenario in explored)


def test_a_run_is_the_run_of_the_file_that_its_scenarios_are_in(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(scenario_lines([task(1)]))
    server = ToolServer("mcp_calculator", "", SERVER.transports, scenarios=file)
    config = RunConfig(server="mcp_calculator")
    before = identify(config, server, "hash")
    assert before.scenarios_hash != identify(config, SERVER, "hash").scenarios_hash == "explored"
    file.write_text(scenario_lines([task(2)]))
    assert identify(config, server, "hash") != before
    assert scenario_file(config, ToolServer("s", "", SERVER.transports, scenarios="{bundled}/x")).is_absolute()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scenarios": {"source": "explor"}}, "no scenario source named 'explor'; did you mean 'explore'"),
        ({"backend": "lokal"}, "no backend named 'lokal'; did you mean 'local'"),
        ({"trackers": "wandbb"}, "no tracker named 'wandbb'; did you mean 'wandb'"),
        ({"reward": {"weights": {"verifier": 0.5, "clean_call": 0.5}}}, "did you mean 'clean_calls'"),
    ],
)
def test_unknown_names_are_refused_before_anything_starts(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(McpRlError, match=words) as error:
        check_inputs(RunConfig(server="mcp_calculator", **fields), SERVER, load_plugins())
    assert error.value.exit_code == 2


def test_unusable_scenarios_of_a_plugin_are_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    server = ToolServer("mcp_calculator", "", SERVER.transports, scenarios=file)
    config = RunConfig(server="mcp_calculator")
    with pytest.raises(ScenarioError, match=r"Cannot read the scenarios file .*own\.jsonl"):
        check_inputs(config, server, load_plugins())
    file.write_text(scenario_lines([task(1).model_copy(update={"verifier": Verifier(kind="sums")})]))
    with pytest.raises(ScenarioError, match="names the unknown verifier 'sums'"):
        check_inputs(config, server, load_plugins())
    with pytest.raises(PluginError, match="no scenario source"):
        check_inputs(RunConfig(server="x", scenarios={"source": "nobodys"}), server, load_plugins())
