"""`servers inspect` shows a server's listing as the model gets it."""

import json
from pathlib import Path

import pytest

from mcp_rl.cli import main
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.isolation import effective_isolation
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.toolserver.tools.listing import Tool

SCRIPT = Path(__file__).with_name("seeded_server.py")
Captured = pytest.CaptureFixture[str]


def command(*defects: str) -> str:
    return " ".join(["python", str(SCRIPT), *defects])


def test_an_inspection_shows_the_models_tools_and_all_lists(capsys: Captured) -> None:
    assert main(["servers", "inspect", "mcp_notes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["server_info"] == {"name": "mcp_notes", "version": "1.0.0"}
    assert found["protocol"] == "2026-07-28"
    assert found["isolation"] == "reset" and found["isolation_reason"] == "declared by its tool reset_notes"
    tools = {tool["name"]: tool for tool in found["tools"]}
    assert tools["read_note"]["parameters"]["required"] == ["id"]
    assert tools["read_note"]["annotations"]["readOnlyHint"] is True
    assert tools["read_note"]["output_schema"]["properties"]["text"] == {"type": "string"}
    assert [name for name, tool in tools.items() if not tool["offered"]] == ["reset_notes"]
    assert [entry["uri"] for entry in found["resources"]][:2] == ["note://n1", "note://n2"]
    assert [entry["uriTemplate"] for entry in found["resource_templates"]] == ["note://{id}"]
    assert found["prompts"] == [] and found["warnings"] == []
    assert len(found["schema_hash"]) == 16 and 200 < found["prompt_tokens"] < 3000


def test_what_is_left_out_and_what_is_renamed_is_told(capsys: Captured) -> None:
    assert main(["servers", "inspect", command("bad-schema-is-no-defect", "hostile")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\x07" not in out and "\u202e" not in out
    assert "_bold_look__2J (the server calls it [bold]look\\x1b[2J)  read-only" in out
    assert "\\x1b]0;owned\\x07[red]hello[/red]\\u202e" in out
    assert "it calls itself seeded\\x1b[2J 1" in out and " over stdio, protocol 2025-11-25 " in out
    assert "Isolation per-rollout: undeclared, and put_item, reset are annotated as changing things; the first" in out


def test_offered_resources_are_checked_like_any_tool(capsys: Captured) -> None:
    assert main(["servers", "inspect", "mcp_notes", "--offer", "resources", "--json"]) == 0
    names = {tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"]}
    assert main(["servers", "inspect", "mcp_notes", "--json"]) == 0
    more = names - {tool["name"] for tool in json.loads(capsys.readouterr().out)["tools"]}
    assert len(more) == 2
    assert main(["servers", "check", "mcp_notes", "--offer", "resources", "--calls", "1", "--json"]) == 0
    called = {tool["name"]: tool["worked"] for tool in json.loads(capsys.readouterr().out)["tools"]}
    assert all(called[name] for name in more)


def test_several_servers_are_shown_one_after_another(capsys: Captured) -> None:
    assert main(["servers", "inspect", command(), "mcp_notes", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["servers"]] == ["seeded_server", "mcp_notes"]


@pytest.mark.parametrize("word", ["inspect", "check"])
def test_an_unusable_server_is_one_sentence_and_exit_2(word: str, capsys: Captured) -> None:
    assert main(["servers", word, "python -c 'raise SystemExit(1)'"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "exited at start" in err
    assert main(["servers", word, "mcp_note"]) == 2
    assert "did you mean 'mcp_notes'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("annotations", "isolation", "why"),
    [
        ([{"readOnlyHint": True}], "shared", "undeclared, and all tools are annotated as read-only"),
        ([{}], "shared", "undeclared, and no tool is annotated as changing things (t0: not annotated)"),
        ([{}, {"destructiveHint": True}], "per-rollout", "undeclared, and t1 is annotated as changing things"),
    ],
)
def test_the_isolation_comes_with_its_reason(annotations: list[dict[str, bool]], isolation: str, why: str) -> None:
    tools = [Tool(f"t{number}", "", {"type": "object"}, None, hints) for number, hints in enumerate(annotations)]
    server = ToolServer("some", "Some.", {"stdio": StdioServer(command="true")})
    assert effective_isolation(server, tools) == (isolation, why)
