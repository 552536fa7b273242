"""Near-duplicates: scenarios that are the same task in slightly different words."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp_rl.scenario import McpScenario

_ALIKE, _LEAST_ALIKE = 1 / 6, 12
_TOKEN = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+")
_FILLERS = frozenset(
    "a an the please then and first next after that of for me to is are be it kindly now just finally".split()  # noqa: SIM905
)


def most_alike(tasks: int) -> int:
    """Return how many of so many tasks may be changes by the same tools, which differ in little but their values.

    A sixth of them, and at least 12.
    """
    return max(_LEAST_ALIKE, round(_ALIKE * tasks))


def near_key(scenario: McpScenario) -> str:
    """Return a key that requests in the same state with the same answer, words and numbers, fillers apart, share.

    "Add 3 and 4" and "please add 4 to 3" have the same key. "Subtract 3 from 4" and "subtract 4 from 3" differ by their
    answers, "add 3 and 5" by its numbers.
    """
    found = _TOKEN.findall(scenario.task_description.casefold())
    # A request of nothing but fillers or signs has its own text as key.
    words = sorted(token for token in found if token not in _FILLERS) or [scenario.task_description.casefold()]
    state = f" in {json.dumps(scenario.initial_state, sort_keys=True)}" if scenario.initial_state else ""
    return f"{' '.join(words)} = {scenario.reference_answer or ''}{state}"


def distinct_tasks(scenarios: Iterable[McpScenario]) -> list[McpScenario]:
    """Return the first scenario of each task, in order."""
    first: dict[str, McpScenario] = {}
    for scenario in scenarios:
        first.setdefault(near_key(scenario), scenario)
    return list(first.values())
