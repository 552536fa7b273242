"""Defaults by size and kind of a model: read from its name or folder, filled in, and overridden by what was given."""

import json
from pathlib import Path

import pytest

from mcp_rl.config import DEFAULTS, SIZES, TINY, ModelKind, RunConfig, config_keys, defaults_for, kind_of


@pytest.mark.parametrize(
    ("name", "size", "thinking"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "up to 1B", False),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "up to 1B", False),
        ("meta-llama/Llama-3.2-1B-Instruct", "up to 1B", False),
        ("Qwen/Qwen3-4B", "up to 4B", True),
        ("Qwen/Qwen3-4B-Instruct-2507", "up to 4B", False),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "larger", True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "up to 14B", True),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "larger", False),
        ("openai/gpt-oss-20b", "larger", True),
        ("google/gemma-3-12b-it", "up to 14B", False),
        ("microsoft/phi-4", "up to 14B", False),
    ],
)
def test_size_and_kind_follow_from_the_name(name: str, size: str, thinking: bool) -> None:
    assert kind_of(name) == ModelKind(SIZES.index(size), thinking)


def test_a_folder_is_measured_and_its_template_read(tmp_path: Path) -> None:
    sizes = {"hidden_size": 2560, "num_hidden_layers": 36, "intermediate_size": 9728, "vocab_size": 151_936}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    assert kind_of(str(tmp_path)) == ModelKind(SIZES.index("up to 4B"))
    (tmp_path / "chat_template.jinja").write_text("{% if enable_thinking %}<think>{% endif %}")
    assert kind_of(str(tmp_path)).thinking
    off = {"chat": {"template_arguments": {"enable_thinking": False}}}
    assert not kind_of(str(tmp_path), off).thinking


def test_every_default_is_a_setting_and_every_kind_a_valid_run() -> None:
    known = {key for key, _ in config_keys()}
    assert {default.key for default in DEFAULTS} <= known and len({d.key for d in DEFAULTS}) == len(DEFAULTS)
    for size in range(len(SIZES)):
        for thinking in (False, True):
            for method in ("lora", "full"):
                made = RunConfig.model_validate({"server": "s", **defaults_for(ModelKind(size, thinking, method))})
                assert made.evaluation.every and not made.rollout.probes and made.rollout.refills


def test_what_was_given_wins_and_a_method_has_its_own_values() -> None:
    name = "Qwen/Qwen2.5-7B-Instruct"
    plain = {"server": "s", "base_model": name}
    lora, full = (RunConfig.model_validate({**plain, "train": {"method": method}}) for method in ("lora", "full"))
    assert full.train.learning_rate == pytest.approx(lora.train.learning_rate / 10)
    assert full.train.checkpoint_every > lora.train.checkpoint_every
    given = RunConfig.model_validate({**plain, "rollout": {"probes": 4}, "evaluation": {"every": 3}})
    assert (given.rollout.probes, given.evaluation.every, given.scenarios.levels) == (4, 3, "mixed")
    tiny = RunConfig(server="s", base_model=TINY)
    assert (tiny.rollout.probes, tiny.scenarios.levels, tiny.evaluation.every) == (4, "auto", 0)
