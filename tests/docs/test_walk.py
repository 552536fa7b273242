"""The program that walks through README.md: its tables fit the page, and a command that fails is reported."""

import sys
from pathlib import Path

import pytest

from tests.docs.examples import Example
from tests.walk_readme import readme_commands, stale_entries, walk


def test_no_entry_of_the_walks_tables_is_stale() -> None:
    commands = readme_commands()
    assert len(commands) > 15
    assert stale_entries(commands) == []
    assert "mcp-rl evaluate" in stale_entries([one for one in commands if "evaluate" not in one.text])


def test_a_failing_command_is_reported_with_its_code_and_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["python -c 'print(1)'  # first", "make test ARGS=x", "python -c 'raise SystemExit(\"broken\")'"]
    commands = [Example("README.md", 1, "command", text) for text in texts]
    assert walk(commands[:2], Path(sys.executable), tmp_path) == 0
    assert walk(commands, Path(sys.executable), tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line[:4].strip().isdigit()] == ["0", "0", "1"]
    assert "skipped: runs the tests of a checkout" in lines[2]
    assert any(line.strip() == "broken" for line in lines)


def test_a_walk_types_what_there_is_time_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["python -c 'print(1)'", "python -c 'import time; time.sleep(60)'", "python -c 'raise SystemExit(1)'"]
    commands = [Example("README.md", 1, "command", text) for text in texts]
    assert walk(commands, Path(sys.executable), tmp_path, seconds=3) == 0
    said = capsys.readouterr().out
    assert said.count("left out: the time is up") == 2
    assert "All 1 commands that were typed ended well.\n2 commands were left out" in said
    assert walk(commands[::2], Path(sys.executable), tmp_path, seconds=60) == 1
    assert "1 of 2 commands failed." in capsys.readouterr().out
