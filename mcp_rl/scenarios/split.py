"""Train and val splits that have no call and no request in common.

Scenarios that share an executed call, or have nearly the same request, are tied together and go to the same side. So
training never sees a call that a val scenario needs. Goal tasks are tied together by what they ask and
of which things (`GoalProof.apart`), since most of them begin with the same listings. With "combinations", scenarios of
several steps that need the same tools are tied together too: val then shows whether a model combines tools in ways
never seen in training.

Where almost everything is tied together, as on a server whose tasks share a few calls, `hold_out` sets scenarios
aside that would tie both sides.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mcp_rl.errors import ScenarioError
from mcp_rl.scenario import McpScenario, Split, normalised_request
from mcp_rl.scenarios.duplicates import near_key
from mcp_rl.scenarios.reference import scenario_calls, scenario_tools

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mcp_rl.config import RunConfig

Stratum = tuple[str, ...]
SplitBy = Literal["calls", "combinations"]
_FEWEST = 8
"""Held-out scenarios below which a measurement says nothing, where more are there to be held out."""
_MOST_TIMES = 2
"""How many times its share of the held-out scenarios a level may have, and so may those that need no call."""
_MOST_ASIDE = 0.25
"""Largest share of the scenarios that may be set aside."""
_PROPORTION = 8
"""Scenarios that may be set aside for one held-out scenario, if that keeps tools and step counts in proportion."""
_COMMON: dict[SplitBy, str] = {"calls": "a call", "combinations": "a call or a combination of tools"}


def split(
    scenarios: Sequence[McpScenario],
    *,
    val_count: int | None = None,
    val_share: float | None = None,
    seed: int = 0,
    by: SplitBy = "calls",
) -> tuple[list[McpScenario], list[McpScenario]]:
    """Return (train, val), marked with their split and in the order given, with tools and step counts in proportion.

    `val_count` is met exactly, `val_share` (0 to 1) as nearly as the ties allow, with at least one scenario on each
    side. The same seed gives the same split. Raises ScenarioError where there are too few.
    """
    if (val_count is None) == (val_share is None):
        raise ScenarioError("A split needs either a number of val scenarios or a share, not both.")
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


def hold_out(
    scenarios: Sequence[McpScenario], wanted: int, *, seed: int = 0, by: SplitBy = "calls"
) -> tuple[list[McpScenario], list[McpScenario]]:
    """Return (train, val) as `split` does where it can; else set aside scenarios that would tie both sides.

    Val holds `wanted` scenarios, or fewer where more than a quarter of all would have to be set aside.
    """
    chosen = _choose(scenarios, _tied(scenarios, by), wanted, random.Random(seed), most_times=_MOST_TIMES)
    aside: set[int] = set()
    if len(chosen) < wanted:
        chosen, aside = _choose_apart(scenarios, wanted, random.Random(seed), by)
    train = [_marked(s, "train") for i, s in enumerate(scenarios) if i not in chosen | aside]
    return train, [_marked(s, "val") for i, s in enumerate(scenarios) if i in chosen]


def overlap(one: Iterable[McpScenario], other: Iterable[McpScenario], *, by: SplitBy = "calls") -> set[str]:
    """Return the executed calls and requests that two sets share; by "combinations", the combined tools too."""
    return _traces(one, by) & _traces(other, by)


def _choose(
    scenarios: Sequence[McpScenario],
    groups: list[list[int]],
    wanted: int,
    random: random.Random,
    *,
    most_times: float = math.inf,
) -> set[int]:
    """Choose whole groups that add up to `wanted` scenarios: first within each stratum's quota, then those that fit and
    leave most of every stratum to train on. No level has more than `most_times` its share of them."""
    every = Counter(map(_stratum, scenarios))
    quota = _quotas(every, wanted, random)
    groups = sorted(random.sample(groups, len(groups)), key=len)
    strata = {group[0]: _strata(scenarios, group) for group in groups}
    levels = {group[0]: Counter(_level(scenarios[place]) for place in group) for group in groups}
    chosen: set[int] = set()
    for group in groups:
        needed = strata[group[0]]
        if len(chosen) + len(group) <= wanted and all(quota[s] >= n for s, n in needed.items()):
            quota.subtract(needed)
            chosen.update(group)
    held = _strata(scenarios, chosen)
    room = _room(scenarios, wanted, most_times)
    room.subtract(_level(scenarios[place]) for place in chosen)

    def fits(group: list[int]) -> bool:
        more = levels[group[0]]
        return len(chosen) + len(group) <= wanted and all(room[level] >= n for level, n in more.items())

    left = [group for group in reversed(groups) if chosen.isdisjoint(group)]  # larger ones first
    while left := [group for group in left if fits(group)]:
        shares = [max((held[s] + n) / every[s] for s, n in strata[group[0]].items()) for group in left]
        group = left.pop(shares.index(min(shares)))
        held += strata[group[0]]
        room.subtract(levels[group[0]])
        chosen.update(group)
    return chosen if len(chosen) < len(scenarios) else set()


def _room(scenarios: Sequence[McpScenario], wanted: int, times: float) -> Counter[str]:
    """Return the number of scenarios of each level that may be held out, at most so many times its share."""
    levels = Counter(map(_level, scenarios))
    share = min(1.0, times * wanted / len(scenarios))
    return Counter({level: math.ceil(share * count) for level, count in levels.items()})


def _level(scenario: McpScenario) -> str:
    return scenario.level if scenario.reference else "without a call"


def _quotas(sizes: Counter[Stratum], wanted: int, random: random.Random) -> Counter[Stratum]:
    """Distribute `wanted` places in proportion to the sizes, by largest remainder."""
    total = sum(sizes.values())
    exact = {stratum: size * wanted / total for stratum, size in sizes.items()}
    quota = Counter({stratum: int(places) for stratum, places in exact.items()})
    order = sorted(random.sample(list(exact), len(exact)), key=lambda stratum: quota[stratum] - exact[stratum])
    quota.update(order[: wanted - sum(quota.values())])
    return quota


def _strata(scenarios: Sequence[McpScenario], places: Iterable[int]) -> Counter[Stratum]:
    return Counter(_stratum(scenarios[place]) for place in places)


def _stratum(scenario: McpScenario) -> Stratum:
    """Return the number of steps and the tool that gives the answer; of a goal task, the level and its kind."""
    if scenario.proof is not None:
        return scenario.level, *scenario.tags[-1:]
    last = scenario.reference[-1].tool if scenario.reference else " ".join(scenario.tags)
    return str(len(scenario.reference)), last


def _tied(scenarios: Sequence[McpScenario], by: SplitBy) -> list[list[int]]:
    """Group the indices of scenarios that share a call or a request, directly or through others."""
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
        traces.add(f"request {normalised_request(scenario.task_description)}")
        if scenario.apart:
            traces |= set(scenario.apart)
            continue
        if scenario.proof is None:
            traces |= {f"call {call}" for call in scenario_calls(scenario)}
        else:  # all goal tasks begin with the same listings: what counts is what is asked, and of what
            traces |= set(scenario.proof.apart)
        traces.add(f"task {near_key(scenario)}")
        if by == "combinations" and len(scenario.reference) > 1 and scenario.proof is None:
            traces.add(f"tools {sorted({call.tool for call in scenario.reference})}")
    return traces


def _marked(scenario: McpScenario, name: Split) -> McpScenario:
    return scenario.model_copy(update={"split": name})


@dataclass(frozen=True)
class Division:
    """The scenarios of a run."""

    train: list[McpScenario]
    val: list[McpScenario]
    notice: str = ""
    """Sentences on the held-out scenarios, where they are not the wanted number of all kinds."""


def divide(scenarios: Sequence[McpScenario], config: RunConfig) -> Division:
    """Divide by the scenarios' own `split` if any is marked val, else hold out `scenarios.val`, but at most a third.

    Where ties allow fewer, scenarios that would tie both sides are set aside, on neither side, up to a quarter of all.
    Raises ScenarioError where too few can be held out.
    """
    train = [s for s in scenarios if s.split == "train" or s.split is None]
    val = [s for s in scenarios if s.split == "val"]
    if not val and len(train) > 1:
        return _held_out(train, config)
    if not train or not val:
        marks = f' ({len(train)} to train on, {len(val)} marked "split": "val")' if len(scenarios) > 1 else ""
        raise ScenarioError(
            f"{_counted(len(scenarios), 'scenario')} cannot be divided{marks}: a run needs at least one to train on "
            "and another to hold out; add scenarios, such as those of `mcp-rl generate`"
            f"{', or mark fewer' if val else ''}."
        )
    return Division(train, val)


def _held_out(scenarios: Sequence[McpScenario], config: RunConfig) -> Division:
    asked, count = config.scenarios.val, len(scenarios)
    wanted = min(asked, max(1, round(count / 3)))
    train, val = hold_out(scenarios, wanted, seed=config.seed)
    if len(val) < min(_FEWEST, wanted):
        raise ScenarioError(
            f"Only {len(val)} of {count} scenarios can be held out without a call or a request in common with those "
            f"to train on, and at least {min(_FEWEST, wanted)} are needed: add scenarios with calls of their own, such "
            'as those of `mcp-rl generate`, or choose yourself in a scenarios file, with "split": "val".'
        )
    notice = _notice(count, len(val), count - len(train) - len(val), asked)
    if missing := sorted(set().union(*map(scenario_tools, train)) - set().union(*map(scenario_tools, val))):
        notice += (
            f"{' ' if notice else ''}No held-out scenario uses {_listed(missing)}, so success there is not measured."
        )
    return Division(train, val, notice)


def _notice(count: int, held: int, aside: int, asked: int) -> str:
    if held == asked and not aside:
        return ""
    notice = f"{held} of {_counted(count, 'scenario')} {'is' if held == 1 else 'are'} held out"
    if aside:
        notice += f", and {aside} that share a call or a request with {'it' if held == 1 else 'them'} set aside"
    notice += f": success will be known to about ±{_uncertainty(held)} points"
    if held < asked:
        more = f"{3 * asked} scenarios" if count < 3 * asked else "more scenarios with calls of their own"
        notice += f"; {more} would allow {asked} (scenarios.val), and ±{_uncertainty(asked)} points"
    return f"{notice}."


def _uncertainty(held: int) -> int:
    """Return half the width of a 95 % interval at 50 % success, in points: Wilson's, one episode for each scenario."""
    z = 1.96
    return round(100 * z / 2 * math.sqrt(held + z * z) / (held + z * z))


def _choose_apart(
    scenarios: Sequence[McpScenario], wanted: int, random: random.Random, by: SplitBy
) -> tuple[set[int], set[int]]:
    """Choose up to `wanted` scenarios, and set aside all others that share a trace with one of them.

    Each choice is the one that sets fewest aside, with an allowance for those that keep tools and steps in proportion.
    """
    quota = _quotas(Counter(map(_stratum, scenarios)), wanted, random)
    room = _room(scenarios, wanted, _MOST_TIMES)
    order = random.sample(range(len(scenarios)), len(scenarios))
    sharing: dict[str, list[int]] = defaultdict(list)
    for index, scenario in enumerate(scenarios):
        for trace in _traces([scenario], by):
            sharing[trace].append(index)
    tied = [0] * len(scenarios)  # sets of scenarios are the bits of an integer
    for together in sharing.values():
        bits = sum(1 << index for index in together)
        for index in together:
            tied[index] |= bits
    every = (1 << len(scenarios)) - 1
    train, chosen = every, 0
    while chosen.bit_count() < wanted:
        best: tuple[int, int] | None = None
        for index in order:
            if chosen >> index & 1 or room[_level(scenarios[index])] < 1:
                continue
            left = train & ~tied[index]
            aside = len(scenarios) - left.bit_count() - chosen.bit_count() - 1
            if not left or aside > _MOST_ASIDE * len(scenarios):
                continue
            cost = aside + (0 if quota[_stratum(scenarios[index])] > 0 else _PROPORTION)
            if best is None or cost < best[0]:
                best = cost, index
        if best is None:
            break
        train &= ~tied[best[1]]
        chosen |= 1 << best[1]
        quota[_stratum(scenarios[best[1]])] -= 1
        room[_level(scenarios[best[1]])] -= 1
    return _indices(chosen), _indices(every & ~train & ~chosen)


def _indices(bits: int) -> set[int]:
    return {index for index in range(bits.bit_length()) if bits >> index & 1}


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:4], f"{len(names) - 4} more tools"] if len(names) > 5 else list(names)
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
