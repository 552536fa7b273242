"""`mcp-rl replay`: retraining from recorded episodes."""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_run import STEPS, go_on, train, weights

from mcp_rl.cli import main
from mcp_rl.evaluation.models import find_model

Captured = pytest.CaptureFixture[str]


def replay(run: Path, *words: str) -> int:
    return main(["replay", run.name, "--output-dir", str(run.parents[2]), *words])


def told(capsys: Captured) -> Any:
    return json.loads(capsys.readouterr().out)


def test_the_same_settings_give_the_same_bits(run: Path, capsys: Captured) -> None:
    assert replay(run, "--to", "again", "--json", "steps=3") == 0
    assert told(capsys)["identical"] == [2]
    assert replay(run, "--to", "again") == 0
    said = capsys.readouterr().out
    assert "Continuing from step 3" in said and "identical to the run's, bit for bit, at steps 2, 4, 6" in said
    assert replay(run, "--to", "again", "--json") == 0
    report = told(capsys)
    assert (report["steps"], report["differing"], report["first_other_step"]) == (STEPS, [], None)
    for step in (2, 4, 6):
        assert weights(run.parent / "again", step) == weights(run, step)


def test_a_replay_is_a_run_to_look_at_and_nothing_to_go_on_with(run: Path, capsys: Captured) -> None:
    assert replay(run, "--to", "seen", "steps=2") == 0
    seen = run.parent / "seen"
    assert main(["history", str(seen)]) == 0
    assert f"A replay of {run}" in capsys.readouterr().out
    assert find_model("seen@2", run.parent).checkpoint == seen / "checkpoints" / "0002"
    assert replay(seen) == 2
    assert f"is a replay itself; replay {run}" in capsys.readouterr().err
    assert main(["fork", str(seen), "--from-step", "2"]) == 2
    assert "is a replay, which cannot go on" in capsys.readouterr().err


def test_other_settings_give_corrected_other_weights(run: Path, capsys: Captured) -> None:
    assert replay(run, "--to", "cispo", "train.loss=cispo", "train.learning_rate=3") == 0
    said = capsys.readouterr().out
    assert "from another policy" in said and "importance weights of at most 2 correct for that" in said
    assert "The weights are not the run's at steps 2, 4, 6." in said
    assert "recorded reward" in said and "  reward" not in said
    command = said.splitlines()[-1].strip()
    assert command.startswith("mcp-rl evaluate --server mcp_calculator --scenarios ")
    assert shlex.split(command)[5:10] == [
        *(str(run / "val.jsonl"), "--model", str(run), "--model", str(run.parent / "cispo"))
    ]
    history = [json.loads(line) for line in (run.parent / "cispo" / "history.jsonl").read_text().splitlines()]
    assert history[-1]["logprob_difference_mean"] > 0.01 and history[-1]["corrected_share"] > 0
    assert replay(run, "--to", "cispo") == 2
    assert "train.loss (was 'cispo', is 'grpo')" in capsys.readouterr().err


def test_a_replay_that_leaves_its_episodes_stops(run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.learning.canaries.SMALLEST_OVERLAP", 2.0)
    assert replay(run, "--to", "gone", "train.loss=gspo") == 1
    assert "The learner has left the policy that sampled its episodes" in capsys.readouterr().err
    assert replay(run, "--to", "stays", "steps=2") == 0  # the run's own settings are never stopped


def test_a_drifting_replay_is_warned_about_once(run: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.learning.off_policy.DRIFTING", 2.0)
    assert replay(run, "--to", "drift", "train.loss=gspo", "steps=3") == 0
    assert capsys.readouterr().out.count("Warning: the learner has drifted away") == 1


def test_rounding_differences_stay_on_policy(run: Path, capsys: Captured) -> None:
    assert replay(run, "--to", "unshared", "--json", "train.prefix_sharing=false", "steps=2") == 0
    assert "from another policy" not in capsys.readouterr().err


def test_a_fork_is_replayed_with_the_settings_of_its_time(run: Path, capsys: Captured) -> None:
    words = ["fork", str(run), "--from-step", "2", "--name", "faster", "train.learning_rate=0.03", "train.epochs=1"]
    words += ["rollout.temperature=0.7", "reward.weights={verifier=1.0}"]
    assert main(words) == 0
    go_on([*shlex.split(capsys.readouterr().out.splitlines()[-1])[1:], "--steps", "4"])
    capsys.readouterr()
    assert replay(run.parent / "faster", "--json") == 0
    report = told(capsys)
    assert (report["identical"], report["differing"], report["first_other_step"]) == ([2, 4], [], None)
    assert weights(run.parent / "faster", 4) != weights(run, 4)


def test_init_refills_and_staleness_replay_to_the_bit(run: Path, ground: Path, capsys: Captured) -> None:
    assert replay(run, "--to", "beginning", "steps=2") == 0
    more = ("--init", str(run.parent / "beginning"), "--max-staleness", "1", "rollout.refills=2", "--steps", "4")
    began = train(ground, "overlapped", *more)
    assert weights(began, 0) == weights(run, 2)
    capsys.readouterr()
    groups = [json.loads(line) for line in (began / "trajectories" / "train" / "0004.jsonl").read_text().splitlines()]
    assert main(["fork", str(began), "--from-step", "2", "train.max_staleness=0"]) == 2
    assert "cannot lower train.max_staleness" in capsys.readouterr().err
    versions = {v for g in groups for t in g["trajectories"] for s in t["segments"] for v in s["versions"] if v >= 0}
    assert min(versions) < 3
    assert replay(began, "--json") == 0
    report = told(capsys)
    assert (report["identical"], report["differing"], report["first_other_step"]) == ([2, 4], [], None)


@pytest.mark.parametrize(
    ("spoil", "words", "sentence"),
    [
        (lambda run: (run / "trajectories/train/0003.jsonl").unlink(), [], "The episodes of step 3 are missing"),
        (lambda run: (run / "trajectories/train/0001.jsonl").write_text('{"scen'), [], "0001.jsonl cannot be read"),
        (lambda run: shutil.rmtree(run / "trajectories"), [], "The episodes of step 1 are missing"),
        (lambda run: (run / "model.json").write_text('{"sft": {}}'), [], "a supervised fine-tuning, which has no"),
        (lambda run: (run / "state.json").unlink(), [], "has no whole training step yet"),
        (lambda run: (run / "model.json").write_text("{"), [], "is not JSON"),
        (os.fspath, ["rollout.max_turns=3"], "A replay cannot change rollout.max_turns: its episodes are already"),
        (os.fspath, ["train.los=grpo"], "did you mean 'train.loss'?"),
        (os.fspath, ["--to", "first"], "replay.of"),
        (os.fspath, ["--to", "first", "--fresh"], "--fresh would remove"),
        (os.fspath, ["init=nowhere"], "there is no such folder"),
    ],
)
def test_what_cannot_be_replayed_is_one_sentence(
    copied: Path, spoil: Callable[[Path], object], words: list[str], sentence: str, capsys: Captured
) -> None:
    spoil(copied)
    assert replay(copied, *words) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
