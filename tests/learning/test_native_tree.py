"""The compiled training pass: the loss and the gradients of transformers' and PEFT's own layers."""

import functools
import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel

from mcp_rl.learning.adapter import add_adapter, base_of
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.native import layout
from mcp_rl.learning.native import model as native
from tests.inference.other_lanes import passes_with_other_lanes
from tests.learning.architectures import architecture
from tests.learning.test_tree_gradients import (
    BRANCHED,
    adapted,
    assert_same,
    episodes,
    long_episodes,
    tree_loss,
)

SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 2}


def pair(name: str, **sizes: Any) -> tuple[PeftModel, PeftModel]:
    """Return a model with an adapter twice: computed by the compiled pass, and as PEFT made it."""
    ours, theirs = (adapted(architecture(name, **SIZES | sizes)()) for _ in range(2))
    use_tree_attention(base_of(ours))
    assert native.native_model(base_of(ours)) is not None
    for module in theirs.modules():
        module.__dict__.pop("forward", None)
    return ours, theirs


known = functools.cache(pair)


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3"])
def test_gradients_over_several_turns_are_those_of_peft(name: str) -> None:
    assert_same(*known(name), long_episodes(), temperature=0.8)


@given(sequences=episodes(), min_shared=st.integers(1, 9), shared=st.booleans())
@settings(deadline=None, max_examples=20)
def test_random_trees(sequences: list[list[int]], min_shared: int, shared: bool) -> None:
    assert_same(*known("Qwen3"), sequences, min_shared=min_shared, shared=shared)


@pytest.mark.parametrize("heads", [(2, 2), (4, 1), (6, 2)])
def test_any_number_of_queries_shares_a_key(heads: tuple[int, int]) -> None:
    many, shared = heads
    models = pair("Qwen3", num_attention_heads=many, num_key_value_heads=shared)
    assert_same(*models, BRANCHED, min_shared=4)


def test_tasks_of_few_rows_and_keys_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ROWS", 7)
    monkeypatch.setattr(layout, "PLACES", 40)
    assert_same(*known("Llama"), BRANCHED, min_shared=4)


def test_threads_change_no_bit() -> None:
    model, _ = known("Qwen2")
    sequences, before, found = long_episodes(), torch.get_num_threads(), []
    weights = torch.linspace(-1, 1, sum(len(s) - 1 for s in sequences))
    for threads in (1, 3):
        torch.set_num_threads(threads)
        model.zero_grad()
        try:
            logprobs, _ = tree_loss(model, sequences, weights, temperature=1.0)
        finally:
            torch.set_num_threads(before)
        found.append([logprobs, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 20
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("targets", [["q_proj"], ["v_proj", "down_proj"], ["gate_proj", "o_proj", "k_proj"]])
def test_layers_without_an_adapter(targets: list[str]) -> None:
    ours, theirs = (architecture("Qwen2", **SIZES)() for _ in range(2))
    models = [
        add_adapter(base, rank=rank, alpha=8, targets=targets, base_name="base", seed=3)
        for base, rank in ((ours, 5), (theirs, 5))
    ]
    use_tree_attention(ours)
    assert native.native_model(ours) is not None
    for module in models[1].modules():
        module.__dict__.pop("forward", None)
    for model in models:
        torch.manual_seed(4)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    assert_same(models[0], models[1], BRANCHED, min_shared=4)


def test_what_it_does_not_know_is_left_to_torch() -> None:
    for other in (architecture("Gemma2")(), architecture("Qwen2", **SIZES | {"head_dim": 8, "hidden_size": 40})()):
        add_adapter(other, rank=4, alpha=8, targets=["q_proj"], base_name="base", seed=3)
        assert native.native_model(other) is None
    assert native.native_model(architecture("Qwen2", **SIZES)()) is None, "every weight is trained"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors of other processors have one length")
def test_vectors_of_the_other_length_compute_the_same(tmp_path: Path) -> None:
    passes_with_other_lanes(tmp_path, "tests/learning/test_native_tree.py", "several_turns and Qwen3")
