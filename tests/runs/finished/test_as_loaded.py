"""Replays, forks, fine-tunings and exports of a run use the weights that the run loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_run import train

from mcp_rl.backends.base.options import trained_options
from mcp_rl.cli import main
from mcp_rl.errors import ConfigError

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def other(ground: Path) -> Path:
    """Other weights of the base model's shape."""
    folder = shutil.copytree(ground / "base", ground / "other")
    torch.manual_seed(1)
    kept = load_file(folder / "model.safetensors")
    save_file({name: w + 0.05 * torch.randn_like(w) for name, w in kept.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def instead(ground: Path, other: Path) -> Path:
    """A run that loaded them in its base model's place."""
    return train(ground, "instead", f"unsloth.model_name={other}", "unsloth.dtype=bfloat16", "--steps", "2")


def loaded(run: Path) -> Any:
    return json.loads((run / "model.json").read_text())["loaded"]


def test_a_replay_loads_what_the_run_loaded(instead: Path, other: Path, capsys: Captured) -> None:
    assert loaded(instead)["model_name"] == str(other) and loaded(instead)["dtype"] == "bfloat16"
    assert main(["replay", str(instead), "--to", "instead-again", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["identical"] == [2] and report["first_other_step"] is None
    again = instead.parent / "instead-again"
    assert loaded(again) == loaded(instead)
    assert trained_options(str(instead), again).model_name is None, "of another base model"
    for place in (again, again / "checkpoints" / "0002"):
        assert trained_options(loaded(instead)["base_model"], place).model_name == str(other)


def test_a_fork_keeps_the_loaded_weights(instead: Path, other: Path, capsys: Captured) -> None:
    assert main(["fork", str(instead), "--from-step", "2", "unsloth.load_in_4bit=true"]) == 2
    assert (
        "cannot change unsloth.load_in_4bit: the checkpoint belongs to its base model as it was"
        in capsys.readouterr().err
    )
    assert main(["fork", str(instead), "--from-step", "2"]) == 0
    command = capsys.readouterr().out.splitlines()[-1]
    assert f"unsloth.model_name={json.dumps(str(other))}" in command.replace("'", "")
    assert "unsloth.dtype=bfloat16" in command
    assert loaded(instead.parent / "instead-from-2") == loaded(instead)


def test_runs_load_the_weights_of_what_they_begin_with(
    ground: Path, instead: Path, other: Path, tmp_path: Path, capsys: Captured
) -> None:
    said = {"messages": [{"role": "user", "content": "add 1 and 1"}, {"role": "assistant", "content": "2"}]}
    (tmp_path / "said.jsonl").write_text(json.dumps(said))
    words = ["sft", str(tmp_path / "said.jsonl"), "--output-dir", str(tmp_path), "--epochs", "1"]
    assert main([*words, "--init", str(instead)]) == 0
    tuned = tmp_path / "default" / "models" / "sft-said"
    assert loaded(tuned)["model_name"] == str(other) and loaded(tuned)["dtype"] == "float32"
    assert main([*words, "--init", str(instead), "unsloth.model_name=x"]) == 2
    assert main([*words, "--base-model", str(ground / "base"), "--name", "plain"]) == 0
    assert loaded(tmp_path / "default" / "models" / "plain")["model_name"] == str(ground / "base")
    begun = train(ground, "begun", "--init", str(tuned), "--steps", "1")
    assert loaded(begun)["model_name"] == str(other)


def test_a_fine_tuning_is_loaded_as_it_is_told_and_goes_on_so(ground: Path, tmp_path: Path, capsys: Captured) -> None:
    said = {"messages": [{"role": "user", "content": "add 1 and 1"}, {"role": "assistant", "content": "2"}]}
    (tmp_path / "said.jsonl").write_text(json.dumps(said))
    words = ["sft", str(tmp_path / "said.jsonl"), "--output-dir", str(tmp_path), "--epochs", "1"]
    words += ["--base-model", str(ground / "base")]
    assert main([*words, "unsloth.dtype=bfloat16", 'unsloth.rope_scaling={type="linear",factor=2}']) == 0
    tuned = tmp_path / "default" / "models" / "sft-said"
    about = loaded(tuned)
    assert (about["dtype"], about["rope_scaling"]) == ("bfloat16", {"type": "linear", "factor": 2})
    capsys.readouterr()
    assert main(words) == 2
    err = capsys.readouterr().err
    assert """add 'unsloth.rope_scaling={"type" = "linear", "factor" = 2.0}'""" in err
    assert main([*words, 'unsloth.rope_scaling={"type" = "linear", "factor" = 2.0}']) == 0, "in its own precision"
    assert loaded(tuned) == about
    assert main(["export", str(tuned), "--format", "merged", "--out", str(tmp_path / "far")]) == 0
    own, far = (json.loads((place / "config.json").read_text()) for place in (ground / "base", tmp_path / "far"))
    assert far["max_position_embeddings"] == 2 * own["max_position_embeddings"]
    assert far["rope_parameters"]["rope_type"] == "linear" and far["rope_parameters"]["rope_theta"]


def test_an_export_merges_into_what_was_loaded(instead: Path, other: Path, tmp_path: Path) -> None:
    assert main(["export", str(instead), "--format", "merged", "--out", str(tmp_path / "merged")]) == 0
    merged, theirs = load_file(tmp_path / "merged" / "model.safetensors"), load_file(other / "model.safetensors")
    untouched = "model.embed_tokens.weight"
    assert torch.equal(merged[untouched], theirs[untouched])
    assert main(["export", str(instead), "--out", str(tmp_path / "adapter")]) == 0
    beside = load_file(tmp_path / "adapter" / "base" / "model.safetensors")
    assert torch.equal(beside[untouched], theirs[untouched])


def test_other_weights_where_those_of_a_run_were_are_refused(
    instead: Path, other: Path, tmp_path: Path, capsys: Captured
) -> None:
    kept = (other / "model.safetensors").read_bytes()
    shutil.copyfile(other.parent / "base" / "model.safetensors", other / "model.safetensors")
    try:
        said = f"{other}, which was loaded for {other.parent / 'base'}, holds other weights now"
        out = str(tmp_path / "spoiled")
        for words in (
            ["replay", str(instead), "--to", "x"],
            ["export", str(instead), "--format", "merged", "--out", out],
        ):
            assert main(words) == 2
            assert said in capsys.readouterr().err
        with pytest.raises(ConfigError, match="holds other weights now"):  # as it is evaluated and served
            trained_options(loaded(instead)["base_model"], instead / "checkpoints" / "0002")
    finally:
        (other / "model.safetensors").write_bytes(kept)
