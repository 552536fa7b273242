"""The learner in a child process, with the in-process engine beside it unless vLLM samples.

A crash or an out-of-memory in the child is one named error here, its memory is really freed when it ends, and nothing
of it is left when this process ends, since it runs under the watchdog. This side imports no torch.

Requests to the child cross `channel.py`; the child runs `child_main.py`. Updates and saves are not abandoned when their
caller is cancelled, just as in one process; turns are, and the child stops sampling them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from mcp_rl.backends.base.plain_tokenizer import Description, PlainTokenizer
from mcp_rl.backends.hosts import CheckpointExtras, LearnerHost, LocalSettings, OpenedLearner, SamplerHost
from mcp_rl.backends.processes.channel import Message, error_of, frame, read_frame
from mcp_rl.backends.processes.environment import learner_environment
from mcp_rl.backends.processes.failures import died, failed, kernel_kills
from mcp_rl.errors import ConfigError, EngineStop, McpRlError
from mcp_rl.inference.chat.chat_format import ChatFormat, recorded_chat
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.learning import canaries
from mcp_rl.system.processes.devices import device_environment
from mcp_rl.system.processes.spawn import Child, spawned

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from mcp_rl.config import TrainConfig
    from mcp_rl.trajectory import TrajectoryGroup

_END_SECONDS = 5.0
"""Time for the watchdog to end after the child's pipes have closed, and for the child to answer `close`."""
_NOT_LEARNED_FROM = {"messages", "calls", "final_state", "explanation", "metrics", "others"}
"""Fields of a trajectory that the learner does not need: it takes the tokens."""


class ChildProcess:
    """The child and the channel to it."""

    def __init__(self, child: Child, stack: AsyncExitStack) -> None:
        assert child.process.stdin is not None and child.process.stdout is not None
        self.child = child
        self.state: Message = {"step": 0, "version": -1, "max_context": 0, "stats": {}}
        """The child's newest report of its state."""
        self._stack = stack
        self._kills = kernel_kills()
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[tuple[Any, list[bytes]]]]] = {}
        self._outgoing: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._gone: EngineStop | None = None
        self.ready = False
        """True while the learner is open, so that it can be closed."""
        self._reader = asyncio.create_task(self._read(BufferedByteReceiveStream(child.process.stdout)))
        self._writer = asyncio.create_task(self._write())

    @classmethod
    async def start(cls, run: Path, environment: Mapping[str, str]) -> ChildProcess:
        """Start the child, whose heavy imports begin at once. Raises ConfigError if it cannot start."""
        process = spawned(
            [sys.executable, "-P", "-m", "mcp_rl.backends.processes.child_main"],
            role="learner",
            run=run,
            log=run / "logs" / "learner.log",
            environment=environment,
            pipes="pass",
        )
        stack = AsyncExitStack()
        try:
            child = await stack.enter_async_context(process)
        except OSError as error:
            raise ConfigError(f"The learner's process cannot be started: {error}.") from error
        return cls(child, stack)

    async def ask(
        self, call: str, parts: Sequence[bytes] = (), *, abandon: bool = False, **arguments: Any
    ) -> tuple[Any, list[bytes]]:
        """Send a request and return the child's answer with its parts. Raises the child's error, or EngineStop if the
        child is gone.

        Unless `abandon`, a cancelled caller still waits for the answer.
        """
        if self._gone is not None:
            raise EngineStop(str(self._gone))
        number = next(self._numbers)
        future: asyncio.Future[tuple[Any, list[bytes]]] = asyncio.get_running_loop().create_future()
        self._asked[number] = (call, future)
        self._outgoing.put_nowait(frame({"call": call, "id": number, "arguments": arguments}, parts))
        try:
            with anyio.CancelScope(shield=not abandon):
                await asyncio.wait([future])
            return future.result()
        except asyncio.CancelledError:
            self.tell("cancel", request=number)
            raise
        finally:
            self._asked.pop(number, None)

    def tell(self, call: str, **arguments: Any) -> None:
        """Send a message that gets no answer. If the child is gone, nothing happens."""
        if self._gone is None:
            self._outgoing.put_nowait(frame({"call": call, "arguments": arguments}))

    async def close(self) -> None:
        """End the child; if it is idle, let it close the learner first."""
        with anyio.CancelScope(shield=True):
            if self._gone is None and self.ready and not self._asked:
                with anyio.move_on_after(_END_SECONDS), suppress(McpRlError):
                    await self.ask("close", abandon=True)
            self._give_up(EngineStop("The learner was closed."))
            self._writer.cancel()
            self._reader.cancel()
            await asyncio.gather(self._writer, self._reader, return_exceptions=True)
            await self._stack.aclose()

    async def _read(self, stream: BufferedByteReceiveStream) -> None:
        ending = ""
        try:
            while True:
                self._take(*await read_frame(stream.receive_exactly))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, OSError):
            """The child has ended, or is about to."""
        except Exception:  # after a malformed message no later one could be read
            ending = "sent a malformed message and was terminated"
            self.child.kill()
        await self._fail_requests(ending)

    def _take(self, message: Message, parts: list[bytes]) -> None:
        self.state.update(message.get("state", {}))
        call, future = self._asked.get(int(message["id"]), ("", None))
        if future is None or future.done():
            return
        if "error" in message:
            log = self.child.log.path
            future.set_exception(error_of(message["error"], lambda kind, line: failed(kind, line, call, log)))
        else:
            future.set_result((message.get("result"), parts))

    async def _write(self) -> None:
        assert self.child.process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):  # the reader handles it
            while True:
                for piece in await self._outgoing.get():
                    await self.child.process.stdin.send(piece)

    async def _fail_requests(self, ending: str) -> None:
        """Fail all requests, since the channel has closed. `ending` says how the process ended; empty: ask it."""
        doing = [call for call, _ in self._asked.values()]
        with anyio.move_on_after(_END_SECONDS):
            await self.child.wait()
        if self.child.returncode is None:
            self.child.kill()
            ending = ending or "closed its channel and was terminated"
        by_kernel = kernel_kills() > self._kills
        said = died(ending or self.child.ending, doing, self.child.log.path, self.child.tail(), by_kernel=by_kernel)
        self._give_up(said)

    def _give_up(self, error: EngineStop) -> None:
        self._gone = self._gone or error
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(EngineStop(str(self._gone)))
                future.exception()  # marks it as retrieved: its caller may have gone


class ChildLearner(LearnerHost):
    """A learner in a child process."""

    def __init__(self, settings: LocalSettings, *, sampling: bool) -> None:
        """`sampling`: the child holds the engine too, for a `ChildSampler`."""
        self.settings = settings
        self.sampling = sampling
        self.chat: ChatFormat | None = None
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        """The child and the channel to it. Raises ConfigError before `begin`."""
        if self._process is None:
            raise ConfigError("The learner is not loaded yet: call `await model.register(backend)` first.")
        return self._process

    @property
    def step(self) -> int:
        return int(self.process.state["step"])

    async def begin(self) -> None:
        """Start the process, whose heavy imports begin at once. Raises ConfigError if it cannot start."""
        environment = learner_environment(self.settings.unsloth, sampling=self.sampling)
        if gpus := self.settings.placement.learner_gpus:
            environment |= device_environment(gpus)
        self._process = await ChildProcess.start(self.settings.run, environment)

    async def open(self) -> OpenedLearner:
        if self._process is None:
            await self.begin()
        told = self.settings.model_dump_json()
        opened, described = await self.process.ask("open", abandon=True, settings=told, sampling=self.sampling)
        self.process.ready = True
        if described:
            plain = PlainTokenizer(Description.model_validate_json(described[0]))
            self.chat = recorded_chat(plain, opened["loaded"])
        return OpenedLearner.model_validate(opened)

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        parts = await anyio.to_thread.run_sync(_group_parts, groups)
        metrics, _ = await self.process.ask("update", parts, config=config.model_dump_json())
        return dict(metrics)

    async def save(self, extras: CheckpointExtras) -> Path:
        given = extras.model_dump(exclude={"files"})
        folder, _ = await self.process.ask("save", list(extras.files.values()), files=list(extras.files), **given)
        return Path(folder)

    async def write_policy(self, folder: Path) -> None:
        await self.process.ask("write_policy", folder=str(folder))

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        _, parts = await self.process.ask("token_logprobs", [json.dumps([list(s) for s in sequences]).encode()])
        found: list[list[float]] = json.loads(parts[0])
        return found

    async def rest(self) -> dict[str, float]:
        return await self._move(to_device=False)

    async def wake(self) -> dict[str, float]:
        return await self._move(to_device=True)

    async def _move(self, *, to_device: bool) -> dict[str, float]:
        if self.settings.train.offload_while_sampling != "host":
            return {}
        return dict((await self.process.ask("move", to_device=to_device))[0])

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


class ChildSampler(SamplerHost):
    """The in-process engine in the learner's child process."""

    def __init__(self, learner: ChildLearner) -> None:
        self._learner = learner
        self._engine: ChildEngine | None = None

    @property
    def engine(self) -> ChildEngine:
        if self._engine is None:
            raise ConfigError("The engine is not open yet: call `await model.register(backend)` first.")
        return self._engine

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        await self._learner.process.ask("engine")
        self._engine = ChildEngine(self._learner.process)

    async def take(self, learner: LearnerHost, step: int) -> None:
        await self._learner.process.ask("take", step=step)
        canaries.check_version(self.engine.version, step)

    async def close(self) -> None:
        """Forget the engine, which ends with the child."""
        self._engine = None


class ChildEngine:
    """The engine in the child, seen from here."""

    def __init__(self, process: ChildProcess) -> None:
        self._process = process
        self._numbers = itertools.count(1)

    @property
    def version(self) -> int:
        return int(self._process.state["version"])

    @property
    def max_context(self) -> int:
        return int(self._process.state["max_context"])

    @property
    def stats(self) -> Any:
        """The engine's counters, as last reported."""
        return SimpleNamespace(**self._process.state["stats"])

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator[ChildEpisode]:
        number = next(self._numbers)
        self._process.tell("episode", episode=number, seed=seed)
        try:
            yield ChildEpisode(self._process, number)
        finally:
            self._process.tell("end_episode", episode=number)


class ChildEpisode:
    """A growing sequence in the child."""

    def __init__(self, process: ChildProcess, number: int) -> None:
        self._process = process
        self._number = number

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Sample a turn in the child. Raises EngineStop if the child is gone."""
        completion, _ = await self._process.ask(
            "generate", abandon=True, episode=self._number, new_ids=list(new_ids), sampling=asdict(sampling)
        )
        return Completion(**completion)


def _group_parts(groups: Sequence[TrajectoryGroup]) -> list[bytes]:
    """Return the part of each group that the learner needs, as JSON."""
    left_out: Any = {"trajectories": {"__all__": _NOT_LEARNED_FROM}, "metadata": True}
    return [group.model_dump_json(exclude=left_out).encode() for group in groups]
