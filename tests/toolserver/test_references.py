"""The values that an entry of a client's file refers to reach the server, and nothing else does."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.errors import ServerError
from mcp_rl.scenario import Launch, McpScenario, StdioServer, StreamableHttpServer, scenario_lines
from mcp_rl.toolserver.client_files.client_file import client_files
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.connection.launch import command_line, server_log
from mcp_rl.toolserver.connection.transport import reachable

SECRET = "Zx81-not-to-be-seen"
TELLING = """
import json, os, sys
from mcp.server import MCPServer

server = MCPServer("telling")


@server.tool()
def tell() -> str:
    told = json.dumps({"args": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)})
    return told.encode().hex()  # in which no secret is recognised


server.run()
"""


async def test_an_entry_is_started_as_written_without_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", SECRET)
    monkeypatch.delenv("NOT_SET", raising=False)
    (tmp_path / "telling.py").write_text(TELLING)
    (tmp_path / "here").mkdir()
    (tmp_path / ".env").write_text(f"FROM_FILE={SECRET}3\n")
    fields: dict[str, Any] = {
        "command": "{python}",
        "args": [str(tmp_path / "telling.py"), "--api-key", f"{SECRET}1", "${MINE}", "${NOT_SET:-other}", "{port}x"],
        "env": {"A_TOKEN": f"{SECRET}2", "B": "<${env:MINE}>", "C": "plain $MINE"},
        "envFile": f"{tmp_path}/.env",
        "cwd": f"{tmp_path}/${{HERE:-here}}",
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"telling": fields}}))
    server = client_files(tmp_path / "mcp.json").server("telling")
    assert server is not None
    params = server.params()
    async with connect(params, name="telling", log_dir=tmp_path / "logs") as connection:
        process = json.loads(bytes.fromhex((await connection.call("tell", {})).text))
    assert process["args"] == ["--api-key", f"{SECRET}1", SECRET, "other", "x"]
    assert process["cwd"] == str((tmp_path / "here").resolve())
    got = {name: process["env"].get(name) for name in ("A_TOKEN", "B", "C", "FROM_FILE", "MINE")}
    expected = {"A_TOKEN": f"{SECRET}2", "B": f"<{SECRET}>", "C": "plain $MINE", "FROM_FILE": f"{SECRET}3"}
    assert got == {**expected, "MINE": None}
    ours = {name for name in process["env"] if name.startswith("MCP_RL")}
    assert ours == {"MCP_RL_OWNER", "MCP_RL_ROLE", "MCP_RL_RUN"}, "the marker by which what is left behind is found"
    assert SECRET not in scenario_lines([McpScenario(task_description="Do it.", server_params=params)])


async def test_a_url_is_filled_in_when_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", SECRET)
    params = StreamableHttpServer(url="https://h/{env:MINE}/mcp?a={other}")
    with server_log("x", None) as log:
        async with reachable(params, server="The server x", log=log, deadline=1) as (reached, process):
            assert process is None
            assert reached == StreamableHttpServer(url=f"https://h/{SECRET}/mcp?a={{other}}")
        monkeypatch.delenv("MINE")
        with pytest.raises(ServerError, match="The server x needs the environment variable MINE"):
            async with reachable(params, server="The server x", log=log, deadline=1):
                pass


@pytest.mark.parametrize(
    "fields", [{"command": "{env:NOT_SET}"}, {"args": ("{env:NOT_SET}",)}, {"cwd": "/{env:NOT_SET}"}]
)
def test_a_process_without_a_needed_variable_is_not_started(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    launch = Launch(**{"command": "sh", **fields})
    with pytest.raises(ServerError, match="The server x needs the environment variable NOT_SET, which is not set"):
        command_line(launch, server="The server x")


def test_unknown_braces_in_a_command_stay() -> None:
    words, _ = command_line(StdioServer(command="sh", args=("-c", "echo ${x} {y} {env}")), server="The server x")
    assert words[-3:] == ["sh", "-c", "echo ${x} {y} {env}"]
