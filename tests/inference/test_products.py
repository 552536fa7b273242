"""The product of a linear layer by the faster library is torch's own, and does not depend on the number of rows."""

import pytest
import torch
from torch.nn import functional as F

from mcp_rl.inference import products
from mcp_rl.inference.products import has_onednn, linear

SHAPES = [(128, 768), (384, 128), (128, 4605), (24, 72), (2000, 32)]


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_it_is_torchs_within_rounding(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 16, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    exact = F.linear(x.double(), weight.double(), bias.double())
    forms = weight, weight.T.contiguous().T
    for ours in (*(linear(x, form, bias) for form in forms), linear(x, weight) + bias):
        assert torch.allclose(ours.double(), exact, atol=1e-5 * inputs**0.5)


def test_a_weight_with_gaps_between_its_rows_is_right_too() -> None:
    torch.manual_seed(0)
    x, wide = torch.randn(64, 32), torch.randn(32, 192)
    weight = wide[:, :151].T
    assert not weight.is_contiguous() and not weight.T.is_contiguous()
    assert torch.allclose(linear(x, weight), F.linear(x, weight), atol=1e-4)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(512, inputs), torch.randn(outputs, inputs)
    whole = linear(x, weight)
    for rows in (16, 32, 48, 80, 112, 256, 304):
        assert torch.equal(linear(x[:rows].clone(), weight), whole[:rows])


@pytest.mark.parametrize(("dtype", "processor"), [(torch.float64, "AVX512"), (torch.float32, "AVX2")])
def test_other_types_and_processors_take_torchs(
    dtype: torch.dtype, processor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: processor)
    has_onednn.cache_clear()
    monkeypatch.setattr(products.F, "linear", lambda *given: "torch's")
    try:
        assert linear(torch.ones(16, 8, dtype=dtype), torch.ones(4, 8, dtype=dtype)) == "torch's"
    finally:
        monkeypatch.undo()
        has_onednn.cache_clear()
