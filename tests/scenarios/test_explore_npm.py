"""Servers that this project did not write. They come from npm, so they run only where MCP_RL_TEST_NPM=1 is set."""

import os
from pathlib import Path

import pytest

from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.plugins.resolve import resolve_server
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.explored import explored_scenarios
from mcp_rl.scenarios.split import overlap, split
from mcp_rl.toolserver.pool import Sessions

pytestmark = pytest.mark.skipif(os.environ.get("MCP_RL_TEST_NPM") != "1", reason="needs npm and its registry")


def folder(root: Path) -> Path:
    (root / "docs" / "old").mkdir(parents=True)
    for i in range(6):
        (root / "docs" / f"note{i}.txt").write_text(f"note {i}\nsecond line\n")
    (root / "docs" / "old" / "archive.md").write_text("# Archive\n")
    (root / "settings.json").write_text('{"colour": "blue"}')
    return root


@pytest.mark.parametrize("package", ["server-everything stdio", "server-filesystem {folder}"])
async def test_an_unknown_server_gives_a_hundred_sound_scenarios(package: str, tmp_path: Path) -> None:
    command = f"npx -y @modelcontextprotocol/{package}".format(folder=folder(tmp_path))
    server = resolve_server(command, plugins=load_plugins())
    async with Sessions(server=server) as sessions:
        found = await explored_scenarios(sessions, server=server, params=server.params(), recipe=Recipe(120))
        assert len({s.task_description for s in found}) >= 100
        assert len({call.tool for s in found for call in s.reference}) >= 6
        assert await broken_scenarios(sessions, server.params(), found) == []
    train, val = split(found, val_share=0.2, seed=0)
    assert len(val) >= 15 and not overlap(train, val)
