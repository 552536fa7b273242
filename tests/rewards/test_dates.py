"""How long a call took does not tell two results apart."""

import json

import pytest

from mcp_rl.rewards.dates import undated, untimed


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"sum": 2.5, "execution_time_ms": 0.0979, "took": 3}', '{"sum": 2.5, "execution_time_ms": 0, "took": 0}'),
        ('{"responseTime":53,"n":1}', '{"responseTime":0,"n":1}'),
        ('{"query_time": "0.5ms"}', '{"query_time": "0ms"}'),
        ("Found 3 files. Took 12ms.", "Found 3 files. Took 0ms."),
        ("Processing time: 1.2e-05 seconds", "Processing time: 0 seconds"),
        ("Elapsed: 3 ms", "Elapsed: 0 ms"),
    ],
)
def test_the_seconds_that_a_call_took_are_left_out(text: str, left: str) -> None:
    assert untimed(text) == undated(text) == left
    if text.startswith("{"):
        json.loads(left)


@pytest.mark.parametrize(
    "text",
    ["The cooking time: 5", "She took 3 books.", "It took 3 days.", "runtime: 120 min", '{"runTime": 5}', "3 ms"],
)
def test_other_times_and_numbers_stay(text: str) -> None:
    assert untimed(text) == text
