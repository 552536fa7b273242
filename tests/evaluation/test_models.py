"""Names of models: each finds its model, and a wrong one is refused in one sentence."""

import json
import sys
from pathlib import Path

import pytest

from mcp_rl.cli import main
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.evaluation.models import find_model, find_models
from mcp_rl.learning.disk.checkpoint import write_checkpoint
from mcp_rl.tiny import weights_path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A project with the run `calc`, which keeps the steps 5 and 9."""
    run = tmp_path / "models" / "calc"
    run.mkdir(parents=True)
    (run / "model.json").write_text(json.dumps({"name": "calc", "project": "p", "base_model": "mcp-rl/tiny"}))
    about = json.dumps({"base_model_name_or_path": str(weights_path())}).encode()
    for step in (5, 9):
        write_checkpoint(
            run / "checkpoints", step, {"adapter_config.json": about, "adapter_model.safetensors": b"weights"}
        )
    return tmp_path / "models"


def test_a_run_names_its_newest_or_a_given_checkpoint(runs: Path) -> None:
    newest, fifth = find_model("calc", runs), find_model("calc@5", runs)
    assert (newest.label, newest.step, newest.checkpoint) == ("calc@9", 9, runs / "calc" / "checkpoints" / "0009")
    assert (fifth.kind, fifth.step, fifth.base_model) == ("checkpoint", 5, "mcp-rl/tiny")
    assert find_model(str(runs / "calc"), runs).checkpoint == newest.checkpoint


def test_step_0_is_the_base_model_of_the_run(runs: Path) -> None:
    spec = find_model("calc@0", runs)
    assert (spec.kind, spec.checkpoint, spec.name, spec.label) == ("base", None, "mcp-rl/tiny", "calc@0")


def test_step_0_of_an_initialized_run_is_not_its_base_model(runs: Path) -> None:
    about = runs / "calc" / "model.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "init": "/elsewhere"}))
    with pytest.raises(CheckpointError, match=r"has no checkpoint of step 0; it keeps 5 and 9\.$"):
        find_model("calc@0", runs)


def test_a_copied_checkpoint_folder_is_found(runs: Path, tmp_path: Path) -> None:
    copied = (runs / "calc" / "checkpoints" / "0005").rename(tmp_path / "copied")
    (copied / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere/mcp_rl/tiny/weights"}')
    (copied / "manifest.json").unlink()
    spec = find_model(str(copied), runs)
    assert (spec.kind, spec.base_model, spec.checkpoint) == ("checkpoint", "mcp-rl/tiny", copied)


def test_a_folder_with_weights_is_a_base_model(runs: Path) -> None:
    assert find_model(str(weights_path()), runs).kind == "base"


def test_a_litellm_name_keeps_its_address(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    one = find_model("openai/qwen@http://127.0.0.1:8000/v1", runs)
    assert (one.kind, one.label, one.base_url) == ("chat", "openai/qwen", "http://127.0.0.1:8000/v1")
    assert find_model("openai/qwen", runs, "http://localhost:1/v1").base_url == "http://localhost:1/v1"
    monkeypatch.setenv("OPENAI_API_KEY", "sk-123456789")
    assert find_model("gpt-4.1-mini", runs).base_url is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("calk", "did you mean 'calc'?"),
        ("calk@5", "did you mean 'calc'?"),
        ("calc@7", "has no checkpoint of step 7; it keeps 5 and 9, and step 0 is its base model."),
        ("calc@last", "names no step"),
        ("scripted:refrence", "did you mean scripted:reference?"),
        ("scripted:zzz", "scripted:reference and scripted:refuse"),
        ("./nothing/here", "no such folder"),
        ("openai/gpt-4.1-mini", "needs OPENAI_API_KEY in the environment"),
        ("openai/x@http://user:password@host/v1", "user name or password"),
    ],
)
def test_an_unknown_model_name_is_one_sentence(
    name: str, words: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        find_model(name, runs)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_damaged_checkpoint_is_not_evaluated(runs: Path) -> None:
    (runs / "calc" / "checkpoints" / "0005" / "adapter_model.safetensors").write_bytes(b"weightz")
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors has changed"):
        find_model("calc@5", runs)


def test_an_adapter_for_other_weights_of_the_base_is_refused(runs: Path) -> None:
    about = json.loads((runs / "calc" / "model.json").read_text())
    identity = {"server": "s", "base_model": "mcp-rl/tiny", "base_revision": "0" * 16, "seed": 0}
    identity |= {"schema_hash": "x", "scenarios_hash": "x"}
    (runs / "calc" / "model.json").write_text(json.dumps({**about, "identity": identity}))
    with pytest.raises(CheckpointError, match="other weights of 'mcp-rl/tiny'"):
        find_model("calc@5", runs)


def test_a_model_is_named_once_and_an_address_is_used(runs: Path) -> None:
    with pytest.raises(ConfigError, match="'calc@9' is named twice"):
        find_models(["calc", "calc@9"], runs)
    with pytest.raises(ConfigError, match="serves none of the models"):
        find_models(["mcp-rl/tiny"], runs, "http://127.0.0.1:1/v1")


@pytest.mark.parametrize("name", ["gpt-4.1-mini", "openai/gpt-4.1-mini", "litellm:gpt-4.1-mini"])
def test_a_missing_litellm_is_named_with_its_extra(name: str, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(ConfigError, match=r"need LiteLLM, .*: pip install 'mcp-rl\[apis\]'\.$"):
        find_model(name, runs)
    assert find_model("calc", runs).label == "calc@9"


def test_a_judge_without_litellm_ends_the_command_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--server", "mcp_calculator", "--judge-model", "openai/gpt-4.1-mini"]) == 2
    assert capsys.readouterr().err.endswith("pip install 'mcp-rl[apis]'.\n")
    assert not (tmp_path / ".mcp_rl").exists()
