"""Play recorded held-out episodes again: the same tasks, seeds and checkpoint, on the live server.

A server is started only if a plugin offers it by the run's own name for it, or if the user names it. Nothing else that
the run's files say is executed: no command, no plugin, no code of a model's repository.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ConfigError, McpRlError
from mcp_rl.evaluation.models import find_model
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.runs.verify.claims import Claim, RecordedRun, refuted, unproven
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import open_sessions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mcp_rl.evaluation.bench import Bench
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import Trajectory

_NAME = "played again"


@dataclass(frozen=True)
class Repetition:
    """A recorded episode to be played again."""

    step: int
    scenario: McpScenario
    recorded: Trajectory
    greedy: bool


@dataclass
class Repeated:
    """The outcomes of episodes that were played again."""

    same: int = 0
    """Episodes with the same tokens."""
    alike: int = 0
    """Episodes with other tokens and the same verdict."""
    other: int = 0
    faults: int = 0

    def claim(self, steps: Sequence[int]) -> Claim:
        """Return what the episodes show."""
        count = self.same + self.alike + self.other
        where = " and ".join("before training" if step == 0 else f"of step {step}" for step in steps)
        said = f"{self.same} of {count} episodes {where} came out token for token"
        if self.alike:
            said += f", {self.alike} with other tokens and the same verdict"
        if self.faults:
            said += f"; {self.faults} could not be played, by the server's fault"
        if self.other:
            return refuted(_NAME, f"{said}, and {self.other} with another verdict than was recorded.")
        return Claim(_NAME, "proven" if count else "not proven", f"{said}.")


def server_of(evidence: RecordedRun, named: Sequence[str]) -> ToolServer:
    """Return the server that the user named, else the run's own if a plugin offers it. Raises UserError."""
    origin = evidence.origin
    config, servers = evidence.config, tuple(named) or tuple(origin.servers)
    if not named and not set(servers) <= set(evidence.plugins.servers):
        raise ConfigError(f"the run's server {origin.identity.server} is started only if you name it: add --server.")
    transport = None if named else origin.command.get("transport")
    return resolve_servers(servers, transport, plugins=evidence.plugins, tools=config.tools)


def choose(evidence: RecordedRun, count: int) -> list[Repetition]:
    """Draw `count` recorded episodes of each compared evaluation. The draw is not foreseeable."""
    draw, found = random.SystemRandom(), []
    scenarios = {scenario.id: scenario for scenario in evidence.splits["val"]}
    for step in evidence.evaluated:
        every = [
            Repetition(step, scenarios[group.scenario.id], group.trajectories[0], evidence.greedy)
            for group in evidence.evaluation(step)
            if group.trajectories and group.trajectories[0].stop_reason.trainable and group.scenario.id in scenarios
        ]
        found += draw.sample(every, min(count, len(every)))
    return found


async def play_again(
    evidence: RecordedRun, server: ToolServer, chosen: Sequence[Repetition], say: Callable[[str], None]
) -> Claim:
    """Play episodes again and compare their tokens and verdicts with the recorded ones."""
    from mcp_rl.evaluation.bench import Bench

    config = evidence.config
    params = server.params(config.transport)
    tally, steps = Repeated(), list(dict.fromkeys(repetition.step for repetition in chosen))
    models = {step: find_model(f"{evidence.folder}@{step}", evidence.folder.parent) for step in steps}
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    async with open_sessions(server, config.tools, deadlines=deadlines) as sessions:
        session = await sessions.get(params)
        if session.schemas.hash != evidence.origin.identity.schema_hash:
            return unproven(_NAME, f"{server.name} has other tools now than in training.")
        bench = Bench(
            config,
            sessions,
            evidence.scoring,
            params=params,
            system_prompt=server.system_prompt,
            models=list(models.values()),
            say=say,
        )
        async with bench.open():
            for step, model in models.items():
                await _play_step(bench, model, [one for one in chosen if one.step == step], tally)
    return tally.claim(steps)


async def _play_step(bench: Bench, model: Any, chosen: Sequence[Repetition], tally: Repeated) -> None:
    player = await bench.player(model)
    for one in chosen:
        played = await player.play(one.scenario, one.recorded.seed, 0.0 if one.greedy else player.temperature)
        if not played.stop_reason.trainable:
            tally.faults += 1
        elif [segment.tokens for segment in played.segments] == [segment.tokens for segment in one.recorded.segments]:
            tally.same += 1
        elif played.success == one.recorded.success:
            tally.alike += 1
        else:
            tally.other += 1


async def attempt(evidence: RecordedRun, named: Sequence[str], count: int, say: Callable[[str], None]) -> Claim:
    """Play a sample again, or say why that is not possible here."""
    if not count:
        return unproven(_NAME, "No episode was played again, as --episodes 0 says.")
    try:
        chosen = choose(evidence, count)
        if not chosen:
            return unproven(_NAME, "There is no held-out episode to play again.")
        return await play_again(evidence, server_of(evidence, named), chosen, say)
    except McpRlError as error:
        return unproven(_NAME, f"No episode was played again: {error}")
