"""A vLLM server that this process starts and watches.

One task owns the server's process: it starts it, notices when it dies or freezes, and starts it once more. Callers
await `ready()` whenever a request breaks off, and find the server under `url` with `api_key`; both are new with each
start. A failed start, and a second death within ten minutes of the first, raise EngineStop with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from typing import TYPE_CHECKING

import anyio
import httpx

from mcp_rl.config import EngineConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import ConfigError, EngineError, EngineStop
from mcp_rl.inference.vllm.arguments import ServingSpec, check_installed, check_served, command, environment
from mcp_rl.inference.vllm.compat.cpu import takes_seeds
from mcp_rl.inference.vllm.compat.log import Death, cause_of_death, written_by
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.ports import free_port
from mcp_rl.inference.vllm.pulse import Pulse
from mcp_rl.inference.vllm.scratch import Scratch
from mcp_rl.system.processes.spawn import spawned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PORT_ATTEMPTS = 3
_DEATHS_APART_SECONDS = 600.0
"""A second death sooner than this after the first ends the server for good."""
_PROBE_SECONDS = 0.25
_NOTICED_SECONDS = 10.0
"""Longest wait for a death to be noticed after a request broke off."""
_SAY_SECONDS = 20.0
"""A start that takes longer is reported, and again after twice the time."""
_SLEEP_SECONDS = 300.0
"""Timeout for ending turns and moving the weights to or from the machine's memory."""
_log = logging.getLogger(__name__)


class VllmServer:
    """A server of one model. `start` and `close` may be called from different tasks."""

    def __init__(
        self,
        served: ServingSpec,
        *,
        log: Path,
        run: Path | None = None,
        config: EngineConfig | None = None,
        say: Callable[[str], None] | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """`log` is the file that vLLM writes to, `run` the folder of the run that its processes are marked with. `say`
        gets sentences about a slow start; by default they are logged as warnings.

        Raises ConfigError for a spec or settings that vLLM does not accept, and if vLLM is not installed.
        """
        self.config = config or EngineConfig(kind="vllm")
        self.served = served
        check_served(self.config, self.served)
        self.vllm = find_vllm(self.config.python)
        check_installed(self.vllm, self.config)
        self.log, self.run = log, run
        self.starts = 0
        """Number of starts. A new start has lost everything that was loaded before."""
        self.url = ""
        """Address such as http://127.0.0.1:23456, without /v1; new with each start."""
        self.api_key = ""
        """Key that every request must bring; new with each start, and never written to a file."""
        self.max_context: int | None = None
        """Most tokens of an episode, prompt and completion together; known once it is ready."""
        self.pid: int | None = None
        self.start_seconds = 0.0
        """Duration of the newest start."""
        self._say = say or _log.warning
        self._pulse = pulse or Pulse()
        self._serves = False
        self._asleep = False
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        """Set, and replaced by a new one, whenever `_serves` or `_error` changes."""
        self._error: EngineStop | None = None
        self._owner: asyncio.Task[None] | None = None

    @property
    def served_name(self) -> str:
        """Name of the base model in requests."""
        return self.served.name

    @property
    def seeds(self) -> bool:
        """True if requests may bring a seed."""
        return not self.vllm.cpu or takes_seeds({argument_name(name): on for name, on in self.config.args.items()})

    @property
    def sleeps(self) -> bool:
        """True if `sleep` gives up memory: on a GPU, if the spec asks for it."""
        return self.served.sleep and not self.vllm.cpu

    async def start(self) -> None:
        """Begin the start; `ready` waits until the server serves."""
        if self._owner is None:
            # No task group: it would belong to the task that opened it, but `close` may come from another.
            self._owner = asyncio.create_task(self._own(), name="owner of vLLM's server")

    async def ready(self) -> None:
        """Return as soon as it serves; wait while it starts or restarts.

        Raises EngineStop, with the cause and the last lines of its log, if it will not come back.
        """
        if self._owner is None:
            raise EngineStop("vLLM's server was not started, or is closed.")
        while not self._serves:
            if self._error is not None:
                stop = EngineStop(str(self._error))
                stop.exit_code = self._error.exit_code
                raise stop
            await self._changed.wait()

    async def sleep(self) -> None:
        """End the turns in flight and give up the GPU's memory until `wake`. Does nothing on a CPU.

        If the server dies meanwhile, it is restarted only after `wake`, since its memory is in use.
        """
        if not self.sleeps:
            return
        await self.ready()
        self._asleep = True
        try:
            await self._ask("/sleep", level="1", mode="wait")
        except EngineError:
            if not await self._died():
                self._asleep = False
                raise

    async def wake(self) -> None:
        """Take the memory back, with the base's weights; keys and values are lost."""
        self._asleep = False
        if not self.sleeps:
            return
        await self.ready()
        try:
            await self._ask("/wake_up")
        except EngineError:  # a server that died of it is restarted, awake
            if not await self._died():
                raise
            await self.ready()

    async def _died(self) -> bool:
        """Return whether it is gone, or soon will be, after a request broke off."""
        with anyio.move_on_after(_NOTICED_SECONDS):
            while self._serves:
                await self._changed.wait()
        return not self._serves

    async def close(self) -> None:
        """End the server and all processes that it started."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._stopping.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({owner})
        if not owner.cancelled() and (error := owner.exception()) is not None:
            raise error

    async def __aenter__(self) -> VllmServer:
        await self.start()
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def client(self, *, timeout: float | None = None) -> httpx.AsyncClient:
        """Return a client for this start of the server. The caller closes it; `timeout` in seconds, None for none."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        limits = httpx.Limits(max_connections=None)  # vLLM queues what it cannot run yet
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async def _own(self) -> None:
        """Run the server, and once more after a death."""
        last_death, taken = float("-inf"), 0
        try:
            while not self._stopping.is_set():
                death = await self._live()
                if death is None:
                    return
                if not death.served and death.port_taken and (taken := taken + 1) < _PORT_ATTEMPTS:
                    continue
                if not death.served:
                    stop = EngineStop(f"vLLM's server did not start. {death.sentence(self.log)}")
                    stop.exit_code = ConfigError.exit_code if death.user_error else stop.exit_code
                    raise stop
                if time.monotonic() - last_death < _DEATHS_APART_SECONDS:
                    raise EngineStop(f"vLLM's server died twice and is not restarted. {death.sentence(self.log)}")
                last_death = time.monotonic()
                _log.warning("vLLM's server died and is being restarted. %s", death.sentence(self.log))
                while self._asleep and not self._stopping.is_set():  # noqa: ASYNC110
                    await anyio.sleep(_PROBE_SECONDS)
        except EngineStop as error:
            self._error = error
        except OSError as error:
            self._error = EngineStop(f"vLLM's server cannot be started: {error}.")
        except Exception as error:
            self._error = EngineStop(f"vLLM's server is no longer watched: {error!r}.")
            raise
        finally:
            if self._error is None:
                self._error = EngineStop("vLLM's server is closed.")
            self._set_serving(False)

    async def _live(self) -> Death | None:
        """Run the server from one start to its end; None if `close` ended it."""
        with contextlib.closing(Scratch()) as scratch:
            return await self._live_in(scratch)

    async def _live_in(self, scratch: Scratch) -> Death | None:
        port = free_port()
        self.starts += 1
        self.url, self.api_key = f"http://127.0.0.1:{port}", secrets.token_hex(24)
        words = command(self.vllm, self.config, self.served, port=port)
        variables = await anyio.to_thread.run_sync(
            functools.partial(
                environment, self.vllm, self.config, self.served, key=self.api_key, scratch=scratch.environment
            )
        )
        began, served = time.monotonic(), False
        self.log.parent.mkdir(parents=True, exist_ok=True)
        async with spawned(
            words,
            role="vllm",
            run=self.run,
            log=self.log,
            environment=variables,
            cwd=self.log.parent.resolve(),
            folder=scratch.path,
        ) as child:
            self.pid = child.pid
            reason: str | None = None
            async with anyio.create_task_group() as tasks:

                async def until(wait: Callable[[], object]) -> None:
                    await wait()  # type: ignore[misc]
                    tasks.cancel_scope.cancel()

                tasks.start_soon(until, child.wait)
                tasks.start_soon(until, self._stopping.wait)
                if await self._until_serving(began):
                    served, self.start_seconds = True, time.monotonic() - began
                    if self.start_seconds > _SAY_SECONDS:
                        self._say(f"vLLM {self.vllm.version} is ready after {self.start_seconds:.0f} s.")
                    self._set_serving(True)
                    async with self.client(timeout=self._pulse.seconds) as client:
                        reason = await self._pulse.until_frozen(client, asleep=lambda: self._asleep)
                else:
                    reason = f"It was not ready within engine.start_seconds = {self.config.start_seconds:g}"
                tasks.cancel_scope.cancel()
            self._set_serving(False)
            if self._stopping.is_set():
                return None
            if child.returncode is None:
                child.kill()
                with anyio.move_on_after(_SLEEP_SECONDS):
                    await child.wait()
            return Death(served, reason, child.returncode, written_by(child))

    async def _until_serving(self, began: float) -> bool:
        """Wait until it serves; return False if it does not within `engine.start_seconds`."""
        say_after = _SAY_SECONDS
        async with self.client(timeout=5) as client:
            while (now := time.monotonic()) - began < self.config.start_seconds:
                if await self._is_serving(client):
                    return True
                if now - began > say_after:
                    say_after *= 2
                    self._say(f"vLLM's server has been starting for {now - began:.0f} s; see {self.log}.")
                await anyio.sleep(_PROBE_SECONDS)
        return False

    async def _is_serving(self, client: httpx.AsyncClient) -> bool:
        """Return whether this server answers, not another one: it must know the key and the name."""
        try:
            if (await client.get("/health")).status_code != 200:
                return False
            listed = await client.get("/v1/models")
            models = {model["id"]: model for model in listed.json()["data"]} if listed.status_code == 200 else {}
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return False
        if self.served.name not in models:
            return False
        self.max_context = models[self.served.name].get("max_model_len")
        return True

    async def _ask(self, path: str, **query: str) -> None:
        async with self.client(timeout=_SLEEP_SECONDS) as client:
            try:
                answer = await client.post(path, params=query)
            except httpx.HTTPError as error:
                raise EngineError(f"vLLM's server did not answer {path}: {error or type(error).__name__}.") from error
        if answer.is_error:
            why = cause_of_death(answer.text, None) or f"{answer.status_code} {answer.text[:300]}"
            raise EngineError(f"vLLM's server refused {path}: {why}.")

    def _set_serving(self, serves: bool) -> None:
        self._serves = serves
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
