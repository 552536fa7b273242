"""Damage to the files of a run is one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_rl.errors import RunDirectoryError
from mcp_rl.run_directory import RunDirectory, read_history, readable
from mcp_rl.runs.history import History

LINE = {"step": 0, "split": "val", "greedy_success": 0.5, "greedy_ci95": [0.4, 0.6]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("greedy_ci95", {"a": 1}),
        ("greedy_ci95", [[], 1]),
        ("greedy_ci95", [0.5]),
        ("greedy_success", [1]),
        ("greedy_success", 10**400),
        ("greedy_success", {}),
    ],
)
def test_a_history_holds_numbers(name: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(json.dumps(LINE | {name: value}) + "\n")
    with pytest.raises(RunDirectoryError, match=rf"line 1 has something in place of a number under '{name}'"):
        read_history(tmp_path)
    (tmp_path / "history.jsonl").write_text(json.dumps(LINE) + "\n")
    assert read_history(tmp_path) == [LINE]


@pytest.mark.parametrize("name", ["model.json", "history.jsonl"])
def test_files_that_are_nested_too_deeply_are_no_json(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("[" * 100_000 + "\n")
    with pytest.raises(RunDirectoryError, match="is not JSON"):
        RunDirectory(tmp_path).history() if name == "history.jsonl" else RunDirectory(tmp_path).identity()


@pytest.mark.parametrize("about", [{"identity": "x"}, {"identity": {"settings": 5}}, {"forked_from": [7]}, []])
def test_an_odd_model_json_does_not_hide_the_history(about: Any, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(json.dumps(LINE) + "\n")
    (tmp_path / "model.json").write_text(json.dumps(about))
    assert History.read(tmp_path).origin is None


@pytest.mark.parametrize("error", [KeyError("step"), TypeError("x"), ValueError("y"), OverflowError("z")])
def test_what_cannot_be_read_is_one_sentence(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=f"are damaged.*{type(error).__name__}"), readable(tmp_path):
        raise error
