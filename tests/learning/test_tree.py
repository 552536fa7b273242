"""The prefix tree: nothing lost, each shared token there once, and the same gradient as without sharing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from transformers import PreTrainedModel

from mcp_rl.errors import EngineError
from mcp_rl.learning.adapter import add_adapter, trainable_parameters
from mcp_rl.learning.logprobs import TreeBatch, sampled_logprobs
from mcp_rl.learning.tree import build_tree, split_by_tokens
from mcp_rl.learning.tree_attention import TreeMask, dense_mask, tree_attention, use_tree_attention
from tests.learning.models import VOCABULARY, make_learner, qwen2

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# few distinct tokens and copies of each other's beginnings: deep and wide trees, duplicates, prefixes of others
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=30)


@st.composite
def branching(draw: st.DrawFn) -> list[list[int]]:
    sequences = [draw(token_lists)]
    for _ in range(draw(st.integers(0, 9))):
        earlier = draw(st.sampled_from(sequences))
        cut = draw(st.integers(0, len(earlier)))
        sequences.append(earlier[:cut] + draw(token_lists))
    return sequences


@given(branching(), st.integers(1, 9))
@settings(deadline=None, max_examples=150)
def test_every_sequence_can_be_read_back_from_the_tree(sequences: list[list[int]], min_shared: int) -> None:
    tree = build_tree(sequences, min_shared)
    for i, sequence in enumerate(sequences):
        path = tree.sequence(i)
        assert tree.tokens[path].tolist() == sequence
        assert tree.positions[path].tolist() == list(range(len(sequence)))
    assert len(tree.tokens) <= tree.unshared_tokens == sum(map(len, sequences))


@given(branching())
@settings(deadline=None, max_examples=100)
def test_with_no_threshold_no_prefix_is_there_twice(sequences: list[list[int]]) -> None:
    distinct = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    assert len(build_tree(sequences, 1).tokens) == len(distinct)


@given(branching(), st.integers(5, 60), st.booleans())
@settings(deadline=None, max_examples=60)
def test_parts_cover_all_sequences_once_and_keep_the_budget(
    sequences: list[list[int]], budget: int, shared: bool
) -> None:
    parts = split_by_tokens(sequences, budget, shared=shared)
    assert sorted(i for part in parts for i in part) == list(range(len(sequences)))
    for part in parts:
        tree = build_tree([sequences[i] for i in part], shared=shared)
        assert len(part) == 1 or len(tree.tokens) <= budget


@given(branching(), st.integers(5, 60))
@settings(deadline=None, max_examples=40)
def test_a_part_is_cut_only_where_it_would_not_fit(sequences: list[list[int]], budget: int) -> None:
    fits = len(build_tree(sequences).tokens) <= budget
    assert (len(split_by_tokens(sequences, budget)) == 1) == (fits or len(sequences) == 1)
    assert len(split_by_tokens(sequences, None)) == 1


@given(branching(), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_each_token_sees_its_own_sequence_up_to_itself_and_nothing_else(
    sequences: list[list[int]], min_shared: int
) -> None:
    tree = build_tree(sequences, min_shared)
    seen = dense_mask(tree)
    for i in range(len(sequences)):
        path = torch.from_numpy(tree.sequence(i))
        for depth, position in enumerate(path.tolist()):
            assert seen[position].nonzero().squeeze(1).tolist() == sorted(path[: depth + 1].tolist())


@given(branching())
@settings(deadline=None, max_examples=40)
def test_without_sharing_every_sequence_is_a_chain_of_its_own(sequences: list[list[int]]) -> None:
    tree = build_tree(sequences, shared=False)
    assert len(tree.tokens) == tree.unshared_tokens == sum(map(len, sequences))
    assert tree.saved_share == 0.0
    for i, sequence in enumerate(sequences):
        assert tree.tokens[tree.sequence(i)].tolist() == sequence


def test_no_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        build_tree([])


def adapted(base: PreTrainedModel, seed: int = 3) -> PeftModel:
    model = add_adapter(base, rank=4, alpha=8, targets=TARGETS, base_name="base", seed=seed)
    torch.manual_seed(seed)
    for name, parameter in trainable_parameters(model).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def compare(
    make: Callable[[], PreTrainedModel], sequences: list[list[int]], min_shared: int, temperature: float
) -> None:
    """Logprobs of all tokens but the first, and the gradient of a weighted sum of them, shared and plain."""
    shared = make()
    use_tree_attention(shared)
    shared_model, plain_model = adapted(shared), adapted_plain(make)
    tree = build_tree([s[:-1] for s in sequences], min_shared)
    predictors = torch.cat([torch.from_numpy(tree.sequence(i)) for i in range(len(sequences))])
    targets = torch.tensor([token for s in sequences for token in s[1:]])
    weights = torch.linspace(-1, 1, len(targets))
    logprobs, entropy = sampled_logprobs(shared_model, TreeBatch.of(tree, predictors, targets), temperature)
    (logprobs * weights + 0.3 * entropy).sum().backward()

    expected, expected_entropy = [], []
    for s in sequences:
        all_logprobs = (plain_model(torch.tensor([s])).logits[0, :-1] / temperature).log_softmax(-1)
        expected.append(all_logprobs.gather(1, torch.tensor(s[1:])[:, None])[:, 0])
        expected_entropy.append(-(all_logprobs.exp() * all_logprobs).sum(-1))
    plain, plain_entropy = torch.cat(expected), torch.cat(expected_entropy)
    (plain * weights + 0.3 * plain_entropy).sum().backward()

    torch.testing.assert_close(logprobs, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, plain_entropy, atol=1e-5, rtol=1e-5)
    theirs = trainable_parameters(plain_model)
    scale = max(float(p.grad.abs().max()) for p in theirs.values() if p.grad is not None)
    for name, parameter in trainable_parameters(shared_model).items():
        torch.testing.assert_close(parameter.grad / scale, theirs[name].grad / scale, atol=1e-5, rtol=1e-5)


def adapted_plain(make: Callable[[], PreTrainedModel]) -> PeftModel:
    """Stock attention and PEFT's own LoRA layers."""
    model = adapted(make())
    for module in model.modules():
        module.__dict__.pop("forward", None)
    assert model.get_base_model().config._attn_implementation == "sdpa"
    return model


wide = st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=25)


@st.composite
def episodes(draw: st.DrawFn) -> list[list[int]]:
    sequences = [draw(wide)]
    for _ in range(draw(st.integers(0, 7))):
        earlier = draw(st.sampled_from(sequences))
        sequences.append(earlier[: draw(st.integers(0, len(earlier)))] + draw(wide))
    return sequences


@given(sequences=episodes(), min_shared=st.integers(1, 9), temperature=st.sampled_from([1.0, 0.7]))
@settings(deadline=None, max_examples=25)
def test_logprobs_and_gradients_equal_the_unshared_computation(
    sequences: list[list[int]], min_shared: int, temperature: float
) -> None:
    compare(qwen2, sequences, min_shared, temperature)


def test_any_decoder_only_model_can_be_used(any_base: Callable[[], PreTrainedModel]) -> None:
    prompt = list(range(10, 40))
    compare(any_base, [[*prompt, 1, 2, 3], [*prompt, 4, 5], [*prompt, 1, 2, 3], [9, 9, 9]], 4, 1.0)


def test_chunks_of_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.learning.logprobs.CHUNK_ELEMENTS", 4 * VOCABULARY)
    prompt = list(range(10, 40))
    compare(qwen2, [[*prompt, 1, 2, 3, 4, 5, 6], [*prompt, 4, 5], [*prompt, 1, 2, 3]], 4, 0.9)


def test_the_dense_mask_of_other_devices_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeBatch, "of", _dense(TreeBatch.of))
    prompt = list(range(10, 40))
    compare(qwen2, [[*prompt, 1, 2, 3, 4, 5, 6], [*prompt, 4, 5], [*prompt, 1, 2, 3]], 4, 0.9)


def _dense(of: Callable[..., TreeBatch]) -> Callable[..., TreeBatch]:
    def make(tree: object, *rest: object) -> TreeBatch:
        batch = of(tree, *rest)
        return replace(batch, mask=replace(batch.mask, dense=dense_mask(batch.mask.tree)))

    return make


def test_an_adapter_that_is_switched_off_is_the_base(any_base: Callable[[], PreTrainedModel]) -> None:
    learner = make_learner(any_base())
    tree = build_tree([[1, 2, 3, 4]])
    batch = TreeBatch.of(tree, torch.arange(3), torch.tensor([2, 3, 4]))
    with torch.no_grad():
        on, _ = sampled_logprobs(learner.model, batch)
        with learner.model.disable_adapter():
            off, _ = sampled_logprobs(learner.model, batch)
        base = any_base()(torch.tensor([[1, 2, 3]])).logits[0].log_softmax(-1)[torch.arange(3), torch.tensor([2, 3, 4])]
    torch.testing.assert_close(off, base, atol=1e-5, rtol=1e-5)
    assert (on - off).abs().max() > 1e-3


def test_a_window_shorter_than_the_sequences_is_refused() -> None:
    mask = TreeMask.of(build_tree([list(range(20))]))
    q = torch.zeros(1, 2, 20, 8)
    with pytest.raises(EngineError, match="window of 10"):
        tree_attention(torch.nn.Module(), q, q, q, None, sliding_window=10, tree_mask=mask)
