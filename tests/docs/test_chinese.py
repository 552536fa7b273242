"""The Chinese pages have the commands, files and outputs of the English ones, and each links to the other."""

import os
from pathlib import Path

import pytest

from tests.docs.examples import CHINESE, ROOT, examples_of


def english(page: Path) -> Path:
    if page.name == "README.zh-CN.md":
        return ROOT / "README.md"
    return ROOT / "docs" / page.relative_to(ROOT / "docs" / "zh")


def said(page: Path) -> list[tuple[str, object]]:
    """Return the examples of a page in order; of a command its words, since its comment is translated."""
    found = examples_of(page)
    return [(one.kind, one.words) if one.kind == "command" else (one.kind, one.text) for one in found]


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_chinese_page_has_the_examples_of_the_english_one(page: Path) -> None:
    assert said(page) == said(english(page))


def test_every_tutorial_is_there_in_chinese() -> None:
    folder = ROOT / "docs" / "tutorials"
    assert {english(page) for page in CHINESE} >= {*folder.glob("*.md"), ROOT / "README.md", ROOT / "docs" / "index.md"}


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_both_pages_link_to_each_other(page: Path) -> None:
    other = english(page)
    for one, two in ((page, other), (other, page)):
        assert f"]({os.path.relpath(two, one.parent)})" in one.read_text(encoding="utf-8")
