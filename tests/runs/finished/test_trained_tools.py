"""A run and an export keep the tools that the model saw, and `serve` prints a request with them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.cli import main
from mcp_rl.evaluation.models import find_model
from mcp_rl.runs.serve import next_words, prepare
from mcp_rl.runs.trained_tools import Trained, TrainedTools, turn_limit
from mcp_rl.scenario import McpScenario, StdioServer, Verifier
from mcp_rl.toolserver.session import Session
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.schema import ToolSchemas

Captured = pytest.CaptureFixture[str]


def test_a_run_keeps_the_tools_that_its_server_lists(run: Path, capsys: Captured) -> None:
    assert main(["servers", "inspect", "mcp_calculator", "--transport", "stdio", "--format", "openai"]) == 0
    printed = capsys.readouterr().out
    assert (run / "tools.json").read_text() == printed
    tools = json.loads(printed)
    assert {tool["type"] for tool in tools} == {"function"}
    assert "add" in [tool["function"]["name"] for tool in tools]
    assert not (run / "system_prompt.txt").exists()


def test_inspecting_several_servers_prints_one_list(capsys: Captured) -> None:
    assert main(["servers", "inspect", "mcp_calculator", "mcp_notes", "--format", "openai"]) == 0
    names = [tool["function"]["name"] for tool in json.loads(capsys.readouterr().out)]
    assert {"mcp_calculator__add", "mcp_notes__read_note"} <= set(names) and "mcp_notes__reset_notes" not in names
    assert main(["servers", "inspect", "mcp_calculator", "--format", "openai", "--json"]) == 2
    assert "leave out --json" in capsys.readouterr().err


def test_a_tool_that_takes_answers_is_kept_too() -> None:
    session: Any = Session(type("Link", (), {"tools": []})(), ToolSchemas([Tool("add", "", {"type": "object"})]))
    plain = McpScenario(task_description="add", server_params=StdioServer(command="x"))
    submits = plain.model_copy(update={"verifier": Verifier(kind="contains", options={"submit": True})})
    of = TrainedTools.of_session
    assert names(of(session, [submits, submits])) == ["add", "complete_task"]
    assert names(of(session, [submits, plain])) == names(of(session, [plain])) == ["add"]


def names(trained: TrainedTools) -> list[str]:
    return [tool["function"]["name"] for tool in trained.tools]


def test_a_fork_and_an_export_hold_them(copied: Path, tmp_path: Path, capsys: Captured) -> None:
    TrainedTools(json.loads((copied / "tools.json").read_text()), "Be brief.\n").write(copied)
    assert main(["fork", str(copied), "--from-step", "2", "--name", "second"]) == 0
    assert main(["export", str(copied), "--out", str(tmp_path / "exported")]) == 0
    for folder in (copied.with_name("second"), tmp_path / "exported"):
        for name in ("tools.json", "system_prompt.txt"):
            assert (folder / name).read_bytes() == (copied / name).read_bytes()
    card = (tmp_path / "exported" / "README.md").read_text()
    assert 'tools = json.load(open("tools.json"))' in card and 'open("system_prompt.txt")' in card
    exported = Trained.of(find_model(str(tmp_path / "exported"), tmp_path))
    assert exported.server == "mcp_calculator" and exported.max_turn_tokens == 6


def test_an_older_run_says_where_its_tools_are(copied: Path, tmp_path: Path, capsys: Captured) -> None:
    (copied / "tools.json").unlink()
    assert main(["export", str(copied), "--out", str(tmp_path / "exported")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The run first keeps no tools.json" in said
    assert "mcp-rl servers inspect mcp_calculator --format openai" in said
    assert not (tmp_path / "exported" / "tools.json").exists()
    job = prepare(["first"], project=copied.parents[1])
    assert any("keeps no tools.json" in line for line in next_words(job, 8000))


def test_serve_prints_a_request_with_the_trained_tools(copied: Path) -> None:
    tools = json.loads((copied / "tools.json").read_text())
    TrainedTools(tools, "Be brief.").write(copied)
    job = prepare(["first"], project=copied.parents[1])
    said = "\n".join(next_words(job, 8000))
    [curl] = re.findall(r"^  (curl .*)$", said, re.MULTILINE)
    words = shlex.split(curl)
    request = json.loads(Path(words[words.index("-d") + 1].removeprefix("@")).read_text())
    assert request["tools"] == tools
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "add 0 and 1"},
    ]
    assert "at most 6 tokens" in said
    assert "mcp-rl evaluate --server mcp_calculator --model openai/first --base-url http" in said


def test_a_turn_is_bounded_as_in_training(run: Path) -> None:
    model = find_model("first", run.parent)
    assert turn_limit(model, Trained.of(model)) == 6
    base = find_model("mcp-rl/tiny", run.parent)
    assert turn_limit(base, Trained.of(base)) == 80
