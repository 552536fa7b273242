"""Models opened to be served, several at once: one base in memory and its policies, by our engine or by vLLM."""

import functools
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio

from mcp_rl.backends.choices import engine_kind
from mcp_rl.chat.hermes import ChatFormat
from mcp_rl.config import EngineConfig, PlacementConfig, TrainConfig
from mcp_rl.errors import CheckpointError, ConfigError
from mcp_rl.inference.engine import Engine

Opened = list[tuple[Engine, ChatFormat]]


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


@asynccontextmanager
async def opened_models(
    policies: Sequence[Policy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> AsyncIterator[Opened]:
    """An engine and a chat format for each policy, in their order; logs go under `folder`.

    Raises ConfigError for what cannot be served so, CheckpointError for weights that do not fit, EngineError.
    """
    opened = _with_vllm if engine_kind(engine) == "vllm" else _here
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

    bases: dict[str, LocalPolicies] = {}
    found: Opened = []
    for policy in policies:
        # A turn does not wait for others: answers may differ in the last bit with what else is sampled.
        opened = await stack.enter_async_context(
            LocalPolicies(
                policy.name,
                beside=bases.get(policy.name),
                gang=False,
                max_context=engine.max_context,
                max_rows=engine.max_rows,
            )
        )
        bases.setdefault(policy.name, opened)
        await opened.use(policy.checkpoint, policy.step)
        found.append((opened.engine, opened.chat))
    return found


async def _with_vllm(
    stack: AsyncExitStack,
    policies: Sequence[Policy],
    engine: EngineConfig,
    placement: PlacementConfig,
    folder: Path,
    say: Callable[[str], None],
) -> Opened:
    from mcp_rl.backends.base_model import load_tokenizer
    from mcp_rl.backends.hosts import LocalSettings
    from mcp_rl.backends.vllm_sampler import make_server
    from mcp_rl.inference.vllm.client import VllmClient
    from mcp_rl.inference.vllm.engine import PolicyVersion, VllmEngine

    base = _one_base(policies)
    adapters = [policy.checkpoint for policy in policies if policy.checkpoint and _is_adapter(policy.checkpoint)]
    settings = LocalSettings(
        base_model=base,
        run=folder,
        title="serving",
        train=TrainConfig.model_validate(
            {"method": "lora", "lora": {"rank": max(map(_rank, adapters), default=1)}, "max_staleness": len(adapters)}
        ),
        engine=engine,
        placement=placement,
    )
    server = make_server(settings)
    await server.start()
    stack.push_async_callback(server.close)
    if engine.url is None:
        say(f"vLLM is starting, which takes a minute or more; its log is {folder / 'logs' / 'vllm.log'}.")
    await server.ready()
    tokenizer = await anyio.to_thread.run_sync(load_tokenizer, base)
    found: Opened = []
    for policy, number in zip(policies, itertools.count()):
        chat = ChatFormat(tokenizer)
        client = VllmClient(server)
        stack.push_async_callback(client.aclose)
        listed = {model["id"]: model for model in await client.models()}
        served = getattr(server, "served_name", base)
        limits = [engine.max_context, listed.get(served, {}).get("max_model_len")]
        sampled = VllmEngine(
            client,
            stop_token_ids=chat.stop_token_ids,
            decode=chat.decode,
            max_context=min(limit for limit in limits if limit is not None),
            seeds=getattr(server, "seeds", True),
        )
        adapter = policy.checkpoint if policy.checkpoint in adapters else None
        name = served if adapter is None else f"serve-{number}@{policy.step}"
        version = PolicyVersion(policy.step, name, adapter.resolve() if adapter else None)
        await sampled.load(version)
        sampled.switch(version)
        if engine.url is not None and adapter is not None:
            stack.push_async_callback(functools.partial(sampled.forget, version))
        found.append((sampled, chat))
    return found


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
