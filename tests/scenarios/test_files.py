"""Scenario files of people and other generators, and files of another server."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import McpScenario, StdioServer, Verifier, read_scenarios, scenario_lines
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.fit import check_fit, check_made_for, other_params
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.schema import ToolSchemas

CALCULATOR = load_plugins().server("mcp_calculator")
TASKS = [{"task": "Add 3 and 4.", "difficulty": 1}, {"task": "What is 5 times 6?", "difficulty": 5}]
SCHEMAS = ToolSchemas([Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "number"}}})])


def read(tmp_path: Path, text: str) -> list[McpScenario]:
    file = tmp_path / "tasks.json"
    file.write_text(text, encoding="utf-8")
    return read_scenario_file(file, CALCULATOR, "stdio")


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ScenarioError) as error:
        read(tmp_path, text)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(TASKS),
        json.dumps(TASKS, indent=2),
        json.dumps({"scenarios": TASKS, "model": "x"}),
        "\n\n".join(map(json.dumps, TASKS)),
    ],
    ids=["list", "indented", "object with a list", "lines"],
)
def test_claimed_difficulties_are_read_from_every_format(text: str, tmp_path: Path) -> None:
    first, second = read(tmp_path, text)
    assert (first.task_description, second.task_description) == ("Add 3 and 4.", "What is 5 times 6?")
    assert (first.tags, second.tags) == (("claimed-difficulty-1",), ("claimed-difficulty-5",))
    assert first.difficulty is None, "a claim is no measurement"
    assert first.server == "mcp_calculator" and first.server_params == CALCULATOR.params("stdio")


def test_one_task_alone_is_a_file_too(tmp_path: Path) -> None:
    assert len(read(tmp_path, json.dumps(TASKS[0], indent=1))) == 1


def test_our_own_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    params = StdioServer(command="other")
    own = [McpScenario(task_description=f"Add {n}.", server_params=params, difficulty=0.25) for n in range(3)]
    assert read(tmp_path, scenario_lines(own)) == own
    assert read(tmp_path, json.dumps([json.loads(line) for line in scenario_lines(own).splitlines()])) == own


def test_a_text_with_unicode_line_separators_stays_one_line(tmp_path: Path) -> None:
    own = McpScenario(task_description="Say \u2028 and \x85.", server_params=StdioServer(command="other"))
    assert read(tmp_path, scenario_lines([own, own.model_copy(update={"id": "b", "server": "c"})]))[0] == own
    assert read_scenarios(tmp_path / "tasks.json")[0] == own


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"task": "a"}\n{"task": ', "tasks.json, line 2, column 10: invalid JSON: Expecting value."),
        ('[{"task": "a"}, 7]', 'entry 2: a scenario is a JSON object such as {"task": "…"}, not a number'),
        ('{"task": "a"}\nnull', 'line 2: a scenario is a JSON object such as {"task": "…"}, not null'),
        ('[{"task": "a", "difficulty": 6}]', "entry 1: difficulty must be an integer from 1 to 5, not 6"),
        ('[{"task": "a", "difficulty": true}]', "not true"),
        ('[{"task": "a", "difficulty": [3]}]', "not [3]"),
        (
            '[{"task": "a", "difficlty": 3}]',
            "tasks.json, entry 1: there is no field 'difficlty'; did you mean 'difficulty'?",
        ),
        ('[{"task": ""}]', "entry 1: task_description is empty; write the request in words"),
        ('{"taks": "a"}', "line 1: there is no field 'taks'; did you mean 'task'?"),
        ('{"verifier": {"kind": "number"}}', "line 1: it has no request: add a field 'task'"),
        ('{"reference": [], "tags": []}', "line 1: it has no request: add a field 'task'"),
        ('{"task": "a"}\n{"task": "b", "zzz": 1}', "line 2: there is no field 'zzz'; remove it, or use one of task,"),
        ('{"task": "a", "verifier": {"kind": "number", "expcted": 1}}', "'verifier.expcted'; did you mean 'expected'?"),
        ('{"task": "a", "reference": [{"tol": "add"}]}', "'reference.0.tol'; did you mean 'tool'?"),
        ('{"task": "a", "reference": [{}]}', "line 1: the field 'reference.0.tool' is missing; add it"),
        ('{"task": "a", "server_params": {"command": "x"}}', 'server_params needs a "transport": "stdio"'),
        ('{"task": "a", "server_params": {"transport": "stdio", "comand": "x"}}', "did you mean 'command'?"),
        ('{"task": "a", "split": "validation"}', "split should be 'train', 'val' or 'test', not \"validation\""),
        ('{"task": "a", "max_turns": "many"}', "max_turns should be a valid integer"),
        ('[\n {"task": "a"},\n {"task" "b"}\n]', "tasks.json, line 3, column 10: invalid JSON: Expecting ':'"),
        ('{\n "task": "a"\n "seed": 1\n}', "tasks.json, line 3, column 2: invalid JSON: Expecting ','"),
        ('{"task": "a"\n{"task": "b"}', "tasks.json, line 1, column 13: invalid JSON: Expecting ','"),
        ('{"id": "x", "task": "a"}\n{"id": "x", "task": "b"}', "line 2: the id 'x' is that of line 1 too"),
        (
            '{"prompt": [{"role": "user", "content": "What is 3 plus 4?"}], "answer": 7}',
            "line 1: a task's request is a text called 'task', not 'prompt', and its right answer is in a verifier",
        ),
        ('{"question": "a"}\n{"question": "b"}', "line 1: a task's request is a text called 'task', not 'question'"),
        ('[{"task": "a", "task_description": "b"}]', "both 'task' and 'task_description'"),
        ('[{"task": "a"}, {"task": "A "}]', "entry 2: the request is the same as in entry 1"),
        ('[{"task": "a", "tags": 5, "difficulty": 3}]', "entry 1: tags"),
        ('{"tasks": [], "more": []}', "is one JSON object with 2 lists (tasks, more)"),
        ("[]", "holds no scenario"),
        ("", "holds no scenario"),
        ("[" * 100_000, "invalid JSON"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    said = refusal(tmp_path, text)
    assert words in said and not said.endswith("?.")


def test_tasks_without_a_server_need_to_be_told_theirs(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps(TASKS))
    with pytest.raises(ScenarioError, match=r"entry 1: it has no 'server_params'.*--server"):
        read_scenario_file(file)


@settings(max_examples=30, deadline=None)
@given(text=st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_file_is_read_or_refused_in_one_sentence(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        read(tmp_path_factory.mktemp("any"), text)
    except ScenarioError as error:
        assert "tasks.json" in str(error)


def scenario(**fields: Any) -> McpScenario:
    values = {"task_description": "Add.", "server_params": StdioServer(command="x"), "server": "one", **fields}
    return McpScenario.model_validate(values)


def test_another_servers_scenario_is_refused_unless_hashed() -> None:
    check_made_for([scenario(), scenario(server="")], "one", {"one", "two"})
    check_made_for([scenario(server="127.0.0.1-mcp", schema_hash="x")], "one", {"one", "two"})
    for stranger in (scenario(server="two", schema_hash="x"), scenario(server="three")):
        with pytest.raises(ScenarioError, match="was made for the server"):
            check_made_for([scenario(), stranger], "one", {"one", "two"})


def test_missing_tools_and_other_schemas_are_refused() -> None:
    check_fit([scenario(reference=[{"tool": "add"}], schema_hash=SCHEMAS.hash)], "one", SCHEMAS)
    with pytest.raises(ScenarioError, match=r"needs the tool 'subtract', which the server 'one' does not have\."):
        check_fit([scenario(), scenario(reference=[{"tool": "subtract"}])], "one", SCHEMAS)
    state = Verifier(kind="state", expected=[{"tool": "read_note", "arguments": {}, "result": "x"}])
    with pytest.raises(ScenarioError, match=r"needs the tool 'read_note'.*; it was made for the server 'two'"):
        check_fit([scenario(verifier=state, server="two")], "one", SCHEMAS)
    with pytest.raises(ScenarioError, match=rf"different tool schemas \(0123; the server 'one' has {SCHEMAS.hash}"):
        check_fit([scenario(schema_hash="0123")], "one", SCHEMAS)


def test_other_server_params_are_said_once() -> None:
    own = [scenario(server_params=CALCULATOR.params(name), task_description=name) for name in ("stdio", "sse")]
    assert other_params(own, CALCULATOR) is None, "another transport of the same server is no other server"
    said = other_params([*own, scenario(id="a"), scenario(id="b")], CALCULATOR)
    assert said == (
        "Scenario a (and 1 more) have server_params that differ from those of the server 'mcp_calculator': "
        "the server's own are used."
    )


def test_a_problem_with_a_scenario_names_file_and_line(tmp_path: Path) -> None:
    first, second = read(tmp_path, "".join(json.dumps(task) + "\n" for task in TASKS))
    assert second.label == f"{tmp_path / 'tasks.json'}, line 2: the scenario"
    assert second.model_copy(update={"split": "val"}).label == second.label
    assert first == McpScenario.model_validate(first.model_dump())
    with pytest.raises(ScenarioError, match=r"line 2: the scenario was made for the server 'two'"):
        check_made_for([first, second.model_copy(update={"server": "two"})], first.server, {"two"})
