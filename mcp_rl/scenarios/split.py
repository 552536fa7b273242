"""Scenarios to train on and scenarios to be judged by, with nothing in common.

Scenarios that share an executed call, or are nearly the same request, are tied together and go to the same side as a
whole. So no call that a val scenario needs was ever seen in training. By "combinations", scenarios of several steps
that need the same tools are tied together too: val then shows whether tools are combined as never before.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, Split, normalised_request
from mcp_rl.scenarios.answer import scenario_calls
from mcp_rl.scenarios.duplicates import near_key

Stratum = tuple[str, ...]
SplitBy = Literal["calls", "combinations"]
_COMMON: dict[SplitBy, str] = {"calls": "a call", "combinations": "a call or a combination of tools"}


def split(
    scenarios: Sequence[McpScenario],
    *,
    val_count: int | None = None,
    val_share: float | None = None,
    seed: int = 0,
    by: SplitBy = "calls",
) -> tuple[list[McpScenario], list[McpScenario]]:
    """(train, val), each marked with its split, in the order given, and the tools and step counts in proportion.

    `val_count` is met exactly; `val_share` (0 to 1) as nearly as what is tied together allows, with at least one on
    each side. The same seed gives the same split. Raises ScenarioError where there are too few.
    """
    if (val_count is None) == (val_share is None):
        raise ScenarioError("A split needs either a number of val scenarios or a share, and not both.")
    wanted = val_count if val_count is not None else max(1, round((val_share or 0.0) * len(scenarios)))
    if not 0 < wanted < len(scenarios):
        raise ScenarioError(
            f"{wanted} of {len(scenarios)} scenarios cannot be held out: both sides need at least one; "
            "make more scenarios or hold out fewer."
        )
    chosen = _choose(scenarios, _tied(scenarios, by), wanted, random.Random(seed))
    if not chosen or (val_count is not None and len(chosen) < wanted):
        raise ScenarioError(
            f"Only {len(chosen)} of {len(scenarios)} scenarios can be held out without {_COMMON[by]} in common with "
            f"the rest, and {wanted} are wanted; make more scenarios or hold out fewer."
        )
    train = [_marked(s, "train") for i, s in enumerate(scenarios) if i not in chosen]
    return train, [_marked(s, "val") for i, s in enumerate(scenarios) if i in chosen]


def overlap(one: Iterable[McpScenario], other: Iterable[McpScenario], *, by: SplitBy = "calls") -> set[str]:
    """Executed calls and requests that two sets of scenarios have in common, and combinations of tools where asked."""
    return _traces(one, by) & _traces(other, by)


def _choose(scenarios: Sequence[McpScenario], groups: list[list[int]], wanted: int, random: random.Random) -> set[int]:
    """Whole groups that make up `wanted` scenarios: first within each stratum's quota, then whatever fits."""
    quota = _quotas(Counter(map(_stratum, scenarios)), wanted, random)
    groups = sorted(random.sample(groups, len(groups)), key=len)
    chosen: set[int] = set()
    for group in groups:
        needed = Counter(_stratum(scenarios[i]) for i in group)
        if len(chosen) + len(group) <= wanted and all(quota[s] >= n for s, n in needed.items()):
            quota.subtract(needed)
            chosen.update(group)
    for group in reversed(groups):  # the larger first, so that single ones are left to fill up exactly
        if chosen.isdisjoint(group) and len(chosen) + len(group) <= wanted:
            chosen.update(group)
    return chosen if len(chosen) < len(scenarios) else set()


def _quotas(sizes: Counter[Stratum], wanted: int, random: random.Random) -> Counter[Stratum]:
    """`wanted` places in proportion to the sizes, by largest remainder."""
    total = sum(sizes.values())
    exact = {stratum: size * wanted / total for stratum, size in sizes.items()}
    quota = Counter({stratum: int(places) for stratum, places in exact.items()})
    order = sorted(random.sample(list(exact), len(exact)), key=lambda stratum: quota[stratum] - exact[stratum])
    quota.update(order[: wanted - sum(quota.values())])
    return quota


def _stratum(scenario: McpScenario) -> Stratum:
    """What a scenario is like: how many steps, and which tool gives the answer."""
    last = scenario.reference[-1].tool if scenario.reference else " ".join(scenario.tags)
    return str(len(scenario.reference)), last


def _tied(scenarios: Sequence[McpScenario], by: SplitBy) -> list[list[int]]:
    """Groups of indices that share a call or a request, directly or through others."""
    parent = list(range(len(scenarios)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    first: dict[str, int] = {}
    for index, scenario in enumerate(scenarios):
        for trace in _traces([scenario], by):
            parent[root(index)] = root(first.setdefault(trace, index))
    groups: dict[int, list[int]] = defaultdict(list)
    for index in range(len(scenarios)):
        groups[root(index)].append(index)
    return list(groups.values())


def _traces(scenarios: Iterable[McpScenario], by: SplitBy) -> set[str]:
    traces: set[str] = set()
    for scenario in scenarios:
        traces |= {f"call {call}" for call in scenario_calls(scenario)}
        traces |= {f"request {normalised_request(scenario.task_description)}", f"task {near_key(scenario)}"}
        if by == "combinations" and len(scenario.reference) > 1:
            traces.add(f"tools {sorted({call.tool for call in scenario.reference})}")
    return traces


def _marked(scenario: McpScenario, name: Split) -> McpScenario:
    return scenario.model_copy(update={"split": name})
