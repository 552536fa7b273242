"""Opens models to be served, several at once: a base in memory once and its policies, in our engine or in vLLM."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from mcp_rl.backends.base.options import base_location, loaded_for, trained_dtype, trained_options
from mcp_rl.backends.plan.choices import engine_kind
from mcp_rl.backends.plan.wishes import unlike_vllm
from mcp_rl.backends.samplers.vllm_sampler import with_quantisation
from mcp_rl.config import EngineConfig, PlacementConfig, UnslothConfig
from mcp_rl.errors import CheckpointError, ConfigError, EngineError
from mcp_rl.inference.chat.chat_format import CHAT, ChatFormat, served_chat
from mcp_rl.inference.vllm import arguments
from mcp_rl.inference.vllm.arguments import ServingSpec, check_installed
from mcp_rl.inference.vllm.client import VllmClient
from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine
from mcp_rl.inference.vllm.installed import find_vllm
from mcp_rl.inference.vllm.remote import RemoteServer, check_remote
from mcp_rl.inference.vllm.server import VllmServer
from mcp_rl.system.collector import collector_paused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from mcp_rl.inference.engine import Engine


@dataclass(frozen=True)
class OpenedModels:
    """Models that can be sampled."""

    models: list[tuple[Engine, ChatFormat]]
    """An engine and a chat format for each policy, in the order of the policies."""
    until_gone: Callable[[], Awaitable[None]] = anyio.sleep_forever
    """Wait while the models can be sampled; raise EngineError if the engine will not come back."""
    away: Callable[[], bool] = lambda: False
    """Return whether the engine is away for now; only known while `until_gone` is awaited."""


class ServedPolicy(Protocol):
    """A base model (`name`), an adapter on it or a whole model of its shape (`checkpoint`), and its step."""

    @property
    def label(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def checkpoint(self) -> Path | None: ...
    @property
    def place(self) -> Path | None:
        """The folder of the checkpoint, or of the run if this is the base that it began with."""
        ...

    @property
    def step(self) -> int: ...


@dataclass(frozen=True)
class VllmBase:
    """The base that vLLM loads for a policy, as it was loaded for training. Policies of one base share a server."""

    model: str
    """A name on the hub, or a folder; the checkpoint's folder if every weight was trained."""
    revision: str | None
    quantisation: str = "none"
    positions: str = ""
    """Scaled rotary positions (rope_scaling) as JSON; empty for the model's own."""
    vocabulary: int | None = None
    """Size of a resized vocabulary; None for the model's own."""

    @property
    def location(self) -> str:
        return base_location(self.model)


_AWAY_SECONDS = 15.0
"""A server that takes longer to answer counts as away."""
_FORGET_SECONDS = 10.0
_LOOK_SECONDS = 2.0
"""Interval at which vLLM is asked whether it is there."""


@asynccontextmanager
async def opened_models(
    policies: Sequence[ServedPolicy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> AsyncIterator[OpenedModels]:
    """Open all of these policies; logs go under `folder`.

    Raises ConfigError for policies that cannot be served so, CheckpointError for weights that do not fit, EngineError.
    """
    kind = engine_kind(engine)
    if kind == "local" and placement.engine_gpus:
        raise ConfigError("--engine-gpus are vLLM's, and the in-process engine is to sample: add --engine vllm.")
    async with AsyncExitStack() as stack:
        if kind == "vllm":
            yield await _with_vllm(stack, policies, engine, placement, folder, say)
        else:
            yield await _in_process(stack, policies, engine)


async def _in_process(stack: AsyncExitStack, policies: Sequence[ServedPolicy], engine: EngineConfig) -> OpenedModels:
    """Open an in-process engine for each policy; policies of one base share it in memory."""
    with collector_paused():
        from mcp_rl.backends.samplers.policies import LocalPolicies

    bases: dict[tuple[str, str], LocalPolicies] = {}
    found: list[tuple[Engine, ChatFormat]] = []
    for policy in policies:
        options = trained_options(policy.name, policy.place)
        chat = loaded_for(policy.place).get(CHAT)
        base = policy.name, options.model_dump_json() + json.dumps(chat)
        # A turn does not wait for others: answers may differ in the last bit with what else is sampled.
        opened = await stack.enter_async_context(
            LocalPolicies(
                policy.name,
                options,
                beside=bases.get(base),
                gang=False,
                max_context=engine.max_context,
                max_rows=engine.max_rows,
                chat=chat,
            )
        )
        bases.setdefault(base, opened)
        await opened.use(policy.checkpoint, policy.step)
        found.append((opened.engine, opened.chat))
    return OpenedModels(found)


async def _with_vllm(
    stack: AsyncExitStack,
    policies: Sequence[ServedPolicy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> OpenedModels:
    """Open one server for all policies, and an engine for each: an adapter has a name of its own in the server."""
    from mcp_rl.backends.base.base_model import load_ends, load_tokenizer
    from mcp_rl.inference.vllm.applied import check_applied

    base = _one_base(policies, engine)
    adapters = _adapters(policies)
    if engine.url is not None:
        server: Any = _remote(engine, base, adapters)
    else:
        find_vllm(engine.python)  # before the start is announced
        log = folder / "logs" / "vllm.log"
        say(f"vLLM is starting, which takes a minute or more; its log is {log}.")
        server = VllmServer(
            ServingSpec(
                base.location,
                base.model,
                gpus=tuple(placement.engine_gpus),
                lora_rank=_highest_rank(adapters),
                adapters=max(1, len(adapters)),
                revision=base.revision,
                dtype=_dtype(policies),
            ),
            config=with_quantisation(engine, base.quantisation == "4-bit"),
            log=log,
            run=folder,
            say=say,
        )
    await server.start()
    stack.push_async_callback(server.close)
    await server.ready()
    tokenizers: dict[str, Any] = {}
    ends = await anyio.to_thread.run_sync(functools.partial(load_ends, base.model, revision=base.revision))
    found: list[tuple[Engine, ChatFormat]] = []
    own = secrets.token_hex(4)  # a shared server may hold what another command loaded
    for number, policy in enumerate(policies):
        # Prompts are rendered as in training, by the base model's own tokenizer, also where a copy of it was loaded.
        named = base.model if _is_whole(policy) else policy.name
        if named not in tokenizers:
            revision = base.revision if named == base.model else None
            tokenizers[named] = await anyio.to_thread.run_sync(
                functools.partial(load_tokenizer, named, revision=revision)
            )
        chat = served_chat(tokenizers[named], ends, loaded_for(policy.place).get(CHAT))
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
    return OpenedModels(found, watch.until_gone, lambda: watch.away)


async def _forget(engine: VllmEngine, policy: PolicyVersion) -> None:
    """Unload our adapter from a server that we did not start, even if we are cancelled."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(_FORGET_SECONDS), contextlib.suppress(EngineError):
        await engine.forget(policy)


class _Watch:
    """Watches whether a server is there."""

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


def check_served(policies: Sequence[ServedPolicy], engine: EngineConfig, placement: PlacementConfig) -> None:
    """Raise the ConfigError or CheckpointError that `opened_models` would raise, before anything is loaded or started.
    A server that runs already is asked."""
    if engine_kind(engine) == "local":
        return
    base, adapters = _one_base(policies, engine), _adapters(policies)
    rank = _highest_rank(adapters)
    if engine.url is not None:
        check_remote(_remote(engine, base, adapters))
        return
    config, served = (
        with_quantisation(engine, base.quantisation == "4-bit"),
        ServingSpec(base.location, base.model, placement.engine_gpus, lora_rank=rank),
    )
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


def _dtype(policies: Sequence[ServedPolicy]) -> str:
    """Return the type that vLLM computes in: the one of the training, if all runs agree on it, else "auto"."""
    kept = {trained_dtype(policy.place) for policy in policies if policy.place} - {None}
    return str(kept.pop()) if len(kept) == 1 else "auto"


def server_for(policy: ServedPolicy) -> VllmBase:
    """Return the base that vLLM loads for a policy; policies with equal bases share a server."""
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


def _one_base(policies: Sequence[ServedPolicy], engine: EngineConfig) -> VllmBase:
    """Return the base of all policies, since a vLLM server has one. Raises ConfigError if they have several."""
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


def _adapters(policies: Sequence[ServedPolicy]) -> list[Path]:
    return [policy.checkpoint for policy in policies if policy.checkpoint and _is_adapter(policy.checkpoint)]


def _highest_rank(adapters: Sequence[Path]) -> int | None:
    return max(map(_rank, adapters)) if adapters else None


def _is_whole(policy: ServedPolicy) -> bool:
    """Return whether the policy's checkpoint is a whole model, not an adapter."""
    return policy.checkpoint is not None and not _is_adapter(policy.checkpoint)


def _is_adapter(folder: Path) -> bool:
    return (folder / "adapter_config.json").is_file()


def _rank(adapter: Path) -> int:
    try:
        config = json.loads((adapter / "adapter_config.json").read_bytes())
        return max(int(config["r"]), *map(int, (config.get("rank_pattern") or {}).values()), 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"Cannot read {adapter / 'adapter_config.json'}: it has no rank.") from error
