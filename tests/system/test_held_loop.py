"""Whatever holds the event loop is named, and what does not is not."""

import asyncio
import threading
import time

import pytest

from mcp_rl.explore import words
from mcp_rl.system import held_loop
from mcp_rl.system.held_loop import WATCHER, run_watched, watched_loop


def busy(seconds: float) -> str:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))
    return "x"


async def test_what_computes_in_the_loop_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_loop, "HELD_SECONDS", 0.2)

    def until_named(*_: object) -> str:  # on a machine that is busy itself, later
        end = time.monotonic() + 20
        while not caplog.records and time.monotonic() < end:
            busy(0.1)
        return busy(0.8)

    monkeypatch.setattr(words.re, "sub", until_named)
    with watched_loop():
        words.words_of.__wrapped__("a")
        await asyncio.sleep(0.4)
        words.words_of.__wrapped__("a")
    [record] = caplog.records
    assert "held for" in record.message and "by mcp_rl.explore.words.words_of, line" in record.message
    assert "(in test_held_loop.busy" in record.message


async def test_threads_and_waiting_do_not_hold_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_loop, "HELD_SECONDS", 0.2)
    with watched_loop():
        await asyncio.gather(asyncio.to_thread(busy, 0.6), asyncio.sleep(0.6))
        time.sleep(0.6)  # noqa: ASYNC251  starved, as on a busy machine
    assert not caplog.records


def test_it_ends_with_the_loop() -> None:
    def watchers() -> int:
        return sum(thread.name == WATCHER for thread in threading.enumerate())  # others' threads may end meanwhile

    async def watched() -> int:
        return watchers()

    assert run_watched(watched) == 1
    assert watchers() == 0
