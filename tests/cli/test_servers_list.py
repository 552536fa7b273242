"""`mcp-rl servers` lists the known servers with their isolation."""

import json
from pathlib import Path

import pytest

from mcp_rl.cli import main

Captured = pytest.CaptureFixture[str]


def test_plugins_and_files_of_servers_are_listed_together(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"mine": {"command": "true"}, "bad": {"neither": 1}}}))
    assert main(["servers", "--server-config", str(file), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    servers = {server["name"]: server for server in listed["servers"]}
    assert servers["mine"]["transports"] == ["stdio"] and servers["mine"]["isolation"] is None
    assert servers["mcp_notes"]["isolation"] == "reset"
    assert any("bad" in problem for problem in listed["problems"])


def test_the_list_in_a_pipe_has_a_line_for_each_server(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["servers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "transports", "isolation", "origin", "description"]
    assert any(line.startswith("mcp_calculator") and "undeclared" in line for line in lines)
    assert all(line == line.rstrip() for line in lines)
