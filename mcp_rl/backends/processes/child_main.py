"""The child's main module, `python -m mcp_rl.backends.processes.child_main`; `child.py` starts it with the channel as
its standard input and output.

Heavy imports come first, while the parent is busy with other things. Then the parent's requests to the learner, to the
engine, or to both if both are here, are served, each in a task of its own. Prints of libraries go to stderr, which is
the log. When the parent's end of the channel closes, this process exits.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.base.plain_tokenizer import described
from mcp_rl.backends.hosts import CheckpointExtras, LearnerHost, LocalSettings
from mcp_rl.backends.processes.channel import Message, error_message, frame, read_frame_blocking
from mcp_rl.backends.processes.early import import_early
from mcp_rl.config import TrainConfig
from mcp_rl.errors import ConfigError, EngineError, McpRlError
from mcp_rl.inference.engine import Sampling
from mcp_rl.system.privacy import seal_process
from mcp_rl.system.processes.memory import peak_rss_mb
from mcp_rl.system.redaction import without_secrets
from mcp_rl.trajectory import TrajectoryGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from anyio.abc import TaskGroup
    from transformers import PreTrainedModel

    from mcp_rl.backends.processes.in_process import InProcessSampler
    from mcp_rl.inference.chat.chat_format import ChatFormat

Inbox = asyncio.Queue[tuple[Message, list[bytes]]]
Answer = tuple[Any, list[bytes]]
Turns = asyncio.Queue[Message | None]


class Channel:
    """The child's side of the channel: a reading and a writing thread."""

    def __init__(self) -> None:
        """Take over standard input and output; from now on other code reads nothing and prints to the log."""
        self._in, self._out = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        os.set_blocking(self._in, True)
        os.set_blocking(self._out, True)
        self._outgoing: SimpleQueue[list[bytes] | None] = SimpleQueue()

    def send(self, message: Message, parts: list[bytes]) -> None:
        self._outgoing.put(frame(message, parts))

    def flush_and_exit(self) -> None:
        """Send waiting messages, and then exit without waiting for threads."""
        self._outgoing.put(None)

    def serve(self, inbox: Inbox) -> None:
        """Start to read, into the inbox of this event loop, and to write."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop, inbox), name="mcp-rl-channel-in", daemon=True).start()
        threading.Thread(target=self._write, name="mcp-rl-channel-out", daemon=True).start()

    def _read(self, loop: asyncio.AbstractEventLoop, inbox: Inbox) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(inbox.put_nowait, read_frame_blocking(self._exactly))
        except (EOFError, OSError):
            os._exit(0)  # the parent has gone, and nobody needs the answers
        except Exception:  # a malformed message: its sender must not wait for ever
            print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
            os._exit(1)

    def _exactly(self, length: int) -> bytes:
        data = bytearray(length)
        view, filled = memoryview(data), 0
        while filled < length:
            count = os.readv(self._in, [view[filled:]])
            if not count:
                raise EOFError
            filled += count
        return bytes(data)

    def _write(self) -> None:
        with suppress(OSError):
            while (pieces := self._outgoing.get()) is not None:
                for piece in pieces:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(self._out, view) :]
        os._exit(0)


class Host:
    """Serves the requests of one parent."""

    def __init__(self, channel: Channel, tasks: TaskGroup) -> None:
        self._channel, self._tasks = channel, tasks
        self._learner: LearnerHost | None = None
        self._sampler: InProcessSampler | None = None
        self._chat: ChatFormat | None = None
        self._episodes: dict[int, Turns] = {}
        self._running: dict[int, anyio.CancelScope] = {}
        """Scopes of requested turns, by the request's number."""

    async def serve(self, inbox: Inbox) -> None:
        """Take requests in order: open and close in this task, everything else in tasks of their own."""
        while True:
            message, parts = await inbox.get()
            arguments: dict[str, Any] = message["arguments"]
            match message["call"]:
                case "open":
                    await self._answer(message["id"], self._open(arguments))
                case "engine":
                    await self._answer(message["id"], self._open_engine())
                case "close":
                    await self._answer(message["id"], self._close())
                    return
                case "episode":
                    turns = self._episodes[arguments["episode"]] = asyncio.Queue()
                    self._tasks.start_soon(self._episode, arguments["seed"], turns)
                case "generate":
                    self._running[message["id"]] = anyio.CancelScope()
                    self._episodes[arguments["episode"]].put_nowait(message)
                case "cancel":
                    if (scope := self._running.get(arguments["request"])) is not None:
                        scope.cancel()
                case "end_episode":
                    self._episodes.pop(arguments["episode"]).put_nowait(None)
                case call:
                    work: Callable[..., Coroutine[Any, Any, Answer]] = getattr(self, f"_{call}")
                    self._tasks.start_soon(self._answer, message["id"], work(arguments, parts))

    async def _answer(self, number: int, work: Coroutine[Any, Any, Answer]) -> None:
        parts: list[bytes] = []
        try:
            result, parts = await work
            answer: Message = {"id": number, "result": result}
        except Exception as error:
            if not isinstance(error, McpRlError):
                print(without_secrets(traceback.format_exc()), file=sys.stderr, flush=True)
            answer = {"id": number, "error": error_message(error)}
        self._channel.send(answer | {"state": self._state()}, parts)

    def _state(self) -> Message:
        """Return what every answer reports of this process."""
        state: Message = {}
        with suppress(ConfigError):
            if self._learner is not None:
                state["step"] = self._learner.step
            if self._sampler is not None:
                engine = self._sampler.engine
                state |= {"version": engine.version, "max_context": engine.max_context, "stats": asdict(engine.stats)}
        return state

    @property
    def _ready(self) -> LearnerHost:
        if self._learner is None:
            raise ConfigError("The learner is not loaded yet.")
        return self._learner

    async def _open(self, arguments: Message) -> Answer:
        from mcp_rl.backends.processes.distributed import make_learner_host
        from mcp_rl.backends.processes.in_process import InProcessSampler

        settings = LocalSettings.model_validate_json(arguments["settings"])
        self._sampler = InProcessSampler(settings) if arguments["sampling"] else None
        learner = make_learner_host(settings, on_base=None if self._sampler is None else self._on_base)
        self._learner = learner
        opened = await learner.open()
        assert learner.chat is not None
        description = await anyio.to_thread.run_sync(described, learner.chat.tokenizer)
        tokenizer = [] if description is None else [description.model_dump_json().encode()]
        return opened.model_dump(mode="json"), tokenizer

    def _on_base(self, base: PreTrainedModel, chat: ChatFormat) -> None:
        assert self._sampler is not None
        self._chat = chat
        self._sampler.build(base, chat)

    async def _open_engine(self) -> Answer:
        assert self._sampler is not None and self._chat is not None
        await self._sampler.open(self._ready, self._chat)
        return None, []

    async def _take(self, arguments: Message, parts: list[bytes]) -> Answer:
        assert self._sampler is not None
        await self._sampler.take(self._ready, arguments["step"])
        return None, []

    async def _update(self, arguments: Message, parts: list[bytes]) -> Answer:
        config = TrainConfig.model_validate_json(arguments["config"])
        groups = await anyio.to_thread.run_sync(_groups, parts)
        metrics = await self._ready.update(groups, config)
        return metrics | {"learner_peak_rss_mb": round(peak_rss_mb(), 1)}, []

    async def _save(self, arguments: Message, parts: list[bytes]) -> Answer:
        files = dict(zip(arguments.pop("files"), parts, strict=True))
        return str(await self._ready.save(CheckpointExtras(files=files, **arguments))), []

    async def _write_policy(self, arguments: Message, parts: list[bytes]) -> Answer:
        await self._ready.write_policy(Path(arguments["folder"]))
        return None, []

    async def _token_logprobs(self, arguments: Message, parts: list[bytes]) -> Answer:
        return None, [json.dumps(await self._ready.token_logprobs(json.loads(parts[0]))).encode()]

    async def _move(self, arguments: Message, parts: list[bytes]) -> Answer:
        return await (self._ready.wake() if arguments["to_device"] else self._ready.rest()), []

    async def _close(self) -> Answer:
        if self._sampler is not None:
            await self._sampler.close()
        if self._learner is not None:
            await self._learner.close()
        return None, []

    async def _episode(self, seed: int, turns: Turns) -> None:
        """Run an episode from its opening to its end, one turn after the other."""
        assert self._sampler is not None
        try:
            async with self._sampler.engine.episode(seed=seed) as episode:
                while (message := await turns.get()) is not None:
                    number, arguments = message["id"], message["arguments"]
                    sampling = arguments["sampling"]
                    sampling |= {name: tuple(sampling[name]) for name in ("stop", "stop_token_ids")}
                    turn = episode.generate(arguments["new_ids"], Sampling(**sampling))
                    with self._running[number]:
                        await self._answer(number, _completed(turn))
                    del self._running[number]
        except EngineError as error:  # the episode could not be opened
            while (message := await turns.get()) is not None:
                self._channel.send({"id": message["id"], "error": error_message(error), "state": self._state()}, [])


async def _completed(turn: Coroutine[Any, Any, Any]) -> Answer:
    return asdict(await turn), []


def _groups(parts: list[bytes]) -> list[TrajectoryGroup]:
    return [TrajectoryGroup.model_validate_json(part) for part in parts]


async def serve(channel: Channel) -> None:
    """Serve requests until the parent sends `close`."""
    inbox: Inbox = asyncio.Queue()
    channel.serve(inbox)
    async with anyio.create_task_group() as tasks:
        await Host(channel, tasks).serve(inbox)
        channel.flush_and_exit()
        await anyio.sleep_forever()


def main() -> None:
    seal_process()
    channel = Channel()
    import_early()
    anyio.run(serve, channel)


if __name__ == "__main__":
    main()
