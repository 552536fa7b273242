"""Measure what a turn costs that an agent program drives, over a turn of our own loop.

    OMP_NUM_THREADS=1 python -m benchmarks.agents [--out benchmarks/results/agents.json]

The model is the scripted engine in this process, so only the cost of the episodes is measured, in processor time of
this process alone (`time.process_time`): what the program computes is its own. A turn is a call of the calculator and
its result. Each contender plays episodes of few and of many turns in alternating rounds; the cost of a turn is the
difference by the turns between them, so that neither the start of a program nor that of an episode counts.

- `own`: our own loop.
- `address`: a program with the calculator's tools at our MCP address: a chat request and a request for the call.
- `own_tools`: a program with tools of its own: a chat request.

`episode` is the cost of an episode's start and end: a process under its watchdog, for programs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio

from benchmarks.rollout_contenders import CALCULATOR, server
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.agents.player import AgentOptions, opened_player
from mcp_rl.rollouts.player import SettingPlayer
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.system.tasks import run_all
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.pool import Sessions

FEW, MANY = 2, 18
AT_ONCE = 4
MOST_MS = 3.0
"""The target: milliseconds of processor time of a turn beyond our own loop's."""
PROGRAM = """
import http.client, json, os, sys
from urllib.parse import urlsplit
way, key = sys.argv[1], os.environ["OPENAI_API_KEY"]
address = urlsplit(os.environ["MCP_RL_MCP_URL"])
connection = http.client.HTTPConnection(address.hostname, address.port)
def post(path, body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    connection.request("POST", path, json.dumps(body), headers | {"Accept": "application/json, text/event-stream"})
    return connection.getresponse().read()
def remote(method, **params):
    return json.loads(post(address.path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))["result"]
def turn(**body):
    return json.loads(post("/v1/chat/completions", {"model": "any", **body}))["choices"][0]["message"]
listed = remote("tools/list")["tools"]
tools = [{"type": "function", "function": {"name": t["name"], "description": t["description"],
          "parameters": t["inputSchema"]}} for t in listed]
messages = [{"role": "user", "content": os.environ["MCP_RL_TASK"]}]
while "tool_calls" in (said := turn(messages=messages, tools=tools)):
    [call] = said["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    result = str(arguments["a"] + arguments["b"])
    if way == "address":
        result = remote("tools/call", name="add", arguments=arguments)["content"][0]["text"]
    messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": result}]
print(said["content"])
"""


def reply(text: str, seed: int, turn: int) -> str:
    """Call `add` as often as the task says, then answer."""
    wanted = int(text.split("Add ")[-1].split(" times")[0])
    call = json.dumps({"name": "add", "arguments": {"a": turn, "b": 1}})
    return f"<tool_call>\n{call}\n</tool_call>" if turn < wanted else "Done."


async def cost(player: SettingPlayer, params: ServerParams, turns: int, episodes: int) -> float:
    """Return the milliseconds of processor time of one episode with so many calls."""
    scenario = McpScenario(task_description=f"Add {turns} times.", server_params=params, max_turns=turns + 1)

    async def one(seed: int) -> None:
        trajectory = await player.play(scenario, seed)
        assert (trajectory.turns, len(trajectory.calls), len(trajectory.segments)) == (turns + 1, turns, 1), trajectory

    began = time.process_time()
    await run_all([partial(one, seed) for seed in range(episodes)])
    return 1000 * (time.process_time() - began) / episodes


async def measure(rounds: int, episodes: int) -> dict[str, dict[str, float]]:
    chat = ChatFormat(build_tokenizer())
    limits = Limits(max_tokens=10_000, max_tool_calls=100)
    costs: dict[str, dict[int, list[float]]] = {}
    with server(CALCULATOR, "stdio") as params, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        await anyio.Path(file).write_text(PROGRAM)
        command = shlex.join([sys.executable, "-I", "-S", str(file)])
        ways = {"own": None, **{way: f"{command} {way}" for way in ("address", "own_tools")}}
        async with AsyncExitStack() as stack:
            sessions = await stack.enter_async_context(Sessions())
            players = {}
            for name, way in ways.items():
                agent = None if way is None else AgentOptions(way, Path(folder), print)
                opening = opened_player(
                    agent, ScriptedEngine(reply, chat), chat, sessions, limits=limits, concurrency=AT_ONCE
                )
                players[name] = await stack.enter_async_context(opening)
            for _ in range(rounds):
                for name, player in players.items():
                    for turns in (FEW, MANY):
                        known = costs.setdefault(name, {}).setdefault(turns, [])
                        known.append(await cost(player, params, turns, episodes))
    found = {}
    for name, by_turns in costs.items():
        few, many = median(by_turns[FEW]), median(by_turns[MANY])
        turn = (many - few) / (MANY - FEW)
        found[name] = {"turn_ms": round(turn, 3), "episode_ms": round(few - turn * FEW, 2)}
    for row in found.values():
        row["turn_over_own_ms"] = round(row["turn_ms"] - found["own"]["turn_ms"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--episodes", type=int, default=16, help="episodes of each contender in a round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"turns": anyio.run(measure, options.rounds, options.episodes)}
    found |= {"most_ms": MOST_MS, "load": os.getloadavg()[0], "machine": platform.machine(), "cpus": os.cpu_count()}
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
