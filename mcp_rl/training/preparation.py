"""What a run needs before its first rollout: its scenarios, and the certainty that it is the run it says it is."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcp_rl.backends.base_name import base_revision as base_revision
from mcp_rl.backends.base_name import check_base_model as check_base_model
from mcp_rl.backends.choices import check_wishes
from mcp_rl.backends.initial import check_initial, initial_hash
from mcp_rl.config import JudgeConfig, RunConfig, UnslothConfig, flat_values
from mcp_rl.errors import ScenarioError
from mcp_rl.plugins.manager import Plugins
from mcp_rl.plugins.server import ToolServer
from mcp_rl.rewards.scoring import Scoring, check_rewards
from mcp_rl.run_directory import RunDirectory, RunIdentity
from mcp_rl.scenario import McpScenario, ServerParams
from mcp_rl.scenarios.fit import check_server
from mcp_rl.scenarios.foreign import read_scenario_file
from mcp_rl.scenarios.sources import run_scenarios, scenario_file
from mcp_rl.scenarios.split import split
from mcp_rl.toolserver.cassette import check_cassette
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.tracking.trackers import check_trackers

_WITHOUT_EFFECT = (
    "server", "transport", "base_model", "plugins", "project", "name", "output_dir", "seed", "steps", "scenarios.file",
    "tools.max_servers", "tools.idle_seconds", "tools.deadlines", "tools.longest_call", "tools.allow_schema_change",
    "tools.server_config", "tools.record", "tools.replay", "trackers",
    "rollout.concurrency", "rollout.deadline", "rollout.tool_deadline", "rollout.max_exceptions",
    "train.checkpoint_every", "train.keep_checkpoints", "train.keep_best", "train.microbatch_tokens",
    "evaluation.every", "engine", "placement", "train.forward",
    "unsloth.use", "unsloth.dtype", "unsloth.max_seq_length", "unsloth.full_finetuning", "unsloth.token",
    "unsloth.device_map", "unsloth.trust_remote_code", "unsloth.use_gradient_checkpointing", "unsloth.fast_inference",
    "unsloth.gpu_memory_utilization", "unsloth.float8_kv_cache", "unsloth.max_lora_rank", "unsloth.disable_log_stats",
    "judge.base_url", "judge.deadline", "judge.retries", "judge.concurrency", "judge.patience", "judge.max_cost",
    "judge.price", "judge.cache", "judge.rubric_file",
)  # fmt: skip
"""Settings that are kept elsewhere in the identity, or may change between two sessions of one run."""

CARRIED = (
    "backend", "rollout.concurrency", "rollout.deadline", "rollout.tool_deadline", "rollout.max_exceptions",
    "train.checkpoint_every", "train.keep_checkpoints", "train.keep_best", "train.microbatch_tokens", "train.forward",
    "evaluation.every", "engine.kind", "engine.python", "engine.args", "engine.memory_share", "engine.sharing",
    "engine.max_context", "engine.max_rows", "placement.in_process", "placement.learner_gpus", "placement.engine_gpus",
    "unsloth.use", "unsloth.dtype", "unsloth.max_seq_length", "unsloth.token", "unsloth.device_map",
    "unsloth.trust_remote_code", "unsloth.use_gradient_checkpointing",
    "judge.deadline", "judge.retries", "judge.concurrency", "judge.patience", "judge.max_cost", "judge.price",
)  # fmt: skip
"""Of these, what model.json keeps all the same, so that a run that is branched off goes on with it: nothing in them
can be a secret."""


def check_inputs(config: RunConfig, server: ToolServer, plugins: Plugins, *, fresh: bool = False) -> None:
    """What can be wrong with the user's own words and files, before a server is started or a run directory made.
    `fresh`: an earlier run of that name is to be removed, so what it loaded does not matter.

    Raises what `check_settings` and `check_base_model` raise.
    """
    check_settings(config, server, plugins, fresh=fresh)
    check_base_model(config.base_model)


def check_settings(config: RunConfig, server: ToolServer, plugins: Plugins, *, fresh: bool = False) -> None:
    """What can be wrong with all but the base model, which the hub may be asked for.

    Raises ConfigError for a GPU, an engine or an extra that is not there, a judge that cannot be asked or a tracker
    that is not installed, PluginError for a name that no plugin offers, UserError for a cassette of no use,
    ScenarioError for a scenarios file that cannot be used: unreadable, duplicates, a verifier that nobody offers, made
    for another server.
    """
    check_cassette(config.tools, server)
    if config.scenarios.source is not None:
        plugins.scenario_sources.pick(config.scenarios.source, plugins.problems)
    if (file := scenario_file(config, server)) is not None:
        scenarios = read_scenario_file(file, server, config.transport)
        check_server(scenarios, server.name, plugins.servers)
        Scoring(config.judge, plugins.verifiers, config.reward, plugins.rewards).check(scenarios)
    plugins.backends.pick(config.backend, plugins.problems)
    check_trackers(config.trackers, plugins)
    check_wishes(config, fresh=fresh)
    if config.init is not None:
        check_initial(config.init, config.train, config.base_model)
    check_rewards(config.judge, config.reward, plugins.rewards)


def identify(config: RunConfig, server: ToolServer, schema_hash: str) -> RunIdentity:
    """What makes this run this run. Raises ScenarioError where the user's scenarios cannot be read."""
    settings = {key: value for key, value in flat_values(config).items() if not _without_effect(key)}
    del settings["init"]
    if config.init is not None:
        settings["init"] = initial_hash(config.init)
    if config.judge.rubric_file is not None:
        settings["judge.rubric"] = hashlib.sha256((config.judge.rubric_text() or "").encode()).hexdigest()[:16]
    named = "+".join(config.server)
    if server.name != named:  # a command or a URL, which may hold what must not be written down
        settings["server.address"] = hashlib.sha256(named.encode()).hexdigest()[:16]
    return RunIdentity(
        server=server.name,
        base_model=config.base_model,
        base_revision=base_revision(config.base_model),
        seed=config.seed,
        schema_hash=schema_hash,
        scenarios_hash=_scenarios_hash(scenario_file(config, server)),
        settings=settings,
    )


def loading_identity(options: UnslothConfig) -> dict[str, Any]:
    """Which weights are loaded, as settings of an identity: `identify` has them among the others."""
    every = {f"unsloth.{key}": value for key, value in flat_values(options).items()}
    return {key: value for key, value in every.items() if not _without_effect(key)}


def carried(config: RunConfig) -> dict[str, Any]:
    """What of `CARRIED` is not as it would be by itself, as JSON."""
    plain = RunConfig(server=config.server, base_model=config.base_model, judge=JudgeConfig(model=config.judge.model))
    found: dict[str, Any] = {}
    for key in CARRIED:
        section, _, name = key.rpartition(".")
        was, now = (getattr(of, section) if section else of for of in (plain, config))
        if getattr(was, name) != getattr(now, name):
            found[key] = now.model_dump(mode="json", include={name})[name]
    return found


def _without_effect(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in _WITHOUT_EFFECT)


def _scenarios_hash(file: Path | None) -> str:
    """Of a file; made ones follow from the server, the seed and the settings."""
    if file is None:
        return "explored"
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ScenarioError(f"Cannot read the scenarios file {file}: {error.strerror or error}.") from error


async def prepare_scenarios(
    run: RunDirectory,
    config: RunConfig,
    server: ToolServer,
    params: ServerParams,
    sessions: Sessions,
    plugins: Plugins,
) -> tuple[list[McpScenario], list[McpScenario]]:
    """Train and val scenarios: those of a run that has begun, else of a file, else made.

    Raises ScenarioError where there is not one of each, and where the user's were made for other tools.
    """
    train, val = run.scenarios("train"), run.scenarios("val")
    if run.identity() is not None and train is not None and val is not None:
        return train, val
    return divide(await run_scenarios(config, server, params, sessions, plugins), config)


def divide(scenarios: Sequence[McpScenario], config: RunConfig) -> tuple[list[McpScenario], list[McpScenario]]:
    """Train and val by the scenarios' own `split`, where any of them has one, else without a leak by their calls."""
    train = [s for s in scenarios if s.split == "train" or s.split is None]
    val = [s for s in scenarios if s.split == "val"]
    if not val:
        train, val = _held_out(scenarios, config)
    if not train or not val:
        raise ScenarioError(
            f"{len(scenarios)} scenarios leave {len(train)} to train on and {len(val)} to test with; give more "
            'scenarios, or fewer with split "val".'
        )
    return list(train), list(val)


def _held_out(scenarios: Sequence[McpScenario], config: RunConfig) -> tuple[list[McpScenario], list[McpScenario]]:
    """As many for val as was asked for; where there are few in all, a third of them."""
    if len(scenarios) >= 3 * config.scenarios.val:
        return split(scenarios, val_count=config.scenarios.val, seed=config.seed)
    return split(scenarios, val_share=1 / 3, seed=config.seed)
