"""Growth of value chains: each next call is executed on the live server."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from mcp_rl.explore.answer import call_key, holds_secret, lasting_answer, says_nothing
from mcp_rl.explore.outcome import Outcome
from mcp_rl.explore.probe import DRY_WAVES, Probe, ProbeResult
from mcp_rl.scenarios.chain import Chain, Chains, NextCall, readable

if TYPE_CHECKING:
    from collections.abc import Sequence


async def grow_chains(probe: Probe, wanted: Counter[int]) -> list[Chain]:
    """Return value chains of two or more steps: `wanted` of each length, or as many as can be found."""
    useful = {name: progress for name, progress in probe.progress.items() if progress.outcomes}
    links = Chains(
        {name: progress.sampler for name, progress in useful.items()},
        {tool.name: tool.input_schema for tool in probe.tools if tool.name in useful},
        probe.pool,
    )
    found: list[Chain] = []
    for _ in range(DRY_WAVES):
        missing = wanted - Counter(len(chain) for chain in found)
        if not missing:
            break
        goals = [steps for steps in sorted(missing, reverse=True) for _ in range(2 * missing[steps])]
        begun = [(Chain.of(first), goal) for first, goal in zip(probe.spread(len(goals)), goals, strict=False)]
        while begun:
            begun = await _extend(probe, links, begun)
            found += [chain for chain, goal in begun if len(chain) == goal]
            begun = [(chain, goal) for chain, goal in begun if len(chain) < goal]
    return found


async def _extend(probe: Probe, links: Chains, begun: Sequence[tuple[Chain, int]]) -> list[tuple[Chain, int]]:
    """Return the chains that could be made one step longer, each with its target length."""
    goals = {id(chain): goal for chain, goal in begun}
    proposed = [
        link
        for link in links.links([chain for chain, _ in begun], probe.random)
        if call_key(link.tool, link.arguments) not in probe.seen
    ]
    probe.seen.update(call_key(link.tool, link.arguments) for link in proposed)
    results = await probe.call_all([(link.tool, link.arguments) for link in proposed])
    longer: list[tuple[Chain, int]] = []
    for link, result in zip(proposed, results, strict=True):
        if (outcome := _outcome(link, result)) is not None and not probe.is_monotonous(outcome.text):
            longer.append((link.before.then(outcome, link.spoken), goals[id(link.before)]))
    return longer


def _outcome(link: NextCall, result: ProbeResult | None) -> Outcome | None:
    if result is None or result.is_error or not result.stable or holds_secret(result.text):
        return None
    answer = lasting_answer(result.text, link.arguments)
    if says_nothing(result.text, link.arguments) or (answer.value is not None and not readable(answer.value)):
        return None
    return Outcome(link.tool, link.arguments, result.text, answer)
