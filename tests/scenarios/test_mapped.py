"""Questions from anyone's JSON Lines: fields that are mapped, verifiers that follow from answers, and bad lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.config import ScenarioConfig
from mcp_rl.config.load import load_config
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.rewards.verifier import BUILT_IN, check_verifiers, verify
from mcp_rl.scenario import McpScenario
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.mapped import compared_as
from mcp_rl.trajectory import CallRecord, StopReason, Trajectory

FIELDS = {"task": "question", "answer": "final_answer", "id": "uid", "require_tool": "needs_tool"}
Read = Callable[..., list[McpScenario]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read lines as the questions of a server, by default with the mapping above."""
    plugins = load_plugins()

    def lines(*rows: Any, server: str = "mcp_calculator", **settings: Any) -> list[McpScenario]:
        file = tmp_path / "q.jsonl"
        file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
        names = {name for row in rows if isinstance(row, dict) for name in row}
        reading = {
            "fields": {part: name for part, name in FIELDS.items() if part in ("task", "answer") or name in names}
        }
        return read_scenario_file(file, plugins.servers[server], None, ScenarioConfig(**(reading | settings)))

    return lines


def question(answer: Any, **more: Any) -> dict[str, Any]:
    return {"question": f"What is {answer}?", "final_answer": answer, **more}


@pytest.mark.parametrize(
    ("answer", "kind", "expected"),
    [
        ("18", "number", 18),
        (18.5, "number", 18.5),
        ("$1,200", "number", 1200),
        ("-3.50 %", "number", -3.5),
        ("1e-3", "number", 0.001),
        ("3 sold in April, 4 in May: 3 + 4 = <<3+4=7>>7.\n#### 1,007", "number", 1007),
        ("2001-05-20", "time", "2001-05-20"),
        (" Arthur's Magazine ", "text", "Arthur's Magazine"),
        ("yes", "text", "yes"),
        ("nan", "text", "nan"),
        ("12-14", "text", "12-14"),
    ],
)
def test_an_answer_decides_its_verifier(read: Read, answer: Any, kind: str, expected: Any) -> None:
    [scenario] = read(question(answer))
    assert scenario.verifier is not None
    assert (scenario.verifier.kind, scenario.verifier.expected) == (kind, expected)
    check_verifiers([scenario], BUILT_IN)


def test_a_tool_must_have_been_used_unless_the_line_says_otherwise(read: Read) -> None:
    with_tool, without = read(question(1, uid=1, needs_tool=True), question(2, uid=2, needs_tool=False))
    assert (with_tool.id, without.id) == ("1", "2")
    for used, results in ((False, (0.0, 1.0)), (True, (1.0, 1.0))):
        for scenario, reward, said in zip((with_tool, without), results, "12", strict=True):
            calls = [CallRecord(turn=0, name="add", tool="add", arguments={}, result=said)] if used else []
            played = Trajectory(
                scenario_id=scenario.id, calls=calls, stop_reason=StopReason.ANSWERED,
                messages=[{"role": "assistant", "content": said}],
            )  # fmt: skip
            verify(played, scenario)
            assert played.reward == reward
    reading = ScenarioConfig(fields=FIELDS)
    sentence = compared_as([with_tool, without], reading)
    assert sentence is not None and "2 as number; a tool must have been used, but for 1 of them" in sentence
    assert all(s.verifier and s.verifier.options for s in read(question(1), question(2), require_tool=False))


def test_without_a_server_no_tool_is_required(read: Read) -> None:
    whole = {"task": "What is 1 + 1?", "verifier": {"kind": "number", "expected": 2}}
    for scenario in (*read(question(5), server="none"), *read(whole, server="none", fields={})):
        assert scenario.verifier is not None and scenario.verifier.options == {"require_tool": False}
    whole["verifier"] = {"kind": "number", "expected": 2, "options": {"require_tool": True}}
    with pytest.raises(ScenarioError, match="line 1: the scenario requires a tool"):
        read(whole, server="none", fields={})


def test_a_request_may_be_a_text_with_fields(read: Read) -> None:
    row = {"story": "Tom ran.", "q": "Who ran?", "n": 3, "final_answer": "Tom"}
    [scenario] = read(row, fields={"task": "{story} {q} ({n})", "answer": "final_answer"})
    assert scenario.task_description == "Tom ran. Who ran? (3)" and scenario.reference_answer == "Tom"


@pytest.mark.parametrize(
    ("rows", "settings", "told"),
    [
        ([question(1), {"question": "x"}], {}, "line 2: there is no field 'final_answer' for scenarios.fields.answer"),
        ([{"qestion": "x", "final_answer": 1}], {}, "line 1: .*'question'.*did you mean 'qestion'"),
        ([question("  ")], {}, r"line 1: the answer \('final_answer'\) is empty; write the right answer"),
        ([question("So it is.\n#### ")], {}, "is empty"),
        ([question(1), question(["a", "b"])], {}, "must be a text or a number, not"),
        ([question(True)], {}, "must be a text or a number, not true"),
        ([question("many")], {"verifier": "number"}, 'is "many", which is not a number'),
        ([{"question": " ", "final_answer": 1}], {}, r"the request \('question'\) must be a text with words in it"),
        ([{"question": 7, "final_answer": 1}], {}, "must be a text with words in it, not 7"),
        ([question(1, needs_tool="no")], {}, "'needs_tool' says if a tool must be used: true or false"),
        ([question(1)], {"fields": FIELDS}, "no line has the field 'uid' that scenarios.fields.id names"),
        ([question(1), '{"question": "x"'], {}, "line 2, column 17: invalid JSON"),
        ([question(1), "7"], {}, "line 2: a scenario is a JSON object"),
        ([question(1, uid=1), question(2, uid=1)], {}, "line 2: the id '1' is that of line 1 too"),
        ([question(1)], {"fields": {}}, "scenarios.fields.task=question"),
    ],
)  # fmt: skip
def test_a_bad_line_is_one_sentence(read: Read, rows: list[Any], settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        read(*rows, **settings)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("scenarios.fields={answer=x}", "task is missing"),
        ("scenarios.fields={task=x, titel=y}", "no part 'titel'; choose from task, answer"),
        ("scenarios.fields=question", "cannot read 'question'"),
    ],
)
def test_a_bad_mapping_is_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(overrides=[override], options={"server": "none"})


def test_a_mapping_is_given_in_words_or_in_toml() -> None:
    read = {"task": "question", "answer": "final_answer"}
    for text in ("{task=question, answer=final_answer}", '{task="question", answer="final_answer"}'):
        config = load_config(overrides=[f"scenarios.fields={text}"], options={"server": "none"})
        assert config.scenarios.fields == read


def test_the_command_names_the_line_and_says_how_answers_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.jsonl"
    words = ["train", "--dry-run", "--server", "mcp_calculator", "--scenarios", str(file)]
    words += ["--output-dir", str(tmp_path), "scenarios.fields={task=question, answer=final_answer}"]
    file.write_text("\n".join(json.dumps(question(n)) for n in (*range(40), "two")))
    assert main(words) == 0
    assert "The answers of 41 scenarios are compared: 40 as number, 1 as text" in capsys.readouterr().out
    file.write_text(json.dumps({"question": "x"}))
    assert main(words) == 2
    assert f"{file}, line 1: there is no field 'final_answer'" in capsys.readouterr().err
