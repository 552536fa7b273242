"""Generate scenarios from several servers: their number, the time, and the share that holds when executed again.

    python -m benchmarks.scenarios [--npm] [--time-server COMMAND] [--out benchmarks/results/scenarios.json]

Without options, the two bundled servers. `--npm` adds two of the Model Context Protocol's reference servers, which npx
downloads: server-everything, and server-filesystem in a scratch folder with some files. `--time-server` is a command
that starts mcp-server-time (PyPI). "reference" and "refusal" are the shares of scenarios whose verifier accepts the
reference solution, played as a rollout, and a refusal without a call.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp_rl.evaluation.scripted import SCRIPTS, Script, ScriptedSetting
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.recipe import Recipe
from mcp_rl.plugins.resolve import resolve_server
from mcp_rl.rewards.verifier import verify
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario
from mcp_rl.scenarios.broken import broken_scenarios
from mcp_rl.scenarios.generate import GenerateRequest, generate
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import Trajectory


def scratch_folder(root: Path) -> Path:
    """Write twelve small files, ten of them in two folders, and return the folder."""
    for number in range(10):
        path = root / ("notes" if number % 2 else "recipes") / f"page{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"Page {number}.\nIts second line.\n" * (number + 1))
    (root / "settings.json").write_text('{"colour": "blue"}')
    (root / "README.md").write_text("# Scratch\n")
    return root


async def accepted(
    sessions: Sessions, scenarios: list[McpScenario], script: Script, plugins: Plugins
) -> list[McpScenario]:
    """Return the scenarios whose verifier accepts the script's episode."""
    passed: list[McpScenario] = []

    def finish(scenario: McpScenario, trajectory: Trajectory) -> None:
        verify(trajectory, scenario, plugins.verifiers)
        if trajectory.success:
            passed.append(scenario)

    player = SettingPlayer(
        lambda session: ScriptedSetting(script, session), sessions, limits=Limits(max_turns=8), finish=finish
    )
    await asyncio.gather(*(player.play(scenario, seed=0) for scenario in scenarios))
    return passed


async def measure(server: ToolServer, recipe: Recipe, plugins: Plugins) -> dict[str, Any]:
    """Return the figures of a server, and ten of its requests."""
    began = time.perf_counter()
    generated = await generate(server, GenerateRequest(recipe))
    seconds = time.perf_counter() - began
    scenarios = generated.scenarios
    async with Sessions(server=server) as sessions:
        findings = await broken_scenarios(sessions, server.params(), scenarios)
        solved = await accepted(sessions, scenarios, SCRIPTS["reference"], plugins)
        refused = await accepted(sessions, scenarios, SCRIPTS["refuse"], plugins)
    summary = generated.summary()
    return {
        "server": server.name,
        "seed": recipe.seed,
        "wanted": recipe.count,
        **{key: summary[key] for key in ("scenarios", "solved", "unsolvable", "without_tools", "steps", "verifiers")},
        "seconds": round(seconds, 2),
        "holding": (len(scenarios) - len(findings)) / len(scenarios),
        "reference": len(solved) / len(scenarios),
        "refusal": len(refused) / len(scenarios),
        "sample": [s.task_description for s in random.Random(0).sample(scenarios, min(10, len(scenarios)))],
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npm", action="store_true")
    parser.add_argument("--time-server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    plugins = load_plugins()
    with tempfile.TemporaryDirectory() as folder:
        wanted = [("mcp_calculator", 500), ("mcp_notes", 200)]
        if options.npm:
            wanted.append(("npx -y @modelcontextprotocol/server-everything stdio", 150))
            files = scratch_folder(Path(folder))
            wanted.append((f"npx -y @modelcontextprotocol/server-filesystem {files}", 150))
        if options.time_server:
            wanted.append((options.time_server, 150))
        results = []
        for name, count in wanted:
            found = await measure(resolve_server(name, plugins=plugins), Recipe(count, options.seed), plugins)
            results.append(found)
            kinds = f"calls {found['steps']}; verifiers {found['verifiers']}"
            print(f"{found['server']}: {found['scenarios']} scenarios in {found['seconds']:.1f} s; {kinds}")
            shares = {key: f"{found[key]:.1%}" for key in ("holding", "reference", "refusal")}
            print(
                f"  {shares['holding']} hold again; accepted: {shares['reference']} of the reference solutions, "
                f"{shares['refusal']} of the refusals"
            )
            for request in found["sample"]:
                print(f"    {request[:300]}")
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
