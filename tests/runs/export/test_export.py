"""Exports hold the model: other programs load them as their cards say, and they call tools."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from mcp_rl.cli import main
from mcp_rl.config import TINY
from mcp_rl.evaluation.models import find_model
from mcp_rl.learning.disk.checkpoint import find_damage
from mcp_rl.learning.disk.merge import generation_config, merge, weight_files
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.export.adapter import copy_base
from mcp_rl.runs.export.source import ExportSource
from mcp_rl.tiny import weights_path
from tests.docs.examples import examples
from tests.runs.export.trained import write_run

ROOT = Path(__file__).resolve().parents[3]
CALCULATOR = ROOT / "servers" / "python" / "mcp_calculator" / "server.py"
IDS = torch.arange(20, 60)[None]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an output folder with the run `calc`, which trained an adapter, and the run `whole`, which trained every
    weight."""
    out = tmp_path_factory.mktemp("out")
    write_run(out / "default" / "models" / "calc", "lora")
    write_run(out / "default" / "models" / "whole", "full")
    return out


@pytest.fixture(scope="module")
def exports(place: Path) -> Path:
    """Export the newest step of both runs in each format that needs no other program."""
    for name, kind in (("calc", "adapter"), ("calc", "merged"), ("whole", "merged")):
        assert main(["export", name, "--format", kind, "--output-dir", str(place)]) == 0
    return place / "default" / "exports"


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval().double()(input_ids=IDS).logits[0]
    return found


def policy(run: Path) -> Any:
    """Load base and adapter of the newest step with plain transformers and peft."""
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(weights_path()), run / "checkpoints" / "0002")


def test_exports_load_and_call_tools_without_mcp_rl(place: Path, exports: Path) -> None:
    folders = [exports / name for name in ("calc-2-adapter", "calc-2-merged", "whole-2-merged")]
    command = [sys.executable, Path(__file__).with_name("plain.py"), CALCULATOR, *folders]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["modules"] == []
    for folder in folders:
        calls = found["folders"][str(folder)]["calls"]
        assert ["add", {"a": 3, "b": 4}, "7", False] in calls
        assert found["folders"][str(folder)]["ends"]
    exact = logits(policy(place / "default" / "models" / "calc"))
    for folder in folders[:2]:
        theirs = torch.tensor(found["folders"][str(folder)]["logits"], dtype=torch.float64)
        torch.testing.assert_close(theirs, exact, atol=1e-5, rtol=0)


def test_the_page_loads_an_adapter(place: Path, exports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [snippet] = [e.text for e in examples() if e.page == "docs/export.md" and e.text.startswith("from peft import")]
    monkeypatch.chdir(exports / "calc-2-adapter")
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/export.md", "exec"), names)
    exact = logits(policy(place / "default" / "models" / "calc"))
    torch.testing.assert_close(logits(names["model"]), exact, atol=1e-5, rtol=0)
    assert names["tokenizer"].chat_template


def test_full_training_exports_every_weight(place: Path, exports: Path) -> None:
    trained = AutoModelForCausalLM.from_pretrained(place / "default" / "models" / "whole" / "checkpoints" / "0002")
    exported = AutoModelForCausalLM.from_pretrained(exports / "whole-2-merged")
    theirs = dict(exported.named_parameters())
    assert all(torch.equal(parameter, theirs[name]) for name, parameter in trained.named_parameters())
    assert exported.config.tie_word_embeddings and exported.lm_head.weight is exported.model.embed_tokens.weight


def test_exports_are_sealed_carded_and_free_of_paths(place: Path, exports: Path) -> None:
    for folder in exports.iterdir():
        assert find_damage(folder) is None
        names = {path.name for path in folder.iterdir()}
        assert {"README.md", "chat_template.jinja", "generation_config.json", "tokenizer.json"} <= names
        for path in folder.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            for private in (str(place), str(weights_path()), str(Path.home()), str(ROOT)):
                assert len(private) < 6 or private.encode() not in content, path
    card = (exports / "calc-2-merged" / "README.md").read_text()
    assert "| success, greedy | 0.250 [0.125, 0.312] | 0.875 [0.750, 0.938] |" in card
    for fact in ("40 held out", "| seed | 7 |", "| steps | 2 |", "feedbeef", "`add`", "`mcp_calculator`", "apache-2.0"):
        assert fact in card, fact
    assert not [path for path in exports.iterdir() if path.name.startswith(".")]


def test_commands_accept_exported_folders(exports: Path, tmp_path: Path) -> None:
    spec = find_model(str(exports / "calc-2-adapter"), tmp_path)
    assert spec.kind == "checkpoint" and Path(spec.name) == exports / "calc-2-adapter" / "base"
    assert find_model(str(exports / "calc-2-merged"), tmp_path).kind == "base"
    assert (
        main(["export", str(exports / "calc-2-adapter"), "--format", "merged", "--out", str(tmp_path / "again")]) == 0
    )
    one, other = (
        (folder / "model.safetensors").read_bytes() for folder in (exports / "calc-2-merged", tmp_path / "again")
    )
    assert one == other


def test_the_base_goes_by_its_hub_name(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "calc@1", "--base", "org/Tiny-1M", "--out", str(tmp_path / "named"), "--output-dir", str(place)]
    assert main([*words, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["model"], done["step"], done["format"]) == ("calc@1", 1, "adapter")
    about = json.loads((tmp_path / "named" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "org/Tiny-1M"
    assert not (tmp_path / "named" / "base").exists()
    card = (tmp_path / "named" / "README.md").read_text()
    assert "base_model: org/Tiny-1M" in card
    assert "This step was not evaluated" in card and "0.875" not in card


def test_rounding_errors_are_reported(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", "calc", "--format", "merged", "--dtype", "bfloat16", "--out", str(tmp_path / "half"), "--json"]
    assert main([*words, "--output-dir", str(place)]) == 0
    done = json.loads(capsys.readouterr().out)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert model.dtype == torch.bfloat16 and done["dtype"] == "bfloat16"
    assert 1e-4 < done["logit_difference"] < 1 and 0 < done["update_lost"] < 1
    assert "rounding to bfloat16" in (tmp_path / "half" / "README.md").read_text()


def test_only_exports_are_overwritten_and_only_on_request(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", "calc", "--output-dir", str(place), "--out", str(tmp_path / "mine")]
    assert main(words) == 0
    assert main(words) == 2 and "add --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("years of work")
    words[-1] = str(tmp_path / "foreign")
    assert main([*words, "--overwrite"]) == 2
    assert (tmp_path / "foreign" / "thesis.txt").read_text() == "years of work"


def test_leftovers_of_a_killed_export_are_cleaned_up(place: Path, tmp_path: Path) -> None:
    words = ["export", "calc", "--output-dir", str(place), "--out", str(tmp_path / "x")]
    assert main(words) == 0
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "x").rename(tmp_path / f".x.{dead.pid}.old")  # killed between two renames
    (tmp_path / f".x.{dead.pid}.tmp").mkdir()
    (tmp_path / f".x.{os.getpid()}.elsewhere").mkdir()
    assert main(words) == 2  # the earlier export is there again
    assert {path.name for path in tmp_path.iterdir()} == {"x", f".x.{os.getpid()}.elsewhere"}
    assert find_damage(tmp_path / "x") is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["calc@9"], "has no checkpoint of step 9; it keeps 1 and 2"),
        (["calc@0"], "has no adapter, because it is a base model"),
        (["whole"], "has no adapter, because all of its weights were trained"),
        (["scripted:reference"], "is a script"),
        (["calc", "--base", "nonsense"], "--base must be a folder or a name on the Hugging Face hub"),
        (["calc", "--quantise", "q8_0"], "--quantise needs a GGUF file"),
        (["calc", "--dtype", "float16"], "--dtype needs merged weights"),
        (["calc", "--format", "gguf"], "`git clone --depth 1 https://github.com/ggml-org/llama.cpp`"),
        (["calc", "--format", "gguf", "--quantise", "q99"], "such as f32, f16, bf16, q8_0 or q4_k_m"),
        (["calc", "--format", "gguf", "--converter", "/nowhere.py"], "The converter /nowhere.py does not exist"),
    ],
)
def test_impossible_exports_are_one_sentence(
    words: list[str],
    sentence: str,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("MCP_RL_GGUF_CONVERTER", raising=False)
    assert main(["export", *words, "--output-dir", str(place), "--out", str(tmp_path / "x")]) == 2
    said = capsys.readouterr().err
    assert sentence in said and len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_checkpoint_is_not_exported(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "default" / "models" / "calc", tmp_path / "default" / "models" / "calc")
    weights = tmp_path / "default" / "models" / "calc" / "checkpoints" / "0002" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert main(["export", "calc@2", "--output-dir", str(tmp_path)]) == 2
    assert "is damaged (adapter_model.safetensors has changed)" in capsys.readouterr().err
    assert main(["export", "calc", "--output-dir", str(tmp_path)]) == 0  # the one before is intact
    assert [path.name for path in (tmp_path / "default" / "exports").iterdir()] == ["calc-1-adapter"]


def test_a_wrong_base_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Qwen2Config.from_pretrained(weights_path())
    other.num_hidden_layers, other.layer_types = 2, ["full_attention"] * 2
    Qwen2ForCausalLM(other).save_pretrained(tmp_path / "other")
    words = ["export", "calc", "--format", "merged", "--output-dir", str(place), "--out", str(tmp_path / "x")]
    assert main([*words, "--base", str(tmp_path / "other")]) == 2
    assert "its num_hidden_layers is 2, but the base's is 4" in capsys.readouterr().err


def test_cards_of_fine_tuned_and_unknown_folders(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "default" / "models" / "tuned"
    shutil.copytree(place / "default" / "models" / "calc", run)
    (run / "seal.json").unlink()
    about = {"name": "tuned", "project": "default", "base_model": TINY, "sft": {"seed": 3}}
    (run / "model.json").write_text(json.dumps(about))
    shutil.copytree(run / "checkpoints" / "0002", tmp_path / "found")
    assert main(["export", "tuned", "--output-dir", str(tmp_path)]) == 0
    card = (tmp_path / "default" / "exports" / "tuned-2-adapter" / "README.md").read_text()
    assert "trained with supervised fine-tuning, 2 steps" in card and "- sft\n- mcp" in card and "| seed | 3 |" in card
    assert main(["export", str(tmp_path / "found"), "--out", str(tmp_path / "x")]) == 0
    card = (tmp_path / "x" / "README.md").read_text()
    assert "# found" in card and "It was not evaluated before the export." in card and "None" not in card


def test_cards_name_the_bases_revision_and_precision(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "default" / "models" / "calc"
    shutil.copytree(place / "default" / "models" / "calc", run)
    (run / "seal.json").unlink()
    about = json.loads((run / "model.json").read_text())
    loaded = {"quantisation": "4-bit", "revision": "c0ffee", "model_name": "org/model"}
    (run / "model.json").write_text(json.dumps({**about, "loaded": loaded}))
    words = ["export", "calc", "--output-dir", str(tmp_path), "--base", "org/model"]
    assert main(words) == 0
    folder = tmp_path / "default" / "exports" / "calc-2-adapter"
    assert json.loads((folder / "adapter_config.json").read_text())["revision"] == "c0ffee"
    card = (folder / "README.md").read_text()
    assert "| base during training | 4 bits |" in card and 'from_pretrained("org/model", revision="c0ffee")' in card
    assert main([*words, "--format", "merged"]) == 0
    card = (tmp_path / "default" / "exports" / "calc-2-merged" / "README.md").read_text()
    assert "was trained on the base in 4 bits and is merged into its weights in float32" in card


def test_duplicate_weight_files_are_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = small_base(tmp_path / "base", tied=False)
    again = {f"again.{name}": tensor for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(again, base / "consolidated.safetensors")
    assert main(["export", str(base), "--format", "merged", "--out", str(tmp_path / "x")]) == 2
    assert "has no tokenizer beside its weights" in capsys.readouterr().err
    merge(base, None, tmp_path / "once")
    assert not any(name.startswith("again.") for name in load_file(tmp_path / "once" / "model.safetensors"))
    copy_base(base, tmp_path / "copied")
    assert not (tmp_path / "copied" / "consolidated.safetensors").exists()
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    save_file(again, tmp_path / "parts" / "consolidated.safetensors")
    parts = weight_files(tmp_path / "parts")
    assert len(parts) > 1 and all(part.name.startswith("model-") and part.is_file() for part in parts)
    shutil.copy(tmp_path / "parts" / "model.safetensors.index.json", base)  # an index of missing shards
    assert weight_files(base) == [base / "model.safetensors"]


def test_adapters_merge_into_the_base_that_was_loaded(tmp_path: Path) -> None:
    copy = small_base(tmp_path / "copy", tied=False)
    source = ExportSource("calc", "adapter", "org/base", None, 1, RunDirectory(tmp_path))
    for quantisation in ("none", "4-bit"):  # quantised on loading
        loaded = {"base_model": "org/base", "model_name": str(copy), "quantisation": quantisation}
        (tmp_path / "model.json").write_text(json.dumps({"base_model": "org/base", "loaded": loaded}))
        assert source.weights == str(copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "quantization_config": {"load_in_4bit": True}}))
    assert source.weights == "org/base"


# -- the arithmetic, on adapters of every kind


def small_base(folder: Path, *, tied: bool) -> Path:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=11, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=tied,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def adapted(base: Path, folder: Path, **settings: Any) -> Any:
    model = AutoModelForCausalLM.from_pretrained(base)
    given = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", **settings}
    made = get_peft_model(model, LoraConfig(**given)).eval()
    torch.manual_seed(1)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    made.save_pretrained(str(folder), save_embedding_layers=False)
    return made


ADAPTERS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "by the root of the rank": lambda: {"use_rslora": True},
    "ranks of their own": lambda: {"rank_pattern": {"q_proj": 2}},
    "with magnitudes": lambda: {"use_dora": True},
    "with the output": lambda: {"target_modules": ["q_proj", "lm_head"]},
    "with the input": lambda: {"target_modules": ["q_proj", "embed_tokens"]},
}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.filterwarnings("ignore")
def test_merged_logits_are_the_adapters(kind: str, tied: bool, tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", tied=tied)
    model = adapted(base, tmp_path / "adapter", **ADAPTERS[kind]())
    done = merge(base, tmp_path / "adapter", tmp_path / "merged", shard_bytes=20_000)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-5, rtol=0)
    assert loaded.config.tie_word_embeddings is (tied and not kind.endswith("put"))
    assert done.files == len(list((tmp_path / "merged").glob("model-*-of-*.safetensors"))) > 5
    assert done.parameters >= sum(parameter.numel() for parameter in loaded.parameters())


def test_shards_keep_their_size_and_hold_each_weight_once(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", tied=True)
    merge(base, None, tmp_path / "merged", shard_bytes=20_000)
    index = json.loads((tmp_path / "merged" / "model.safetensors.index.json").read_text())
    for path in (tmp_path / "merged").glob("*.safetensors"):
        with safe_open(path, framework="pt") as content:
            names = list(content.keys())
        assert names and all(index["weight_map"][name] == path.name for name in names)
        assert path.stat().st_size < 24_000 or len(names) == 1


def test_a_quantised_base_needs_its_16_bit_weights(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", tied=True)
    about = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**about, "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(Exception, match="give the same model in 16 bits with --base"):
        merge(base, None, tmp_path / "merged")


def test_the_bases_sampling_penalties_are_dropped(tmp_path: Path) -> None:
    base = small_base(tmp_path / "base", tied=True)
    brought = {"do_sample": True, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": [7, 8], "pad_token_id": 7}
    (base / "generation_config.json").write_text(json.dumps(brought))
    kept = json.loads(generation_config(base, 9, trained=False))
    assert (kept["repetition_penalty"], kept["eos_token_id"]) == (1.05, [9, 7, 8])
    plain = json.loads(generation_config(base, 7, trained=True))
    assert (plain["eos_token_id"], plain["pad_token_id"]) == ([7, 8], 7)
    assert {"do_sample", "top_k", "repetition_penalty"}.isdisjoint(plain)
    assert json.loads(generation_config(None, 5, trained=True)) == {"eos_token_id": 5}


def test_exports_hold_the_runs_tokenizer(exports: Path) -> None:
    ours, theirs = (AutoTokenizer.from_pretrained(path) for path in (weights_path(), exports / "calc-2-merged"))
    text = 'Add 17 and 25. <tool_call>\n{"name": "add"}'
    assert ours(text)["input_ids"] == theirs(text)["input_ids"] and ours.chat_template == theirs.chat_template
