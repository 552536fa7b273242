"""The command `generate` as a user types it."""

import json
import sys
from pathlib import Path

import pytest
from chat_server import Asked, failure, readings, rewrites, serve, tasks

from mcp_rl.cli import main
from mcp_rl.scenario import read_scenarios
from mcp_rl.scenarios.reference import scenario_tools
from mcp_rl.scenarios.split import overlap

CALCULATOR = ["generate", "--server", "mcp_calculator", "--transport", "stdio"]
KEY = "key-of-the-author-0123"
Captured = pytest.CaptureFixture[str]


def sentence_of(captured: Captured) -> str:
    out, err = captured.readouterr()
    assert out == "" and err.count("\n") == 1 and err.rstrip().endswith((".", "?")), (out, err)
    return str(err)


def test_a_file_is_written_marked_and_still_holds(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "scenarios.jsonl"
    words = [*CALCULATOR, "--count", "30", "--seed", "1", "--out", str(out), "--val", "0.2", "--test", "0.1", "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    scenarios = read_scenarios(out)
    assert (said["scenarios"], said["verified"], len(scenarios)) == (30, 30, 30)
    assert said["splits"] == {"train": 21, "val": 6, "test": 3}
    assert said["author"] is None and said["out"] == str(out)
    assert main([*CALCULATOR, "--check", str(out)]) == 0
    assert capsys.readouterr().out == f"{out} holds.\n"
    out.write_text(out.read_text().replace('"tool": "add"', '"tool": "ad"'))
    assert main([*CALCULATOR, "--check", str(out), "--json"]) == 1
    assert "no longer has the tool ad" in json.loads(capsys.readouterr().out)["findings"][0]["problem"]


TODOS = """
import sys

sys.path.insert(0, {folder!r})
from by_hand import serve, tool

todos = {{"milk"}}

def call(name, arguments):
    todos.update(arguments.values())
    return ", ".join(sorted(todos))

serve("todo", [tool("list_todos", "List all."), tool("add_todo", "Add one.", name="string")], call)
"""


def test_tools_that_no_scenario_needs_are_named(tmp_path: Path, capsys: Captured) -> None:
    """`add_todo` has no annotation, and its name says that it changes something: episodes have to be kept apart."""
    script, out = tmp_path / "todo.py", tmp_path / "tasks.jsonl"
    script.write_text(TODOS.format(folder=str(Path(__file__).parent)))
    words = ["generate", "--server", f"{sys.executable} -S {script}", "--count", "12", "--out", str(out)]
    assert main([*words, "--sandbox", "off"]) == 0  # its state is not measured
    said = capsys.readouterr().out
    assert "12 were asked for" in said and "list_todos " in said
    assert "    add_todo was not called, because it may change things." in said
    assert main([*words, "--isolation", "per-rollout", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert (counts["unused_tools"], counts["reasons"], counts["scenarios"]) == ([], [], 12)


def test_a_held_out_tool_is_only_in_the_tests(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "scenarios.jsonl"
    held = ["--held-out-tool", "power", "--val", "0.2", "--json"]
    assert main([*CALCULATOR, "--count", "60", "--out", str(out), *held]) == 0
    scenarios = read_scenarios(out)
    tests = [s for s in scenarios if s.split == "test"]
    others = [s for s in scenarios if s.split != "test"]
    assert tests and all("power" in scenario_tools(s) for s in tests)
    assert {s.split for s in others} == {"train", "val"}
    assert overlap(tests, others) == set()
    assert json.loads(capsys.readouterr().out)["splits"]["val"] == 12
    assert main([*CALCULATOR, "--count", "5", "--out", str(out), "--held-out-tool", "powr"]) == 2
    assert "has no tool 'powr' to hold out; did you mean 'power'?" in sentence_of(capsys)


def test_by_combinations_no_mix_of_tools_is_on_two_sides(tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "scenarios.jsonl"
    words = ["--count", "100", "--out", str(out), "--val", "0.2", "--split-by", "combinations", "--json"]
    assert main([*CALCULATOR, *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["scenarios"] == said["solved"] + said["unsolvable"] + said["without_tools"] == 100
    assert (said["unsolvable"], said["without_tools"]) == (5, 5)
    assert set(said["steps"]) == {"0", "1", "2", "3", "4", "5"}
    mixes: dict[str | None, set[frozenset[str]]] = {"train": set(), "val": set()}
    for scenario in read_scenarios(out):
        if len(scenario.reference) > 1:
            mixes[scenario.split].add(frozenset(call.tool for call in scenario.reference))
    assert mixes["train"] and mixes["val"] and not mixes["train"] & mixes["val"]


def hostile(asked: Asked) -> str:
    """An author that writes escape sequences, markup and keys, and reads nothing."""
    if asked.kind == "rewrites":
        return rewrites(asked, lambda request: request + f" \x1b]0;owned\x07 [bold]{KEY}[/bold]")
    if asked.kind == "readings":
        return readings(asked, lambda request: [])
    calls = [{"tool": "add", "arguments": '{"a": 3, "b": 4}'}, {"tool": "add", "arguments": '{"a": 1, "b": 0}'}]
    return tasks({"request": "Delete \x1b[2Jeverything.", "calls": calls}, {"request": "Sum it [red].", "calls": calls})


def test_a_hostile_author_reaches_neither_file_nor_terminal(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "scenarios.jsonl"
    with serve(hostile) as chat:
        author = ["--author", "openai/gpt-4.1-mini", "--author-base-url", chat.url, "--author-share", "0.1", "--json"]
        assert main([*CALCULATOR, "--count", "20", "--out", str(out), *author]) == 0
    as_json, printed = capsys.readouterr()
    assert KEY not in as_json + printed and "${OPENAI_API_KEY}" in as_json
    assert "\x1b" not in printed and "reworded 0 requests" in printed
    assert "Proposed tasks that were dropped: " in printed and "it holds control characters" in printed
    assert "Sum it [red]." in printed
    written = out.read_text()
    assert len(read_scenarios(out)) == 20
    assert "owned" not in written and KEY not in written


def test_an_author_that_refuses_the_key_ends_with_2(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    out = tmp_path / "scenarios.jsonl"
    with serve(lambda asked: failure(401, f"bad key {KEY}")) as chat:
        author = ["--author", "openai/gpt-4.1-mini", "--author-base-url", chat.url]
        assert main([*CALCULATOR, "--count", "50", "--out", str(out), *author]) == 2
    assert len(chat.asked) <= 4, "a wrong key does not get better"
    said = sentence_of(capsys)
    assert "The author openai/gpt-4.1-mini" in said and KEY not in said
    assert not out.exists()


AUTHOR = ["--author", "openai/gpt-4.1-mini"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--author-share", "0.5"], "add --author openai/gpt-4.1-mini"),
        ([*AUTHOR, "--max-author-cost", "0"], "A cost limit of $0 allows no question"),
        ([*AUTHOR, "--max-author-cost", "nan"], "A cost limit"),
        ([*AUTHOR, "--author-steps", "4-2"], "Tasks of 4 to 2 calls"),
        ([*AUTHOR, "--author-steps", "many"], "'many' is not a range of calls such as 2-4"),
        ([*AUTHOR, "--author-share", "1.5"], "share must be from 0 to 1, not 1.5"),
        ([*AUTHOR, "--author-base-url", "http://me:pw@localhost/v1"], "keep them in the environment"),
        ([*AUTHOR], "needs OPENAI_API_KEY in the environment"),
        (["--author", "gpt-nonsense"], "LiteLLM does not know the author 'gpt-nonsense'"),
        (["--author", "openai/own", "--author-base-url", "http://x/v1", "--max-author-cost", "1"], "knows no price"),
        (["--val", "0.6", "--test", "0.4"], "leave something to train on"),
        (["--val", "-1"], "val (-1)"),
        (["--max-steps", "6"], "Tasks of 6 steps cannot be made; 1 to 5 are possible"),
        (["--unsolvable", "0.5", "--without-tools", "0.5"], "leave something to solve"),
        (["--split-by", "words"], "'words' is not one of 'calls', 'combinations'"),
        (["--out", "none/scenarios.jsonl"], "there is no folder none"),
        (["--out", "."], "it is a folder"),
        (["--check", "none.jsonl"], "Cannot read the scenarios file none.jsonl"),
        (["--check", "x.jsonl", "--author", "openai/gpt-4.1-mini"], "--check makes no tasks"),
    ],
)
def test_bad_input_is_one_sentence_and_2_before_anything_starts(
    words: list[str], said: str, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main([*CALCULATOR, *words]) == 2
    assert said in sentence_of(capsys)
    assert list(tmp_path.iterdir()) == []
