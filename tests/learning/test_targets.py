"""Which layers of a model get an adapter: by names, or all linear ones; what has none is said."""

import pytest

from mcp_rl.config import LoraConfig
from mcp_rl.errors import ConfigError
from mcp_rl.learning.adapter import add_adapter, merged_weights
from mcp_rl.learning.targets import describe_adapted, resolve_targets, uncovered
from tests.learning.architectures import architecture

NAMES = LoraConfig().targets


def test_the_seven_names_are_all_linear_layers_of_a_llama() -> None:
    assert set(resolve_targets(architecture("Llama")(), ["all-linear"])) == set(NAMES)


@pytest.mark.parametrize(
    ("name", "layers", "covered"),
    [
        ("Phi3", {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}, True),
        ("GPT2", {"c_attn", "c_proj", "c_fc"}, True),
        ("GptOss", {"q_proj", "k_proj", "v_proj", "o_proj"}, False),
        ("Qwen3Moe", {"q_proj", "k_proj", "v_proj", "o_proj"}, False),
    ],
)
def test_all_linear_layers_are_those_that_the_model_has(name: str, layers: set[str], covered: bool) -> None:
    base = architecture(name)()
    targets = resolve_targets(base, ["all-linear"])
    assert set(targets) == layers
    adapted = add_adapter(base, rank=2, alpha=4, targets=targets, base_name="b", seed=0)
    about = describe_adapted(adapted)
    assert set(about["layers"]) == layers and about["modules"] == len(merged_weights(adapted))
    assert (about["share"] > 0.8) is covered
    assert bool(uncovered(about, name)) is not covered  # experts in one tensor are named instead of forgotten


@pytest.mark.parametrize(
    ("name", "missing"), [("Phi3", "q_proj, k_proj, v_proj, gate_proj, up_proj"), ("GPT2", "q_proj")]
)
def test_names_that_match_only_a_part_of_the_layers_are_refused(name: str, missing: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_targets(architecture(name)(), NAMES)
    assert f"train.lora.targets names {missing}" in str(refused.value) and '["all-linear"]' in str(refused.value)


def test_names_that_peft_takes_for_experts_are_left_out() -> None:
    base = architecture("DeepseekV3")()  # its shared experts have linear layers of these names
    with pytest.raises(ConfigError, match="names down_proj, gate_proj, up_proj, which PEFT takes for the experts"):
        resolve_targets(base, ["o_proj", "gate_proj", "up_proj", "down_proj"])
    targets = resolve_targets(base, ["all-linear"])
    assert {"o_proj", "kv_b_proj"} <= set(targets) and not {"gate_proj", "up_proj", "down_proj"} & set(targets)
    assert merged_weights(add_adapter(base, rank=2, alpha=4, targets=targets, base_name="b", seed=0))


def test_a_choice_of_layers_that_are_there_is_kept() -> None:
    assert resolve_targets(architecture("Llama")(), ("q_proj", "self_attn.v_proj")) == ("q_proj", "self_attn.v_proj")
    with pytest.raises(ConfigError, match="leave the others out"):
        resolve_targets(architecture("Llama")(), ["all-linear", "q_proj"])
