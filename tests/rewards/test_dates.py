"""How long a call took, and when it was made, does not tell two results apart."""

import json
import time

import pytest

from mcp_rl.rewards.dates import is_dated, undated, untimed


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"sum": 2.5, "execution_time_ms": 0.0979, "took": 3}', '{"sum": 2.5, "execution_time_ms": 0, "took": 0}'),
        ('{"responseTime":53,"n":1}', '{"responseTime":0,"n":1}'),
        ('{"query_time": "0.5ms"}', '{"query_time": "0ms"}'),
        ("Found 3 files. Took 12ms.", "Found 3 files. Took 0ms."),
        ("Processing time: 1.2e-05 seconds", "Processing time: 0 seconds"),
        ("Elapsed: 3 ms", "Elapsed: 0 ms"),
        ("LATENCY: 3 ms", "LATENCY: 0 ms"),
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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("at 2026-11-28T09:05Z.", "at <time>."),
        ("at 2026-11-28 09:05:01.250+01:00", "at <time>"),
        ("open since 9:05:01", "open since <time>"),
        ("at {now:.0f}", "at <time>"),
        ("at {now:.0f}250, 3 of 5", "at <time>, 3 of 5"),
        ("{now:.3f}", "<time>"),
    ],
)
def test_times_of_day_are_replaced(text: str, left: str) -> None:
    text = text.format(now=time.time())
    assert is_dated(text)
    assert undated(text) == left


@pytest.mark.parametrize("text", ["9:05", "3:15:1", "2026-11-28", "1234567890", "12345678901", "ratio 16:9, 09:05"])
def test_what_may_be_data_stays(text: str) -> None:
    assert not is_dated(text)
    assert undated(text) == text
