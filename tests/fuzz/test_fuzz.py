"""Input from strangers holds nothing up, takes no memory, and raises nothing but errors of ours.

`make fuzz` runs the same for as long as wanted. What it found once is in `found.py`, and tried here each time.
"""

import os
from typing import Any

import pytest
from found import FOUND
from hypothesis import HealthCheck, given, settings
from targets import TARGETS

EXAMPLES = int(os.environ.get("MCP_RL_FUZZ_EXAMPLES", "8"))


@pytest.mark.parametrize("name", TARGETS)
def test_input_of_strangers(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
    )
    @given(target.inputs)
    def one(value: Any) -> None:
        target.run(value)

    one()


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, values in FOUND.items() for n in range(len(values))])
def test_what_was_found_once(name: str, number: int) -> None:
    TARGETS[name].run(FOUND[name][number])
