import random
import re
from pathlib import Path

import pytest

from mcp_rl.explore.fitting import WORLD_SEED, WorldSampler, observe_start
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.explore.world import World
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.tools.listing import Tool


def paths_seen(folder: Path, *arguments: str) -> set[str]:
    pool = ValuePool()
    observe_start(pool, StdioServer(command="server", args=arguments, cwd=str(folder)), ())
    seen = [*pool["path:file"], *pool["path:folder"]]
    return {str(Path(path).relative_to(folder.resolve())) for path in seen}


def test_each_kind_of_file_in_the_working_directory_is_tried_down_to_the_third_level(tmp_path: Path) -> None:
    for name in ("a.txt", "data/big/sales.csv", "data/.hidden.json", "data/big/deep/far.xml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    for number in range(40):
        (tmp_path / f"note{number:02}.md").write_text("1\n")
    seen = paths_seen(tmp_path)
    assert {"a.txt", "data", "data/big", "data/big/sales.csv", "note00.md"} <= seen
    assert len(seen) <= 21 and not seen & {"data/.hidden.json", "data/big/deep/far.xml"}


def test_a_path_in_the_command_is_the_only_place(tmp_path: Path) -> None:
    (tmp_path / "served").mkdir()
    (tmp_path / "beside.csv").write_text("1\n")
    assert paths_seen(tmp_path, "served") == {"served"}


@pytest.mark.parametrize(
    "name, description, said, statement",
    [
        ("write_query", "Execute INSERT, UPDATE, or DELETE queries", "", r"(?:INSERT INTO|UPDATE|DELETE FROM) \w+ "),
        ("alter_table", "Modify existing table schema", "", r"ALTER TABLE \w+ ADD COLUMN "),
        ("create_table", "Create new tables in the database", "", r"CREATE TABLE \w+ \("),
        ("export", "Export rows as CSV", "Only SELECT queries are allowed", r"SELECT "),
    ],
)
def test_a_tool_gets_the_statements_that_its_description_or_its_errors_name(
    name: str, description: str, said: str, statement: str
) -> None:
    pool, schema = ValuePool(), {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    if said:
        pool.observe_error(name, {"query": "pears"}, said)
    sampler = WorldSampler(Tool(name, description, schema), pool, World(WORLD_SEED))
    draws = [sampler.draw(random.Random(seed)) for seed in range(20)]
    assert all(draw and re.match(statement, draw.arguments["query"]) for draw in draws)


def test_a_new_file_gets_an_ending_that_is_named() -> None:
    about = {"type": "string", "description": "路径\uff08.xls 格式\uff09"}
    schema = {"type": "object", "properties": {"filepath": about}, "required": ["filepath"]}
    pool = ValuePool()
    pool.observe_path("/srv/data")
    sampler = WorldSampler(Tool("create_xls", "创建", schema), pool, World(WORLD_SEED))
    drawn = [draw.arguments["filepath"] for seed in range(20) if (draw := sampler.draw(random.Random(seed)))]
    assert sum(re.fullmatch(r"/srv/data/[a-z]+\.xls", path) is not None for path in drawn) > 6
