"""Fixtures of the backends' tests."""

import pytest

from tests.random_base import write_random_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random Qwen2 of the built-in vocabulary."""
    return write_random_base(tmp_path_factory.mktemp("base"), hidden=64, intermediate=96)
