"""When two scenarios are the same task, though not to the letter."""

import re
from collections.abc import Iterable

from mcp_rl.scenario import McpScenario

_TOKEN = re.compile(r"-?\d+(?:\.\d+)?|[^\W\d_]+")
_FILLERS = frozenset(
    "a an the please then and first next after that of for me to is are be it kindly now just finally".split()  # noqa: SIM905
)


def near_key(scenario: McpScenario) -> str:
    """One text for requests that have the same words and numbers in any order, fillers apart, and the same answer.

    "Add 3 and 4" and "please add 4 to 3" are one; "subtract 3 from 4" and "subtract 4 from 3" are not, and "add 3 and
    5" is another task.
    """
    found = _TOKEN.findall(scenario.task_description.casefold())
    # A request of nothing but fillers or signs is told apart by its own text.
    words = sorted(token for token in found if token not in _FILLERS) or [scenario.task_description.casefold()]
    return f"{' '.join(words)} = {scenario.reference_answer or ''}"


def distinct_tasks(scenarios: Iterable[McpScenario]) -> list[McpScenario]:
    """The first of all that are the same task, in their order."""
    first: dict[str, McpScenario] = {}
    for scenario in scenarios:
        first.setdefault(near_key(scenario), scenario)
    return list(first.values())
