"""Detect a server that is alive but does nothing any more."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import httpx

from mcp_rl.inference.vllm.compat.metrics import running_requests, work_done

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Pulse:
    """Intervals and limits for a server's signs of life, in seconds."""

    every: float = 5.0
    """Pause between two checks."""
    seconds: float = 30.0
    """Timeout of one answer."""
    silent: float = 120.0
    """A server that has not answered /health for this long is frozen."""
    idle: float = 300.0
    """A server that runs requests and has computed no token for this long is frozen, even if it answers."""

    async def until_frozen(self, client: httpx.AsyncClient, *, asleep: Callable[[], bool]) -> str:
        """Wait until the server is frozen and return the reason, a sentence without its full stop.

        While `asleep()`, the server is expected to compute nothing.
        """
        heard = worked = time.monotonic()
        work: float | None = None
        while True:
            await anyio.sleep(self.every)
            answers = await self._answers(client)
            now = time.monotonic()
            if answers:
                heard = now
            elif now - heard > self.silent:
                return f"It is frozen: it has not answered for {now - heard:.0f} s"
            if not answers:
                continue
            running, done = await self._work(client)
            if asleep() or not running or done != work:
                worked, work = time.monotonic(), done
            elif now - worked > self.idle:
                return f"It is frozen: {running:.0f} requests run, and no token was computed in {now - worked:.0f} s"

    async def _answers(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get("/health")).status_code == 200
        except httpx.HTTPError:
            return False

    async def _work(self, client: httpx.AsyncClient) -> tuple[float, float | None]:
        """Number of running requests, and work done for requests; (0, None) if the server does not say."""
        try:
            answer = await client.get("/metrics")
        except httpx.HTTPError:
            return 0.0, None
        return (0.0, None) if answer.is_error else (running_requests(answer.text), work_done(answer.text))
