"""A run in 4 bits, from its first session to what is made of it. Needs bitsandbytes: `make test-others`."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_run import train, weights

from mcp_rl.cli import main

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
Captured = pytest.CaptureFixture[str]
BITS = "unsloth.load_in_4bit=true"


@pytest.fixture(scope="module")
def small(ground: Path) -> Path:
    """A run of two steps in 4 bits."""
    return train(ground, "small", BITS, "--steps", "2")


def loaded(run: Path) -> Any:
    return json.loads((run / "model.json").read_text())["loaded"]


def test_a_quantised_run_continues_in_the_same_bits_only(ground: Path, small: Path) -> None:
    assert loaded(small)["quantisation"] == "4-bit"
    with pytest.raises(Exception, match=r"To go on with it, add unsloth\.load_in_4bit=true, start over"):
        train(ground, "small", "--steps", "3")
    before = loaded(small)
    train(ground, "small", BITS, "--steps", "3")
    assert loaded(small) == before and (small / "checkpoints" / "0003").is_dir()


def test_replays_and_forks_keep_the_quantisation(ground: Path, small: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["replay", str(small), "--to", "small-again", "steps=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"] == [2]
    assert weights(small.parent / "small-again", 2) == weights(small, 2)
    assert main(["fork", str(small), "--from-step", "2"]) == 0
    assert BITS in capsys.readouterr().out
    said = {"messages": [{"role": "user", "content": "add 1 and 1"}, {"role": "assistant", "content": "2"}]}
    (tmp_path / "said.jsonl").write_text(json.dumps(said))
    words = ["sft", str(tmp_path / "said.jsonl"), "--init", str(small), "--output-dir", str(tmp_path), "--epochs", "1"]
    assert main(words) == 0
    tuned = tmp_path / "default" / "models" / "sft-said"
    begun = train(ground, "begun-small", "--init", str(tuned), "--steps", "1")
    for run in (small.parent / "small-again", small.parent / "small-from-2", tuned, begun):
        assert loaded(run)["quantisation"] == "4-bit", run


def test_an_adapter_is_merged_into_unquantised_weights(small: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["export", f"{small}@2", "--format", "merged", "--out", str(tmp_path / "merged")]) == 0
    assert "was trained on the base in 4 bits and is merged into its weights in float32" in capsys.readouterr().out
    assert "| base during training | 4 bits |" in (tmp_path / "merged" / "README.md").read_text()
