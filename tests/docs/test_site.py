"""The documentation site shows every page, and its links lead to pages whichever place these have there."""

import re
from pathlib import Path

import mcp_rl
from docs.stage import PAGES, stage

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"\S+\.md$", navigation, re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    beside = [name for name in PAGES if (ROOT / name).exists()]
    assert sorted(listed) == sorted([*pages, *beside])


def test_a_staged_page_links_to_staged_files(tmp_path: Path) -> None:
    stage(tmp_path)
    assert "](SECURITY.md)" in (tmp_path / "processes.md").read_text(encoding="utf-8")
    assert "](sandbox.md)" in (tmp_path / "SECURITY.md").read_text(encoding="utf-8")
    for page in tmp_path.rglob("*.md"):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_public_name_is_on_the_page_of_the_python_api(tmp_path: Path) -> None:
    stage(tmp_path)
    page = (tmp_path / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: mcp_rl\.(\w+)$", page, re.MULTILINE)) == sorted(mcp_rl.__all__)
