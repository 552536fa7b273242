"""A run begins with the weights of another run, and a misfit is reported before anything starts."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from mcp_rl.backends.base.base_model import load_learner
from mcp_rl.backends.initial import check_initial, find_initial, initial_hash
from mcp_rl.config import TINY, LoraConfig, TrainConfig
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.learning.disk.checkpoint import newest_checkpoint
from mcp_rl.learning.disk.state import ModelCard, restore, save_learner
from mcp_rl.learning.learner import Learner
from mcp_rl.learning.step import update
from mcp_rl.tiny import weights_path
from tests.learning.models import make_groups

LORA = TrainConfig(lora=LoraConfig(rank=4, alpha=8), learning_rate=1e-2)
FULL = TrainConfig(method="full", learning_rate=1e-3)


def trained(config: TrainConfig) -> Learner:
    learner = load_learner(TINY, config)
    update(learner, make_groups(learner, groups=2, size=3))
    return learner


@pytest.fixture(scope="module", params=[LORA, FULL], ids=["lora", "full"])
def learner(request: pytest.FixtureRequest) -> Learner:
    return trained(request.param)


@pytest.fixture(scope="module")
def run(learner: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(learner.config.method)
    save_learner(folder / "checkpoints", learner, {}, ModelCard("t", TINY))
    return folder


def assert_same_weights(one: Learner, other: Learner) -> None:
    for name, parameter in one.parameters.items():
        assert torch.equal(parameter, other.parameters[name]), name


def test_a_new_run_begins_with_a_run_or_a_checkpoint(learner: Learner, run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(run / "checkpoints" / "0001", moved)
    for path in (run, run / "checkpoints" / "0001", moved):
        begun = load_learner(TINY, learner.config, init=path, seed=7)
        assert begun.step == 0 and not begun.optimizer.state
        assert_same_weights(learner, begun)
        assert initial_hash(path) == initial_hash(run)
    fresh = load_learner(TINY, learner.config)
    assert any(not torch.equal(p, fresh.parameters[name]) for name, p in learner.parameters.items())


def test_an_optimiser_of_any_kind_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    for optimizer in ("adamw", "adafactor", "sgd"):
        for base in (LORA, FULL):
            config = base.model_copy(update={"optimizer": optimizer})
            whole = trained(config)
            folder = tmp_path / optimizer / config.method
            save_learner(folder, whole, {}, ModelCard("t", TINY))
            checkpoint = newest_checkpoint(folder)
            assert checkpoint is not None
            again = load_learner(TINY, config)
            restore(again, checkpoint)
            assert again.step == 1
            for name, parameter in whole.parameters.items():
                mine, theirs = whole.optimizer.state.get(parameter), again.optimizer.state.get(again.parameters[name])
                assert (mine is None) == (theirs is None)
                for key, value in (mine or {}).items():
                    same = torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key]
                    assert same and type(value) is type(theirs[key]), (optimizer, name, key)
            groups = make_groups(whole, seed=3, groups=2, size=3)
            for one in (whole, again):
                update(one, groups)
            assert_same_weights(whole, again)


def test_another_optimiser_s_state_is_refused(tmp_path: Path) -> None:
    save_learner(tmp_path, trained(LORA), {}, ModelCard("t", TINY))
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    with pytest.raises(CheckpointError, match=r"state of AdamW.*is SGD: set train\.optimizer"):
        restore(load_learner(TINY, LORA.model_copy(update={"optimizer": "sgd"})), checkpoint)


def test_a_checkpoint_of_every_weight_is_a_model_of_its_own(tmp_path: Path) -> None:
    learner = trained(FULL)
    path = save_learner(tmp_path, learner, {}, ModelCard("t", TINY)).path
    assert {"config.json", "model.safetensors", "optimizer.safetensors"} <= {file.name for file in path.iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(path)
    ids = torch.tensor([[1, 2, 3, 50, 60]])
    learner.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, learner.model(ids).logits, atol=1e-5, rtol=1e-5)
        base = AutoModelForCausalLM.from_pretrained(weights_path())
        assert (loaded(ids).logits - base(ids).logits).abs().max() > 1e-3
    assert "All weights of" in (path / "README.md").read_text()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LORA.model_copy(update={"lora": LoraConfig(rank=2, alpha=8)}), "train.lora.rank = 4, and this run has 2"),
        (LORA.model_copy(update={"lora": LoraConfig(rank=4, alpha=4)}), "train.lora.alpha = 8, and this run has 4"),
        (FULL, "holds a LoRA adapter, but train.method is full"),
    ],
)
def test_a_misfitting_adapter_is_refused_with_the_difference(tmp_path: Path, config: TrainConfig, said: str) -> None:
    save_learner(tmp_path / "checkpoints", load_learner(TINY, LORA), {}, ModelCard("t", TINY))
    with pytest.raises(ConfigError) as caught:
        check_initial(tmp_path, config, TINY)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("other", [{"use_dora": True}, {"use_rslora": True}, {"peft_type": "IA3"}, {"bias": "all"}])
def test_an_adapter_beyond_plain_lora_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    config = {"peft_type": "LORA", "bias": "none", "r": 4, "lora_alpha": 8, "target_modules": [*LORA.lora.targets]}
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, **other}))
    save_file({"base_model.model.lm_head.lora_magnitude_vector": torch.ones(3)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=f"is not a plain LoRA, since it has {next(iter(other))} = "):
        check_initial(tmp_path, LORA, TINY)


def test_what_was_made_for_another_base_model_is_refused(tmp_path: Path) -> None:
    path = save_learner(tmp_path / "lora", load_learner(TINY, LORA), {}, ModelCard("t", TINY)).path
    (path / "manifest.json").unlink()
    tensors = load_file(path / "adapter_model.safetensors")
    name = next(name for name in tensors if "lora_A" in name)
    save_file({**tensors, name: torch.zeros(4, 7)}, path / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"another base model: it has .* of 7 inputs, where this one has"):
        check_initial(path, LORA, TINY)
    renamed = {name.replace(".layers.", ".decoder.layers."): tensor for name, tensor in tensors.items()}
    save_file(renamed, path / "adapter_model.safetensors")
    assert check_initial(path, LORA, TINY).folder == path  # may be transformers' own names: loading tells
    with pytest.raises(CheckpointError, match="other layers"):
        load_learner(TINY, LORA, init=path)
    whole = save_learner(tmp_path / "full", load_learner(TINY, FULL), {}, ModelCard("t", TINY)).path
    (whole / "manifest.json").unlink()
    weights = load_file(whole / "model.safetensors")
    save_file({**weights, "more": torch.zeros(2)}, whole / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="they differ in more"):
        check_initial(whole, FULL, TINY)
    with pytest.raises(ConfigError, match="holds a whole model, not an adapter"):
        check_initial(whole, LORA, TINY)


def test_where_there_is_nothing_to_begin_with_it_says_so(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        find_initial(tmp_path / "none")
    with pytest.raises(ConfigError, match="give the folder of a run, of a checkpoint"):
        find_initial(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        find_initial(tmp_path)
    damaged = tmp_path / "damaged"
    shutil.copytree(run / "checkpoints" / "0001", damaged)
    manifest = json.loads((damaged / "manifest.json").read_bytes())
    manifest["files"]["README.md"]["sha256"] = "0"
    (damaged / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"is damaged \(README\.md has changed\)"):
        find_initial(damaged)


def test_init_passes_over_a_damaged_newest_checkpoint(run: Path, learner: Learner, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    for step in ("0001", "0002"):
        shutil.copytree(run / "checkpoints" / "0001", folder / step)
    (folder / "0002" / "README.md").write_text("other")
    found = find_initial(tmp_path / "run")
    assert found.folder == folder / "0001"
    assert len(found.skipped) == 1 and "0002 is damaged (README.md has changed)" in found.skipped[0]
    (folder / "0001" / "README.md").write_text("other")
    with pytest.raises(
        ConfigError, match=r"nothing to begin with in .*: none of the 2 checkpoints .* is whole"
    ) as said:
        find_initial(tmp_path / "run")
    assert "--fresh" not in str(said.value)


def test_initial_weights_are_verified_again_if_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = load_learner(TINY, LORA)
    path = save_learner(tmp_path / "checkpoints", learner, {}, ModelCard("t", TINY)).path
    read: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        read.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    check_initial(tmp_path, LORA, TINY)
    found = initial_hash(tmp_path)
    load_learner(TINY, LORA, init=tmp_path)
    assert find_initial(tmp_path).folder == path
    assert read.count("adapter_model.safetensors") == 1
    (path / "manifest.json").rename(tmp_path / "kept.json")
    assert initial_hash(path) == found, "whoever says what the hashes are"
    (tmp_path / "kept.json").rename(path / "manifest.json")
    weights = path / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(weights, ns=(1, 1))
    with pytest.raises(ConfigError, match="none of the 1 checkpoints"):
        find_initial(tmp_path)
