"""Errors in the user's settings and files are reported before anything is started or written."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.config import RunConfig
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.runs import identity as preparation
from mcp_rl.runs.train import hurried_tools, run_training
from mcp_rl.toolserver.state import MeasuredState

TASK = {"server_params": {"transport": "stdio", "command": "true"}, "server": "mcp_calculator"}


def check_inputs(config: RunConfig) -> None:
    plugins = load_plugins()
    preparation.check_inputs(config, plugins.server(*config.server), plugins)


def refused(tmp_path: Path, *entries: dict[str, Any], judge: str | None = None) -> str:
    """Return the error about a run on a file of these scenarios."""
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps({**TASK, **entry}) + "\n" for entry in entries))
    config = RunConfig(server="mcp_calculator", scenarios={"file": file}, judge={"model": judge})
    with pytest.raises(ScenarioError) as error:
        check_inputs(config)
    return str(error.value)


def test_a_base_model_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_inputs(RunConfig(server="mcp_calculator", base_model=str(tmp_path / "missing")))


def test_a_copy_of_the_base_model_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    loading = {"model_name": str(tmp_path / "missing")}
    with pytest.raises(ConfigError, match=r"There is no base model in .*missing: there is no such folder"):
        check_inputs(RunConfig(server="mcp_calculator", unsloth=loading))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_inputs(RunConfig(server="mcp_calculator", base_model=str(tmp_path)))


def test_a_model_name_that_the_hub_cannot_confirm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="did you mean 'mcp-rl/tiny'"):
        check_inputs(RunConfig(server="mcp_calculator", base_model="mcp-rl/tinny"))


def test_a_scenarios_file_is_read_first(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task_description": "x", "server_params": {"transport": "stdio", "command": "true"}}\n{"x"\n')
    with pytest.raises(ScenarioError, match="line 2"):
        check_inputs(RunConfig(server="mcp_calculator", scenarios={"file": file}))


SEVEN = {"verifier": {"kind": "number", "expected": 7}}


def test_a_request_that_is_there_twice(tmp_path: Path) -> None:
    again = {"task_description": "add 3  and 4.", "id": "b"}
    said = refused(tmp_path, {"task_description": "Add 3 and 4.", **SEVEN}, {**again, **SEVEN})
    assert "tasks.jsonl, line 2: the request is the same as in line 1" in said


def test_a_verifier_that_nobody_offers(tmp_path: Path) -> None:
    said = refused(tmp_path, {"task_description": "Add.", "id": "a", "verifier": {"kind": "numbr", "expected": 7}})
    assert (
        "tasks.jsonl, line 1: the scenario names the unknown verifier 'numbr'" in said
        and "did you mean 'number'?" in said
    )


def test_scenarios_of_another_server(tmp_path: Path) -> None:
    said = refused(tmp_path, *({"task_description": f"{n}", "server": "mcp_phonebook", **SEVEN} for n in (1, 2)))
    assert "(and 1 more) was made for the server 'mcp_phonebook', not for 'mcp_calculator'" in said


def test_tasks_of_others_need_a_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-the-judge")
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([{"task": "Add 3 and 4.", "difficulty": 1}, {"task": "Add 3 and 5.", "difficulty": 2}]))
    with pytest.raises(ScenarioError, match=r"has no verifier.*--judge-model"):
        check_inputs(RunConfig(server="mcp_calculator", scenarios={"file": file}))
    check_inputs(RunConfig(server="mcp_calculator", scenarios={"file": file}, judge={"model": "openai/judge"}))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"schema_hash": "0123456789abcdef"}, "made for different tool schemas (0123456789abcdef; the server"),
        (
            {"reference": [{"tool": "sine", "arguments": {}}]},
            "needs the tool 'sine', which the server 'mcp_calculator'",
        ),
    ],
)
async def test_scenarios_for_other_tools_are_refused(entry: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        "".join(
            json.dumps({**TASK, **SEVEN, **entry, "task_description": s, "split": s}) + "\n" for s in ("train", "val")
        )
    )
    config = RunConfig(
        server="mcp_calculator", transport="stdio", scenarios={"file": file}, output_dir=tmp_path / "runs", steps=0
    )
    with pytest.raises(ScenarioError) as error:
        await run_training(config)
    assert words in str(error.value)
    assert list((tmp_path / "runs").rglob("*.jsonl")) == []


def test_a_run_says_which_tools_get_less_time() -> None:
    slow = MeasuredState(kept="nothing", listing="", slow=("wait", "wait_until"))
    said = hurried_tools(RunConfig(server="desk", tools={"deadlines": {"wait_until": 60}}), "desk", slow)
    assert said == "desk: slow tools get only 5 s for a call: wait (tools.deadlines allows more)."
    own = RunConfig(server="desk", scenarios={"file": Path("mine.jsonl")})
    assert (
        hurried_tools(own, "desk", slow)
        == hurried_tools(RunConfig(server="desk"), "desk", MeasuredState(kept="nothing", listing=""))
        == ""
    )
