"""Models opened to be served, several at once: one base in memory and its policies, by our engine or by vLLM."""

import contextlib
import functools
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from mcp_rl.backends.choices import engine_kind, unlike_vllm
from mcp_rl.backends.loading.options import base_location, trained_dtype, trained_options
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import EngineConfig, PlacementConfig, UnslothConfig
from mcp_rl.config.engine_arguments import argument_name
from mcp_rl.errors import CheckpointError, ConfigError, EngineError
from mcp_rl.inference.engine import Engine
from mcp_rl.inference.vllm import arguments
from mcp_rl.inference.vllm.arguments import Served, check_installed
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.remote import RemoteServer, check_remote
from mcp_rl.inference.vllm.server import VllmServer


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
    def place(self) -> Path | None:
        """The folder of the checkpoint, or of the run where this is the base that it began with."""
        ...

    @property
    def step(self) -> int: ...


@dataclass(frozen=True)
class VllmBase:
    """What vLLM loads to sample a policy: what was loaded for its training. Policies of one base have one server."""

    model: str
    """A name on the hub, or a folder; that of the checkpoint where every weight was trained."""
    revision: str | None
    quantisation: str = "none"
    positions: str = ""
    """Scaled ones (rope_scaling), as JSON."""
    vocabulary: int | None = None
    """Resized to."""

    @property
    def location(self) -> str:
        return base_location(self.model)


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

    bases: dict[tuple[str, str], LocalPolicies] = {}
    found: list[tuple[Engine, ChatFormat]] = []
    for policy in policies:
        options = trained_options(policy.name, policy.place)
        base = policy.name, options.model_dump_json()
        # A turn does not wait for others: answers may differ in the last bit with what else is sampled.
        opened = await stack.enter_async_context(
            LocalPolicies(
                policy.name,
                options,
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

    base = _one_base(policies, engine)
    adapters = _adapters(policies)
    if engine.url is not None:
        server: Any = _remote(engine, base, adapters)
    else:
        find_vllm(engine.python)  # before a start is spoken of
        log = folder / "logs" / "vllm.log"
        say(f"vLLM is starting, which takes a minute or more; its log is {log}.")
        server = VllmServer(
            base.location,
            served_name=base.model,
            config=_as_trained(engine, base),
            gpus=placement.engine_gpus,
            log=log,
            run=folder,
            lora_rank=_highest_rank(adapters),
            adapters=max(1, len(adapters)),
            revision=base.revision,
            dtype=_dtype(policies),
            say=say,
        )
    await server.start()
    stack.push_async_callback(server.close)
    await server.ready()
    tokenizers: dict[str, Any] = {}
    ends = await anyio.to_thread.run_sync(functools.partial(load_ends, base.model, revision=base.revision))
    found: list[tuple[Engine, ChatFormat]] = []
    own = secrets.token_hex(4)  # a server that is somebody else's may hold what another of us loaded, or left
    for number, policy in enumerate(policies):
        # Prompts are rendered as in training, by the base model's own tokenizer, also where a copy of it was loaded.
        named = base.model if _is_whole(policy) else policy.name
        if named not in tokenizers:
            revision = base.revision if named == base.model else None
            tokenizers[named] = await anyio.to_thread.run_sync(
                functools.partial(load_tokenizer, named, revision=revision)
            )
        chat = ChatFormat(tokenizers[named], ends)
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
        name = server.served_name if adapter is None else f"serve-{own}-{number}@{policy.step}"
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


def check_served(policies: Sequence[Policy], engine: EngineConfig, placement: PlacementConfig) -> None:
    """Raises ConfigError for what `opened_models` would refuse, and CheckpointError, before anything is loaded or
    started; a server that runs already is asked."""
    if engine_kind(engine) == "local":
        return
    base, adapters = _one_base(policies, engine), _adapters(policies)
    rank = _highest_rank(adapters)
    if engine.url is not None:
        check_remote(_remote(engine, base, adapters))
        return
    config, served = _as_trained(engine, base), Served(base.location, base.model, placement.engine_gpus, lora_rank=rank)
    arguments.check_served(config, served)
    check_installed(find_vllm(engine.python), config)


def _remote(engine: EngineConfig, base: VllmBase, adapters: Sequence[Path]) -> RemoteServer:
    return RemoteServer(
        str(engine.url),
        model=base.location,
        lora_rank=_highest_rank(adapters),
        adapters=_common_folder(adapters),
        max_context=engine.max_context,
    )


def _as_trained(engine: EngineConfig, base: VllmBase) -> EngineConfig:
    """vLLM computes with the base in 4 bits where the adapters were trained on it so."""
    if base.quantisation != "4-bit" or any(argument_name(name) == "quantization" for name in engine.args):
        return engine
    return engine.model_copy(update={"args": {**engine.args, "quantization": "bitsandbytes"}})


def _dtype(policies: Sequence[Policy]) -> str:
    """What vLLM computes in: what the policies were trained in, as far as their runs agree on that."""
    kept = {trained_dtype(policy.place) for policy in policies if policy.place} - {None}
    return str(kept.pop()) if len(kept) == 1 else "auto"


def server_for(policy: Policy) -> VllmBase:
    """Which server of vLLM samples it: those of which this is the same are sampled by one."""
    if _is_whole(policy):
        return VllmBase(str(policy.checkpoint), None)
    options = trained_options(policy.name, policy.place)
    return VllmBase(
        options.model_name or policy.name,
        options.revision,
        "4-bit" if options.load_in_4bit else "8-bit" if options.load_in_8bit else "none",
        json.dumps(options.rope_scaling, sort_keys=True) if options.rope_scaling else "",
        options.resize_model_vocab,
    )


def _common_folder(adapters: Sequence[Path]) -> Path | None:
    return Path(os.path.commonpath([adapter.resolve().parent for adapter in adapters])) if adapters else None


def _one_base(policies: Sequence[Policy], engine: EngineConfig) -> VllmBase:
    """What vLLM loads: a server of it has one base. Raises ConfigError."""
    bases = {server_for(policy): policy.label for policy in policies}
    (base, label), *others = bases.items()
    if others:
        other, another = others[0]
        labels, apart = f"{label} and {another}", "serve them one by one, or with --engine local."
        if base.model != other.model:
            raise ConfigError(f"vLLM serves one base model with its adapters, and {labels} have two: {apart}")
        what = (
            "one revision of it" if base.revision != other.revision
            else "it in one precision" if base.quantisation != other.quantisation
            else "it loaded in one way"
        )  # fmt: skip
        raise ConfigError(f"vLLM serves one {base.model}, and {labels} were not trained on {what}: {apart}")
    options = UnslothConfig() if _is_whole(policies[0]) else trained_options(policies[0].name, policies[0].place)
    if (how := unlike_vllm(options, engine)) is not None:
        raise ConfigError(
            f"{label} was trained on {base.model} loaded {how}, and vLLM would load it otherwise and sample another "
            "model: add --engine local."
        )
    return base


def _adapters(policies: Sequence[Policy]) -> list[Path]:
    return [policy.checkpoint for policy in policies if policy.checkpoint and _is_adapter(policy.checkpoint)]


def _highest_rank(adapters: Sequence[Path]) -> int | None:
    return max(map(_rank, adapters)) if adapters else None


def _is_whole(policy: Policy) -> bool:
    """Whether its checkpoint is a model of its own, and no adapter on a base."""
    return policy.checkpoint is not None and not _is_adapter(policy.checkpoint)


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _rank(adapter: Path) -> int:
    try:
        config = json.loads((adapter / "adapter_config.json").read_bytes())
        return max(int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values()), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"Cannot read {adapter / 'adapter_config.json'}: it tells no rank.") from error
