"""What is wrong with the user's words and files is said before anything is started or written."""

from pathlib import Path

import pytest

from mcp_rl.config import RunConfig
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.training.preparation import check_inputs


def test_a_base_model_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        check_inputs(RunConfig(server="mcp_calculator", base_model=str(tmp_path / "missing")))


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_inputs(RunConfig(server="mcp_calculator", base_model=str(tmp_path)))


def test_a_model_name_that_the_hub_does_not_know_or_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="did you mean 'mcp-rl/tiny'"):
        check_inputs(RunConfig(server="mcp_calculator", base_model="mcp-rl/tinny"))


def test_a_scenarios_file_is_read_first(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task_description": "x", "server_params": {"transport": "stdio", "command": "true"}}\n{"x"\n')
    with pytest.raises(ScenarioError, match="line 2"):
        check_inputs(RunConfig(server="mcp_calculator", scenarios={"file": file}))
