"""Levels of tasks as a setting, and what a recipe makes of them."""

import json
import sys
import typing
from collections import Counter
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from pydantic import ValidationError

from mcp_rl.config import LEVELS, RunConfig, level_shares
from mcp_rl.errors import ConfigError
from mcp_rl.explore.entities.fields import described
from mcp_rl.explore.entities.world_model import (
    ArgumentSlot,
    Entity,
    EntityKind,
    Fact,
    Observation,
    WorldModel,
)
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import GoalProof, Level, McpScenario, StdioServer, ToolCall, scenario_lines
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.scenarios.fit import cut_short
from mcp_rl.scenarios.goals.questions import Questions
from mcp_rl.scenarios.split import overlap
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer


def test_levels_have_the_same_names_everywhere() -> None:
    assert typing.get_args(Level) == LEVELS


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("spelled", {"spelled": 1.0}),
        ("told=0.4, looked-up=0.6", {"told": 0.4, "looked-up": 0.6}),
        ("told=1,spelled=0", {"told": 1.0}),
    ],
)
def test_shares_are_read(text: str, shares: dict[str, float]) -> None:
    assert level_shares(text) == shares
    assert abs(sum(level_shares("mixed").values()) - 1) < 1e-9 and set(level_shares("mixed")) == set(LEVELS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("looked_up=1", "did you mean 'looked-up'"),
        ("hard", "choose from spelled, told"),
        ("told=0.5", "add up to 0.5"),
        ("told=lots", "the share of told is 'lots'"),
        ("told=2,spelled=-1", "the share of told is 2"),
        ("told=nan", "a number from 0 to 1"),
        ("told=0.5,told=0.5", "named twice"),
        ("", "there is no level ''"),
    ],
)
def test_bad_shares_are_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Recipe(10, levels=text)
    with pytest.raises(ValidationError, match=says):
        RunConfig(server=["x"], scenarios={"levels": text})  # type: ignore[arg-type]


def test_goals_are_made_where_they_are_asked_for() -> None:
    assert RunConfig(server=["x"]).scenarios.levels == "auto"  # type: ignore[arg-type]
    asked = RunConfig(server=["x"], scenarios={"levels": "mixed"})  # type: ignore[arg-type]
    assert asked.scenarios.levels == "mixed"


def test_tasks_that_are_spelled_out_stand_in_for_goals_where_they_are_wanted() -> None:
    recipe = Recipe(100, levels="told=0.5,spelled=0.5")
    assert recipe.goals == {"told": 45}
    rest = recipe.without_goals(20)
    assert rest is not None and (rest.count, rest.solvable, rest.levels) == (80, 70, "spelled")
    assert Recipe(100, levels="told").without_goals(20) is None


def goal(proof: GoalProof, text: str) -> McpScenario:
    return McpScenario(
        task_description=text,
        server_params=StdioServer(command="x"),
        reference=(ToolCall(tool="list"),),
        level="told",
        proof=proof,
    )


def test_goal_tasks_are_kept_apart_by_what_they_ask_and_not_by_their_first_call() -> None:
    one = goal(GoalProof(program="a", executed=2, apart=("things home",)), "How many are at home?")
    other = goal(GoalProof(program="b", executed=2, apart=("things work",)), "Which are at work?")
    same = goal(GoalProof(program="c", executed=2, apart=("things home", "fact n1")), "Name those at home.")
    assert not overlap([one], [other]) and overlap([one], [same])


def test_a_sentence_tells_of_tasks_that_must_read_more_than_an_episode_shows() -> None:
    short = goal(GoalProof(program="a", executed=2, longest_result=1024), "How many are at home?")
    long = goal(GoalProof(program="b", executed=2, longest_result=2500), "How many are at work?")
    assert cut_short([short], 256) is None and cut_short([short, long], 2048) is None
    said = cut_short([short, long], 256)
    assert said is not None and said.startswith("1 of 2 scenarios must read results of up to 2,500 characters")
    assert "rollout.max_result_tokens=2048 leaves room" in said


def test_a_scenario_without_a_level_is_spelled_and_written_so() -> None:
    plain = McpScenario(task_description="Add 1 and 2.", server_params=StdioServer(command="x"))
    assert plain.level == "spelled" and json.loads(scenario_lines([plain]))["level"] == "spelled"


def test_a_calculator_gets_told_tasks_in_ordinary_words() -> None:
    server = load_plugins().server("mcp_calculator")

    async def made() -> list[McpScenario]:
        params = server.params("stdio")
        async with Sessions(server=server) as sessions:
            return await explored_scenarios(sessions, server=server, params=params, recipe=Recipe(8, levels="told"))

    scenarios = anyio.run(made)
    assert len(scenarios) >= 6 and {s.level for s in scenarios} == {"told"}
    assert all(s.least_calls == 1 and s.verifier is not None and s.verifier.kind == "number" for s in scenarios)
    assert not any(call.tool in s.task_description.lower() for s in scenarios for call in s.reference)


@pytest.mark.parametrize("level", ["spelled", "told"])
def test_changes_that_differ_in_their_values_alone_do_not_fill_a_level(level: str) -> None:
    params = StdioServer(command=sys.executable, args=(str(Path(__file__).with_name("boards_server.py")),))
    server = ToolServer("boards", "Boards.", {"stdio": params}, isolation="reset", reset_tool="begin")
    recipe = Recipe(72, levels=level, unsolvable=0, without_tools=0, max_steps=2)

    async def made() -> list[McpScenario]:
        async with Sessions(server=server) as sessions:
            return await explored_scenarios(sessions, server=server, params=params, recipe=recipe)

    scenarios = anyio.run(made)
    assert {one.level for one in scenarios} == {level}
    lengths = Counter(len(one.reference) for one in scenarios if "add_board" in {call.tool for call in one.reference})
    assert lengths[1] >= 6 and max(lengths.values()) <= 12


@pytest.mark.parametrize(("worded", "levels"), [(True, {"spelled"}), (False, {"spelled", "told"})])
def test_levels_that_are_left_open_follow_the_wording_of_the_server(worded: bool, levels: set[str]) -> None:
    server = load_plugins().server("mcp_calculator")
    server = server if worded else replace(server, phrases={})

    async def made() -> list[McpScenario]:
        params = server.params("stdio")
        async with Sessions(server=server) as sessions:
            recipe = Recipe(16, levels="auto", unsolvable=0, without_tools=0)
            return await explored_scenarios(sessions, server=server, params=params, recipe=recipe)

    assert {scenario.level for scenario in anyio.run(made)} == levels


def test_a_told_request_names_the_table_that_one_query_reads_whole() -> None:
    columns = {
        "name": ["Ada", "Omar", "Lena", "Ravi", "Nina", "Otto"],
        "city": ["Lima", "Oslo", "Rome", "Cairo", "Quito", "Delhi"],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    fields = {name: described(name, values, "person", is_key=name == "name") for name, values in columns.items()}
    tables = {"name": described("name", ["people"], "table", is_key=True)}
    people = [
        Entity(kind="person", key=row["name"], facts={name: Fact(value=row[name], shown_by=(1,)) for name in row})
        for row in rows
    ]
    world = WorldModel(
        server="registry",
        kinds={
            "table": EntityKind(name="table", plural="tables", key="name", fields=tables, complete=True),
            "person": EntityKind(name="person", plural="people", key="name", fields=fields, complete=True),
        },
        entities=(Entity(kind="table", key="people", facts={"name": Fact(value="people", shown_by=(0,))}), *people),
        observations=(
            Observation(tool="catalogue", arguments={}, text='[{"name": "people"}]', lists="table"),
            Observation(tool="ask", arguments={"query": "SELECT * FROM people"}, text=json.dumps(rows), lists="person"),
        ),
        slots=(ArgumentSlot(tool="columns_of", parameter="table", kind="table", field="name"),),
        references=(),
    )
    told = Questions(world, ["catalogue", "ask", "columns_of"], 1).draw({"told": 6})
    assert told
    assert all(one.lookups == (1,) and "table 'people'" in one.text for one in told)
    looked_up = Questions(world, ["catalogue", "ask", "columns_of"], 1).draw({"looked-up": 6})
    assert looked_up
    assert all(one.lookups == (0, 1) and "people" not in one.text.split() for one in looked_up)


def test_a_misspelled_level_ends_in_one_mark() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'told'\?$"):
        Recipe(count=10, levels="tolld=1")


def test_a_call_that_names_the_right_things_by_chance_is_no_solution() -> None:
    params = StdioServer(command=sys.executable, args=(str(Path(__file__).with_name("cards_server.py")),))
    server = ToolServer("cards", "Notes and cards.", {"stdio": params}, isolation="shared")
    recipe = Recipe(60, levels="worked-out=0.7,looked-up=0.3", unsolvable=0, without_tools=0)

    async def made() -> list[McpScenario]:
        async with Sessions(server=server) as sessions:
            return await explored_scenarios(sessions, server=server, params=params, recipe=recipe)

    about_text = [one for one in anyio.run(made) if one.proof is not None and "field='text'" in one.proof.program]
    assert len(about_text) >= 5
    assert not [one for one in about_text if "get_card" in {call.tool for call in one.reference}]
