"""Finds out that a server which lives does nothing any more."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import httpx

_RUNNING = "vllm:num_requests_running"
_WORK = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count")
"""What grows with every step that computes something."""


@dataclass(frozen=True)
class Pulse:
    """How often a server is asked for signs of life, and how long it may show none."""

    every: float = 5.0
    seconds: float = 30.0
    """For one answer."""
    silent: float = 120.0
    """Without any answer to /health: it is frozen."""
    idle: float = 300.0
    """With requests that run, and no token computed for any: what computes is frozen behind a server that answers."""

    async def until_frozen(self, client: httpx.AsyncClient, *, asleep: Callable[[], bool]) -> str:
        """The reason, a sentence without its full stop, once it is frozen. While `asleep`, nothing is computed."""
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
        """Requests that run, and a sum that grows with what is computed for them; (0, None) where it does not tell."""
        try:
            answer = await client.get("/metrics")
        except httpx.HTTPError:
            return 0.0, None
        if answer.is_error:
            return 0.0, None
        return metric(answer.text, _RUNNING) or 0.0, sum(metric(answer.text, name) or 0.0 for name in _WORK)


def metric(text: str, name: str) -> float | None:
    """The sum of a metric over its labels, out of Prometheus' text format; None where it is not there."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, found)) if found else None
