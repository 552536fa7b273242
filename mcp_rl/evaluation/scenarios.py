"""Choose the scenarios of an evaluation, and count those that a model has seen in training."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mcp_rl.errors import ScenarioError
from mcp_rl.evaluation.difficulty import read_difficulty, with_difficulty
from mcp_rl.scenarios.builtin import EXPLORE
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.fit import check_made_for
from mcp_rl.scenarios.sources import run_scenarios, scenario_file, source_name
from mcp_rl.scenarios.split import divide, overlap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp_rl.config import RunConfig
    from mcp_rl.evaluation.models import ModelSpec
    from mcp_rl.plugins.manager import Plugins
    from mcp_rl.scenario import McpScenario, ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer


@dataclass(frozen=True)
class Chosen:
    """Scenarios and their origin in words; empty if they are still to be made."""

    scenarios: list[McpScenario]
    origin: str


def choose(
    config: RunConfig, models: Sequence[ModelSpec], server: ToolServer, plugins: Plugins, count: int | None
) -> Chosen:
    """Choose the file's scenarios; else those that the first run among the models held out; else none yet.

    At most `count` are drawn with the seed. Raises ScenarioError for a file or scenarios that cannot be used.
    """
    if config.scenarios.file is not None:
        chosen = _from_file(config, server)
    else:
        chosen = next((found for model in models if (found := _held_out(model))), Chosen([], ""))
    check_made_for(chosen.scenarios, server.name, plugins.servers)
    return draw(chosen, count, config.seed)


async def make_held_out(
    config: RunConfig,
    server: ToolServer,
    params: ServerParams,
    sessions: Sessions,
    plugins: Plugins,
    count: int | None,
) -> Chosen:
    """Make the scenarios that a training run with this seed would hold out."""
    every = await run_scenarios(config, server, params, sessions, plugins)
    val = divide(every, config).val
    return draw(Chosen(val, f"held out of {len(every)} {_origin(config, server)}"), count, config.seed)


def _origin(config: RunConfig, server: ToolServer) -> str:
    if scenario_file(config, server) is not None:
        return "that its plugin brings"
    source = source_name(config.scenarios.source, server)
    return "that exploring it made" if source == EXPLORE else f"that the source {source} made"


def draw(chosen: Chosen, count: int | None, seed: int) -> Chosen:
    """Draw at most `count` scenarios, in their order."""
    if count is None or len(chosen.scenarios) <= count:
        return chosen
    kept = sorted(random.Random(f"evaluate {seed}").sample(range(len(chosen.scenarios)), count))
    origin = f"{count} drawn from {len(chosen.scenarios)} {chosen.origin}"
    return replace(chosen, scenarios=[chosen.scenarios[index] for index in kept], origin=origin)


def seen_in_training(model: ModelSpec, scenarios: Sequence[McpScenario]) -> int:
    """Count the scenarios that share an executed call or a request with the model's training; 0 if that is unknown."""
    trained_on = model.run.scenarios("train") if model.run and model.step else None
    shared = overlap(scenarios, trained_on) if trained_on else set()
    if not shared or trained_on is None:
        return 0
    return sum(bool(overlap([scenario], trained_on)) for scenario in scenarios)


def _from_file(config: RunConfig, server: ToolServer) -> Chosen:
    path = config.scenarios.file
    assert path is not None
    every = read_scenario_file(path, server, config.transport, config.scenarios)
    kept = [scenario for scenario in every if scenario.split != "train"]
    if not kept:
        raise ScenarioError(f"All {len(every)} scenarios in {path} are marked for training; add some of another split.")
    rest = f", those {len(every) - len(kept)} marked for training left out" if len(kept) < len(every) else ""
    return Chosen(with_difficulty(kept, read_difficulty(path.parent)), f"from {path}{rest}")


def _held_out(model: ModelSpec) -> Chosen | None:
    val = model.run.scenarios("val") if model.run else None
    if model.run is None or not val:
        return None
    val = with_difficulty(val, read_difficulty(model.run.path))
    return Chosen(val, f"held out by the run {model.label.partition('@')[0]}")
