"""Messages between the trainer and the learner's process, and errors about a process that is gone."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_rl import errors
from mcp_rl.backends.processes.channel import error_message, error_of
from mcp_rl.backends.processes.child import ChildProcess
from mcp_rl.backends.processes.failures import died, failed
from mcp_rl.errors import EngineStop, McpRlError, RunStop, ServerFault, UserError
from mcp_rl.system.processes.spawn import spawned

ECHO = """
import anyio, asyncio, os, sys
from mcp_rl.backends.processes.channel import error_message
from mcp_rl.backends.processes.child_main import Channel

async def main():
    channel, inbox = Channel(), asyncio.Queue()
    channel.serve(inbox)
    print("what a library prints")
    kept = []
    while True:
        message, parts = await inbox.get()
        match message["call"]:
            case "keep":
                kept.append(message["id"])
            case "answer_all":
                for number in reversed([*kept, message["id"]]):
                    channel.send({"id": number, "result": number}, [])
            case "die":
                print("last words", file=sys.stderr, flush=True)
                os.kill(os.getpid(), message["arguments"]["signal"])
            case "exit":
                os._exit(message["arguments"]["status"])
            case "babble":
                os.write(channel._out, b"this is no frame of anybody's" * 10)
            case "raise":
                channel.send({"id": message["id"], "error": error_message(MemoryError("no more"))}, [])
            case "echo":
                channel.send({"id": message["id"], "result": message["arguments"], "state": {"step": 7}}, parts)

anyio.run(main)
"""


@asynccontextmanager
async def echo(folder: Path) -> AsyncIterator[ChildProcess]:
    """Yield the parent's side of a channel to a process without a learner."""
    async with AsyncExitStack() as stack:
        child = await stack.enter_async_context(
            spawned(
                [sys.executable, "-c", ECHO],
                role="learner",
                run=folder,
                log=folder / "learner.log",
                environment={"PYTHONPATH": os.pathsep.join(sys.path)},
                pipes="pass",
            )
        )
        process = ChildProcess(child, stack.pop_all())
        try:
            with anyio.fail_after(120):
                yield process
        finally:
            await process.close()


async def test_messages_of_any_size_cross_and_prints_go_to_the_log(tmp_path: Path) -> None:
    async with echo(tmp_path) as process:
        arguments: dict[str, Any] = {"x": [1, None, 0.1 + 0.2, float("inf")], "text": "é\u2028\x00"}
        assert await process.ask("echo", [b"", b"\x00\xff"], **arguments) == (arguments, [b"", b"\x00\xff"])
        assert process.state["step"] == 7
        large = os.urandom(2**20) * 100
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await anyio.sleep(0.001)
                ticks += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tick)
            _, parts = await process.ask("echo", [large, b"and more"])
            tasks.cancel_scope.cancel()
        assert parts == [large, b"and more"] and ticks >= 3
        assert process.child.tail() == "what a library prints"


async def test_many_requests_are_answered_in_any_order(tmp_path: Path) -> None:
    async with echo(tmp_path) as process:
        answers: list[Any] = []

        async def ask(call: str) -> None:
            answers.append((await process.ask(call))[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(ask, "keep")
            await anyio.sleep(0.1)
            with anyio.move_on_after(0.01):
                await process.ask("keep", abandon=True)  # its caller is gone when it is answered
            tasks.start_soon(ask, "answer_all")
        assert sorted(answers) == [*range(1, 201), 202]


async def test_a_cancelled_caller_still_waits_for_an_update(tmp_path: Path) -> None:
    async with echo(tmp_path) as process:
        done = []

        async def update() -> None:
            done.append(await process.ask("keep"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(update)
            await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await process.ask("answer_all")
        assert len(done) == 1


async def test_the_end_of_the_process_is_named_with_its_last_words(tmp_path: Path) -> None:
    for call, arguments, words in (
        (
            "die",
            {"signal": signal.SIGSEGV},
            r"process was killed by SIGSEGV; the same command continues .* last words$",
        ),
        ("die", {"signal": signal.SIGKILL}, r"was killed, .*memory\. Lower train\.microbatch_tokens.* last words$"),
        ("exit", {"status": 3}, r"process exited with status 3; the same command continues"),
    ):
        async with echo(tmp_path) as process:
            with pytest.raises(EngineStop, match=words):
                await process.ask(call, **arguments)
            with pytest.raises(EngineStop, match=words):
                await process.ask("echo")


async def test_a_malformed_message_ends_the_process(tmp_path: Path) -> None:
    async with echo(tmp_path) as process:
        with pytest.raises(EngineStop, match="process sent a malformed message and was terminated; the same command"):
            await process.ask("babble")
    assert process.child.returncode is not None


async def test_out_of_memory_names_settings(tmp_path: Path) -> None:
    async with echo(tmp_path) as process:
        with pytest.raises(
            EngineStop, match=r"ran out of memory: no more\. Lower train\.microbatch_tokens.*load_in_4bit"
        ):
            await process.ask("raise")
        assert (await process.ask("echo", fine=True))[0] == {"fine": True}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("AcceleratorError", "CUDA error: out of memory"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_all_of_torchs_out_of_memory_errors_are_known(kind: str, sentence: str) -> None:
    assert "The learner ran out of memory in an update" in str(failed(kind, sentence, "update"))
    assert "failed in an update with" in str(
        failed(kind.replace("OutOfMemory", "Value"), "CUDA error: other", "update")
    )


def error_classes() -> list[type[McpRlError]]:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, McpRlError)]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("kind", error_classes())
def test_our_errors_keep_their_class(kind: type[McpRlError]) -> None:
    crossed = error_of(error_message(kind("One sentence: ü.")), lambda kind, line: EngineStop("unexpected"))
    assert type(crossed) is kind and str(crossed) == "One sentence: ü."


def test_details_of_an_error_cross() -> None:
    def unexpected(kind: str, line: str) -> McpRlError:
        return failed(kind, line, "update", Path("learner.log"))

    fault = error_of(error_message(ServerFault("It was lost.", delivered=False)), unexpected)
    assert isinstance(fault, ServerFault) and fault.delivered is False
    full = error_of(error_message(OSError(28, "No space left on device", "/x")), unexpected)
    assert type(full) is UserError and str(full) == "Cannot use /x: the disk is full."
    strange = error_of(error_message(KeyError("a\nb")), unexpected)
    assert isinstance(strange, RunStop)
    assert str(strange).startswith(
        "The learner failed in an update with KeyError: 'a\\nb'; the same command continues "
    )
    assert str(strange).endswith(" The traceback is in learner.log.")
    memory = error_of({"class": None, "kind": "OutOfMemoryError", "sentence": "CUDA out of memory"}, unexpected)
    assert str(memory).startswith("The learner ran out of memory in an update: CUDA out of memory. Lower ")


def test_a_kill_by_the_kernel_is_named() -> None:
    counted = str(died("was killed by SIGKILL", ["save"], Path("learner.log"), "", by_kernel=True))
    assert counted.startswith("The learner's process was killed while it saved, for want of memory. Lower ")
    assert counted.endswith("learner.log has no word of it.")
