"""The identity of a run, the checks of its settings, and its scenarios: all that precedes the first rollout."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.base.base_name import base_revision, check_base_model
from mcp_rl.backends.initial import check_initial, initial_hash
from mcp_rl.backends.plan.wishes import check_size, check_wishes
from mcp_rl.config import JudgeConfig, RunConfig, UnslothConfig, config_keys, flat_values, role_of
from mcp_rl.config.identity import RunIdentity
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.evaluation.opponents import find_opponents
from mcp_rl.rewards.scoring import Scoring, check_rewards
from mcp_rl.rollouts.agents.command import check_agent
from mcp_rl.rollouts.user_model import check_user_model
from mcp_rl.run_directory import RunDirectory
from mcp_rl.runs.trackers.trackers import check_trackers
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.fit import check_made_for, check_no_user, notices
from mcp_rl.scenarios.sources import run_scenarios, scenario_file, source_name
from mcp_rl.scenarios.split import Division, divide
from mcp_rl.toolserver.cassette import check_cassette
from mcp_rl.toolserver.launchers.words import unpinned

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mcp_rl.plugins.manager import Plugins
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.tool_server import ToolServer


def check_inputs(config: RunConfig, server: ToolServer, plugins: Plugins, *, fresh: bool = False) -> None:
    """Check the user's settings and files before a server is started or a run directory made.

    With `fresh`, an earlier run of that name will be removed, so what it loaded does not matter. Raises what
    `check_settings` and `check_base_model` raise, and ConfigError for a model too large for this machine.
    """
    check_settings(config, server, plugins, fresh=fresh)
    check_base_model(config.base_model)
    if config.unsloth.model_name is not None:
        check_base_model(config.unsloth.model_name)
    check_size(config, fresh=fresh)


def check_settings(config: RunConfig, server: ToolServer, plugins: Plugins, *, fresh: bool = False) -> None:
    """Check everything but the base model, which may need a request to the hub.

    Raises ConfigError for a missing GPU, engine or extra, a judge that cannot be asked or a tracker that is not
    installed, PluginError for a name that no plugin offers, UserError for an unusable cassette, ScenarioError for a
    scenarios file that is unreadable, has duplicates, names an unknown verifier, was made for another server or has too
    few scenarios to hold any out.
    """
    check_cassette(config.tools, server)
    if config.scenarios.source is not None:
        plugins.scenario_sources.pick(config.scenarios.source, plugins.problems)
    if (file := scenario_file(config, server)) is not None:
        scenarios = read_scenario_file(file, server, config.transport, config.scenarios)
        check_made_for(scenarios, server.name, plugins.servers)
        Scoring(config.judge, plugins.verifiers, config.reward, plugins.rewards).check(scenarios)
        divide(scenarios, config)
    elif config.scenarios.fields:
        raise ConfigError("scenarios.fields maps the lines of your own file: name it (--scenarios FILE).")
    else:
        source_name(config.scenarios.source, server)
    check_backend = getattr(plugins.backends.pick(config.backend, plugins.problems), "check", None)
    if check_backend is not None:
        check_backend()
    check_trackers(config.trackers, plugins)
    check_wishes(config, fresh=fresh)
    if config.init is not None:
        check_initial(config.init, config.train, config.base_model)
    check_rewards(config.judge, config.reward, plugins.rewards)
    check_user_model(config.rollout.user_model, config.rollout.max_user_cost)
    check_agent(config)
    find_opponents(config)


def rehearse(config: RunConfig, server: ToolServer, plugins: Plugins, *, fresh: bool = False) -> list[str]:
    """Check all that can be checked without a server, and return sentences on what the run would do.

    Raises what `check_inputs` raises, and RunDirectoryError for a run of that name that cannot be continued.
    """
    check_inputs(config, server, plugins, fresh=fresh)
    said = []
    if (file := scenario_file(config, server)) is not None:
        scenarios = read_scenario_file(file, server, config.transport, config.scenarios)
        divided = divide(scenarios, config)
        said.append(f"Scenarios of {file}: {len(divided.train)} to train on, {len(divided.val)} held out.")
        said += [divided.notice] if divided.notice else []
        said += notices([*divided.train, *divided.val], server, config)
    else:
        where = "" if server.toolless else " on the live server"
        said.append(f"Up to {config.scenarios.wanted(worded=bool(server.phrases))} scenarios would be made{where}.")
    run = RunDirectory(config.run_dir)
    if fresh or (stored := run.identity()) is None:
        said.append(f"A new run would be kept in {config.run_dir}.")
    else:
        run.check(identify(config, server, stored.schema_hash, stored))
        said += run.check_whole()
        said.append(f"The run in {config.run_dir} would go on from step {run.state().step}, up to step {config.steps}.")
    return said


def identify(config: RunConfig, server: ToolServer, schema_hash: str, stored: RunIdentity | None = None) -> RunIdentity:
    """Return the identity of a run. Raises ScenarioError if the user's scenarios cannot be read.

    `stored` is the identity of the run that is to be continued: one that was made with `npx -y server` may go on with
    `npx -y server@1.2`.
    """
    settings = {key: value for key, value in flat_values(config).items() if role_of(key).identity}
    if config.init is not None:
        settings["init"] = initial_hash(config.init)
    if config.judge.rubric_file is not None:
        settings["judge.rubric"] = hashlib.sha256((config.judge.rubric_text() or "").encode()).hexdigest()[:16]
    if server.name != "+".join(config.server):  # a command or a URL, which may hold a secret
        begun = stored.settings.get("server.address") if stored else None
        without_version = _address(map(unpinned, config.server))
        settings["server.address"] = without_version if without_version == begun else _address(config.server)
    return RunIdentity(
        server=server.name,
        base_model=config.base_model,
        base_revision=base_revision(config.base_model),
        seed=config.seed,
        schema_hash=schema_hash,
        scenarios_hash=_scenarios_hash(scenario_file(config, server)),
        settings=settings,
    )


def _address(texts: Iterable[str]) -> str:
    return hashlib.sha256("+".join(texts).encode()).hexdigest()[:16]


def loading_identity(options: UnslothConfig) -> dict[str, Any]:
    """Return the part of an identity's settings that decides which weights are loaded."""
    every = {f"unsloth.{key}": value for key, value in flat_values(options).items()}
    return {key: value for key, value in every.items() if role_of(key).identity}


def carried(config: RunConfig) -> dict[str, Any]:
    """Return the carried settings that are not at the default of the run's model and judge, as JSON."""
    plain = RunConfig(server=config.server, base_model=config.base_model, judge=JudgeConfig(model=config.judge.model))
    found: dict[str, Any] = {}
    for key in (key for key, _ in config_keys() if role_of(key).carried):
        section, _, name = key.rpartition(".")
        was, now = (getattr(of, section) if section else of for of in (plain, config))
        if getattr(was, name) != getattr(now, name):
            found[key] = now.model_dump(mode="json", include={name})[name]
    return found


def _scenarios_hash(file: Path | None) -> str:
    """Return the hash of a scenarios file; generated scenarios follow from the server, the seed and the settings."""
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
) -> Division:
    """Return the scenarios to train on and to hold out: those of a run that has begun, else of a file, else generated.

    Raises ScenarioError if too few can be held out, and if the user's scenarios were made for other tools.
    """
    train, val = run.scenarios("train"), run.scenarios("val")
    if run.identity() is not None and train is not None and val is not None:
        return Division(train, val)
    scenarios = await run_scenarios(config, server, params, sessions, plugins)
    check_no_user(scenarios, config.rollout.agent)
    return await anyio.to_thread.run_sync(divide, scenarios, config)  # takes seconds
