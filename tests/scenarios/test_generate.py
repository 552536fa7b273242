from pathlib import Path

import pytest

from mcp_rl.errors import ScenarioError
from mcp_rl.generate import check_file, generate_file
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.scenario import read_scenarios


async def test_a_generated_file_reads_back_and_still_holds(tmp_path: Path) -> None:
    server, out = load_plugins().server("mcp_calculator"), tmp_path / "scenarios.jsonl"
    written = await generate_file(server, out, transport="stdio", count=30, seed=1)
    assert read_scenarios(out) == written
    assert len(written) == 30
    assert await check_file(server, out, transport="stdio") == []


async def test_a_folder_that_does_not_exist_is_refused_before_the_server_starts(tmp_path: Path) -> None:
    server = load_plugins().server("mcp_calculator")
    with pytest.raises(ScenarioError, match="there is no folder"):
        await generate_file(server, tmp_path / "none" / "file.jsonl", count=3, seed=0)
