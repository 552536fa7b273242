"""FlexAttention over a tree, as far as it runs without CUDA: the same blocks, mask and scores."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import AuxOutput, create_mask
from torch.nn.attention.flex_attention import flex_attention as kernel

from mcp_rl.learning.forward import flex_attention as flex
from mcp_rl.learning.forward.flex_attention import BLOCK, block_mask, can_flex, flex_attention
from mcp_rl.learning.forward.masked_attention import Scores, masked_attention
from mcp_rl.learning.forward.tree import PrefixTree, build_tree
from mcp_rl.learning.forward.tree_mask import TreeMask

SCORES = [Scores(0.3), Scores(0.3, softcap=2.0), Scores(0.3, window=40), Scores(0.3, softcap=2.0, window=7)]


def big_tree(seed: int = 0) -> PrefixTree:
    """Make a tree of several blocks: three turns, prompts longer and shorter than a block."""
    draw = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(50, (count,), generator=draw).tolist()

    prompt = tokens(190)
    turns = [prompt + tokens(30) for _ in range(3)]
    return build_tree([turn + tokens(20 + 30 * i) for turn in turns for i in range(3)] + [tokens(70)])


def inputs(length: int, heads: int = 4, kv_heads: int = 2, size: int = 16) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = [(1, heads, length, size), (1, kv_heads, length, size), (1, kv_heads, length, size), (heads,)]
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def test_blocks_and_mask_are_those_of_the_tree() -> None:
    tree = big_tree()
    mask, length = TreeMask.of(tree), len(tree.tokens)
    for window in (None, 40, 3):
        blocks = block_mask(mask, window)
        padded = blocks.shape[-1]
        assert padded % BLOCK == 0 and padded < 1.13 * length + BLOCK
        seen = create_mask(blocks.mask_mod, None, None, padded, padded, device="cpu")[0, 0]
        assert torch.equal(seen[:length, :length], mask.visible(slice(None), slice(None), window))
        assert not seen[:length, length:].any() and not seen[length:, :length].any()
        assert seen.any(1).all()
        count = seen.view(padded // BLOCK, BLOCK, -1, BLOCK).sum((1, 3))
        assert torch.equal(blocks.to_dense()[0, 0].bool(), count > 0)
        assert int(blocks.full_kv_num_blocks.sum()) == int((count == BLOCK * BLOCK).sum())
    assert block_mask(mask).full_kv_num_blocks.sum() > 0


@pytest.mark.parametrize("scores", SCORES, ids=str)
@pytest.mark.parametrize("sinks", [False, True])
def test_the_kernel_equals_matrix_products(scores: Scores, sinks: bool) -> None:
    mask = TreeMask.of(big_tree())
    q, k, v, s = inputs(len(mask.enter))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        got = flex_attention(q, k, v, mask, scores, s if sinks else None, kernel=kernel)
        expected = masked_attention(q, k, v, mask, scores, s if sinks else None)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def written_out(
    q: Tensor, k: Tensor, v: Tensor, *, score_mod: Any, block_mask: Any, scale: float, enable_gqa: bool, return_aux: Any
) -> tuple[Tensor, AuxOutput]:
    """Compute the same as the kernel, with a backward pass, which torch lacks on CPUs."""
    groups = q.shape[1] // k.shape[1] if enable_gqa else 1
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT * scale
    if score_mod is not None:
        s = score_mod(s, *(torch.zeros(()),) * 4)
    s = s.masked_fill(~create_mask(block_mask.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu"), -torch.inf)
    return s.softmax(-1) @ v, AuxOutput(lse=s.logsumexp(-1))


@pytest.mark.parametrize("scores", SCORES, ids=str)
def test_kernel_gradients_are_those_of_matrix_products(scores: Scores) -> None:
    mask = TreeMask.of(big_tree())
    parts = inputs(len(mask.enter))
    q, k, v, sinks = parts
    results = []
    for out in (
        flex_attention(q, k, v, mask, scores, sinks, kernel=written_out),
        masked_attention(q, k, v, mask, scores, sinks),
    ):
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        results.append([out, *torch.autograd.grad((out * weights).sum(), parts)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scores", SCORES, ids=str)
def test_matrix_products_have_the_right_derivative(scores: Scores) -> None:
    tree = build_tree([[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 7]], 1)
    mask = TreeMask.of(tree)
    parts = [part.detach().double().requires_grad_() for part in inputs(len(tree.tokens), 2, 1, 3)]
    torch.autograd.gradcheck(lambda q, k, v, sinks: masked_attention(q, k, v, mask, scores, sinks), parts)


def test_a_machine_without_cuda_does_not_use_it() -> None:
    q, k, v, _ = inputs(8)
    assert not can_flex(q, k, v, Scores(0.3), None)


def wrong(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, AuxOutput]:
    out, extra = written_out(q, k, v, **how)
    return out.roll(1, 2), extra


def failing(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> tuple[Tensor, AuxOutput]:
    raise RuntimeError("no kernel for this head size\nand more")


@pytest.mark.parametrize(
    ("kernel", "reason"), [(wrong, "its values are wrong"), (failing, "no kernel for this head size")]
)
def test_a_kernel_that_fails_its_trial_is_not_used(
    kernel: Any, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flex, "_compiled", lambda: kernel)
    assert not flex._works.__wrapped__(torch.device("cpu"), torch.float32, 4, 2, 16, 16, None, True)
    assert reason in caplog.text and "and more" not in caplog.text


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_kernel_that_computes_the_same_passes_its_trial(
    softcap: float | None, sinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flex, "_compiled", lambda: written_out)
    assert flex._works.__wrapped__(torch.device("cpu"), torch.float32, 4, 2, 16, 16, softcap, sinks)


def test_too_many_compilations_are_an_error_and_no_silent_change_of_kernel() -> None:
    tree = build_tree([[*range(40), *range(start, start + 30)] for start in (100, 200)])
    mask, scores = TreeMask.of(tree), Scores(0.3)
    attend = flex.compiled(backend=lambda module, inputs: module.forward)
    with torch._dynamo.config.patch(recompile_limit=1), pytest.raises(FailOnRecompileLimitHit):
        for dtype in (torch.float32, torch.float64):
            q, k, v = (part.detach().to(dtype) for part in inputs(len(tree.tokens))[:3])
            flex_attention(q, k, v, mask, scores, kernel=attend)
