"""A vLLM server that already runs (`engine.url`): checked before it is used, never started or ended."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import httpx

from mcp_rl.errors import ConfigError, EngineStop
from mcp_rl.inference.vllm import checks
from mcp_rl.inference.vllm.compat.metrics import looks_like_a_cpu, process_start

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = ("MCP_RL_ENGINE_KEY", "VLLM_API_KEY")
_AWAY_SECONDS = 300.0
"""Time for the server's owner to start it again."""
_PROBE_SECONDS = 1.0
_log = logging.getLogger(__name__)


def check_remote(server: RemoteServer) -> None:
    """Run `server.check()` in a thread, since this one may be running an event loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, server.check).result()


class RemoteServer:
    """A server that somebody else runs, with the interface of `VllmServer`."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        lora_rank: int | None = None,
        adapters: Path | None = None,
        max_context: int | None = None,
        api_key: str | None = None,
        away_seconds: float = _AWAY_SECONDS,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """`url` with or without /v1. `model`: the model that the server must serve; `lora_rank`: the rank of the
        adapters that will be written to the folder `adapters`; `max_context`: tokens of the longest episode. None
        leaves a check out. The key is MCP_RL_ENGINE_KEY or VLLM_API_KEY in the environment.

        Raises ConfigError for a URL that is not an http address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ConfigError(f"engine.url = {url!r} is not an http address such as http://127.0.0.1:8000/v1.")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        self.api_key = api_key or key
        self.starts = 0
        """Grows when the server has been restarted, which unloads everything."""
        self.max_context: int | None = None
        self.served_name = ""
        self.seeds = True
        """True if requests may bring a seed; see `compat.cpu.takes_seeds`."""
        self.sleeps = False
        self._model, self._rank, self._adapters, self._wanted = model, lora_rank, adapters, max_context
        self._away, self._say = away_seconds, say or _log.warning
        self._began: float | None = None
        """Start of the server's process, as its metrics say."""

    async def check(self) -> None:
        """Check that it can do what is needed, as far as possible without writing anything.

        Raises ConfigError, one sentence.
        """
        await self._check(None)

    async def start(self) -> None:
        """Run `check`, and check that it sees the adapters' folder and takes their rank."""
        await self._check(self._adapters or Path(tempfile.gettempdir()))
        async with self.client(timeout=10) as client:
            with suppress(httpx.HTTPError):
                await self._look(client)

    async def _check(self, folder: Path | None) -> None:
        whose = f"The vLLM server at {self.url}"
        async with self.client(timeout=120) as client:
            try:
                base = await checks.served_base(client, whose, self._model)
                self.served_name, self.max_context = str(base["id"]), base.get("max_model_len")
                checks.check_context(base, whose, self._wanted)
                await checks.check_sampling(client, whose, self.served_name)
                if self._rank is not None:
                    await checks.check_adapters(client, whose, rank=self._rank, folder=folder)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ConfigError(f"{whose} broke off during a check: {error or type(error).__name__}.") from error

    async def ready(self) -> None:
        """Return when it serves. Raises EngineStop if it does not within `away_seconds`, five minutes by default."""
        began, spoke = time.monotonic(), False
        async with self.client(timeout=10) as client:
            while time.monotonic() - began < self._away:
                try:
                    if (await client.get("/health")).status_code == 200:
                        await self._look(client)
                        return
                except httpx.HTTPError:
                    pass
                if not spoke:
                    spoke = True
                    self._say(
                        f"The vLLM server at {self.url} does not answer; waiting for it up to {self._away:.0f} s."
                    )
                await anyio.sleep(_PROBE_SECONDS)
        raise EngineStop(f"The vLLM server at {self.url} has not answered for {self._away:.0f} s.")

    async def sleep(self) -> None:
        """Do nothing: its memory belongs to others."""

    async def wake(self) -> None: ...

    async def close(self) -> None:
        """Do nothing: others go on using it."""

    def client(self, *, timeout: float | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    async def _look(self, client: httpx.AsyncClient) -> None:
        """Note from its metrics whether it has been restarted and whether it takes seeds."""
        answer = await client.get("/metrics")
        began = None if answer.is_error else process_start(answer.text)
        if self.starts == 0 or (began is not None and self._began not in (None, began)):
            self.starts += 1
        self._began = self._began if began is None else began
        if not answer.is_error:
            self.seeds = not looks_like_a_cpu(answer.text)
