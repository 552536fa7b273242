"""Both loaders load exactly the requested base, with the same options, and describe it."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from mcp_rl.backends.base import first, loaded, options
from mcp_rl.backends.base.base_model import load_base, make_learner, open_base
from mcp_rl.backends.base.options import (
    base_location,
    begun_with,
    computed_dtypes,
    follow,
    loaded_before,
    plan_loading,
    trained_dtype,
    trained_options,
    trained_revision,
)
from mcp_rl.backends.base.unsloth_loader import arguments
from mcp_rl.backends.hosts import CheckpointExtras, LocalSettings
from mcp_rl.backends.local import LocalBackend
from mcp_rl.backends.plan.shape import model_shape
from mcp_rl.backends.processes.in_process import InProcessLearner
from mcp_rl.backends.samplers.policies import LocalPolicies
from mcp_rl.config import TINY, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError
from mcp_rl.model import TrainableModel
from mcp_rl.tiny import weights_path
from tests.learning.architectures import architecture

FULL = TrainConfig(method="full")


def opened(name: str = TINY, train: TrainConfig | None = None, before: Any = None, **settings: Any) -> Any:
    return open_base(plan_loading(name, UnslothConfig(**settings), train, before=before), before)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the tiny model to another folder."""
    folder = tmp_path / "copy"
    model, tokenizer = load_base(TINY)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_weights_are_float32_by_default_and_described() -> None:
    base = opened()
    assert base.model.dtype == torch.float32 and base.model.config._attn_implementation == "sdpa"
    about = {
        key: base.loaded[key] for key in ("base_model", "model_name", "loader", "quantisation", "dtype", "revision")
    }
    assert about == {
        "base_model": TINY, "model_name": TINY, "loader": "transformers", "quantisation": "none", "dtype": "float32",
        "revision": None,
    }  # fmt: skip
    assert base.loaded["parameters"] == base.model.num_parameters()
    assert base.loaded["versions"]["torch"] == torch.__version__
    assert base_location(TINY) not in json.dumps(base.loaded), "a path of this machine"


@pytest.mark.parametrize("name", ["pytorch_model.bin", ""])
def test_weights_that_are_not_safetensors_are_refused(copy: Path, name: str) -> None:
    (copy / "model.safetensors").unlink()
    if name:
        (copy / name).write_bytes(pickle.dumps({"weight": 1}))
    with pytest.raises(ConfigError, match="only safetensors are loaded") as refused:
        opened(str(copy))
    assert "trust_remote_code" not in str(refused.value) and "weights_only" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\0" * 100),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}}'),
        ("config.json", b'{"model_type": "qwen2", "layer_types": [{"": null}], "hidden_size": 64}'),
        ("config.json", b'{"model_type": "qwen2", "hidden_size": Infinity}'),
    ],
)
def test_damaged_files_of_a_base_are_one_sentence(copy: Path, name: str, content: bytes) -> None:
    (copy / name).write_bytes(content)
    with pytest.raises(ConfigError, match="Cannot load the base model"):
        opened(str(copy))


@pytest.mark.parametrize("size", ["Infinity", "[]", '"x"', "{}", "1e400"])
def test_a_size_that_is_none_is_one_sentence(copy: Path, size: str) -> None:
    (copy / "config.json").write_text(f'{{"model_type": "qwen2", "hidden_size": 64, "vocab_size": {size}}}')
    with pytest.raises(ConfigError, match=r"The config\.json of"):
        model_shape(str(copy))


def test_weights_that_are_not_all_there_are_refused(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"lack 1 that its config\.json describes, such as model\.layers\.1\.mlp\.up_"
    ):
        opened(str(copy))


def test_another_precision_is_loaded_and_said() -> None:
    assert opened(dtype="bfloat16").loaded["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match="float16 needs a GPU"):
        opened(dtype="float16")


def test_a_copy_stands_for_the_base_and_another_model_does_not(copy: Path, tmp_path: Path) -> None:
    base = opened(model_name=str(copy))
    assert base.loaded["base_model"] == TINY and base.loaded["model_name"] == str(copy)
    other = tmp_path / "other"
    architecture("Llama")().save_pretrained(other)
    with pytest.raises(ConfigError, match=r"is not a copy of mcp-rl/tiny: it has model_type = llama and not qwen2"):
        opened(model_name=str(other))


def test_another_model_than_the_requested_one_is_refused(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp_rl.backends.base import base_model

    elsewhere = load_base(TINY)[0]
    monkeypatch.setattr(base_model, "load_with_transformers", lambda plan, config: elsewhere)
    with pytest.raises(ConfigError, match=r"copy was asked for, and transformers loaded .*weights in its place"):
        opened(str(copy))
    plan = plan_loading(TINY, UnslothConfig(use_exact_model_name=False, load_in_4bit=False))
    loaded.check_asked(elsewhere, plan, AutoConfig.from_pretrained(copy))
    with pytest.raises(ConfigError, match="has vocab_size = 97 in its configuration, and what transformers loaded has"):
        smaller = AutoConfig.from_pretrained(copy)
        smaller.vocab_size = 97
        loaded.check_asked(elsewhere, plan, smaller)


def test_a_model_in_another_quantisation_is_refused() -> None:
    plan = plan_loading(TINY)
    asked = options.replace(plan, quantisation="4-bit")
    with pytest.raises(ConfigError, match="to be loaded in 4 bits and was loaded without quantisation"):
        loaded.check_asked(load_base(TINY)[0], asked, AutoConfig.from_pretrained(plan.location))


def test_a_model_in_another_precision_is_refused() -> None:
    asked = plan_loading(TINY, UnslothConfig(dtype="bfloat16"))
    config = AutoConfig.from_pretrained(asked.location)
    loaded.check_asked(load_base(TINY)[0], asked, config)  # more bits do no harm
    with pytest.raises(ConfigError, match="to be loaded in bfloat16, and transformers loaded it in float16"):
        loaded.check_asked(load_base(TINY)[0].to(torch.float16), asked, config)


def test_a_continued_run_loads_the_same_base_again(copy: Path) -> None:
    before = opened(str(copy), dtype="bfloat16").loaded
    assert opened(str(copy), before=before).loaded == before, "not the precision that the run was begun with"
    with pytest.raises(ConfigError, match="begun with parameters = 7, and now"):
        opened(str(copy), before={**before, "parameters": 7})


async def test_the_description_of_the_base_is_read_from_model_json(tmp_path: Path) -> None:
    settings = LocalSettings(base_model=TINY, run=tmp_path, title="p/n", unsloth=UnslothConfig(dtype="bfloat16"))
    learner = InProcessLearner(settings)
    about = (await learner.open()).loaded
    assert about["dtype"] == "bfloat16"
    await learner.save(CheckpointExtras())
    await learner.close()
    (tmp_path / "model.json").write_text(json.dumps({"loaded": about}))
    assert loaded_before(tmp_path) == about
    again = InProcessLearner(settings.model_copy(update={"unsloth": UnslothConfig()}))
    assert (await again.open()).loaded == about
    await again.close()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"loaded": 3}'])
def test_a_model_json_that_says_nothing_of_it_is_no_obstacle(content: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(content)
    assert loaded_before(tmp_path) == {}


def test_folders_that_hold_an_adapter_are_no_base_model(copy: Path, tmp_path: Path) -> None:
    (copy / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds both a whole model .* and an adapter"):
        opened(str(copy))
    (copy / "config.json").unlink()
    with pytest.raises(ConfigError, match="holds an adapter, not a base model"):
        opened(str(copy))


def test_scaled_positions_compute_otherwise_and_reach_farther() -> None:
    plain, stretched = opened(), opened(rope_scaling={"type": "linear", "factor": 2.0})
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert not torch.allclose(plain.model(ids).logits, stretched.model(ids).logits, atol=1e-2)
    assert stretched.model.config.max_position_embeddings == 2 * plain.model.config.max_position_embeddings
    assert stretched.model.config.rope_parameters["rope_type"] == "linear"


def test_a_larger_vocabulary_is_the_same_each_time() -> None:
    size = opened().model.config.vocab_size + 24
    first_time, again = (opened(train=FULL, resize_model_vocab=size).model for _ in range(2))
    assert len(first_time.get_input_embeddings().weight) == size
    assert torch.equal(first_time.get_input_embeddings().weight, again.get_input_embeddings().weight)


def test_the_adapters_seed_can_be_another_than_the_runs() -> None:
    def factors(**settings: Any) -> torch.Tensor:
        base = open_base(plan_loading(TINY, UnslothConfig(**settings), seed=3))
        learner = make_learner(base.model, TINY, TrainConfig(), seed=3, plan=base.plan)
        assert learner.seed == 3
        return next(p for name, p in learner.parameters.items() if "lora_A" in name).detach()

    assert torch.equal(factors(), factors(random_state=3))
    assert not torch.equal(factors(), factors(random_state=4))


def test_an_adapter_without_matching_layers_is_refused() -> None:
    config = TrainConfig.model_validate({"lora": {"targets": ("in_proj",)}})
    with pytest.raises(ConfigError, match=r"names in_proj, and Qwen2ForCausalLM has no such layer"):
        make_learner(load_base(TINY)[0], TINY, config)


@pytest.mark.parametrize("package", ["unsloth", "bitsandbytes"])
def test_a_missing_extra_is_named_with_its_command(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    monkeypatch.delenv("IMPORT_UNSLOTH", raising=False)
    asked = UnslothConfig(use=True) if package == "unsloth" else UnslothConfig(load_in_8bit=True)
    with pytest.raises(ConfigError, match=f"needs {package}, which is not installed: pip install"):
        plan_loading(TINY, asked)


def test_a_gated_model_without_a_token_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_rl.backends.base import base_model

    def gated(*args: Any, **kwargs: Any) -> None:
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it.")

    monkeypatch.setattr(base_model, "read_config", gated)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="it is gated, and HF_TOKEN is not set"):
        opened()
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_seen")
    with pytest.raises(ConfigError, match="the token in HF_TOKEN has no access") as caught:
        opened()
    assert "hf_not_to_be_seen" not in str(caught.value)


def test_the_token_is_read_when_it_is_used_and_is_in_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_seen")
    plan = plan_loading(TINY)
    assert plan.token() == "hf_not_to_be_seen"
    assert "hf_not_to_be_seen" not in repr(plan)
    assert plan_loading(TINY, UnslothConfig(token=None)).token() is False
    monkeypatch.delenv("HF_TOKEN")
    assert plan.token() is None


class _Recorder(ModuleType):
    """Replaces Unsloth, which needs a GPU to load anything: it records its arguments, and loads that
    with transformers."""

    def __init__(self) -> None:
        super().__init__("unsloth")
        self.asked: dict[str, Any] = {}
        self.FastLanguageModel = self

    def from_pretrained(self, **asked: Any) -> tuple[PreTrainedModel, Any]:
        self.asked = asked
        print("a banner")
        return load_base(TINY)


def test_unsloth_gets_exactly_the_settings_and_prints_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = _Recorder()
    monkeypatch.setitem(sys.modules, "unsloth", recorder)
    monkeypatch.setattr(options, "find_spec", lambda name: object())
    monkeypatch.delenv("IMPORT_UNSLOTH", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    wanted = UnslothConfig(use=True, max_seq_length=512, max_lora_rank=64)
    base = open_base(plan_loading(TINY, wanted, seed=5))
    assert base.loaded["loader"] == "unsloth"
    assert recorder.asked == {
        "model_name": base_location(TINY), "max_seq_length": 512, "dtype": torch.float32, "load_in_4bit": False,
        "load_in_8bit": False, "full_finetuning": False, "token": None, "rope_scaling": None, "fix_tokenizer": True,
        "trust_remote_code": False, "use_gradient_checkpointing": False, "resize_model_vocab": None,
        "revision": None, "use_exact_model_name": True, "fast_inference": False, "random_state": 5,
        "max_lora_rank": 64, "device_map": {"": "cpu"}, "offload_embedding": False,
    }  # fmt: skip
    out, err = capsys.readouterr()
    assert out == "" and "a banner" in err


@pytest.mark.parametrize(
    ("kept", "own", "given"), [(False, None, "unsloth"), (True, None, False), (True, True, True), (False, False, False)]
)
def test_unsloth_keeps_activations_where_the_plan_does(kept: bool, own: bool | None, given: object) -> None:
    train = TrainConfig(activation_checkpointing=not kept)
    plan = plan_loading(TINY, UnslothConfig(use_gradient_checkpointing=own), train)
    assert arguments(plan, AutoConfig.from_pretrained(plan.location))["use_gradient_checkpointing"] == given


def test_the_default_length_is_the_models_own() -> None:
    plan = plan_loading(TINY)
    config = AutoConfig.from_pretrained(plan.location)
    assert arguments(plan, config)["max_seq_length"] == config.max_position_embeddings


def test_unsloth_is_not_imported_if_it_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("IMPORT_UNSLOTH", raising=False)
    quantised = UnslothConfig(load_in_4bit=True)
    assert plan_loading(TINY, quantised).loader == "unsloth"
    assert plan_loading(TINY).loader == "transformers", "in 16 bits shared prefixes save more"
    assert plan_loading(TINY, UnslothConfig(use=False)).loader == "transformers"
    assert plan_loading(TINY, quantised, unsloth_allowed=False).loader == "transformers"
    assert plan_loading(TINY, quantised, before={"loader": "transformers"}).loader == "transformers"
    with pytest.raises(ConfigError, match="needs vLLM to sample"):
        plan_loading(TINY, UnslothConfig(use=True), unsloth_allowed=False)
    monkeypatch.setenv("IMPORT_UNSLOTH", "0")
    assert plan_loading(TINY, quantised).loader == "transformers"
    assert not first.import_first(None)
    with pytest.raises(ConfigError, match="contradict each other"):
        plan_loading(TINY, UnslothConfig(use=True))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """acme/tiny of the hub, whose main branch has another chat template than the branch "old"; returns that of "old".
    Main is commit aaa…, old is bbb…."""
    model = tmp_path / "hub" / "models--acme--tiny"
    template = (weights_path() / "chat_template.jinja").read_text(encoding="utf-8")
    for branch, commit, written in (("main", "a" * 40, template + "{# newer #}"), ("old", "b" * 40, template)):
        shutil.copytree(weights_path(), model / "snapshots" / commit)
        (model / "snapshots" / commit / "chat_template.jinja").write_text(written, encoding="utf-8")
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / branch).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return template


async def test_a_run_speaks_the_chat_format_of_its_revision(hub: str, tmp_path: Path) -> None:
    trained = TrainableModel[None]("one", "test", "acme/tiny", base_path=tmp_path)
    async with LocalBackend(in_process=True, unsloth=UnslothConfig(revision="old")) as backend:
        await trained.register(backend)
        assert backend.loaded["revision"] == "b" * 40
        assert backend.chat.tokenizer.chat_template == hub


async def test_a_checkpoint_is_sampled_on_its_own_revision(hub: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "0005"
    checkpoint.mkdir(parents=True)
    loaded = {"model_name": "acme/tiny", "revision": "b" * 40}
    (tmp_path / "run" / "model.json").write_text(json.dumps({"loaded": loaded}))
    assert trained_revision("acme/tiny", checkpoint) == "b" * 40
    assert trained_revision("acme/tiny", None) == "a" * 40, "the main branch"
    assert trained_revision(TINY, None) is None and trained_revision(str(tmp_path), None) is None
    assert trained_revision("acme/never-seen", None) is None
    async with LocalPolicies("acme/tiny", trained_options("acme/tiny", checkpoint)) as policies:
        assert policies.chat.tokenizer.chat_template == hub


def test_a_checkpoint_is_sampled_on_its_base_as_loaded(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoints" / "0005"
    checkpoint.mkdir(parents=True)
    loaded = {"base_model": "acme/big", "model_name": "acme/big-4bit", "quantisation": "4-bit", "dtype": "bfloat16"}
    (tmp_path / "model.json").write_text(json.dumps({"loaded": {**loaded, "revision": "c" * 40}}))
    again = UnslothConfig(model_name="acme/big-4bit", load_in_4bit=True, revision="c" * 40)
    assert trained_options("acme/big", checkpoint) == again
    assert trained_dtype(checkpoint) == "bfloat16"
    assert trained_options(TINY, None) == UnslothConfig() and trained_dtype(None) is None


LOADED = {
    "base_model": "acme/big", "model_name": "acme/big-4bit", "quantisation": "4-bit", "dtype": "bfloat16",
    "loader": "transformers", "revision": "c" * 40, "rope_scaling": {"type": "linear", "factor": 2.0},
}  # fmt: skip


def test_what_the_settings_leave_open_is_loaded_as_it_was() -> None:
    again = follow(UnslothConfig(), LOADED, "acme/big")
    assert (again.model_name, again.revision, again.load_in_4bit) == ("acme/big-4bit", "c" * 40, True)
    assert again.rope_scaling == LOADED["rope_scaling"] and again.dtype == "auto" and again.use is None
    plain = follow(UnslothConfig(load_in_4bit=False, revision="v2"), LOADED, "acme/big")
    assert plain.load_in_4bit is False and plain.revision == "v2", "what is asked for counts"
    other = follow(UnslothConfig(model_name="acme/other"), LOADED, "acme/big")
    assert other == UnslothConfig(model_name="acme/other"), "what was loaded of one says nothing of another"
    assert follow(UnslothConfig(), LOADED, "acme/small") == UnslothConfig()
    assert not follow(UnslothConfig(), {**LOADED, "trust_remote_code": True}, "acme/big").trust_remote_code
    odd = {**LOADED, "model_name": 3, "revision": ["x"], "rope_scaling": "no"}
    assert follow(UnslothConfig(), odd, "acme/big") == UnslothConfig()


def test_a_run_of_a_gpu_continues_without_its_precision() -> None:
    cpu, old_gpu = computed_dtypes(gpu=False), computed_dtypes(gpu=True, bfloat16=False)
    for dtype, machine, found in (
        ("float16", cpu, "auto"), ("bfloat16", cpu, "bfloat16"), ("bfloat16", old_gpu, "auto"),
        ("float16", old_gpu, "float16"),
    ):  # fmt: skip
        assert begun_with(UnslothConfig(), {**LOADED, "dtype": dtype}, "acme/big", dtypes=machine).dtype == found
    kept = begun_with(UnslothConfig(), {**LOADED, "quantisation": "none"}, "acme/big", dtypes=cpu)
    assert kept.load_in_4bit is False and kept.use is False
    assert begun_with(UnslothConfig(), LOADED, "acme/small", dtypes=cpu) == UnslothConfig()
    before = {**opened().loaded, "dtype": "float16"}
    assert open_base(plan_loading(TINY, before=before), before).loaded["dtype"] == "float32"


def test_out_of_memory_while_loading_is_not_a_missing_base(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcp_rl.backends.base import base_model

    def load(*args: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(base_model, "load_with_transformers", load)
    with pytest.raises(torch.OutOfMemoryError):
        opened()
