"""Measure the cost of a rollout: ours, a loop written by hand, and a server for each rollout, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.rollouts [--out benchmarks/results/rollouts.json]

An episode is two model turns and one call of the calculator: `What is A times B?`, `multiply`, the answer. The model is
a stub without latency in its own process (`chat_stub.py`), so only the cost of the rollouts themselves is measured. 64
episodes are in flight. Contenders of one transport call the same kind of server, one after another in this process, in
rounds that alternate; figures are medians over the rounds. A ratio is that of the medians or that of the best rounds,
whichever is less, since disturbances only slow a round down. CPU time is this process's (`time.process_time`); for the
spawning pattern its servers are counted too.

- `by_hand`: the loop that a good programmer writes without a framework. One SDK session and one `AsyncOpenAI` client
  for all episodes, which run concurrently. It keeps the messages, and checks nothing.
- `chat_model`: our whole path with the same stub: `SettingPlayer` with `ChatSetting` and `gather_groups`, groups of 8.
  Arguments are checked against the schema, everything is recorded, the verifier scores each trajectory.
- `scripted`: our path for training, with the scripted engine in this process: tokens are rendered, sampled, parsed and
  recorded with logprobs and versions, results tokenized.
- `spawning`: the pattern of a well-known example: every rollout starts the server and lists its tools, every turn makes
  a new client. 4 in flight; it is bound by the processor, so more of them would only take memory.
- `calls`: 64 tool calls in flight on one stdio server, ours and the SDK's `ClientSession.call_tool`.
- `slow_tool`: 64 episodes of three calls that take a second each, with the scripted engine on one shared server.
"""

import argparse
import gc
import json
import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from benchmarks import chat_stub
from benchmarks.rollout_contenders import (
    CALCULATOR,
    CALLS,
    CONTENDERS,
    IN_FLIGHT,
    SLOW,
    TRANSPORTS,
    Plays,
    attempt,
    reply,
    scenarios,
    score,
    server,
    spawning,
)
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import Player
from mcp_rl.scenario import ServerParams
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.pool import Sessions


@dataclass
class Round:
    """A measurement of some episodes, or calls."""

    count: int
    wall: float
    cpu: float

    @classmethod
    async def of(cls, play: Plays, count: int) -> "Round":
        """Measure episodes after a warm-up of as many: connections that were idle are closed by now, and the loop's
        client takes twice the time while it opens one for each episode."""
        if count >= IN_FLIGHT:
            await play(count)
        gc.collect()
        cpu, wall = _cpu(), time.perf_counter()
        await play(count)
        return cls(count, time.perf_counter() - wall, _cpu() - cpu)


def _cpu() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


async def slow_tool(params: ServerParams) -> dict[str, float]:
    """Play 64 episodes of three calls of a second; return the seconds of all, and of the longest."""
    chat = ChatFormat(build_tokenizer())
    engine = ScriptedEngine(partial(reply, 3), chat)
    async with Sessions() as sessions:
        await sessions.get(params)
        player = Player(engine, chat, sessions, params=params, concurrency=IN_FLIGHT, finish=score)
        [scenario] = scenarios(1, params)
        plan = GroupPlan(scenario, [partial(attempt, player, scenario, member) for member in range(IN_FLIGHT)])
        began = time.perf_counter()
        [group] = await gather_groups([plan])
        wall = time.perf_counter() - began
    assert all(trajectory.success and len(trajectory.calls) == 3 for trajectory in group)
    longest = max(trajectory.seconds for trajectory in group)
    return {"all": round(wall, 3), "longest": round(longest, 3), "ratio": round(wall / longest, 3)}


async def alternated(
    contenders: dict[str, Any], params: ServerParams, url: str, rounds: int, counts: dict[str, int]
) -> dict[str, dict[str, float]]:
    """Run the contenders in alternating rounds; return the figures of each."""
    found: dict[str, list[Round]] = {name: [] for name in contenders}
    async with AsyncExitStack() as stack:
        plays = {name: await stack.enter_async_context(make(params, url)) for name, make in contenders.items()}
        for _ in range(rounds):
            for name, play in plays.items():
                found[name].append(await Round.of(play, counts[name]))
    return {name: _summary(measured) for name, measured in found.items()}


def _summary(rounds: Sequence[Round]) -> dict[str, float]:
    return {
        "per_second": round(median(r.count / r.wall for r in rounds), 1),
        "best_per_second": round(max(r.count / r.wall for r in rounds), 1),
        "cpu_ms": round(median(1000 * r.cpu / r.count for r in rounds), 3),
    }


async def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    found: dict[str, Any] = {"episodes": {}, "slow_tool": {}}
    contenders = {**CONTENDERS, **({"spawning": spawning} if options.spawned else {})}
    counts = dict.fromkeys(CONTENDERS, options.episodes) | {"spawning": options.spawned}
    with chat_stub.running() as url:
        for transport in options.transports:
            with server(CALCULATOR, transport) as params:
                rows = await alternated(contenders, params, url, options.rounds, counts)
            for name, row in rows.items():
                row["over_by_hand"] = _over(row, rows["by_hand"])
                if options.spawned:
                    row["over_spawning"] = _over(row, rows["spawning"])
                say(f"{transport:16} {name:12} {row}")
            found["episodes"][transport] = rows
            with server(SLOW, transport) as params:
                found["slow_tool"][transport] = await slow_tool(params)
            say(f"{transport:16} slow tool    {found['slow_tool'][transport]}")
        with server(CALCULATOR, "stdio") as params:
            calls = await alternated(CALLS, params, url, options.rounds, dict.fromkeys(CALLS, 4 * options.episodes))
        found["calls"] = {**calls, "ours_beyond_sdk_ms": round(calls["ours"]["cpu_ms"] - calls["sdk"]["cpu_ms"], 3)}
        say(f"{'stdio':16} calls        {found['calls']}")
    return found


def _over(row: dict[str, float], other: dict[str, float]) -> float:
    """Return the ratio of speeds: that of the medians or that of the best rounds, whichever is less."""
    return round(min(row[key] / other[key] for key in ("per_second", "best_per_second")), 3)


def targets(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the targets, and whether each was reached."""

    def target(what: str, value: float, *, least: float = -math.inf, under: float = math.inf) -> dict[str, Any]:
        limit = {"at_least": least} if least > -math.inf else {"under": under}
        return {"what": what, "value": value, **limit, "reached": least <= value < under}

    listed = []
    for transport, rows in found["episodes"].items():
        chat, scripted = rows["chat_model"], rows["scripted"]
        listed.append(target(f"chat model over by hand, {transport}", chat["over_by_hand"], least=0.8))
        listed.append(target(f"scripted engine over by hand, {transport}", scripted["over_by_hand"], least=1.5))
        if "over_spawning" in chat:
            listed.append(target(f"chat model over spawning, {transport}", chat["over_spawning"], least=60))
        slow = found["slow_tool"][transport]["ratio"]
        listed.append(target(f"all episodes over the longest, slow tool, {transport}", slow, under=1.3))
    listed.append(target("CPU ms of a call beyond the SDK's", found["calls"]["ours_beyond_sdk_ms"], under=0.3))
    return listed


def table(found: dict[str, Any]) -> str:
    """Return a Markdown table of the episodes."""
    lines = ["| transport | who | episodes/s, median | best | CPU ms | over by hand |", "|---|---|---:|---:|---:|---:|"]
    for transport, rows in found["episodes"].items():
        for name, row in rows.items():
            figures = [row[key] for key in ("per_second", "best_per_second", "cpu_ms", "over_by_hand")]
            lines.append(f"| {' | '.join([transport, name, *map(_shown, figures)])} |")
    return "\n".join(lines)


def _shown(figure: float) -> str:
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=256, help="episodes of each contender in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spawned", type=int, default=4, help="episodes in a round with a server each; 0 for none")
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=TRANSPORTS)
    parser.add_argument("--out", type=Path, help="file for the JSON, instead of stdout")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "versions": {name: version(name) for name in ("mcp", "openai", "litellm")} | {"python": sys.version.split()[0]},
        "settings": {
            "in_flight": IN_FLIGHT,
            "rounds": options.rounds,
            "episodes": options.episodes,
            "threads": os.environ.get("OMP_NUM_THREADS"),
        },
        **anyio.run(measure, options, partial(print, file=sys.stderr, flush=True)),
    }
    found["targets"] = targets(found)
    print(table(found), *(json.dumps(target) for target in found["targets"]), sep="\n", file=sys.stderr)
    text = json.dumps(found, indent=2) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
