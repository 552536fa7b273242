"""Over a prefix tree: the loss and the gradients of one sequence at a time with stock attention, for every model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel

from mcp_rl.learning.adapter import add_adapter, trainable_parameters
from mcp_rl.learning.forward.fused_attention import fused_attention
from mcp_rl.learning.forward.logprobs import sampled_logprobs
from mcp_rl.learning.forward.tree import build_tree, split_by_tokens
from mcp_rl.learning.forward.tree_attention import use_tree_attention
from mcp_rl.learning.forward.tree_batch import TreeBatch
from mcp_rl.learning.forward.tree_mask import TreeMask
from tests.learning.architectures import ARCHITECTURES, VOCABULARY, architecture

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PROMPT = list(range(10, 40))
BRANCHED = [
    [*PROMPT, 1, 2, 3, 5, 6],
    [*PROMPT, 4, 5],
    [*PROMPT, 1, 2, 3],
    [*PROMPT[:12], *range(40, 80)],
    [*PROMPT[:12], *range(40, 70), 1, 2],
    [9, 9, 9],
]

wide = st.lists(st.integers(0, VOCABULARY - 1), min_size=2, max_size=25)


@st.composite
def episodes(draw: st.DrawFn) -> list[list[int]]:
    """Sequences that begin with any part of each other."""
    sequences = [draw(wide)]
    for _ in range(draw(st.integers(0, 7))):
        earlier = draw(st.sampled_from(sequences))
        sequences.append(earlier[: draw(st.integers(0, len(earlier)))] + draw(wide))
    return sequences


def tree_loss(
    model: PreTrainedModel | PeftModel, sequences: list[list[int]], weights: Tensor, *, temperature: float, **how: Any
) -> tuple[Tensor, Tensor]:
    """Logprobs of all tokens but the first, their entropy, and the gradient of a weighted sum of both."""
    tree = build_tree([s[:-1] for s in sequences], **how)
    predictors = torch.cat([torch.from_numpy(tree.sequence(i)) for i in range(len(sequences))])
    targets = torch.tensor([token for s in sequences for token in s[1:]])
    logprobs, entropy = sampled_logprobs(model, TreeBatch.of(tree, predictors, targets), temperature)
    (logprobs * weights + 0.3 * entropy).sum().backward()
    return logprobs.detach(), entropy.detach()


def plain_loss(
    model: PreTrainedModel | PeftModel, sequences: list[list[int]], weights: Tensor, *, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute the same loss in a few lines: no tree, stock attention, the model's own logits."""
    logprobs, entropy = [], []
    for s in sequences:
        every = (model(input_ids=torch.tensor([s])).logits[0, :-1].float() / temperature).log_softmax(-1)
        logprobs.append(every.gather(1, torch.tensor(s[1:])[:, None])[:, 0])
        entropy.append(-(every.exp() * every).sum(-1))
    (torch.cat(logprobs) * weights + 0.3 * torch.cat(entropy)).sum().backward()
    return torch.cat(logprobs).detach(), torch.cat(entropy).detach()


def assert_same(
    ours: PreTrainedModel | PeftModel, theirs: PreTrainedModel | PeftModel, sequences: list[list[int]], **how: Any
) -> None:
    ours.zero_grad()
    theirs.zero_grad()
    weights = torch.linspace(-1, 1, sum(len(s) - 1 for s in sequences))
    temperature = how.pop("temperature", 1.0)
    got = tree_loss(ours, sequences, weights, temperature=temperature, **how)
    expected = plain_loss(theirs, sequences, weights, temperature=temperature)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert_gradients(ours, theirs)


def assert_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    scale = max(float(grad.abs().max()) for grad in wanted.values()) or 1.0
    got = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
    assert got.keys() == wanted.keys()
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name] / scale, grad / scale, atol=1e-5, rtol=1e-5, msg=name)


def pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a model twice: attending over trees, and as transformers made it."""
    ours, theirs = architecture(name)(), architecture(name)()
    use_tree_attention(ours)
    assert theirs.config.get_text_config()._attn_implementation in ("sdpa", "eager")
    return ours, theirs


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gradients_of_any_architecture_equal_the_unshared(name: str) -> None:
    ours, theirs = pair(name)
    assert_same(ours, theirs, BRANCHED, min_shared=4, temperature=0.8)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("sampled", [lambda s: range(len(s) - 3, len(s) - 1), lambda s: range(4, len(s) - 1, 5)])
def test_gradients_of_a_few_sampled_tokens_equal_the_unshared(name: str, sampled: Callable[[list[int]], range]) -> None:
    ours, theirs = pair(name)
    sequences = [s for s in BRANCHED if len(s) > 3]
    tree = build_tree([s[:-1] for s in sequences], min_shared=4)
    predictors = torch.cat([torch.from_numpy(tree.sequence(i))[list(sampled(s))] for i, s in enumerate(sequences)])
    targets = torch.tensor([s[place + 1] for s in sequences for place in sampled(s)])
    weights = torch.linspace(-1, 1, len(targets))
    got, _ = sampled_logprobs(ours, TreeBatch.of(tree, predictors, targets))
    (got * weights).sum().backward()  # type: ignore[no-untyped-call]
    alone = []
    for s in sequences:
        every = theirs(input_ids=torch.tensor([s])).logits[0].float().log_softmax(-1)
        alone += [every[place, s[place + 1]] for place in sampled(s)]
    expected = torch.stack(alone)
    (expected * weights).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert_gradients(ours, theirs)


def test_the_last_layer_attends_only_for_what_is_read() -> None:
    tree = build_tree([s[:-1] for s in BRANCHED], min_shared=4)
    last = torch.from_numpy(tree.sequence(3)[-1:])
    mask = TreeMask.of(tree, last)
    q, k, v = (torch.randn(1, heads, len(tree.tokens), 8) for heads in (4, 2, 2))
    every, needed = fused_attention(q, k, v, mask, 0.3), fused_attention(q, k, v, mask, 0.3, last=True)
    torch.testing.assert_close(needed[0, last], every[0, last])
    node = next(node for node in tree.nodes if node.start <= int(last) < node.stop)
    elsewhere = torch.cat([needed[0, : node.start], needed[0, node.stop :]])
    assert len(elsewhere) > node.length and not elsewhere.any()


@pytest.mark.parametrize("name", ["Qwen2", "GptOss"])
def test_without_sharing_the_result_is_the_same(name: str) -> None:
    ours, theirs = pair(name)
    assert_same(ours, theirs, BRANCHED, shared=False)


QWEN2, GEMMA2, GPT_OSS = (pair(name) for name in ("Qwen2", "Gemma2", "GptOss"))


@given(sequences=episodes(), min_shared=st.integers(1, 9), temperature=st.sampled_from([1.0, 0.7]))
@settings(deadline=None, max_examples=15)
def test_random_trees_with_full_attention(sequences: list[list[int]], min_shared: int, temperature: float) -> None:
    assert_same(*QWEN2, sequences, min_shared=min_shared, temperature=temperature)


@given(sequences=episodes(), min_shared=st.integers(1, 9))
@settings(deadline=None, max_examples=8)
def test_random_trees_with_windows_and_soft_capped_scores(sequences: list[list[int]], min_shared: int) -> None:
    assert_same(*GEMMA2, sequences, min_shared=min_shared)


@given(sequences=episodes(), min_shared=st.integers(1, 9))
@settings(deadline=None, max_examples=8)
def test_random_trees_with_windows_and_sinks(sequences: list[list[int]], min_shared: int) -> None:
    assert_same(*GPT_OSS, sequences, min_shared=min_shared)


def adapted(base: PreTrainedModel) -> PeftModel:
    model = add_adapter(base, rank=4, alpha=8, targets=TARGETS, base_name="base", seed=3)
    torch.manual_seed(3)
    for name, parameter in trainable_parameters(model).items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@given(sequences=episodes(), min_shared=st.integers(1, 9), temperature=st.sampled_from([1.0, 0.7]))
@settings(deadline=None, max_examples=8)
def test_gradients_of_an_adapter_are_those_of_peft(
    sequences: list[list[int]], min_shared: int, temperature: float
) -> None:
    assert_same(*ADAPTED, sequences, min_shared=min_shared, temperature=temperature)


def _adapted_pair() -> tuple[PeftModel, PeftModel]:
    ours, theirs = (adapted(model) for model in pair("Qwen2"))
    for module in theirs.modules():  # PEFT's own LoRA layers
        module.__dict__.pop("forward", None)
    return ours, theirs


ADAPTED = _adapted_pair()


@pytest.mark.parametrize("name", ["Qwen2", "Gemma2"])
def test_gradients_of_parts_under_a_token_budget_add_up(name: str) -> None:
    ours, theirs = pair(name)
    total = sum(len(s) - 1 for s in BRANCHED)
    weights = torch.linspace(-1, 1, total).split([len(s) - 1 for s in BRANCHED])
    parts = split_by_tokens([s[:-1] for s in BRANCHED], 60)
    assert len(parts) > 1
    for part in parts:
        tree_loss(ours, [BRANCHED[i] for i in part], torch.cat([weights[i] for i in part]), temperature=1.0)
    plain_loss(theirs, BRANCHED, torch.cat(weights), temperature=1.0)
    assert_gradients(ours, theirs)


def test_chunks_of_logits_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcp_rl.learning.forward.logprobs.CHUNK_ELEMENTS", 4 * VOCABULARY)
    assert_same(*GEMMA2, BRANCHED, min_shared=4, temperature=0.9)


def long_episodes() -> list[list[int]]:
    """Nodes of more tokens than one block holds, many siblings, three turns."""
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(VOCABULARY, (count,), generator=draw).tolist()

    prompt = tokens(150)
    requests = [prompt + tokens(9) for _ in range(3)]
    turns = [request + tokens(20) for request in requests for _ in range(3)]
    return [turn + tokens(12 + 3 * i) for turn in turns for i in range(2)]


@pytest.mark.parametrize("name", ["Qwen3", "Mistral", "GptOss"])
def test_long_nodes_and_many_turns(name: str) -> None:
    ours, theirs = pair(name)
    assert_same(ours, theirs, long_episodes())


@pytest.mark.parametrize("name", ["Qwen2", "Gemma2"])
def test_bfloat16_is_as_near_as_bfloat16_gets(name: str) -> None:
    ours, theirs = (model.to(torch.bfloat16) for model in pair(name))
    with torch.no_grad():
        exact = theirs.float()(torch.tensor([BRANCHED[0]])).logits[0, :-1].log_softmax(-1)
    tree = build_tree([s[:-1] for s in BRANCHED], 4)
    row = torch.from_numpy(tree.sequence(0))
    targets = torch.tensor(BRANCHED[0][1:])
    logprobs, _ = sampled_logprobs(ours, TreeBatch.of(tree, row, targets))
    logprobs.sum().backward()
    assert (logprobs - exact.gather(1, targets[:, None])[:, 0]).abs().mean() < 0.1
    assert all(p.grad is None or p.grad.isfinite().all() for p in ours.parameters())


def test_an_adapter_that_is_switched_off_is_the_base() -> None:
    model, base = ADAPTED[0], architecture("Qwen2")()
    tree = build_tree([[1, 2, 3, 4]])
    batch = TreeBatch.of(tree, torch.arange(3), torch.tensor([2, 3, 4]))
    with torch.no_grad():
        on, _ = sampled_logprobs(model, batch)
        with model.disable_adapter():
            off, _ = sampled_logprobs(model, batch)
        expected = base(torch.tensor([[1, 2, 3]])).logits[0].log_softmax(-1)[torch.arange(3), torch.tensor([2, 3, 4])]
    torch.testing.assert_close(off, expected, atol=1e-5, rtol=1e-5)
    assert (on - off).abs().max() > 1e-3
