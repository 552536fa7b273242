"""`mcp-rl fork`: a run that begins at a checkpoint of another."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import STEPS, configured, go_on, weights, without_clock

from mcp_rl.cli import main
from mcp_rl.plugins.manager import load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.run_directory import RunDirectory, open_run
from mcp_rl.runs.identity import identify

Captured = pytest.CaptureFixture[str]


def fork(run: Path, *words: str) -> int:
    return main(["fork", run.name, "--output-dir", str(run.parents[2]), *words])


def test_the_command_that_a_fork_prints_goes_on_to_the_same_bits(run: Path, capsys: Captured) -> None:
    assert fork(run, "--from-step", "2", "--name", "second") == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words[:2] == ["mcp-rl", "train"] and words[words.index("--name") :][:2] == ["--name", "second"]
    assert "train.keep_checkpoints=9" in words  # it changes nothing that is learned, and is kept all the same
    forked = run.parent / "second"
    assert [path.name for path in sorted((forked / "checkpoints").iterdir())] == ["0002"]
    assert json.loads((forked / "state.json").read_text())["step"] == 2
    go_on(words[1:])
    assert f"Continuing from step 2 in {forked}" in capsys.readouterr().out
    assert json.loads((forked / "state.json").read_text())["step"] == STEPS
    for step in (4, 6):
        assert weights(forked, step) == weights(run, step)
    assert without_clock(forked / "history.jsonl") == without_clock(run / "history.jsonl")
    for path in sorted((run / "trajectories").glob("*/*.jsonl")):
        assert without_clock(forked / path.relative_to(run)) == without_clock(path)


def test_a_fork_holds_what_the_run_was_at_that_step(run: Path, capsys: Captured) -> None:
    assert fork(run, "--from-step", "4", "--name", "held", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    forked = Path(told["path"])
    state, kept = (json.loads((folder / "state.json").read_text()) for folder in (forked, run))
    assert (state["step"], state["after_step"], state["before"]) == (4, 4, kept["before"])
    assert state["after"]["scenarios"] == 2 and state["threads"] == kept["threads"]
    assert len(state["progress"]["curriculum"]["measured"]) <= len(kept["progress"]["curriculum"]["measured"])
    steps = [(line["step"], line["split"]) for line in without_clock(forked / "history.jsonl")]
    assert steps == [(0, "val"), *((step, "train") for step in range(1, 5)), (4, "val")]
    assert sorted(path.name for path in (forked / "trajectories" / "train").iterdir())[-1] == "0004.jsonl"
    for name in ("train.jsonl", "val.jsonl"):
        assert (forked / name).read_bytes() == (run / name).read_bytes()
    about = json.loads((forked / "model.json").read_text())
    assert about["forked_from"] == [{"run": str(run), "step": 4, "was": {}}]
    assert about["identity"] == json.loads((run / "model.json").read_text())["identity"]


def test_what_is_changed_is_in_the_fork_and_in_its_command(run: Path, capsys: Captured) -> None:
    changes = ["train.learning_rate=0.02", "train.loss=cispo", "rollout.max_turns=3"]
    assert fork(run, "--from-step", "2", "--name", "changed", *changes) == 0
    said = capsys.readouterr().out
    assert "The initial policy was evaluated with rollout.max_turns = 10" in said
    about = json.loads((run.parent / "changed" / "model.json").read_text())
    assert about["forked_from"][0]["was"] == {
        "train.learning_rate": 0.01,
        "train.loss": "grpo",
        "rollout.max_turns": 10,
    }
    settings = about["identity"]["settings"]
    assert (settings["train.learning_rate"], settings["train.loss"]) == (0.02, "cispo")
    words = shlex.split(said.splitlines()[-1])[1:]
    assert {"train.loss=cispo", "train.learning_rate=0.02", "rollout.max_turns=3"} <= set(words)
    forked, config = RunDirectory(run.parent / "changed"), configured(words)
    server = resolve_servers(config.server, config.transport, plugins=load_plugins(config.plugins), tools=config.tools)
    mine = forked.identity()
    assert mine is not None and identify(config, server, mine.schema_hash) == mine


def test_an_interval_that_only_the_fork_has_goes_on_with_it(copied: Path) -> None:
    about = json.loads((copied / "model.json").read_text())
    del about["command"]["evaluation.every"]
    (copied / "model.json").write_text(json.dumps(about))
    assert fork(copied, "--from-step", "4", "--name", "measured", "evaluation.every=1") == 0
    assert json.loads((copied.parent / "measured" / "model.json").read_text())["command"]["evaluation.every"] == 1


def test_unrecorded_words_of_a_command_are_explained(copied: Path, capsys: Captured) -> None:
    about = json.loads((copied / "model.json").read_text())
    del about["command"]
    hidden = {"server.address": "0123456789abcdef", "judge.model": "openai/judge", "judge.rubric": "0123456789abcdef"}
    about["identity"]["settings"] |= hidden
    (copied / "model.json").write_text(json.dumps(about))
    assert fork(copied, "--from-step", "2") == 0
    *said, command = capsys.readouterr().out.splitlines()
    for word in ("--server SERVER", "--scenarios FILE", "--judge-rubric RUBRIC", "judge.model=openai/judge"):
        assert word in command
    for word in ("SERVER is", "FILE is", "RUBRIC is", "--judge-base-url"):
        assert sum(word in line for line in said) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--from-step", "3"], "has no checkpoint of step 3; it has those of 0, 2, 4, 6."),
        ([], "add --from-step with one of 0, 2, 4, 6"),
        (["--from-step", "2", "seed=1"], "A fork cannot change seed: the initial policy was evaluated with it"),
        (["--from-step", "2", "train.lora.rank=4"], "A fork cannot change train.lora.rank"),
        (["--from-step", "2", "tools.exclude=['add']"], "A fork cannot change tools.exclude"),
        (["--from-step", "2", "base_model=other"], "A fork cannot change base_model"),
        (["--from-step", "2", "train.learning_rat=1"], "did you mean 'train.learning_rate'?"),
        (["--from-step", "2", "train.learning_rate=-1"], "train.learning_rate = -1 does not work"),
        (["--from-step", "2", "--name", "first"], "choose another name with --name"),
        (["--from-step", "2", "--name", "a/b"], "'a/b' cannot name a run"),
    ],
)
def test_what_cannot_be_forked_is_one_sentence(run: Path, words: list[str], sentence: str, capsys: Captured) -> None:
    there = sorted(path.name for path in run.parent.iterdir() if not path.name.startswith("."))
    assert fork(run, *words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert sorted(path.name for path in run.parent.iterdir() if not path.name.startswith(".")) == there


def test_a_damaged_checkpoint_is_not_forked(copied: Path, capsys: Captured) -> None:
    (copied / "checkpoints" / "0004" / "optimizer.safetensors").write_bytes(b"")
    assert fork(copied, "--from-step", "4") == 2
    assert "is damaged (optimizer.safetensors has changed)" in capsys.readouterr().err


def test_a_run_that_goes_on_is_forked_and_replayed(copied: Path) -> None:
    with open_run(copied):
        assert fork(copied, "--from-step", "4", "--name", "third") == 0
        assert main(["replay", str(copied), "--to", "fourth", "steps=2"]) == 0


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda run: (run / "train.jsonl").unlink(), "train.jsonl: No such file"),
        (lambda run: (run / "history.jsonl").write_text("nonsense\n"), "line 1 is not JSON"),
        (lambda run: (run / "model.json").write_text('{"sft": {}}'), "a supervised fine-tuning"),
        (lambda run: (run / "state.json").write_text('{"stop": 1}'), "was not written by this version"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "has no checkpoint yet"),
    ],
)
def test_an_unreadable_run_is_one_sentence(
    copied: Path, spoil: Callable[[Path], object], sentence: str, capsys: Captured
) -> None:
    spoil(copied)
    assert fork(copied, "--from-step", "4", "--name", "third") == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert [path.name for path in copied.parent.iterdir() if not path.name.endswith(".lock")] == ["first"]


KILLED = """
import os, signal, sys
from pathlib import Path
import mcp_rl.runs.fork as forking

copy, left = forking._copy, int(sys.argv[2])

def killed(source, target):
    global left
    copy(source, target)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

forking._copy = killed
forking.fork(Path(sys.argv[1]), 4, "third")
"""


@pytest.mark.parametrize("copies", [3, 12])
def test_a_kill_in_the_middle_leaves_nothing_under_the_name(copied: Path, copies: int) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(copied), str(copies)], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (copied.parent / "third").exists() and (copied.parent / ".third.fork").exists()
    assert fork(copied, "--from-step", "4", "--name", "third") == 0
    assert not (copied.parent / ".third.fork").exists()
