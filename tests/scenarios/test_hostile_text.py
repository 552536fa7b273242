"""Text of servers is read in time linear in its length, and breaks nothing."""

import time
from collections.abc import Callable

import pytest

from mcp_rl.explore.answer import holds_secret, read_answer, says_nothing
from mcp_rl.explore.hints import alternatives, bounds
from mcp_rl.explore.parts import parts_of
from mcp_rl.explore.values_seen import ValuePool
from mcp_rl.rewards.dates import is_dated, undated

READERS: list[Callable[[str], object]] = [
    alternatives,
    bounds,
    says_nothing,
    is_dated,
    undated,
    holds_secret,
    parts_of,
    lambda text: read_answer(text, {}),
    lambda text: ValuePool().observe({"path": "/x"}, text),
    lambda text: ValuePool().observe_error("tool", {"path": "/x"}, text),
]


@pytest.mark.parametrize(
    "text",
    [
        "one of" + " " * 30_000 + "x",
        "one of " + "a," * 15_000,
        "expected " + "a or or , and " * 2_000,
        "x" * 30_000,
        "token" * 6_000,
        "a.b" * 10_000,
        "between " + "1" * 30_000,
        "[" * 30_000,
    ],
    ids=lambda text: text[:12],
)
def test_no_text_takes_long(text: str) -> None:
    for read in READERS:
        began = time.process_time()
        read(text)
        assert time.process_time() - began < 2
