"""Checkpoints: whole or absent, damaged ones skipped, and a resumed learner continues bit for bit."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mcp_rl.errors import CheckpointError
from mcp_rl.learning.disk.checkpoint import find_damage, newest_checkpoint, tidy, write_checkpoint
from mcp_rl.learning.disk.state import ModelCard, restore, save_learner
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from tests.learning.models import make_groups, make_learner, qwen2


def save(learner: Learner, folder: Path, **frontier: object) -> None:
    save_learner(folder, learner, {}, ModelCard("t", "base", {"loss": 0.5}), frontier=frontier)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_newest_is_found_and_old_ones_go(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none") is None
    for step in range(12):
        write_checkpoint(tmp_path, step, {"a": bytes([step])}, keep=2)
    assert names(tmp_path) == ["0010", "0011"]
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert (newest.step, newest.read("a"), newest.skipped) == (11, b"\x0b", [])


def test_a_protected_checkpoint_stays_however_old_it_is(tmp_path: Path) -> None:
    for step in range(6):
        write_checkpoint(tmp_path, step, {"a": b""}, keep=2, protect=(1,))
    assert names(tmp_path) == ["0001", "0004", "0005"]
    write_checkpoint(tmp_path, 6, {"a": b""}, keep=2, protect=(5,))
    assert names(tmp_path) == ["0005", "0006"]


def test_tidying_keeps_whole_checkpoints_put_aside(tmp_path: Path) -> None:
    for step in range(1, 5):
        write_checkpoint(tmp_path, step, {"a": b"whole"})
    (tmp_path / "0004").rename(tmp_path / ".0004.old")  # killed before its successor took its place
    (tmp_path / "0001").rename(tmp_path / ".0001.old")  # killed while it was being removed
    (tmp_path / ".0001.old" / "a").unlink()
    (tmp_path / ".0004.tmp").mkdir()
    tidy(tmp_path, keep=2, protect=(2,))
    assert names(tmp_path) == ["0002", "0003", "0004"]
    assert find_damage(tmp_path / "0004") is None


def test_large_files_are_sealed_like_the_others(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1, {"a": b"small"}, write=lambda folder: (folder / "b").write_bytes(b"large"))
    manifest = json.loads((tmp_path / "0001" / "manifest.json").read_text())
    assert manifest["format"] == 1 and {name: entry["bytes"] for name, entry in manifest["files"].items()} == {
        "a": 5,
        "b": 5,
    }
    (tmp_path / "0001" / "b").write_bytes(b"lurge")
    assert find_damage(tmp_path / "0001") == "b has changed"


def test_damaged_or_foreign_checkpoints_are_refused(tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(tmp_path, step, {"a": b"whole"})
        (tmp_path / f"{step:04d}" / "a").unlink()
    with pytest.raises(CheckpointError, match=r"None of the 2 checkpoints .* \(in the newest, a is missing\)"):
        newest_checkpoint(tmp_path)
    path = write_checkpoint(tmp_path, 3, {"a": b"whole"}).path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 9}))
    with pytest.raises(CheckpointError, match="has format 9, and this version reads format 1"):
        newest_checkpoint(tmp_path)


def test_a_step_that_is_done_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, {"a": b"old", "b": b"old"})
    write_checkpoint(tmp_path, 3, {"a": b"new"})
    assert names(tmp_path / "0003") == ["a", "manifest.json"]
    assert names(tmp_path) == ["0003"]


def test_a_kill_while_replacing_a_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 3, {"a": b"old"})
    rename = Path.rename

    def killed_before_the_second(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", killed_before_the_second)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, 3, {"a": b"new"})
    monkeypatch.undo()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and (newest.step, newest.read("a")) == (3, b"old")
    write_checkpoint(tmp_path, 4, {"a": b"next"}, keep=1)
    assert names(tmp_path) == ["0004"]


def test_leftovers_of_a_kill_are_ignored_and_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 3, {"a": b"whole"})
    for leftover in (".0003.old", ".0003.tmp", ".0002.tmp"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "a").write_bytes(b"half")
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.read("a") == b"whole"
    write_checkpoint(tmp_path, 3, {"a": b"new"})
    assert names(tmp_path) == ["0003"]


def test_a_damaged_newest_is_passed_over_and_named(tmp_path: Path) -> None:
    for step in range(4):
        write_checkpoint(tmp_path, step, {"a": b"content", "b": b"more"})
    (tmp_path / "0003" / "a").write_bytes(b"CONTENT")
    (tmp_path / "0002" / "b").unlink()
    newest = newest_checkpoint(tmp_path)
    assert newest is not None and newest.step == 1
    assert "0003" in newest.skipped[0] and "a has changed" in newest.skipped[0]
    assert "0002" in newest.skipped[1] and "b is missing" in newest.skipped[1]
    (tmp_path / "0001" / "manifest.json").write_text("{")
    assert find_damage(tmp_path / "0001") == "manifest.json cannot be read"


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    for step in (5, 10):
        write_checkpoint(tmp_path, step, {"a": b"whole"})
    (tmp_path / "0010" / "a").write_bytes(b"broke")
    for step in (6, 7):
        write_checkpoint(tmp_path, step, {"a": b"whole"}, keep=1, protect=(5,))
        assert names(tmp_path) == ["0005", f"{step:04d}"]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Cannot write the checkpoint"):
        write_checkpoint(tmp_path / "file" / "checkpoints", 0, {"a": b""})


def test_a_failed_write_leaves_earlier_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 1, {"a": b"good"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write_checkpoint(tmp_path, 2, {"a": b"bad"})
    assert names(tmp_path) == ["0001"]


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """A child writes checkpoints repeatedly, one step in three twice, and is killed without warning."""
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from mcp_rl.learning.disk.checkpoint import write_checkpoint
        print("ready", flush=True)
        for step in range(10**6):
            for again in range(1 + (step % 3 == 0)):
                files = {f"part{i}": bytes([step % 251]) * 40_000 for i in range(4)}
                write_checkpoint(Path(sys.argv[1]), step, files, keep=2)
            print(step, flush=True)
    """)
    for attempt in range(12):
        folder = tmp_path / str(attempt)
        child = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.0137 * attempt)
        child.send_signal(signal.SIGKILL)
        done = child.stdout.read().splitlines()
        child.wait()
        visible = [path for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []
        assert all(find_damage(path) is None for path in visible)
        newest = newest_checkpoint(folder)
        if done:
            assert newest is not None and newest.step >= int(done[-1])
        step = newest.step + 1 if newest else 0
        write_checkpoint(folder, step, {"a": b"goes on"})
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_peft_and_transformers_alone_give_the_same_logits(tmp_path: Path) -> None:
    base = qwen2()
    base.save_pretrained(tmp_path / "base")
    learner = make_learner(qwen2())
    path = save_learner(tmp_path / "checkpoints", learner, {}, ModelCard("t", str(tmp_path / "base"))).path
    named = json.loads((path / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == "base"  # what add_adapter was told
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), path)
    learner.model.get_base_model().set_attn_implementation("sdpa")
    ids = torch.tensor([[1, 2, 3, 50, 60]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner.model(ids).logits, atol=1e-5, rtol=1e-5)
        assert (loaded(ids).logits - base(ids).logits).abs().max() > 1e-2


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_resumed_run_gives_the_same_bits(tmp_path: Path, cut: int) -> None:
    settings = {"minibatches": 2, "epochs": 2, "decay_steps": 10, "warmup_steps": 2, "weight_decay": 0.01}

    def train(learner: Learner, steps: int) -> Learner:
        while learner.step < steps:
            update(learner, make_groups(learner, seed=learner.step))
        return learner

    whole = train(make_learner(**settings), 5)
    first = train(make_learner(**settings), cut)
    save(first, tmp_path, waiting=["s1", "s2"])
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    second = make_learner(**settings)
    with torch.no_grad():
        for parameter in second.parameters.values():
            parameter.add_(1)
    assert restore(second, newest) == {"waiting": ["s1", "s2"]}
    assert second.step == cut
    train(second, 5)
    for name, parameter in whole.parameters.items():
        assert torch.equal(parameter, second.parameters[name]), name


def test_another_rank_is_refused_in_one_sentence(tmp_path: Path) -> None:
    save(make_learner(), tmp_path)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    other = make_learner(lora={"rank": 2, "alpha": 4})
    before = {name: p.detach().clone() for name, p in other.parameters.items()}
    with pytest.raises(CheckpointError, match="another rank"):
        restore(other, newest)
    assert all(torch.equal(before[name], p) for name, p in other.parameters.items())


def test_a_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    learner = make_learner()
    update(learner, make_groups(learner))
    save(learner, tmp_path)
    kinds = {path.suffix for path in (tmp_path / "0001").iterdir()}
    assert kinds == {".json", ".safetensors", ".md"}
    assert "| loss | 0.5 |" in (tmp_path / "0001" / "README.md").read_text()
