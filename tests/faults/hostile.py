"""Rollouts on a misbehaving server, and the fate of its calls and processes."""

import contextlib
import functools
import json
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import psutil

from mcp_rl.config import Isolation
from mcp_rl.errors import McpRlError
from mcp_rl.inference.chat.chat_format import ChatFormat
from mcp_rl.inference.scripted import ScriptedEngine
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import Player
from mcp_rl.rollouts.speaker import Limits
from mcp_rl.scenario import Launch, McpScenario, OneServer, SseServer, StdioServer, StreamableHttpServer
from mcp_rl.tiny.tokenizer import build_tokenizer
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tool_server import ToolServer
from mcp_rl.trajectory import StopReason, TrajectoryGroup

SCRIPT = Path(__file__).with_name("hostile_server.py")
TRANSPORTS = ("stdio", "sse", "streamable-http")
PATIENT = Deadlines(spawn=60, initialize=60, list=60, call=60, close=5)
"""Seconds. Generous, since a busy machine takes ten times as long and must not fail a test."""
MEMBERS = 4


def hostile(transport: str, log: Path, *options: str, mode: str = "fine", trouble: str = "") -> OneServer:
    """Return the parameters of a hostile server that we start. Its command line contains the path of its log."""
    args = ("-I", "-S", str(SCRIPT), "--transport", transport, "--log", str(log), "--mode", mode, *options)
    args += ("--trouble", trouble)
    if transport == "stdio":
        return StdioServer(command="{python}", args=args)
    launch = Launch(command="{python}", args=(*args, "--port", "{port}"))
    if transport == "sse":
        return SseServer(url="http://127.0.0.1:{port}/sse", launch=launch)
    return StreamableHttpServer(url="http://127.0.0.1:{port}/mcp", launch=launch)


@functools.cache
def chat() -> ChatFormat:
    return ChatFormat(build_tokenizer())


def script(tool: str, text: str, seed: int, turn: int) -> str:
    """A model that calls the tool with its own seed and answers with what came back."""
    if turn == 0:
        return f'<tool_call>\n{{"name": "{tool}", "arguments": {{"n": {seed}}}}}\n</tool_call>'
    found = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", text, re.DOTALL)
    return str(found[-1])[:100]


@dataclass
class Outcome:
    """The outcome of a group of rollouts. `stopped` is the sentence that ended the run, or empty."""

    calls: list[dict[str, Any]]
    left: list[str]
    group: TrajectoryGroup | None = None
    stopped: str = ""
    kind: type[Exception] | None = None
    seconds: float = 0.0
    answers: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return self.group.exceptions if self.group else []

    def check(self, *, repeated: Sequence[str] = ()) -> None:
        """Assert what holds whatever the server does."""
        assert not self.left, f"processes are left: {self.left}"
        counted = Counter((call["tool"], call["n"]) for call in self.calls)
        assert not [call for call, times in counted.items() if times > 1 and call[0] not in repeated]
        for sentence in (*self.faults, *([self.stopped] if self.stopped else [])):
            assert sentence.isprintable() and len(sentence) < 1500
            assert sentence.partition(" Its last lines: ")[0].endswith(".") and ".." not in sentence

    def refilled(self, faults: str) -> None:
        """Assert that the run continued, a rollout met the fault, and the group does not contain it."""
        assert self.group is not None, self.stopped
        assert self.faults and all(re.search(faults, sentence) for sentence in self.faults), self.faults
        assert [t.stop_reason for t in self.group] == [StopReason.ANSWERED] * MEMBERS
        assert [t.final_answer for t in self.group] == [str(2 * t.seed) for t in self.group]
        assert self.group.trajectories[0].seed >= 1000, "the one that met the trouble was played again"

    def refused_first(self, said: str) -> None:
        """Assert that the first rollout was told that its result is refused, and that the others were answered."""
        self.check()
        assert self.group is not None and not self.faults, self
        first, *others = [t.final_answer for t in self.group]
        assert said in str(first) and others == [str(2 * t.seed) for t in self.group][1:]

    def unharmed(self) -> None:
        assert self.group is not None, self.stopped
        assert [t.stop_reason for t in self.group] == [StopReason.ANSWERED] * MEMBERS and not self.faults


def calls_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def left_of(log: Path, seconds: float = 10.0) -> list[str]:
    """Return the processes with this log in their command line that still run after some time."""
    until = time.monotonic() + seconds
    while found := _running(str(log)):
        if time.monotonic() > until:
            return found
        time.sleep(0.05)
    return []


def _running(word: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if word in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {process.cmdline()}")
    return found


async def played(
    params: OneServer,
    log: Path,
    *,
    tool: str = "write",
    isolation: Isolation = "shared",
    deadlines: Deadlines = PATIENT,
    call: float | None = None,
    redos: int = 2,
    after: str = "",
) -> Outcome:
    """Play a group of rollouts. Only the first attempt of the first rollout has the seed 0. With `after`, connect and
    wait for the file of this ending beside the log first."""
    server = ToolServer(
        "hostile",
        "A server.",
        {params.transport: params},
        isolation,
        reset_tool="reset" if isolation == "reset" else None,
        sandbox="off",  # it logs its calls in a file that the test reads
    )
    outcome = Outcome([], [])
    began = time.monotonic()
    try:
        async with Sessions(server=server, deadlines=deadlines) as sessions:
            if after:
                await sessions.get(params)
                while not log.with_name(log.name + after).exists():  # noqa: ASYNC110  # a file has no event
                    await anyio.sleep(0.01)
                await anyio.sleep(0.1)  # the client reads what it means
            player = Player(
                ScriptedEngine(functools.partial(script, tool), chat()),
                chat(),
                sessions,
                limits=Limits(tool_deadline=call),
            )
            scenario = McpScenario(task_description="Double n.", server_params=params)

            async def attempt(member: int, number: int) -> Any:
                return await player.play(scenario, member + 1000 * number)

            plan = GroupPlan(scenario, [functools.partial(attempt, member) for member in range(MEMBERS)])
            [outcome.group] = await gather_groups([plan], redos=redos)
    except McpRlError as error:
        outcome.stopped, outcome.kind = str(error), type(error)
    outcome.seconds = time.monotonic() - began
    outcome.calls, outcome.left = calls_of(log), await anyio.to_thread.run_sync(left_of, log)
    return outcome


async def over(
    folder: Path,
    *,
    transports: Sequence[str] = TRANSPORTS,
    mode: str = "fine",
    trouble: str = "",
    limit: float = 120,
    **options: Any,
) -> dict[str, Outcome]:
    """Play the same misbehaviour over several transports concurrently."""
    found: dict[str, Outcome] = {}

    async def one(transport: str) -> None:
        log = folder / f"{transport}.calls"
        found[transport] = await played(hostile(transport, log, mode=mode, trouble=trouble), log, **options)

    with anyio.fail_after(limit):
        async with anyio.create_task_group() as tasks:
            for transport in transports:
                tasks.start_soon(one, transport)
    return found
