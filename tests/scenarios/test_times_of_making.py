"""Goals on a server whose process is filled anew for each episode, so that things show another time of their making."""

import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from mcp_rl.config import ToolsConfig
from mcp_rl.explore.entities.parameters import may_be_id_of
from mcp_rl.explore.first_contact import understood
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.scenario import StdioServer
from mcp_rl.scenarios.generate import GenerateRequest, check_file, generate_file
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.tool_server import ToolServer

SCRIPT = str(Path(__file__).with_name("board_server.py"))


@pytest.mark.skipif(obstacle() is not None, reason=f"no sandbox here: {obstacle()}")
def test_things_with_a_time_of_making_are_asked_about_and_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launch = StdioServer(command=sys.executable, args=("-S", SCRIPT))
    server, out = ToolServer("board", "", {"stdio": launch}), tmp_path / "tasks.jsonl"

    async def made() -> None:
        known = await understood(server, None, ToolsConfig())
        assert known.measured is not None and known.measured.kept == "process"
        types = {call.arguments["card_type"] for call in known.measured.setup if call.tool == "new_card"}
        assert len(types) > 1 and types <= {"bug", "chore", "feature"}
        recipe = Recipe(12, max_steps=1, unsolvable=0, without_tools=0, levels="told=0.5,brought-about=0.5")
        generated = await generate_file(known, out, GenerateRequest(recipe))
        levels = Counter(one.level for one in generated.scenarios)
        assert levels["told"] and levels["brought-about"]
        assert not any("type 'feature" in one.task_description for one in generated.scenarios)
        assert (await check_file(known, out)).findings == []

    anyio.run(made)


@pytest.mark.parametrize(
    ("field", "values", "may"),
    [
        ("author_id", [1, 2, 3], True),
        ("author_id", [1, 1, 2], False),
        ("status_id", [1, 2, 3], False),
        ("parent.user_id", [1], True),
        ("author_id", ["a81c"], True),
    ],
)
def test_small_numbers_are_not_taken_for_ids_of_everything(field: str, values: list[int | str], may: bool) -> None:
    assert may_be_id_of(field, "user", values) is may
