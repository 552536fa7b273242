"""Measure episodes on a Ray cluster with scripted engines: real Ray, real nodes, real tool servers, no model.

    python -m benchmarks.cluster tools      episodes per second of one tool node and of four, with tools of 0.3 s
    python -m benchmarks.cluster servers    a thousand tool servers at once over four nodes: memory, and if it grows
    python -m benchmarks.cluster driver     the driver's own work for an episode
    python -m benchmarks.cluster scale      the most episodes a second that one driver takes, with any number at once

A scripted engine says what it is told after a given time, so what is measured is all that lies around a model. One JSON
object.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import psutil

from benchmarks.ray_nodes import ray_nodes

ROOT = Path(__file__).parents[1]
CALLS = 3
"""Tool calls of an episode."""


class Measured:
    """Players of a cluster with scripted engines."""

    def __init__(self, players: Any, scenario: Any, nodes: Any) -> None:
        self.players, self.scenario, self.crew = players, scenario, nodes

    async def play(self, episodes: int, at_once: int) -> dict[str, float]:
        """Play episodes, some at once; return the rate, and the driver's work for each."""
        limit, faults = anyio.Semaphore(at_once), 0
        seconds: list[float] = []

        async def one(seed: int) -> None:
            nonlocal faults
            async with limit:
                began = time.perf_counter()
                trajectory = await self.players(self.scenario, seed, 1.0)
                seconds.append(time.perf_counter() - began)
                assert trajectory.turns == CALLS + 1 or trajectory.fault, trajectory
                faults += trajectory.fault is not None

        began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        async with anyio.create_task_group() as group:
            for seed in range(episodes):
                group.start_soon(one, seed)
        wall = time.perf_counter() - began
        return {
            "episodes": episodes,
            "at_once": at_once,
            "seconds": round(wall, 2),
            "episodes_per_second": round(episodes / wall, 2),
            "median_episode_seconds": round(statistics.median(seconds), 3),
            "faults": faults,
            "driver_thread_ms": round(1000 * (time.thread_time() - thread) / episodes, 3),
            "driver_process_ms": round(1000 * (time.process_time() - process) / episodes, 3),
        }


@asynccontextmanager
async def measured(
    address: str,
    *,
    nodes: int,
    engines: int,
    sessions: int,
    tool_seconds: float,
    turn_seconds: float,
    words: int,
    scripted: bool = False,
) -> AsyncIterator[Measured]:
    """Open a cluster's tool nodes and scripted engines. `sessions` are the servers of each node, `words` the length of
    the last turn's text; `scripted`: each node plays one episode, and answers all others with it."""
    from benchmarks.scripted_engine import ScriptedEngine, ScriptedNode
    from mcp_rl.backends.base.plain_tokenizer import described
    from mcp_rl.backends.cluster.connection import RayCluster
    from mcp_rl.backends.cluster.crew import Crew, CrewKind, Member
    from mcp_rl.backends.cluster.engine_actor import ChatRecipe, EngineState
    from mcp_rl.backends.cluster.faults import FaultLog
    from mcp_rl.backends.cluster.players import NodePlayers
    from mcp_rl.backends.cluster.sampler_host import ClusterEngine
    from mcp_rl.backends.cluster.tool_node import ToolNode
    from mcp_rl.backends.hosts import LocalSettings
    from mcp_rl.config import TINY, RunConfig
    from mcp_rl.explore.first_contact import states_of
    from mcp_rl.inference.chat.calls import ParsedCall
    from mcp_rl.model import EpisodeRecipe
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.resolve import resolve_servers
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.pool import open_sessions

    server = f"{sys.executable} -S {ROOT / 'benchmarks' / 'small_server.py'} {tool_seconds}"
    config = RunConfig.model_validate(
        {
            "server": [server],
            "backend": "ray",
            "tools": {"isolation": "per-rollout", "max_servers": sessions, "sandbox": "off"},
            "rollout": {"max_turns": CALLS + 1, "deadline": 3600, "tool_deadline": 600},
            "ray": {
                "address": address,
                "learners": 1,
                "engines": engines,
                "tool_nodes": nodes,
                "patience": 120,
                "silence": 60,  # two cores start hundreds of servers at once
            },
        }
    )
    resolved = resolve_servers(config.server, plugins=load_plugins(), tools=config.tools)
    async with open_sessions(resolved, config.tools) as own:
        session = await own.get(resolved.params())
        schemas, offered = session.schemas.hash, session.schemas.openai
    settings = LocalSettings(base_model=TINY, run=Path("measured"), title="measured")
    chat = ChatRecipe(settings, {}, None).make()
    description = described(chat.tokenizer)
    assert description is not None
    chat_recipe = ChatRecipe(settings, {}, description.model_dump_json())
    call = ParsedCall(name="add", arguments={"a": 17, "b": 25})
    script = [chat.said("", [call], offered)] * CALLS + [chat.said("The sum is 42." + " So it is." * words)]
    cluster = RayCluster(config.ray)
    with tempfile.TemporaryDirectory() as logs:
        try:
            await cluster.connect()
            await cluster.place()
            faults, shape = FaultLog(Path(logs), say=lambda sentence: print(sentence, file=sys.stderr)), cluster.shape
            crew = Crew(cluster, CrewKind("engine", ScriptedEngine, shape.engines[0], engines), faults)
            tools = Crew(
                cluster,
                CrewKind("tool node", ScriptedNode if scripted else ToolNode, shape.tool_nodes[0], nodes),
                faults,
            )
            crew.begin(engines, 1)
            tools.begin(nodes, 1 + engines)
            await crew.started()
            await tools.started()
            engine = ClusterEngine(crew, config.ray)

            async def prepare(member: Member) -> None:
                await member.actor.script.remote(script, turn_seconds)
                engine.note(member, EngineState(0, 4096, 0))

            await crew.make_ready(prepare)
            players = NodePlayers(tools, engine, crew, config.ray)
            await players.open(EpisodeRecipe(config, _states(states_of(resolved)), schemas), chat_recipe)
            scenario = McpScenario(task_description="add 17 and 25", server_params=resolved.params())
            yield Measured(players, scenario, tools)
            await tools.close(30)
            await crew.close(5)
        finally:
            await cluster.close()


def _states(found: Any) -> dict[str, Any]:
    return {name: state.model_dump(mode="json") for name, state in found.items()}


async def tools(address: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Episodes per second with one tool node and with four, as many sessions on each."""
    found: dict[str, Any] = {"sessions_on_each_node": asked.sessions, "tool_seconds": 0.3}
    for nodes in (1, 4):
        at_once = asked.sessions * nodes
        async with measured(
            address, nodes=nodes, engines=1, sessions=asked.sessions, tool_seconds=0.3, turn_seconds=0.05, words=0
        ) as players:
            await players.play(at_once, at_once)
            found[f"nodes_{nodes}"] = await players.play(at_once * asked.rounds, at_once)
    found["times"] = round(found["nodes_4"]["episodes_per_second"] / found["nodes_1"]["episodes_per_second"], 3)
    return found


async def servers(address: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Many tool servers at once over four nodes, and the memory of all their processes meanwhile."""
    each = asked.servers // 4
    watch = Watch()
    async with measured(
        address, nodes=4, engines=1, sessions=each, tool_seconds=asked.hold, turn_seconds=0.05, words=0
    ) as players:
        with watch:
            played = await players.play(asked.episodes, asked.servers)
    return {"servers": asked.servers, **played, **watch.report()}


async def driver(address: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The driver's processor time for an episode, for short and long ones."""
    found: dict[str, Any] = {}
    for name, words in (("short", 0), ("long", 300)):
        async with measured(
            address, nodes=2, engines=1, sessions=asked.sessions, tool_seconds=0.0, turn_seconds=0.0, words=words
        ) as players:
            await players.play(16, 16)
            found[name] = await players.play(asked.episodes, 2 * asked.sessions)
    return found


async def scale(address: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Episodes of about 4,000 tokens that take 10 s on scripted tool nodes, ever more of them at once: the rate grows
    with them until the driver's thread is full."""
    found: dict[str, Any] = {"episode_seconds": 10.0}
    async with measured(
        address, nodes=4, engines=1, sessions=1, tool_seconds=0.0, turn_seconds=0.0, words=1300, scripted=True
    ) as players:
        await players.play(8, 8)
        trajectory = await players.players(players.scenario, 1, 1.0)
        found["episode_tokens"] = len(trajectory.segments[0].tokens)
        for member in players.crew.members:
            await member.actor.takes.remote(10.0)
        for at_once in (500, 1000, 2000, 4000, 8000):
            played = await players.play(3 * at_once, at_once)
            found[f"at_once_{at_once}"] = {**played, "at_best": at_once / 10.0}
    return found


class Watch:
    """Looks at all processes that descend from this one, twice a second: their number and memory (PSS)."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int, float, float]] = []
        self._over = threading.Event()

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        began = time.monotonic()
        while not self._over.wait(3.0):
            count = nodes = 0.0
            for process in psutil.Process().children(recursive=True):
                try:
                    title = " ".join(process.cmdline())
                    if "small_server.py" in title and "watchdog" not in title:
                        count += 1
                    elif title.startswith("ray::ToolNode"):
                        nodes += process.memory_info().rss / 2**20
                except psutil.Error:
                    continue
            used = psutil.virtual_memory().used / 2**20
            self.samples.append((time.monotonic() - began, int(count), nodes, used))

    def report(self) -> dict[str, Any]:
        full = [sample for sample in self.samples if sample[1] >= 0.9 * max(s[1] for s in self.samples)]
        return {
            "most_servers_at_once": max(sample[1] for sample in self.samples),
            "tool_nodes_mb_first_and_last": [round(full[0][2]), round(full[-1][2])],
            "machine_used_mb_least_and_most": [
                round(min(sample[3] for sample in self.samples)),
                round(max(sample[3] for sample in self.samples)),
            ],
            "samples": [(round(at), count, round(nodes), round(used)) for at, count, nodes, used in self.samples][::4],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("tools", "servers", "driver", "scale"))
    parser.add_argument("--sessions", type=int, default=4, help="sessions on each tool node")
    parser.add_argument("--rounds", type=int, default=15, help="episodes of each session")
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--hold", type=float, default=40.0, help="seconds of a tool call, where many servers are open")
    asked = parser.parse_args()
    measure = {"tools": tools, "servers": servers, "driver": driver, "scale": scale}[asked.what]
    with ray_nodes(tools=4) as nodes:
        found = anyio.run(measure, nodes.address, asked)
    print(json.dumps({"what": asked.what, **found, "machine": f"{os.cpu_count()} CPUs, {sys.platform}"}, indent=2))


if __name__ == "__main__":
    main()
