from pathlib import Path

from mcp_rl.explore.fitting import observe_start
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.scenario import StdioServer


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
