"""Runs without a tool server: one turn in words, trained, verified, evaluated; and what needs a server says so."""

import json
from pathlib import Path

import pytest

from mcp_rl.cli import main
from mcp_rl.run_directory import RunDirectory
from tests.random_base import write_smallest_base


def test_a_run_without_a_server_trains_and_is_verified_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_smallest_base(tmp_path / "base")
    small = ["scenarios.count=12", "scenarios.val=3", "rollout.groups_per_step=2", "rollout.group_size=3"]
    small += ["rollout.max_turn_tokens=12", "evaluation.samples=1", "evaluation.subset=0"]
    words = ["--server", "none", "--source", "headlines", "--base-model", "base", "--steps", "2", "--name", "short"]
    assert main(["train", *words, *small]) == 0
    assert "No server: the model answers in words, without tools." in capsys.readouterr().out
    run = RunDirectory(Path(".mcp_rl/default/models/short"))
    assert [line["step"] for line in run.history() if line["split"] == "train"] == [1, 2]
    assert json.loads((run.path / "tools.json").read_text()) == []
    assert {len(t.messages) for group in run.trajectories("val", 2) for t in group} == {2}
    assert main(["verify", "short"]) == 0
    assert "6 episodes" in capsys.readouterr().out
    models = ["--model", "short", "--model", "scripted:refuse", "--samples", "1", "--json"]
    assert main(["evaluate", "--server", "none", *models]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["scenarios"] == 3 and report["scenarios_from"] == "held out by the run short"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train"], "there is nothing to explore: give your tasks (--scenarios FILE)"),
        (["generate"], "there is nothing to explore"),
        (["train", "--source", "headlines", "--isolation", "per-rollout"], "leave out tools.isolation"),
        (["train", "--source", "headlines", "--transport", "stdio"], "has no transport 'stdio'"),
        (["train", "--source", "headlines", "--server", "mcp_calculator"], "--server none means that there is"),
        (["train", "--scenarios", "calls.jsonl"], "line 1: the scenario needs the tool 'add', and without a"),
        (["train", "--scenarios", "state.jsonl"], "line 1: the scenario has an initial_state, and without a server"),
        (["train", "--source", "headlines", "scenarios.fields={task=text}"], "maps the lines of your own file"),
    ],
)
def test_what_needs_a_server_is_one_sentence(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call = {"tool": "add", "arguments": {"a": 1, "b": 2}}
    for name, more in (("calls", {"reference": [call]}), ("state", {"initial_state": {"seed": 1}})):
        rows = [{"task": f"Task {n}.", "verifier": {"kind": "text", "expected": "x"}, **more} for n in range(30)]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main([words[0], "--server", "none", *words[1:]]) == 2
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error


@pytest.mark.parametrize("word", ["check", "inspect", "login"])
def test_there_is_no_server_to_look_at(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["servers", word, "none"]) == 2
    assert "none means that there is no server; name one" in capsys.readouterr().err
