"""Play thousands of episodes on servers that break at random; look for leaks and for episodes unaccounted for.

    python -m benchmarks.soak --out benchmarks/results/soak.json

There are twelve servers (three transports, four kinds of isolation) of `tests/faults/hostile_server.py`, each in a
sandbox (`--sandbox off` leaves it and isolation by layers out), whose calls fail with a chance drawn from the seed: the
server exits, never answers, answers late, with garbage, with half an answer, with an HTTP error, or hangs up; some
processes die at their start or hang in the handshake. A scripted model plays episodes of one call each, through the
same pool, player and gatherer as training; episodes spoilt by a fault are played again. With a layer or a process of
its own, an episode must find nothing that another one wrote. After each round the memory, the file descriptors and the
processes are counted, at the end also the mounts, the files beneath the layers and the processes that calls left
behind. The server logs every call that it gets. Simplification: one process, one event loop, and a model that takes no
time.

Exit code 1 if something leaked, an episode is unaccounted for, or a call was sent twice.
"""

import argparse
import asyncio
import functools
import gc
import json
import math
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import psutil

from benchmarks.breaking_servers import Kind, collecting
from mcp_rl.config import Isolation
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import Player
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import McpScenario
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import StopReason, Trajectory

TRANSPORTS = ("stdio", "sse", "streamable-http")
SHARES: dict[Isolation, int] = {"shared": 4, "layer": 3, "reset": 2, "per-rollout": 1}
"""Shares of ten episodes; an episode with its own process costs a hundred times one on a shared server."""
GROUP = 5
REDOS = 8
TRIES = 100
"""Above REDOS, so that each try of each episode has a unique number."""
CALL_SECONDS = 2.0
DEADLINES = Deadlines(spawn=20, initialize=10, list=10, call=20, close=5)
ROUND = 450
WARM_UP = 0.2
"""Share of rounds after which nothing may grow."""


@dataclass
class Account:
    """Counts of the episodes of one kind of server."""

    asked: int = 0
    tried: int = 0
    succeeded: int = 0
    faulted: int = 0
    wrong: int = 0
    """Episodes that ended with another answer than the server's, or in any other way."""
    refilled: int = 0
    calls: int = 0
    sent_twice: int = 0
    unknown: int = 0
    """Answers to calls that the server has not logged."""
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        return (
            self.asked == self.succeeded + self.faulted
            and self.tried == self.asked + self.refilled
            and self.calls <= self.tried
            and not (self.wrong or self.sent_twice or self.unknown)
        )


@dataclass(frozen=True)
class Sample:
    """Resources of the process between two rounds."""

    episodes: int
    rss_mb: float
    descriptors: int
    processes: int
    tasks: int
    seconds: float


def script(text: str, seed: int, turn: int) -> str:
    if turn == 0:
        return f'<tool_call>\n{{"name": "write", "arguments": {{"n": {seed}}}}}\n</tool_call>'
    return str(re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", text, re.DOTALL)[-1])


class Soak:
    """The servers, their players and their accounts."""

    def __init__(
        self, folder: Path, drawn: tuple[float, int, float], *, instances: int, call_seconds: float, collector: int
    ) -> None:
        self.place = folder / "place"
        self.place.mkdir()
        self.kinds = [
            Kind(t, i, folder / f"{t}-{i}.calls", self.place, collector)
            for t in TRANSPORTS
            for i in SHARES
            if collector or i != "layer"
        ]
        self._folder = folder
        self._mounts = _mounts()
        self.accounts = {kind.name: Account() for kind in self.kinds}
        self.samples: list[Sample] = []
        self.answered: dict[str, list[int]] = {kind.name: [] for kind in self.kinds}
        self._drawn, self._instances = drawn, instances
        self._limits = Limits(tool_deadline=call_seconds)
        self._began = time.monotonic()

    @asynccontextmanager
    async def players(self) -> AsyncIterator[dict[str, Player]]:
        chat = ChatFormat(build_tokenizer())
        async with AsyncExitStack() as stack:
            players = {}
            for kind in self.kinds:
                params = kind.params(*self._drawn)
                server = ToolServer(
                    kind.name,
                    "Breaks.",
                    {params.transport: params},
                    kind.isolation,
                    reset_tool="reset" if kind.isolation == "reset" else None,
                    instances=self._instances,
                    sandbox="files" if kind.collector else "off",
                )
                sessions = await stack.enter_async_context(Sessions(server=server, deadlines=DEADLINES))
                players[kind.name] = Player(
                    ScriptedEngine(script, chat),
                    chat,
                    sessions,
                    params=params,
                    limits=self._limits,
                    concurrency=8,
                )
            yield players

    async def round(self, players: dict[str, Player], first: int, count: int) -> None:
        """Play `count` episodes of all kinds, numbered from `first`."""
        async with anyio.create_task_group() as tasks:
            number = first
            for share, kind in zip(_shares(count, [SHARES[k.isolation] for k in self.kinds]), self.kinds, strict=True):
                tasks.start_soon(self._some, kind, players[kind.name], number, share)
                number += share

    async def _some(self, kind: Kind, player: Player, first: int, count: int) -> None:
        account = self.accounts[kind.name]
        params = kind.params(*self._drawn)

        async def attempt(number: int, tries: int) -> Trajectory:
            account.tried += 1
            return await player.play(scenario, number * TRIES + tries)

        plans = []
        for start in range(first, first + count, GROUP):
            scenario = McpScenario(task_description="Double n.", server_params=params, id=str(start))
            members = range(start, min(start + GROUP, first + count))
            plans.append(GroupPlan(scenario, [functools.partial(attempt, number) for number in members]))
        account.asked += count
        for group in await gather_groups(plans, redos=REDOS, max_exceptions=1.0) if plans else []:
            account.refilled += len(group.exceptions)
            for kind_of_fault in map(_kind_of_fault, group.exceptions):
                account.faults[kind_of_fault] = account.faults.get(kind_of_fault, 0) + 1
            for trajectory in group:
                if trajectory.stop_reason is StopReason.FAULT:
                    account.faulted += 1
                elif trajectory.final_answer in (str(2 * trajectory.seed), "no luck"):
                    account.succeeded += 1
                    self.answered[kind.name].append(trajectory.seed)
                else:
                    account.wrong += 1

    def sample(self, episodes: int) -> Sample:
        gc.collect()
        us = psutil.Process()
        self.samples.append(
            Sample(
                episodes,
                round(us.memory_info().rss / 2**20, 1),
                us.num_fds(),
                len(us.children(recursive=True)),
                len(asyncio.all_tasks()),
                round(self.seconds, 1),
            )
        )
        return self.samples[-1]

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._began

    def read_calls(self) -> None:
        """Read the servers' logs into the accounts."""
        for kind in self.kinds:
            account, answered = self.accounts[kind.name], set(self.answered[kind.name])
            lines = kind.log.read_text().splitlines() if kind.log.exists() else []
            counted = Counter(json.loads(line)["n"] for line in lines)
            account.calls = len(lines)
            account.sent_twice = sum(times > 1 for times in counted.values())
            account.unknown = len(answered - counted.keys())

    def verdict(self, before: Sample, after: Sample) -> dict[str, Any]:
        warm = [s for s in self.samples if s.episodes >= WARM_UP * self.samples[-1].episodes]
        early, late = warm[: max(len(warm) // 3, 1)], warm[-max(len(warm) // 3, 1) :]
        rss = [statistics.median(s.rss_mb for s in part) for part in (early, late)]
        left = {
            "descriptors": after.descriptors - before.descriptors,
            "processes": after.processes - before.processes,
            "tasks": after.tasks - before.tasks,
            "temporary_files": len(list(Path(tempfile.gettempdir()).glob("mcp-rl-*"))),
            "mounts": len(_mounts() - self._mounts),
            "files_beneath_layers": len(list(self.place.iterdir())),
            "detached_processes": len(_running(str(self._folder))),
        }
        return {
            "rss_mb_after_warm_up": rss[0],
            "rss_mb_at_the_end": rss[1],
            "descriptors": [max(s.descriptors for s in part) for part in (early, late)],
            "processes": [max(s.processes for s in part) for part in (early, late)],
            "left": left,
            "memory_is_flat": rss[1] <= 1.05 * rss[0] + 2,
            "descriptors_are_flat": _flat([s.descriptors for s in early], [s.descriptors for s in late]),
            "processes_are_flat": _flat([s.processes for s in early], [s.processes for s in late]),
            "nothing_is_left": after.processes <= before.processes
            and after.descriptors <= before.descriptors + 2
            and not list(Path(tempfile.gettempdir()).glob("mcp-rl-*"))
            and not any(left[what] for what in ("mounts", "files_beneath_layers", "detached_processes")),
            "every_episode_is_accounted_for": all(account.balanced for account in self.accounts.values()),
            "no_call_was_sent_twice": not any(account.sent_twice for account in self.accounts.values()),
        }


def _mounts() -> set[str]:
    """Return the mounts that this process sees; none where the system does not tell."""
    table = Path("/proc/self/mountinfo")
    return set(table.read_text().splitlines()) if table.exists() else set()


def _running(word: str) -> list[int]:
    """Return the ids of other processes with this word in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and any(word in part for part in process.cmdline()):
                found.append(process.pid)
    return found


def _flat(early: Sequence[int], late: Sequence[int]) -> bool:
    """Return whether a count stays flat: open connections vary slightly between rounds; a leak grows with the
    episodes."""
    return statistics.median(late) <= 1.15 * statistics.median(early) + 4


def _shares(count: int, weights: Sequence[int]) -> list[int]:
    shares = [count * weight // sum(weights) for weight in weights]
    shares[0] += count - sum(shares)
    return shares


def _kind_of_fault(sentence: str) -> str:
    """Return a fault without the names and numbers in it."""
    sentence = re.sub(r"The server \S+", "The server", sentence.partition(" Its last lines")[0])
    return re.sub(r"https?://\S+|\d+(\.\d+)?", "…", sentence)[:120]


async def soak(
    episodes: int,
    *,
    chance: float,
    seed: int,
    bad_start: float | None = None,
    folder: Path,
    say: Callable[[str], None],
    instances: int = 3,
    call_seconds: float = CALL_SECONDS,
    rounds: int = 6,
    sandboxes: bool = True,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """Play all episodes in at least `rounds` rounds and return the report; no round begins after `seconds`.

    `folder` gets all files, temporary ones too. `bad_start` None means half of `chance`. Without `sandboxes`, servers
    run as they are, and none has the isolation "layer".
    """
    tempfile.tempdir = str(folder)
    drawn = (chance, seed, chance / 2 if bad_start is None else bad_start)
    async with AsyncExitStack() as stack:
        port = stack.enter_context(collecting(sandboxes))
        soaked = Soak(folder, drawn, instances=instances, call_seconds=call_seconds, collector=port)
        before = soaked.sample(0)
        soaked.samples.clear()
        players = await stack.enter_async_context(soaked.players())
        done = 0
        while done < episodes and soaked.seconds < seconds:
            count = min(ROUND, max(episodes // rounds, 1), episodes - done)
            await soaked.round(players, done, count)
            done += count
            now = soaked.sample(done)
            refilled = sum(account.refilled for account in soaked.accounts.values())
            say(
                f"{done:6} of {episodes} episodes  {refilled:5} refilled  {now.rss_mb:6.1f} MB  "
                f"{now.descriptors:3} fds  {now.processes:3} processes  {now.tasks:3} tasks  {now.seconds:6.0f} s"
            )
    soaked.read_calls()
    samples = list(soaked.samples)
    await anyio.sleep(0.5)
    after = soaked.sample(done)
    soaked.samples = samples
    verdict = soaked.verdict(before, after)
    accounts = {name: {**asdict(account), "balanced": account.balanced} for name, account in soaked.accounts.items()}
    total = {
        key: sum(account[key] for account in accounts.values())
        for key in ("asked", "tried", "succeeded", "faulted", "refilled", "wrong", "calls", "sent_twice", "unknown")
    }
    return {
        "passed": all(value for value in verdict.values() if isinstance(value, bool)),
        "verdict": verdict,
        "total": total,
        "kinds": accounts,
        "seconds": soaked.samples[-1].seconds,
        "before": asdict(before),
        "after": asdict(after),
        "samples": [asdict(sample) for sample in soaked.samples],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no round after this time")
    parser.add_argument("--chance", type=float, default=0.06, help="chance that a call fails")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", choices=("files", "off"), default="files")
    parser.add_argument("--out", type=Path, help="file for the JSON, instead of stdout")
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    say = functools.partial(print, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run = functools.partial(
            soak,
            options.episodes,
            chance=options.chance,
            seed=options.seed,
            folder=Path(folder),
            say=say,
            sandboxes=options.sandbox == "files",
            seconds=60 * options.minutes,
        )
        found = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
            "versions": {"mcp": version("mcp"), "python": sys.version.split()[0]},
            "settings": {
                "episodes": options.episodes,
                "chance": options.chance,
                "seed": options.seed,
                "sandbox": options.sandbox,
            },
            **anyio.run(run),
        }
    text = json.dumps(found, indent=2) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text)
    say(json.dumps(found["verdict"]))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
