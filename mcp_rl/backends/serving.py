"""Models opened to be served, several at once: one base in memory and its policies, by our engine or by vLLM."""

import contextlib
import functools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from mcp_rl.backends.choices import engine_kind, kept_quantisation
from mcp_rl.backends.loading.options import trained_dtype, trained_options, trained_revision
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import TINY, EngineConfig, PlacementConfig, UnslothConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import CheckpointError, ConfigError, EngineError
from mcp_rl.inference.engine import Engine
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine
from mcp_rl.inference.vllm.remote import RemoteServer
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.tiny import weights_path


@dataclass(frozen=True)
class Opened:
    """What can be sampled."""

    models: list[tuple[Engine, ChatFormat]]
    """An engine and a chat format for each policy, in their order."""
    until_gone: Callable[[], Awaitable[None]] = anyio.sleep_forever
    """Waits for as long as it can be; raises EngineError where the engine will not come back."""
    away: Callable[[], bool] = lambda: False
    """Whether the engine is not there for now; known while `until_gone` is awaited."""


class Policy(Protocol):
    """A base model (`name`), an adapter on it or a whole model of its shape (`checkpoint`), and its step."""

    @property
    def label(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def step(self) -> int: ...


_AWAY_SECONDS = 15.0
"""A server that takes longer to say that it is there is away."""
_FORGET_SECONDS = 10.0
_LOOK_SECONDS = 2.0
"""Between two looks at whether vLLM is there."""


@asynccontextmanager
async def opened_models(
    policies: Sequence[Policy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> AsyncIterator[Opened]:
    """All of these policies; logs go under `folder`.

    Raises ConfigError for what cannot be served so, CheckpointError for weights that do not fit, EngineError.
    """
    kind = engine_kind(engine)
    if kind == "local" and placement.engine_gpus:
        raise ConfigError("--engine-gpus are vLLM's, and the in-process engine is to sample: add --engine vllm.")
    opened = _with_vllm if kind == "vllm" else _here
    async with AsyncExitStack() as stack:
        yield await opened(stack, policies, engine, placement, folder, say)


async def _here(
    stack: AsyncExitStack,
    policies: Sequence[Policy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> Opened:
    from mcp_rl.backends.policies import LocalPolicies

    bases: dict[tuple[str, UnslothConfig], LocalPolicies] = {}
    found: list[tuple[Engine, ChatFormat]] = []
    for policy in policies:
        # A turn does not wait for others: answers may differ in the last bit with what else is sampled.
        base = policy.name, trained_options(policy.name, policy.checkpoint)
        opened = await stack.enter_async_context(
            LocalPolicies(
                *base,
                beside=bases.get(base),
                gang=False,
                max_context=engine.max_context,
                max_rows=engine.max_rows,
            )
        )
        bases.setdefault(base, opened)
        await opened.use(policy.checkpoint, policy.step)
        found.append((opened.engine, opened.chat))
    return Opened(found)


async def _with_vllm(
    stack: AsyncExitStack,
    policies: Sequence[Policy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> Opened:
    """One server for all of them. An engine for each: an adapter has a name of its own there."""
    from mcp_rl.backends.base_model import load_ends, load_tokenizer
    from mcp_rl.inference.vllm.applied import check_applied
    from mcp_rl.inference.vllm.installed import find_vllm

    base = _one_base(policies)
    adapters = [policy.checkpoint for policy in policies if policy.checkpoint and _is_adapter(policy.checkpoint)]
    rank = max(map(_rank, adapters)) if adapters else None
    location, revision = str(weights_path()) if base == TINY else base, _revision(policies, base)
    if engine.url is not None:
        server: Any = RemoteServer(
            engine.url,
            model=location,
            lora_rank=rank,
            adapters=_common_folder(adapters),
            max_context=engine.max_context,
        )
    else:
        find_vllm(engine.python)  # before a start is spoken of
        log = folder / "logs" / "vllm.log"
        say(f"vLLM is starting, which takes a minute or more; its log is {log}.")
        server = VllmServer(
            location,
            served_name=base,
            config=_as_trained(engine, policies),
            gpus=placement.engine_gpus,
            log=log,
            run=folder,
            lora_rank=rank,
            adapters=max(1, len(adapters)),
            revision=revision,
            dtype=_dtype(policies),
            say=say,
        )
    await server.start()
    stack.push_async_callback(server.close)
    await server.ready()
    tokenizer = await anyio.to_thread.run_sync(functools.partial(load_tokenizer, base, revision=revision))
    ends = await anyio.to_thread.run_sync(functools.partial(load_ends, base, revision=revision))
    found: list[tuple[Engine, ChatFormat]] = []
    for number, policy in enumerate(policies):
        chat = ChatFormat(tokenizer, ends)
        client = VllmClient(server)
        stack.push_async_callback(client.aclose)
        limits = [limit for limit in (engine.max_context, server.max_context) if limit is not None]
        sampled = VllmEngine(
            client,
            stop_token_ids=chat.stop_token_ids,
            decode=chat.decode,
            max_context=min(limits, default=4096),
            seeds=server.seeds,
        )
        adapter = policy.checkpoint if policy.checkpoint in adapters else None
        name = server.served_name if adapter is None else f"serve-{os.getpid()}-{number}@{policy.step}"
        version = PolicyVersion(policy.step, name, adapter.resolve() if adapter else None)
        await sampled.load(version)
        await check_applied(client, version, server.served_name)
        sampled.switch(version)
        if engine.url is not None:
            stack.push_async_callback(_forget, sampled, version)
        found.append((sampled, chat))

    watch = _Watch(server)
    return Opened(found, watch.until_gone, lambda: watch.away)


async def _forget(engine: VllmEngine, policy: PolicyVersion) -> None:
    """Nothing of ours stays in a server that is somebody else's, also where we are cancelled."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(_FORGET_SECONDS), contextlib.suppress(EngineError):
        await engine.forget(policy)


class _Watch:
    """Looks whether a server is there."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.away = False

    async def until_gone(self) -> None:
        while True:
            with anyio.move_on_after(_AWAY_SECONDS) as looking:
                await self._server.ready()
            if looking.cancelled_caught:
                self.away = True
                await self._server.ready()
            self.away = False
            await anyio.sleep(_LOOK_SECONDS)


def _as_trained(engine: EngineConfig, policies: Sequence[Policy]) -> EngineConfig:
    """vLLM computes with the base in 4 bits where the adapters were trained on it so. Raises ConfigError."""
    kept = {policy.label: _quantisation(policy) for policy in policies if policy.checkpoint}
    if len(set(kept.values())) > 1:
        raise ConfigError(f"Not all of {', '.join(kept)} were trained on the base in one precision: serve them apart.")
    if "4-bit" not in kept.values() or any(argument_name(name) == "quantization" for name in engine.args):
        return engine
    return engine.model_copy(update={"args": {**engine.args, "quantization": "bitsandbytes"}})


def _quantisation(policy: Policy) -> str:
    """As the run says in whose folder the checkpoint lies."""
    run = policy.checkpoint.resolve().parent.parent if policy.checkpoint else None
    return (kept_quantisation(run) if run else None) or "none"


def _dtype(policies: Sequence[Policy]) -> str:
    """What vLLM computes in: what the policies were trained in, as far as their runs agree on that."""
    kept = {trained_dtype(policy.checkpoint) for policy in policies if policy.checkpoint} - {None}
    return str(kept.pop()) if len(kept) == 1 else "auto"


def _revision(policies: Sequence[Policy], base: str) -> str | None:
    """Of the base that is served. Raises ConfigError where they were trained on several."""
    kept = {policy.label: trained_revision(base, policy.checkpoint) for policy in policies}
    if len(set(kept.values())) > 1:
        raise ConfigError(f"Not all of {', '.join(kept)} are of one revision of {base}: serve them apart.")
    return next(iter(kept.values()))


def server_for(policy: Policy) -> tuple[str, str, str | None]:
    """Which server of vLLM samples it: those of which this is the same are sampled by one."""
    whole = policy.checkpoint is not None and not _is_adapter(policy.checkpoint)
    base = str(policy.checkpoint) if whole else policy.name
    quantisation = _quantisation(policy) if policy.checkpoint else "none"
    return base, quantisation, trained_revision(base, policy.checkpoint)


def _common_folder(adapters: Sequence[Path]) -> Path | None:
    return Path(os.path.commonpath([adapter.resolve().parent for adapter in adapters])) if adapters else None


def _one_base(policies: Sequence[Policy]) -> str:
    """What vLLM loads: a server of it has one base. Raises ConfigError."""
    bases = {}
    for policy in policies:
        whole = policy.checkpoint is not None and not _is_adapter(policy.checkpoint)
        bases[str(policy.checkpoint) if whole else policy.name] = policy.label
    if len(bases) > 1:
        labels = " and ".join(list(bases.values())[:2])
        raise ConfigError(
            f"vLLM serves one base model with its adapters, and {labels} have two: serve them one by one, or with "
            "--engine local."
        )
    return next(iter(bases))


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _rank(adapter: Path) -> int:
    try:
        config = json.loads((adapter / "adapter_config.json").read_bytes())
        return max(int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values()), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"Cannot read {adapter / 'adapter_config.json'}: it tells no rank.") from error
