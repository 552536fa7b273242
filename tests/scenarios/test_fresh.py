"""Tasks on a server whose state only the answers of the changing tool show."""

import json
import sys
from pathlib import Path

import anyio

from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.generate import GenerateRequest, check_file, generate_file
from mcp_rl.toolserver.tool_server import ToolServer

COMMAND = StdioServer(command=sys.executable, args=["-S", str(Path(__file__).with_name("tally_server.py"))])


def test_each_task_is_a_first_call_and_holds(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    server, out = ToolServer("tally", "", {"stdio": COMMAND}), tmp_path / "tasks.jsonl"
    generated = anyio.run(generate_file, server, out, GenerateRequest(Recipe(count=8, seed=2, unsolvable=0)))
    solved = [one for one in generated.scenarios if one.reference]
    assert len(solved) >= 6
    assert all(len(one.reference) == 1 for one in solved)
    assert {json.loads(one.reference_answer)["counted"] for one in solved} == {1}
    assert anyio.run(check_file, server, out).findings == []
