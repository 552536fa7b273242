"""The order in which calls of several episodes are made on one process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mcp_rl.toolserver.admission import Admission


class Process:
    """A process whose calls end when they are told to."""

    def __init__(self) -> None:
        self.calls = Admission()
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, layer: int | None, *, harmless: bool = False, new: bool = False) -> None:
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._call(name, layer, harmless=harmless, new=new))
        await settled()

    async def _call(self, name: str, layer: int | None, **kind: Any) -> None:
        anew = await self.calls.enter(layer, **kind)
        try:
            self.calls.brought(layer, harmless=kind["harmless"], anew=anew)
            self.begun.append(name)
            await self.ends[name].wait()
        finally:
            self.calls.leave()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()


async def settled() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with asyncio.timeout(30):
        process = Process()
        try:
            yield process
        finally:
            for task in process.tasks.values():
                task.cancel()
            await asyncio.gather(*process.tasks.values(), return_exceptions=True)


async def test_calls_that_leave_no_trace_are_made_together_over_the_same_files(process: Process) -> None:
    await process.begin("first", None, harmless=True, new=True)
    await process.begin("second", None, harmless=True)
    assert process.begun == ["first", "second"]
    await process.begin("other files", 1, harmless=True)
    await process.begin("writes", None)
    await process.begin("new", None, harmless=True, new=True)
    await process.end("first")
    assert process.begun == ["first", "second"]
    await process.end("second")
    assert process.begun == ["first", "second", "writes"]
    await process.end("writes")
    await process.end("new")
    await process.end("other files")
    assert sorted(process.begun[3:]) == ["new", "other files"]


async def test_new_episodes_that_only_read_begin_together_once_the_files_are_in_place(process: Process) -> None:
    await process.begin("writes", 1)
    for name in ("first", "second", "third"):
        await process.begin(name, None, harmless=True, new=True)
    await process.end("writes")
    assert process.begun == ["writes", "first", "second", "third"]
    await process.begin("late", None, harmless=True, new=True)
    await process.begin("goes on", None, harmless=True)
    assert process.begun[4:] == ["goes on"], "files are looked at again for an episode that came after that"


async def test_the_next_call_over_the_files_in_place_goes_first_but_not_for_ever(process: Process) -> None:
    await process.begin("0", 1)
    await process.begin("waits", 2)
    for number in range(1, 30):
        process.ends[str(number - 1)].set()
        await asyncio.sleep(0)
        await process.begin(str(number), 1)
        if "waits" in process.begun:
            break
    assert process.begun[:9] == [str(number) for number in range(9)] and process.begun[9] == "waits"
    await process.end("waits")
    assert process.begun[10] == "9"


@pytest.mark.parametrize("under_way", [True, False])
async def test_a_cancelled_call_leaves_its_place_to_the_others(process: Process, under_way: bool) -> None:
    await process.begin("first", 1)
    await process.begin("second", 2)
    await process.begin("third", 3)
    process.tasks["first" if under_way else "second"].cancel()
    await settled()
    await process.end("first")
    await process.end("second")
    assert process.begun[-1] == "third" and ("second" in process.begun) is under_way
