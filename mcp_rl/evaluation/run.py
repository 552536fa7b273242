"""`mcp-rl evaluate`: from names of models to episodes, numbers and files.

The names, the scenarios, the server's tools and the chat models are checked in this order, all before the first
episode. Then each model in turn plays the same scenarios with the same random numbers, and its episodes are on disk
before the next model begins.
"""

from __future__ import annotations

import re
import shutil
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import anyio

from mcp_rl.backends.plan.choices import engine_for, engine_kind
from mcp_rl.config import TINY, RunConfig
from mcp_rl.config.load import load_config, parse_override, read_toml
from mcp_rl.errors import ConfigError, ServerError, UserError
from mcp_rl.evaluation.agreement import judge_agreement
from mcp_rl.evaluation.bench import Bench, check_chat_model
from mcp_rl.evaluation.comparison import compare
from mcp_rl.evaluation.evaluate import EvaluationPlan, evaluate
from mcp_rl.evaluation.folder import claim, save_episodes, write_json
from mcp_rl.evaluation.models import ModelSpec, find_models
from mcp_rl.evaluation.opponents import check_seats, find_opponents, opened_opponents
from mcp_rl.evaluation.progress import Progress
from mcp_rl.evaluation.result import REPORTED_LIMITS, EvaluationReport, JudgedPair, ModelReport
from mcp_rl.evaluation.scenarios import Chosen, choose, make_held_out, seen_in_training
from mcp_rl.evaluation.tables import markdown
from mcp_rl.explore.known_server import known_server
from mcp_rl.explore.tally import tallied
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.rewards.scoring import Scoring, check_rewards
from mcp_rl.rollouts.agents.command import check_agent
from mcp_rl.rollouts.user_model import check_user_model
from mcp_rl.scenario import scenario_lines
from mcp_rl.scenarios.fit import check_fit, check_no_user, notices
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.processes.leftovers import end_leftovers
from mcp_rl.system.seals import seal_files
from mcp_rl.system.threads import prepare_torch_threads
from mcp_rl.toolserver.cassette import check_cassette
from mcp_rl.toolserver.connection.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.trajectory import TrajectoryGroup


@dataclass(frozen=True)
class EvaluationJob:
    """An evaluation to run, resolved and checked as far as possible without starting anything."""

    config: RunConfig
    models: list[ModelSpec]
    server: ToolServer
    plugins: Plugins
    chosen: Chosen
    count: int | None = None
    """Scenarios at most; None for all."""
    greedy: bool | None = None
    """True to play greedily too; None: all models but chat models, for which it means little."""
    name: str | None = None
    """Name of the folder; None for the server's name and a number."""

    @property
    def evaluations(self) -> Path:
        """The folder that holds the project's evaluations."""
        return self.config.output_dir / self.config.project / "evaluations"


def prepare(
    names: Sequence[str],
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    options: dict[str, Any],
    base_url: str | None = None,
    count: int | None = None,
    greedy: bool | None = None,
    name: str | None = None,
) -> EvaluationJob:
    """Resolve and check the words of the command. Raises UserError for everything that can be wrong with them."""
    if not names:
        raise ConfigError("No model is named: add --model mcp-rl/tiny, or the name of a run, or openai/gpt-4.1-mini.")
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"The name {name!r} cannot name a folder; use letters, digits, '-', '_' and '.'.")
    config = load_config(file=file, overrides=overrides, options=options)
    plugins = load_plugins(config.plugins)
    server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    models = find_models(names, config.output_dir / config.project / "models", base_url)
    config = with_model_limits(models, file, overrides, options)
    for model in models:
        if model.identity and model.identity.server != server.name:
            raise ConfigError(
                f"The run {model.label} was trained on the server {model.identity.server!r}, not on {server.name!r}; "
                "to try it there anyway, name its checkpoint's folder."
            )
    check_rewards(config.judge, config.reward, plugins.rewards)
    check_user_model(config.rollout.user_model, config.rollout.max_user_cost)
    check_agent(config)
    find_opponents(config)
    remote = next((model.label for model in models if not model.base_model), None)
    if config.rollout.agent is not None and remote is not None:
        raise ConfigError(f"An agent program asks models that are sampled here; {remote} is not: leave --agent out.")
    check_cassette(config.tools, server)
    if config.scenarios.source is not None:
        plugins.scenario_sources.pick(config.scenarios.source, plugins.problems)
    chosen = choose(config, models, server, plugins, count)
    Scoring(config.judge, plugins.verifiers, config.reward, plugins.rewards).check(chosen.scenarios)
    check_no_user(chosen.scenarios, config.rollout.agent)
    _check_vllm(models, config)
    return EvaluationJob(config, models, server, plugins, chosen, count, greedy, name)


def _check_vllm(models: Sequence[ModelSpec], config: RunConfig) -> None:
    """Check that vLLM can sample the models chosen for it. Raises ConfigError."""
    weighed = [model for model in models if model.base_model]
    sampled = [model for model in weighed if engine_kind(engine_for(model.name, config.engine)) == "vllm"]
    if not sampled:
        return
    from mcp_rl.backends.samplers.opened import check_served, server_for

    for base in dict.fromkeys(map(server_for, sampled)):
        same = [model for model in sampled if server_for(model) == base]
        check_served(same, config.engine, config.placement)


async def run_evaluation(job: EvaluationJob, console: Console) -> EvaluationReport:
    """Play, measure, compare and write the report. Raises UserError before the first episode, ServerFault later."""
    began = time.monotonic()
    config = job.config
    if any(model.base_model for model in job.models):
        small = all(model.base_model in (None, TINY) for model in job.models)
        prepare_torch_threads(small=small)  # before torch is imported
    folder = claim(job.evaluations, job.server.name, job.name)
    progress = Progress(steps=0, console=console)
    await anyio.to_thread.run_sync(end_leftovers, progress.say)
    scoring = Scoring(
        config.judge,
        job.plugins.verifiers,
        config.reward,
        job.plugins.rewards,
        seed=config.seed,
        folder=folder / "judge",
        say=progress.say,
    )
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    opening = known_server(job.server, config.transport, config.tools, deadlines=deadlines, log_dir=folder / "logs")
    async with AsyncExitStack() as stack:
        with progress.waiting(f"getting to know {job.server.name}"):
            known = await stack.enter_async_context(opening)
        with _removed_on_user_error(folder), progress:
            with progress.waiting(f"starting {job.server.name}"):
                session = await known.session()
            sessions, job = known.sessions, replace(job, server=known.server)
            with tallied() as tally, progress.waiting(f"choosing scenarios for {job.server.name}", tally.parts):
                chosen = await _check_and_choose(job, sessions, session, scoring)
        write_atomically(folder / "scenarios.jsonl", scenario_lines(chosen.scenarios).encode())
        write_json(folder / "tools.json", session.schemas.openai)
        opponents = opened_opponents(config, system_prompt=job.server.system_prompt)
        bench = Bench(
            config,
            sessions,
            scoring,
            params=job.server.params(config.transport),
            system_prompt=job.server.system_prompt,
            folder=folder,
            models=job.models,
            say=progress.say,
            opponents=await stack.enter_async_context(opponents),
        )
        with progress:
            progress.say(f"{job.server.name}: {len(chosen.scenarios)} scenarios, {chosen.origin}.")
            for sentence in (sentence for model in job.models for sentence in model.unchecked):
                progress.say(sentence)
            for notice in notices(chosen.scenarios, job.server, config):
                progress.say(notice)
            reports, played = await _play_all(job, bench, chosen, folder, progress)
            judged = await _judge_pairs(scoring, played)
    found = EvaluationReport(
        path=str(folder),
        server=job.server.name,
        schema_hash=session.schemas.hash,
        scenarios=len(chosen.scenarios),
        scenarios_from=chosen.origin,
        samples=config.evaluation.samples,
        temperature=config.rollout.temperature,
        seed=config.seed,
        limits={name: getattr(config.rollout, name) for name in REPORTED_LIMITS},
        seconds=round(time.monotonic() - began, 2),
        models=reports,
        comparisons=compare(played, {report.model: report.result.greedy is not None for report in reports}),
        judged=judged,
        judge=judge_agreement(group for groups in played.values() for group in groups),
    )
    write_json(folder / "report.json", found.model_dump(mode="json"))
    write_atomically(folder / "report.md", markdown(found).encode())
    written = ("report.json", "report.md", "scenarios.jsonl", "tools.json")
    seal_files(folder, [*written, *(report.episodes for report in reports)])
    return found


@contextmanager
def _removed_on_user_error(folder: Path) -> Iterator[None]:
    """Remove the new folder after a user's error, unless it holds the log of a server that failed."""
    try:
        yield
    except ServerError:
        raise
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _check_and_choose(job: EvaluationJob, sessions: Sessions, session: Session, scoring: Scoring) -> Chosen:
    """Check everything against the server's tools and return the scenarios, made now if there are none yet."""
    chosen = job.chosen
    _check_schemas(job, session)
    if chosen.scenarios:
        check_fit(chosen.scenarios, job.server.name, session.schemas)
    else:
        params = job.server.params(job.config.transport)
        chosen = await make_held_out(job.config, job.server, params, sessions, job.plugins, job.count)
        scoring.check(chosen.scenarios)
    check_seats(chosen.scenarios, job.config, seats=session.seats is not None, judged=not scoring.at_once)
    for model in job.models:
        if model.kind == "chat":
            await check_chat_model(model, session)
    return chosen


def _check_schemas(job: EvaluationJob, session: Session) -> None:
    for model in job.models:
        if model.identity and model.identity.schema_hash != session.schemas.hash:
            raise ConfigError(
                f"The run {model.label} was trained on other tool schemas of {job.server.name} "
                f"({model.identity.schema_hash}; now {session.schemas.hash}); to try it anyway, name its checkpoint's "
                "folder."
            )


async def _play_all(
    job: EvaluationJob, bench: Bench, chosen: Chosen, folder: Path, progress: Progress
) -> tuple[list[ModelReport], dict[str, list[TrajectoryGroup]]]:
    reports: list[ModelReport] = []
    played: dict[str, list[TrajectoryGroup]] = {}
    async with bench.open():
        for model in job.models:
            report, groups = await _evaluate_model(job, bench, model, chosen, folder, progress)
            reports.append(report)
            played[report.model] = groups
    return reports, played


async def _evaluate_model(
    job: EvaluationJob, bench: Bench, model: ModelSpec, chosen: Chosen, folder: Path, progress: Progress
) -> tuple[ModelReport, list[TrajectoryGroup]]:
    config, scenarios = job.config, chosen.scenarios
    greedy = model.kind != "chat" if job.greedy is None else job.greedy
    player = await bench.player(model)
    began = time.monotonic()
    plan = EvaluationPlan(greedy, config.evaluation.samples, config.seed, config.rollout.max_exceptions)
    with progress.rollouts(model.label, len(scenarios), plan.episodes) as bar:
        result, groups = await evaluate(
            player,
            scenarios,
            plan,
            step=model.step,
            score_group=bar.around(bench.scoring.group),
            on_rollout=bar.finished,
        )
    seconds = time.monotonic() - began
    report = ModelReport(
        model=model.label,
        kind=model.kind,
        base_model=model.base_model,
        checkpoint=str(model.checkpoint) if model.checkpoint else None,
        result=result,
        episodes=save_episodes(folder, model.label, groups),
        trained_on=seen_in_training(model, scenarios),
        seconds=round(seconds, 2),
    )
    progress.say(f"{model.label}: {result.sentence()} {seconds:.1f} s.")
    return report, groups


async def _judge_pairs(scoring: Scoring, played: Mapping[str, Sequence[TrajectoryGroup]]) -> list[JudgedPair]:
    """Let the judge compare every two models; nothing without a judge."""
    found: list[JudgedPair] = []
    for against, model in combinations(played, 2):
        scores = await scoring.compare(played[against], played[model])
        if (pair := JudgedPair.from_scores(model, against, scores)) is not None:
            found.append(pair)
    return found


def with_model_limits(
    models: Sequence[ModelSpec], file: Path | None, overrides: Sequence[str], options: dict[str, Any]
) -> RunConfig:
    """Return the configuration with limits that hold no model back: the most generous of those that the runs were
    trained with and those that suit the other models. A limit that the user names wins."""
    tiny = all(model.name == TINY for model in models if model.kind != "scripted")
    options = {**options, "base_model": TINY if tiny else next(m.name for m in models if m.name != TINY)}
    config = load_config(file=file, overrides=overrides, options=options)
    said = {parse_override(override)[0] for override in overrides}
    said |= {f"rollout.{key}" for key in (read_toml(file) if file else {}).get("rollout", {})}
    trained = [model.identity.settings for model in models if model.identity]
    more: dict[str, Any] = {}
    for key in (f"rollout.{name}" for name in REPORTED_LIMITS):
        values = [settings[key] for settings in trained if key in settings]
        if values and key not in said:
            others = [] if len(values) == len(models) else [getattr(config.rollout, key.removeprefix("rollout."))]
            more[key] = max([*values, *others])
    temperatures = {settings.get("rollout.temperature") for settings in trained}
    if len(temperatures) == 1 and "rollout.temperature" not in said:
        more["rollout.temperature"] = temperatures.pop()
    return load_config(file=file, overrides=overrides, options={**options, **more})
