"""The learner in a child process, and the in-process engine beside it there where that is what samples.

A crash or an out-of-memory in the child is one named error here, its memory is really freed when it ends, and nothing
of it is left when we end: it runs under the watchdog. This side imports no torch.

What is asked of the child crosses `channel.py`; what runs there is `child_main.py`. Updates and saves are not abandoned
when their caller is cancelled, as they are not in one process; turns are, and the child stops sampling them.
"""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

import mcp_rl
from mcp_rl.backends.channel import Message, error_of, frame, read_frame
from mcp_rl.backends.early import UNSLOTH
from mcp_rl.backends.failures import died, failed, kernel_kills
from mcp_rl.backends.hosts import LearnerHost, LocalSettings, Opened
from mcp_rl.backends.plain_tokenizer import Description, PlainTokenizer
from mcp_rl.chat.ends import recorded_ends
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import PlacementConfig, TrainConfig, UnslothConfig
from mcp_rl.errors import ConfigError, EngineStop, McpRlError
from mcp_rl.hardware.gpus import device_environment
from mcp_rl.inference.engine import Completion, Sampling
from mcp_rl.learning import canaries
from mcp_rl.processes.spawn import Child, spawned
from mcp_rl.trajectory import TrajectoryGroup

_END_SECONDS = 5.0
"""For the watchdog to end after the child's pipes have closed, and for the child to close what it has open."""
_NOT_LEARNED_FROM = {"messages", "calls", "final_state", "explanation", "metrics"}
"""Of a trajectory: the learner takes its tokens."""


class ChildProcess:
    """The child and the channel to it."""

    def __init__(self, child: Child, stack: AsyncExitStack, environment: Mapping[str, str]) -> None:
        assert child.process.stdin is not None and child.process.stdout is not None
        self.child = child
        self.environment = environment
        """What it was given."""
        self.state: Message = {"step": 0, "version": -1, "max_context": 0, "stats": {}}
        """What the child said of itself last."""
        self._stack = stack
        self._kills = kernel_kills()
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[str, asyncio.Future[tuple[Any, list[bytes]]]]] = {}
        self._outgoing: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._gone: EngineStop | None = None
        self.ready = False
        """Whether the learner is open, so that it can be closed."""
        self._reader = asyncio.create_task(self._read(BufferedByteReceiveStream(child.process.stdout)))
        self._writer = asyncio.create_task(self._write())

    @classmethod
    async def start(cls, run: Path, environment: Mapping[str, str]) -> "ChildProcess":
        """Start it; its heavy imports begin at once. Raises ConfigError where that cannot be."""
        package = str(Path(mcp_rl.__file__).parents[1])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = spawned(
            [sys.executable, "-P", "-m", "mcp_rl.backends.child_main"],
            role="learner",
            run=run,
            log=run / "logs" / "learner.log",
            environment={"PYTHONPATH": os.pathsep.join(paths), **environment},
            channel=True,
        )
        stack = AsyncExitStack()
        try:
            child = await stack.enter_async_context(process)
        except OSError as error:
            raise ConfigError(f"The learner's process cannot be started: {error}.") from error
        return cls(child, stack, environment)

    async def ask(
        self, call: str, parts: Sequence[bytes] = (), *, abandon: bool = False, **arguments: Any
    ) -> tuple[Any, list[bytes]]:
        """The child's answer and the bytes with it. Raises what it raised, EngineStop where it is gone.

        Unless `abandon`, the answer is waited for also where the caller is cancelled.
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
        """Send what is not answered. Where the child is gone, nothing happens."""
        if self._gone is None:
            self._outgoing.put_nowait(frame({"call": call, "arguments": arguments}))

    async def close(self) -> None:
        """End the child, politely where it has nothing to do."""
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
            """It has ended, or is about to."""
        except Exception:  # nothing that comes after what is no message would be one
            ending = "sent what is no message, and was ended"
            self.child.kill()
        await self._find_out(ending)

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
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):  # the reader finds out why
            while True:
                for piece in await self._outgoing.get():
                    await self.child.process.stdin.send(piece)

    async def _find_out(self, ending: str) -> None:
        """The channel has closed: how did the process end, where `ending` does not say it?"""
        doing = [call for call, _ in self._asked.values()]
        with anyio.move_on_after(_END_SECONDS):
            await self.child.wait()
        if self.child.returncode is None:
            self.child.kill()
            ending = ending or "closed its channel, and was ended"
        by_kernel = kernel_kills() > self._kills
        said = died(ending or self.child.ending, doing, self.child.log.path, self.child.tail(), by_kernel=by_kernel)
        self._give_up(said)

    def _give_up(self, error: EngineStop) -> None:
        self._gone = self._gone or error
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(EngineStop(str(self._gone)))
                future.exception()  # it may have nobody who waits any more


_early: list[tuple[Path, ChildProcess]] = []
"""Children that were started before their learner is asked for, and their runs."""


@asynccontextmanager
async def started_early(
    run: Path, placement: PlacementConfig, unsloth: UnslothConfig, *, sampling: bool
) -> AsyncIterator[None]:
    """Start the child of a run, whose learner is opened later, so that its heavy imports are done by then. It is ended
    with this context where nobody has opened it."""
    process = await ChildProcess.start(run, child_environment(placement, unsloth, sampling=sampling))
    _early.append((run, process))
    try:
        yield
    finally:
        if (run, process) in _early:
            _early.remove((run, process))
            await process.close()


def _begun(run: Path) -> ChildProcess | None:
    """The child that was started early for a run, from now on its learner's."""
    for entry in _early:
        if entry[0].resolve() == run.resolve():
            _early.remove(entry)
            return entry[1]
    return None


class ChildLearner:
    """A LearnerHost whose learner is in a child process."""

    def __init__(self, settings: LocalSettings, *, sampling: bool) -> None:
        """`sampling`: the engine is in the child too, for a `ChildSampler`."""
        self.settings = settings
        self.sampling = sampling
        self.chat: ChatFormat | None = None
        """The base's chat format, without transformers; None where that would not be exact."""
        self._process: ChildProcess | None = None

    @property
    def process(self) -> ChildProcess:
        """Raises ConfigError before `open`."""
        if self._process is None:
            raise ConfigError("The learner is not loaded yet: call `await model.register(backend)` first.")
        return self._process

    @property
    def step(self) -> int:
        return int(self.process.state["step"])

    async def open(self) -> Opened:
        settings = self.settings
        environment = child_environment(settings.placement, settings.unsloth, sampling=self.sampling)
        early = _begun(settings.run)
        if early is not None and early.environment != environment:
            await early.close()
            early = None
        self._process = early or await ChildProcess.start(settings.run, environment)
        told = settings.model_dump_json()
        opened, described = await self.process.ask("open", abandon=True, settings=told, sampling=self.sampling)
        self.process.ready = True
        if described:
            plain = PlainTokenizer(Description.model_validate_json(described[0]))
            self.chat = ChatFormat(plain, recorded_ends(opened["loaded"]))
        return Opened.model_validate(opened)

    async def update(self, groups: Sequence[TrajectoryGroup], config: TrainConfig) -> dict[str, float]:
        parts = await anyio.to_thread.run_sync(_group_parts, groups)
        metrics, _ = await self.process.ask("update", parts, config=config.model_dump_json())
        return dict(metrics)

    async def save(
        self,
        *,
        metrics: Mapping[str, float] | None,
        frontier: Mapping[str, Any] | None,
        files: Mapping[str, bytes],
        keep: int,
        protect: Sequence[int],
    ) -> Path:
        folder, _ = await self.process.ask(
            "save",
            list(files.values()),
            metrics=None if metrics is None else dict(metrics),
            frontier=None if frontier is None else dict(frontier),
            files=list(files),
            keep=keep,
            protect=list(protect),
        )
        return Path(folder)

    async def write_policy(self, folder: Path) -> None:
        await self.process.ask("write_policy", folder=str(folder))

    async def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        _, parts = await self.process.ask("token_logprobs", [json.dumps([list(s) for s in sequences]).encode()])
        found: list[list[float]] = json.loads(parts[0])
        return found

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.close()


class ChildSampler:
    """A SamplerHost whose engine is in the learner's process."""

    def __init__(self, learner: ChildLearner) -> None:
        self._learner = learner
        self._engine: ChildEngine | None = None

    @property
    def engine(self) -> "ChildEngine":
        if self._engine is None:
            raise ConfigError("The engine is not open yet: call `await model.register(backend)` first.")
        return self._engine

    async def open(self, learner: LearnerHost, chat: ChatFormat) -> None:
        await self._learner.process.ask("engine")
        self._engine = ChildEngine(self._learner.process)

    async def take(self, learner: LearnerHost, step: int) -> None:
        await self._learner.process.ask("take", step=step)
        canaries.check_version(self.engine.version, step)

    async def rest(self) -> None:
        """Nothing: what it holds is the learner's own base, and a cache."""

    async def wake(self) -> None: ...

    async def close(self) -> None:
        """It ends with the child."""
        self._engine = None


class ChildEngine:
    """An Engine whose sampling is done in the child."""

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
        """The engine's counters, as it told them last."""
        return SimpleNamespace(**self._process.state["stats"])

    @asynccontextmanager
    async def episode(self, *, seed: int) -> AsyncIterator["ChildEpisode"]:
        number = next(self._numbers)
        self._process.tell("episode", episode=number, seed=seed)
        try:
            yield ChildEpisode(self._process, number)
        finally:
            self._process.tell("end_episode", episode=number)


class ChildEpisode:
    """One growing sequence in the child."""

    def __init__(self, process: ChildProcess, number: int) -> None:
        self._process = process
        self._number = number

    async def generate(self, new_ids: Sequence[int], sampling: Sampling) -> Completion:
        """As the engine in the child does. Raises EngineStop where the child is gone."""
        completion, _ = await self._process.ask(
            "generate", abandon=True, episode=self._number, new_ids=list(new_ids), sampling=asdict(sampling)
        )
        return Completion(**completion)


def child_environment(placement: PlacementConfig, unsloth: UnslothConfig, *, sampling: bool) -> dict[str, str]:
    """What the child is given besides what computing needs: the devices that it may see, whether Unsloth is imported
    (our engine samples no model that it has changed), and the token that the configuration names."""
    use = False if sampling else unsloth.use
    environment = {UNSLOTH: "" if use is None else str(int(use))}
    environment["CUDA_DEVICE_ORDER"] = os.environ.get("CUDA_DEVICE_ORDER") or "PCI_BUS_ID"  # as vLLM counts
    if placement.learner_gpus:
        environment |= device_environment(placement.learner_gpus)
    name = unsloth.token
    if name is not None and name in os.environ:
        environment[name] = os.environ[name]
    return environment


def _group_parts(groups: Sequence[TrajectoryGroup]) -> list[bytes]:
    """What the learner needs of each group."""
    left_out: Any = {"trajectories": {"__all__": _NOT_LEARNED_FROM}, "metadata": True}
    return [group.model_dump_json(exclude=left_out).encode() for group in groups]
