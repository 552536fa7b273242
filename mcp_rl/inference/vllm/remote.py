"""A vLLM server that runs already (`engine.url`): checked before it is used, and never started or ended by us."""

import logging
import os
import re
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx

from mcp_rl.errors import ConfigError, EngineStop
from mcp_rl.inference.vllm import checks
from mcp_rl.inference.vllm.pulse import metric

_KEYS = ("MCP_RL_ENGINE_KEY", "VLLM_API_KEY")
_AWAY_SECONDS = 300.0
"""For whoever runs the server to start it again."""
_PROBE_SECONDS = 1.0
_log = logging.getLogger(__name__)


def check_remote(server: "RemoteServer") -> None:
    """`server.check()`, from wherever: in a thread, since a loop may be running in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(anyio.run, server.check).result()


class RemoteServer:
    """Somebody else's server, with the interface of `VllmServer`."""

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
        """`url` with or without /v1. `model` is what the server must serve, `lora_rank` the rank of the adapters that
        come out of the folder `adapters`, `max_context` the tokens of the longest episode; None leaves a check out.
        The key is that of MCP_RL_ENGINE_KEY or VLLM_API_KEY in the environment.

        Raises ConfigError for what is no address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise ConfigError(f"engine.url = {url!r} is no http address, such as http://127.0.0.1:8000/v1.")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        self.api_key = api_key or key
        self.starts = 0
        """Grows where the server was started again; what was loaded into it is gone then."""
        self.max_context: int | None = None
        self.served_name = ""
        self.seeds = True
        """Whether requests may bring a seed: not where the server looks like one on a CPU, of which 0.32 may die."""
        self.sleeps = False
        self._model, self._rank, self._adapters, self._wanted = model, lora_rank, adapters, max_context
        self._away, self._say = away_seconds, say or _log.warning
        self._began: float | None = None
        """When the server's process began, as it says."""

    async def check(self) -> None:
        """Check that it can do what is asked of it, as far as that goes without writing anything. Raises ConfigError
        with one sentence where it cannot."""
        await self._check(None)

    async def start(self) -> None:
        """`check`, and that it sees the adapters' folder and takes their rank."""
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
                raise ConfigError(f"{whose} broke off a check: {error or type(error).__name__}.") from error

    async def ready(self) -> None:
        """Return when it serves; raises EngineStop where it stays away for five minutes."""
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
        """Nothing: its memory is not ours to give up."""

    async def wake(self) -> None: ...

    async def close(self) -> None:
        """Nothing: it goes on for others."""

    def client(self, *, timeout: float | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    async def _look(self, client: httpx.AsyncClient) -> None:
        """Whether it is still the process that it was, as far as its metrics tell."""
        answer = await client.get("/metrics")
        began = None if answer.is_error else metric(answer.text, "process_start_time_seconds")
        if self.starts == 0 or (began is not None and self._began not in (None, began)):
            self.starts += 1
        self._began = self._began if began is None else began
        if not answer.is_error:
            # What vLLM takes on a CPU, and on GPUs for few kinds of model.
            self.seeds = re.search(r'^vllm:cache_config_info\{.*\bblock_size="128"', answer.text, re.MULTILINE) is None
