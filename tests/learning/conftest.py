"""Fixtures of the learning tests."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from tests.learning.models import llama, qwen2


@pytest.fixture(params=[qwen2, llama], ids=["qwen2", "llama"])
def any_base(request: pytest.FixtureRequest) -> Callable[[], PreTrainedModel]:
    """Makes the same random model each time it is called."""
    maker: Callable[[], PreTrainedModel] = request.param
    return maker
