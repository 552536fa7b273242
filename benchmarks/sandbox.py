"""Measure what a sandbox costs: a start, a call, throwing a layer away, and an episode, each beside the same without.

    python -m benchmarks.sandbox --out benchmarks/results/sandbox.json
    python -m benchmarks.sandbox --name server-filesystem --server "node …/dist/index.js {folder}" --write … --read …

The server is a small one of the tests that reads and writes files, or `--server`; `{folder}` is a folder made for this.
An episode writes a file and reads it. It is played on one process that is never reset ("shared"), on one whose layer is
thrown away before each episode ("layer"), and on a new process each time ("per-rollout"). Then 16 episodes at a time
are played, on one process that is never reset, on the same a call at a time ("one by one"), and in turns with a layer
for each ("turns"), writing and reading as above, then reading twice ("reading"). These are also compared by the
processor time of all processes, which other work on the machine changes less.
"""

import argparse
import asyncio
import json
import resource
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from mcp_rl.config import Isolation, SandboxKind, ToolsConfig
from mcp_rl.scenario import StdioServer
from mcp_rl.toolserver.connection.connection import connect
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.sandbox.obstacle import obstacle
from mcp_rl.toolserver.sandbox.sandbox import Sandbox
from mcp_rl.toolserver.state import MeasuredState
from mcp_rl.toolserver.tool_server import ToolServer

ROOT = Path(__file__).resolve().parents[1]
OWN = f"{sys.executable} {ROOT / 'tests/toolserver/files_server.py'} {{folder}}"
_TOGETHER = 16
Times = dict[str, list[float]]
"""Seconds, by the way of playing."""


class Trial:
    """The server, and how it writes and reads."""

    def __init__(self, words: list[str], folder: Path, write: dict[str, Any], read: dict[str, Any]) -> None:
        words = [word.replace("{folder}", str(folder)) for word in words]
        self.params = StdioServer(command=words[0], args=tuple(words[1:]), cwd=str(folder))
        self.write, self.read = write, read

    async def start(self, kind: SandboxKind) -> float:
        """Return the processor seconds of a server that lists its tools and ends, with its watchdog and keeper."""
        before = _processor_seconds()
        async with connect(self.params, sandbox=Sandbox(kind)):
            pass
        return _processor_seconds() - before

    async def calls(self, kind: SandboxKind, count: int) -> list[float]:
        """Return the seconds of each of `count` readings."""
        async with connect(self.params, sandbox=Sandbox(kind)) as connection:
            await connection.call(**self.write)
            return [await timed(lambda: connection.call(**self.read)) for _ in range(count)]

    async def throwing_away(self, count: int) -> list[float]:
        """Return the seconds of throwing away the layer after each of `count` writes."""
        found = []
        async with connect(self.params, sandbox=Sandbox()) as connection:
            layer = connection.layer
            assert layer is not None
            await layer.begin()
            for _ in range(count):
                await connection.call(**self.write)
                assert await layer.changed()
                found.append(await timed(layer.throw_away))
                assert not await layer.changed()
        return found

    async def episodes(self, played: dict[str, tuple[SandboxKind, Isolation]], count: int) -> dict[str, list[float]]:
        """Return the seconds of `count` episodes of each kind, played in turns."""
        found: dict[str, list[float]] = {name: [] for name in played}
        async with AsyncExitStack() as stack:
            pools = {}
            for name, (kind, isolation) in played.items():
                server = ToolServer("files", "Files.", {"stdio": self.params}, isolation, instances=1)
                sessions = Sessions(server=server, tools=ToolsConfig(sandbox=kind))
                pools[name] = await stack.enter_async_context(sessions)
                await self._episode(pools[name])
            for _ in range(count):
                for name, pool in pools.items():
                    found[name].append(await timed(lambda pool=pool: self._episode(pool)))
        return found

    async def together(self, count: int, *played: dict[str, Any]) -> tuple[Times, Times]:
        """Return the seconds of an episode of these calls and its processor seconds, `count` times for each kind, where
        `_TOGETHER` are under way."""
        measured = MeasuredState(kept="files", listing="", reading=(self.read["tool_name"],), call_seconds=0.001)
        server = ToolServer("files", "Files.", {"stdio": self.params}, instances=1)
        seconds: dict[str, list[float]] = {"shared": [], "one by one": [], "turns": []}
        used: dict[str, list[float]] = {name: [] for name in seconds}
        async with AsyncExitStack() as stack:
            pools = {}
            for name in seconds:
                one = server.with_state(measured) if name == "turns" else replace(server, isolation="shared")
                sessions = Sessions(server=one, tools=ToolsConfig(sandbox="files" if name == "turns" else "off"))
                pools[name] = await stack.enter_async_context(sessions)
                await self._at_once(pools[name], 1, played)
            for _ in range(count):
                for name, pool in pools.items():
                    calls = 1 if name == "one by one" else _TOGETHER
                    before = _seconds_so_far()
                    seconds[name].append(await timed(lambda p=pool, c=calls: self._at_once(p, c, played)) / _TOGETHER)
                    used[name].append((_seconds_so_far() - before) / _TOGETHER)
        return seconds, used

    async def _at_once(self, sessions: Sessions, calls: int, played: Sequence[dict[str, Any]]) -> None:
        """Play `_TOGETHER` episodes, with at most so many calls under way."""
        room = asyncio.Semaphore(calls)

        async def one() -> None:
            async with sessions.episode(self.params) as lease:
                for call in played:
                    async with room:
                        result = await lease.session.connection.call(**call)
                    assert not result.is_error, result.text

        await asyncio.gather(*(one() for _ in range(_TOGETHER)))

    async def _episode(self, sessions: Sessions) -> None:
        async with sessions.lease(self.params) as lease:
            for call in (self.write, self.read):
                result = await lease.session.connection.call(**call)
                assert not result.is_error, result.text


def _seconds_so_far() -> float:
    """Return the processor seconds of this thread and of all processes below us."""
    total = 1e9 * time.thread_time()
    for process in psutil.Process().children(recursive=True):
        for account in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError):
                total += int(account.read_text().split()[0])
    return total / 1e9


def _processor_seconds() -> float:
    """Return what all ended children have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await act()
    return time.perf_counter() - began


async def measure(trial: Trial, starts: int, count: int) -> dict[str, Any]:
    kinds: tuple[SandboxKind, SandboxKind] = ("off", "files")
    begun: dict[SandboxKind, list[float]] = {kind: [] for kind in kinds}
    for _ in range(starts):
        for kind in kinds:  # in turns, since other work on the machine comes and goes
            begun[kind].append(await trial.start(kind))
    calls = {kind: await trial.calls(kind, count) for kind in kinds}
    played = await trial.episodes({"shared": ("off", "shared"), "layer": ("files", "layer")}, count)
    played |= await trial.episodes({"per-rollout": ("files", "per-rollout")}, 2)
    rounds = max(3, count // 5)
    return {
        "start_processor_ms": {kind: summary(seconds) for kind, seconds in begun.items()},
        "start_more_processor_ms": round(
            1000 * (statistics.median(begun["files"]) - statistics.median(begun["off"])), 1
        ),
        "call_ms": {kind: summary(seconds) for kind, seconds in calls.items()},
        "call_ratio": ratio(calls["files"], calls["off"]),
        "throw_away_ms": summary(await trial.throwing_away(count)),
        "episode_ms": {name: summary(seconds) for name, seconds in played.items()},
        "episode_ratio": {name: ratio(played[name], played["shared"]) for name in ("layer", "per-rollout")},
        "together": compared(*await trial.together(rounds, trial.write, trial.read)),
        "together_reading": compared(*await trial.together(rounds, trial.read, trial.read)),
    }


def summary(seconds: list[float]) -> dict[str, float]:
    milliseconds = sorted(1000 * one for one in seconds)
    return {
        "least": round(milliseconds[0], 2),
        "median": round(statistics.median(milliseconds), 2),
        "most": round(milliseconds[-1], 2),
    }


def compared(seconds: Times, used: Times) -> dict[str, Any]:
    """Return the times and the processor times of episodes, and how the ones in turns compare with the others."""
    return {
        "ms": {name: summary(times) for name, times in seconds.items()},
        "ratio": {name: ratio(seconds["turns"], seconds[name]) for name in ("shared", "one by one")},
        "processor_ms": {name: summary(times) for name, times in used.items()},
        "processor_ratio": {name: ratio(used["turns"], used[name]) for name in ("shared", "one by one")},
    }


def ratio(seconds: list[float], of: list[float]) -> float:
    return round(statistics.median(seconds) / statistics.median(of), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default=OWN, help="the server's command, with {folder} for the folder to work in")
    parser.add_argument("--name", help="what to call the server in the results")
    parser.add_argument("--write", default='{"tool_name": "write", "arguments": {"name": "a.txt", "text": "new"}}')
    parser.add_argument("--read", default='{"tool_name": "read", "arguments": {"name": "a.txt"}}')
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if why := obstacle():
        sys.exit(f"There is no sandbox here: {why}.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.txt").write_text("the user's")
        calls = [json.loads(text.replace("{folder}", name)) for text in (given.write, given.read)]
        found = asyncio.run(measure(Trial(shlex.split(given.server), folder, *calls), given.starts, given.count))
    shown = json.dumps({"server": given.name or Path(shlex.split(given.server)[1]).name, **found}, indent=2)
    print(shown)
    if given.out:
        given.out.write_text(shown + "\n")


if __name__ == "__main__":
    main()
