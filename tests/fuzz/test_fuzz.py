"""Input from strangers holds nothing up, takes no memory, and raises nothing but errors of ours.

`make fuzz` runs the same for as long as wanted. What it found once is in `found.py`, and tried here each time.
"""

import os

import pytest
from found import FOUND
from fuzz import ALL, one_round
from targets import TARGETS

EXAMPLES = int(os.environ.get("MCP_RL_FUZZ_EXAMPLES", "8"))
NAMES = (*TARGETS, "streams", "conversations", "templates")
"""Kinds that are tried here; `test_damaged_files.py` tries files, and only `make fuzz` runs and checkpoints."""


@pytest.mark.parametrize("name", NAMES)
def test_input_of_strangers(name: str) -> None:
    ALL[name].prepare()
    failed = one_round(ALL[name], max(1, EXAMPLES // ALL[name].costs), 0)
    assert not failed, f"{failed[0].where}: {failed[0].said}\n{failed[0].trace}"


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, values in FOUND.items() for n in range(len(values))])
def test_what_was_found_once(name: str, number: int) -> None:
    ALL[name].prepare()
    ALL[name].run(FOUND[name][number])
