"""The documentation matches the code."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mcp_rl.cli import app
from mcp_rl.config import RunConfig, config_keys
from mcp_rl.config.load import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


def all_commands(group: Any = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command with its words, including those of groups."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        yield f"{prefix}{name}", command
        if hasattr(command, "commands"):
            yield from all_commands(command, f"{prefix}{name} ")


def test_every_setting_is_documented_with_its_default() -> None:
    written = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))
    pages = {"configuration.md": written["page"](), "defaults.md": written["defaults_page"]()}
    found = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in pages}
    assert found == pages, "run python docs/generate_configuration.py"
    for key, field in config_keys():
        assert f"`{key}`" in pages["configuration.md"]
        assert field.description, f"{key} has no line that says why it has its default"


def test_every_option_of_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for name, command in all_commands():
        section = text.partition(f"## `mcp-rl {name}`")[2].partition("\n## ")[0]
        assert section, f"docs/commands.md has no section on {name}"
        for parameter in command.params:
            for option in (opt for opt in parameter.opts if opt.startswith("--")):
                assert f"`{option}" in section, f"{name} {option}"


def test_documented_options_and_settings_exist() -> None:
    options = {opt for _, command in all_commands() for parameter in command.params for opt in parameter.opts}
    settings = {key for key, _ in config_keys()}
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            for command in re.findall(r"(?:mcp-rl|mcp_rl\.train) .*", line.partition("#")[0]):
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command):
                    assert option in options | {"--help", "--version"}, f"{page.name}: {option}"
                for key in re.findall(r"\s([a-z_]+(?:\.[a-z_]+)+)=", command):
                    assert key in settings, f"{page.name}: {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
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
    for _, rooms, files in questions:
        folders = [ROOT / "mcp_rl" / room for room in re.findall(r"`([^`]+)/`", rooms)]
        for file in re.findall(r"`([\w/]+(?:\.py|/))`", files):
            assert any((folder / file).exists() for folder in folders), f"{file} is not in {rooms}"
    described = {row[0] for row in rows}
    assert described >= {f"`{path.name}/`" for path in (ROOT / "mcp_rl").iterdir() if (path / "__init__.py").is_file()}
