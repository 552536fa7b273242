"""vLLM's server, started and watched over by us.

One task owns its process: it starts it, sees it die or freeze, and starts it once more. What calls the server asks
`ready()` whenever a request breaks off, and finds it under `url` with `api_key`, both new with each start. A start
that failed, and a second death within ten minutes of the first, are an EngineStop that says why.
"""

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import httpx

from mcp_rl.config import EngineConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import ConfigError, EngineError, EngineStop
from mcp_rl.inference.vllm.arguments import Served, check_installed, check_served, command, environment
from mcp_rl.inference.vllm.causes import Death, cause_of_death, written_by
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.ports import free_port
from mcp_rl.inference.vllm.pulse import Pulse
from mcp_rl.inference.vllm.scratch import Scratch
from mcp_rl.processes.spawn import spawned

_PORT_ATTEMPTS = 3
_DEATHS_APART_SECONDS = 600.0
"""A second death sooner than this after the first is not answered with another start."""
_PROBE_SECONDS = 0.25
_NOTICED_SECONDS = 10.0
"""For a death to be noticed after a request broke off."""
_SAY_SECONDS = 20.0
"""A start that takes longer is spoken of, and again after twice the time."""
_SLEEP_SECONDS = 300.0
"""For moving the weights to or from the machine's memory, and for turns that are not over."""
_log = logging.getLogger(__name__)


class VllmServer:
    """One server of one model. Not started yet; `start` and `close` may be called from different tasks."""

    def __init__(
        self,
        model: str,
        *,
        served_name: str,
        config: EngineConfig | None = None,
        gpus: Sequence[int] = (),
        log: Path,
        run: Path | None = None,
        lora_rank: int | None = None,
        max_context: int | None = None,
        dtype: str = "auto",
        adapters: int = 4,
        revision: str | None = None,
        trust_remote_code: bool = False,
        token: str | None = "HF_TOKEN",
        seed: int = 0,
        sleep: bool = False,
        new_weights: bool = False,
        say: Callable[[str], None] | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """`log` is the file that vLLM writes to; the other arguments are those of `Served`. `say` gets sentences about
        a start that takes long, by default the log of this package (as warnings).

        Raises ConfigError for what vLLM cannot be asked for, and where it is not installed.
        """
        self.config = config or EngineConfig(kind="vllm")
        self.served = Served(
            model=str(Path(model).resolve()) if Path(model).is_dir() else model,
            name=served_name,
            gpus=tuple(gpus),
            lora_rank=lora_rank,
            adapters=adapters,
            max_context=max_context,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            token=token,
            seed=seed,
            sleep=sleep,
            new_weights=new_weights,
        )
        check_served(self.config, self.served)
        self.vllm = find_vllm(self.config.python)
        check_installed(self.vllm, self.config)
        self.log, self.run = log, run
        self.starts = 0
        """How often it was started; what was loaded into it is gone when this has grown."""
        self.url = ""
        """Such as http://127.0.0.1:23456, without /v1; another with each start."""
        self.api_key = ""
        """What every request must bring, another with each start; written nowhere."""
        self.max_context: int | None = None
        """Most tokens of an episode, prompt and completion together; known once it is ready."""
        self.pid: int | None = None
        self.start_seconds = 0.0
        """How long the newest start took."""
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
        """What requests call the base model."""
        return self.served.name

    @property
    def seeds(self) -> bool:
        """Whether a request may bring a seed: not where a CPU computes a prompt in parts, of which 0.32 dies."""
        in_parts = any(argument_name(name) == "enable-chunked-prefill" and on for name, on in self.config.args.items())
        return not (self.vllm.cpu and in_parts)

    @property
    def sleeps(self) -> bool:
        """Whether `sleep` gives memory up: vLLM can do that on a GPU only, and was asked to."""
        return self.served.sleep and not self.vllm.cpu

    async def start(self) -> None:
        """Begin to start it; `ready` waits until it serves."""
        if self._owner is None:
            # Not a task group's: that belongs to the task that opened it, and `close` may come from another.
            self._owner = asyncio.create_task(self._own(), name="owner of vLLM's server")

    async def ready(self) -> None:
        """Return as soon as it serves; waits while it starts, or starts again.

        Raises EngineStop, with the cause and the last lines of its log, where it will not come back.
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
        """Give up the GPU's memory, turns in flight ended first; nothing on a CPU. Nothing is sampled until `wake`.

        Where it dies meanwhile, it is not started again before `wake`: somebody else has the memory.
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
        """Take the memory again, with the base's weights; keys and values are forgotten."""
        self._asleep = False
        if not self.sleeps:
            return
        await self.ready()
        try:
            await self._ask("/wake_up")
        except EngineError:  # where it has died of it, it is started again, awake
            if not await self._died():
                raise
            await self.ready()

    async def _died(self) -> bool:
        """Whether it is gone, or soon is, after a request broke off."""
        with anyio.move_on_after(_NOTICED_SECONDS):
            while self._serves:
                await self._changed.wait()
        return not self._serves

    async def close(self) -> None:
        """End it, and whatever it started."""
        owner, self._owner = self._owner, None
        if owner is None:
            return
        self._stopping.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({owner})
        if not owner.cancelled() and (error := owner.exception()) is not None:
            raise error

    async def __aenter__(self) -> "VllmServer":
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
        """A client for this start of the server, to be closed by the caller; `timeout` in seconds, None for no end."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        limits = httpx.Limits(max_connections=None)  # vLLM queues what it cannot run yet
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False)

    async def _own(self) -> None:
        """The life of the server, and one more after it died."""
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
                    stop.exit_code = ConfigError.exit_code if death.users else stop.exit_code
                    raise stop
                if time.monotonic() - last_death < _DEATHS_APART_SECONDS:
                    raise EngineStop(
                        f"vLLM's server died again, so it is not started a third time. {death.sentence(self.log)}"
                    )
                last_death = time.monotonic()
                _log.warning("vLLM's server died and is started again. %s", death.sentence(self.log))
                while self._asleep and not self._stopping.is_set():  # noqa: ASYNC110
                    await anyio.sleep(_PROBE_SECONDS)
        except EngineStop as error:
            self._error = error
        except OSError as error:
            self._error = EngineStop(f"vLLM's server cannot be started: {error}.")
        except Exception as error:
            self._error = EngineStop(f"vLLM's server is no longer watched over: {error!r}.")
            raise
        finally:
            if self._error is None:
                self._error = EngineStop("vLLM's server is closed.")
            self._set_serving(False)

    async def _live(self) -> "Death | None":
        """One start, until it ends; None where we ended it."""
        with contextlib.closing(Scratch()) as scratch:
            return await self._live_in(scratch)

    async def _live_in(self, scratch: Scratch) -> "Death | None":
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
                        self._say(f"vLLM {self.vllm.version} serves after {self.start_seconds:.0f} s.")
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
        """Whether it came to serve within `engine.start_seconds`."""
        say_after = _SAY_SECONDS
        async with self.client(timeout=5) as client:
            while (now := time.monotonic()) - began < self.config.start_seconds:
                if await self._serves_us(client):
                    return True
                if now - began > say_after:
                    say_after *= 2
                    self._say(f"vLLM's server has been starting for {now - began:.0f} s; see {self.log}.")
                await anyio.sleep(_PROBE_SECONDS)
        return False

    async def _serves_us(self, client: httpx.AsyncClient) -> bool:
        """Whether it answers, and is ours: it knows the key and the name."""
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
