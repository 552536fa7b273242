"""A model's shape from a folder, from the cache, or as published."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mcp_rl.backends.plan.shape import KNOWN, check_weights, model_shape, shape_of
from mcp_rl.config import TINY
from mcp_rl.errors import ConfigError
from mcp_rl.tiny import weights_path

QWEN = KNOWN["Qwen/Qwen2.5-0.5B-Instruct"]


def write(folder: Path, config: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def test_the_built_in_model_is_counted_in_its_weights() -> None:
    shape = model_shape(TINY)
    assert shape.parameters == model_shape(TINY).parameters == 1_378_048
    assert shape_of(TINY, {**_config_of_tiny(), "model_type": "qwen2"}, "").parameters == shape.parameters


def _config_of_tiny() -> dict[str, object]:
    config: dict[str, object] = json.loads((weights_path() / "config.json").read_text())
    return config


def test_weight_files_take_precedence_over_config(tmp_path: Path) -> None:
    folder = write(tmp_path, {**QWEN, "model_type": "nobody_knows_this"})
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7, dtype=torch.bfloat16)}, folder / "model.safetensors")
    assert model_shape(str(folder)).parameters == 22


def test_shards_are_counted_as_the_index_names_them(tmp_path: Path) -> None:
    folder = write(tmp_path, QWEN)
    for name, size in (("one", 4), ("two", 6), ("stray", 100)):
        save_file({name: torch.zeros(size)}, folder / f"{name}.safetensors")
    index = {"weight_map": {"one": "one.safetensors", "two": "two.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_shape(str(folder)).parameters == 10


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02\x00\x00\x00\x00\x00\x00\x00[]"])
def test_a_damaged_weight_file_falls_back_to_the_formula(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path, QWEN)
    (folder / "model.safetensors").write_bytes(content)
    assert model_shape(str(folder)).parameters == 494_032_768


@pytest.mark.parametrize("other", [{"num_hidden_layers": 6}, {"hidden_size": 256}])
def test_weights_of_another_model_are_refused(tmp_path: Path, other: dict[str, int]) -> None:
    config, weights = _config_of_tiny(), weights_path() / "model.safetensors"
    for folder, said in (("own", {}), ("other", other)):
        write(tmp_path / folder, {**config, **said})
        (tmp_path / folder / "model.safetensors").symlink_to(weights)
    check_weights(model_shape(str(tmp_path / "own")))
    with pytest.raises(ConfigError, match=r"4 layers of width 128, but its config.json describes .* different models"):
        check_weights(model_shape(str(tmp_path / "other")))


def test_a_published_model_needs_neither_network_nor_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = model_shape("Qwen/Qwen2.5-7B-Instruct", online=False)
    assert (shape.parameters, shape.layers, shape.queries, shape.keys) == (7_615_616_512, 28, 3584, 512)


def test_a_cached_model_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--some--model"
    write(repository / "snapshots" / "abc", {**QWEN, "num_hidden_layers": 2})
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    shape = model_shape("some/model", online=False)
    assert shape.layers == 2 and shape.source == "the local cache"


def test_experts_and_nested_text_configurations_are_read() -> None:
    text = {**QWEN, "moe_intermediate_size": 100, "num_experts_per_tok": 4}
    shape = shape_of("any", {"model_type": "qwen3_moe", "text_config": text}, "", parameters=10**9)
    assert (shape.feed_forward, shape.parameters) == (400, 10**9)


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        (None, None),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "4-bit"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8-bit"),
        ({"quant_method": "gptq", "bits": 4}, "4-bit"),
        ({"quant_method": "fp8"}, "8-bit"),
    ],
)
def test_quantised_weights_are_recognised(said: object, stored: str | None) -> None:
    assert shape_of("any", {**QWEN, "quantization_config": said}, "").stored == stored


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "Cannot read the config.json"),
        ("[]", "Cannot read the config.json"),
        ({}, "lacks hidden_size"),
        ({**QWEN, "model_type": "odd"}, "no formula for a model of type 'odd'"),
    ],
)
def test_an_unknown_size_is_one_sentence(tmp_path: Path, config: object, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        model_shape(str(write(tmp_path, config)))
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all"])
def test_a_missing_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        model_shape(name)


def test_an_unreachable_hub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="the hub was not asked"):
        model_shape("some/unknown-model", online=False)
    with pytest.raises(ConfigError, match="There is no base model 'x y'"):
        model_shape("x y")
