"""Tasks on servers that give each thing a random id: the world keeps its ids, and those of new things do not count."""

import sys
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.first_contact import understood
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.generate import GenerateRequest, check_file, generate_file
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = str(Path(__file__).with_name("errand_server.py"))


@pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")
@pytest.mark.parametrize("kept", ["files", "process"])
def test_a_server_of_random_ids_gives_tasks_of_every_tool_that_hold(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = [str(tmp_path / "errands.json")] if kept == "files" else []
    launch = StdioServer(command=sys.executable, args=("-S", SCRIPT, *place))
    server, out = ToolServer("errands", "", {"stdio": launch}), tmp_path / "tasks.jsonl"

    async def made() -> None:
        known = await understood(server, None, ToolsConfig())
        assert known.measured is not None and known.measured.kept == kept
        assert bool(known.measured.written) is (kept == "files")
        levels = "spelled=0.5,brought-about=0.5" if kept == "files" else "spelled"
        recipe = Recipe(16 if kept == "files" else 8, max_steps=2, unsolvable=0, without_tools=0, levels=levels)
        generated = await generate_file(known, out, GenerateRequest(recipe))
        tools = {call.tool for one in generated.scenarios for call in one.reference}
        wanted = {"create_errand", "set_minutes", "list_errands"} if kept == "files" else {"create_errand"}
        assert wanted <= tools
        states = [one.verifier for one in generated.scenarios if one.verifier and one.verifier.kind == "state"]
        assert any(verifier.options.get("new_ids") == ["id"] for verifier in states)
        assert any(one.level == "brought-about" for one in generated.scenarios) is (kept == "files")
        assert (await check_file(known, out)).findings == []

    anyio.run(made)
    assert not (tmp_path / "errands.json").exists()


def test_what_changes_nothing_but_random_ids_is_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launch = StdioServer(command=sys.executable, args=("-S", str(Path(__file__).with_name("parcel_server.py"))))
    server = ToolServer("post", "", {"stdio": launch}, isolation="per-rollout")
    recipe = Recipe(12, max_steps=2, unsolvable=0, without_tools=0, levels="spelled")
    generated = anyio.run(generate_file, server, tmp_path / "tasks.jsonl", GenerateRequest(recipe))
    changing = [{call.tool for call in one.reference} for one in generated.scenarios if "changes" in one.tags]
    assert changing
    assert all("add_parcel" in tools for tools in changing)


SETS = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
from by_hand import serve, tool

BOATS = [{"name": name, "length": 5 + 3 * at, "crew": 2 + at % 4} for at, name in enumerate(
    ("Heron", "Otter", "Wren", "Marten", "Lark", "Stoat", "Finch", "Badger"))]
HARBOURS = random.sample(["Oslo", "Bergen", "Bodo", "Moss", "Larvik", "Horten", "Molde", "Narvik"], 8)
serve("boats", [tool("list_boats", "Lists all boats.")],
      lambda *_: json.dumps({"boats": BOATS, "harbours": HARBOURS}))
"""


def test_a_set_in_another_order_breaks_no_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "boats.py").write_text(SETS)
    folder = str(Path(__file__).parent)
    launch = StdioServer(command=sys.executable, args=("-S", str(tmp_path / "boats.py"), folder))
    server, out = ToolServer("boats", "", {"stdio": launch}, isolation="shared"), tmp_path / "tasks.jsonl"
    recipe = Recipe(8, unsolvable=0, without_tools=0, levels="told=0.5,worked-out=0.5")
    generated = anyio.run(generate_file, server, out, GenerateRequest(recipe))
    assert len(generated.scenarios) >= 4
    assert anyio.run(check_file, server, out).findings == []
    changed = (tmp_path / "boats.py").read_text().replace("5 + 3 * at", "6 + 3 * at")
    (tmp_path / "boats.py").write_text(changed)
    assert anyio.run(check_file, server, out).findings != []
