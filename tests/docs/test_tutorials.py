"""The tutorials: their files are written to a folder, and their commands are run there, except those that train."""

import os
import sys
from pathlib import Path

import pytest

from mcp_rl.cli import main
from tests.docs.examples import Example, examples

SHORTER = {"--count 200": "--count 24", "--count 12 --samples 1": "--count 2 --samples 1 --no-greedy"}
"""Words of commands that take longer than a test may: the words typed in their place."""


def tutorial(name: str) -> list[Example]:
    return [example for example in examples() if example.page == f"docs/tutorials/{name}.md"]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the tutorials; `python` there is the Python with mcp_rl."""
    for name, page in (("shop.py", "server"), ("budget.py", "reward"), ("my_agent.py", "agent")):
        [text] = [example.text for example in tutorial(page) if example.text.startswith(f"# {name}\n")]
        (tmp_path / name).write_text(text)
    [wishes] = [example.text for example in tutorial("reward") if example.kind == "jsonl"]
    (tmp_path / "wishes.jsonl").write_text(wishes)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def typed(printed: pytest.CaptureFixture[str], page: str, *beginnings: str) -> str:
    """Run the commands of a page that begin so; return what they print."""
    for beginning in beginnings:
        [command] = [one for one in tutorial(page) if one.text.startswith(f"mcp-rl {beginning}")]
        text = command.text
        for words, instead in SHORTER.items():
            text = text.replace(words, instead)
        assert main(Example("", 1, "command", text).words[1:]) == 0, text
    return printed.readouterr().out


def test_the_shop_is_checked_and_gives_tasks_of_which_an_agent_program_plays_some(
    shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = typed(capfd, "server", "servers check", "generate")
    assert "shop is fit to train on." in said
    assert "24 scenarios are in tasks.jsonl: 24 solved on the live server." in said
    assert "on 2 scenarios" in typed(capfd, "agent", "evaluate")


def test_the_references_pass_the_verifier_of_the_tutorial_and_refusals_do_not(
    shop: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = typed(capfd, "reward", "generate", "evaluate")
    assert "scripted:reference: greedy success 1.000" in said
    assert "scripted:refuse: greedy success 0.000" in said
