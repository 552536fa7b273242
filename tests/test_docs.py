"""The documentation matches the code."""

import re
from pathlib import Path

import pytest

from docs.generate import PAGES as GENERATED
from docs.generate import all_commands
from mcp_rl.config import RunConfig, config_keys
from mcp_rl.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

GLOBAL = {"--help", "--version", "--install-completion", "--show-completion"}
"""Options of `mcp-rl` itself."""


@pytest.mark.parametrize("name", GENERATED)
def test_a_page_that_comes_from_the_code_is_up_to_date(name: str) -> None:
    found = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert found == GENERATED[name](), "run python docs/generate.py"


def test_every_setting_has_a_line_that_says_why_it_has_its_default() -> None:
    assert [key for key, field in config_keys() if not field.description] == []


def test_every_option_says_what_it_does() -> None:
    parameters = [(name, one) for name, command in all_commands() for one in command.params]
    assert [(name, one.name) for name, one in parameters if not one.help] == []


def test_documented_options_and_settings_exist() -> None:
    options = {opt for _, command in all_commands() for parameter in command.params for opt in parameter.opts}
    settings = {key for key, _ in config_keys()}
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            for command in re.findall(r"(?:mcp-rl|mcp_rl\.train) .*", line.partition("#")[0]):
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command):
                    assert option in options | GLOBAL, f"{page.name}: {option}"
                for key in re.findall(r"\s([a-z_]+(?:\.[a-z_]+)+)=", command):
                    assert key in settings, f"{page.name}: {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.toml")), ids=lambda file: file.stem)
def test_example_configurations_are_valid(file: Path) -> None:
    assert isinstance(load_config(file=file, options={"server": "mcp_calculator"}), RunConfig)


def test_the_architecture_page_leads_to_rooms_and_files() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    questions = [row for row in rows if row[0].endswith("?")]
    assert len(questions) >= 20
    for question, files in questions:
        rooms = [ROOT / "mcp_rl", *(ROOT / "mcp_rl" / room for room in re.findall(r"`(\w+)/", files))]
        for file in re.findall(r"`([\w/]+(?:\.py|/))`", files):
            assert any((room / file).exists() for room in rooms), f"{file}: {question}"
    described = {row[0] for row in rows}
    assert described >= {f"`{path.name}/`" for path in (ROOT / "mcp_rl").iterdir() if (path / "__init__.py").is_file()}
