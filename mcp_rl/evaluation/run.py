"""`mcp-rl evaluate`: from names of models to episodes, numbers and files.

In order: the names, the scenarios, the server and what it lists, the chat models; whatever is wrong with any of them is
said before the first episode. Then one model after another plays the same scenarios with the same random numbers, and
its episodes are on disk before the next one begins.
"""

import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console

from mcp_rl.backends.choices import engine_for, engine_kind
from mcp_rl.config import TINY, RunConfig
from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError, ServerError, UserError
from mcp_rl.evaluate import evaluate
from mcp_rl.evaluation.agreement import judge_agreement
from mcp_rl.evaluation.bench import Bench, check_chat_model
from mcp_rl.evaluation.comparison import compare
from mcp_rl.evaluation.folder import claim, save_episodes, write_json
from mcp_rl.evaluation.models import ModelSpec, find_models
from mcp_rl.evaluation.result import EvaluationReport, JudgedPair, ModelReport
from mcp_rl.evaluation.scenarios import Chosen, choose, made, seen_in_training
from mcp_rl.evaluation.tables import markdown
from mcp_rl.overrides import load_config, parse_override, read_toml
from mcp_rl.player import limits_of
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.plugins.server import ToolServer
from mcp_rl.processes.leftovers import end_leftovers
from mcp_rl.rewards.scoring import Scoring, check_rewards
from mcp_rl.scenario import scenario_lines
from mcp_rl.scenarios.fit import check_fit, short_of_turns
from mcp_rl.threads import prepare_torch_threads
from mcp_rl.toolserver.cassette import check_cassette
from mcp_rl.toolserver.connection import Deadlines
from mcp_rl.toolserver.pool import Session, Sessions, open_sessions
from mcp_rl.tracking.progress import Progress
from mcp_rl.trajectory import TrajectoryGroup

_LIMITS = ("max_turns", "max_turn_tokens", "max_tokens", "max_tool_calls", "max_result_tokens")


@dataclass(frozen=True)
class EvaluationJob:
    """What is to be evaluated, resolved and checked as far as that goes without starting anything."""

    config: RunConfig
    models: list[ModelSpec]
    server: ToolServer
    plugins: Plugins
    chosen: Chosen
    count: int | None = None
    """Scenarios at most."""
    greedy: bool | None = None
    """Whether to play greedily too; None: with all models but chat models, for which it means little."""
    name: str | None = None
    """Of the folder; None: the server's and a number."""

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
    """Everything about the words of the command that can be wrong is found here. Raises UserError."""
    if not names:
        raise ConfigError("A model is needed: add --model mcp-rl/tiny, or the name of a run, or openai/gpt-4.1-mini.")
    if name is not None and not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"The name {name!r} cannot be a folder's; use letters, digits, '-', '_' and '.'.")
    config = load_config(file=file, overrides=overrides, options=options)
    plugins = load_plugins(config.plugins)
    server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    models = find_models(names, config.output_dir / config.project / "models", base_url)
    config = _with_limits_of(models, file, overrides, options)
    for model in models:
        if model.identity and model.identity.server != server.name:
            raise ConfigError(
                f"The run {model.label} was trained on the server {model.identity.server!r}, not on {server.name!r}; "
                "to try it there all the same, name its checkpoint's folder."
            )
    check_rewards(config.judge, config.reward, plugins.rewards)
    check_cassette(config.tools, server)
    if config.scenarios.source is not None:
        plugins.scenario_sources.pick(config.scenarios.source, plugins.problems)
    chosen = choose(config, models, server, plugins, count)
    Scoring(config.judge, plugins.verifiers, config.reward, plugins.rewards).check(chosen.scenarios)
    _check_vllm(models, config)
    return EvaluationJob(config, models, server, plugins, chosen, count, greedy, name)


def _check_vllm(models: Sequence[ModelSpec], config: RunConfig) -> None:
    """Whether vLLM can sample those that it is to sample. Raises ConfigError."""
    weighed = [model for model in models if model.base_model]
    sampled = [model for model in weighed if engine_kind(engine_for(model.name, config.engine)) == "vllm"]
    if not sampled:
        return
    from mcp_rl.backends.serving import check_served, server_for

    for base in dict.fromkeys(map(server_for, sampled)):
        same = [model for model in sampled if server_for(model) == base]
        check_served(same, config.engine, config.placement)


async def run_evaluation(job: EvaluationJob, console: Console) -> EvaluationReport:
    """Play, measure, compare and write it all down. Raises UserError before the first episode, ServerFault later."""
    began = time.monotonic()
    config = job.config
    if any(model.base_model for model in job.models):
        prepare_torch_threads()  # before torch is imported
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
    limits = limits_of(config.rollout)
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    async with open_sessions(job.server, config.tools, deadlines=deadlines, log_dir=folder / "logs") as sessions:
        with _nothing_left_of(folder):
            session = await sessions.get(job.server.params(config.transport))
            chosen = await _chosen(job, sessions, session, scoring)
        write_atomically(folder / "scenarios.jsonl", scenario_lines(chosen.scenarios).encode())
        write_json(folder / "tools.json", session.schemas.openai)
        params = job.server.params(config.transport)
        bench = Bench(
            config, sessions, params, limits, scoring, job.server.system_prompt, folder, job.models, progress.say
        )
        with progress:
            progress.say(f"{job.server.name}: {len(chosen.scenarios)} scenarios, {chosen.origin}.")
            if warning := short_of_turns(chosen.scenarios, config.rollout.max_turns):
                progress.say(warning)
            reports, played = await _all_played(job, bench, chosen, folder, progress)
            judged = await _side_by_side(scoring, played)
    found = EvaluationReport(
        path=str(folder),
        server=job.server.name,
        schema_hash=session.schemas.hash,
        scenarios=len(chosen.scenarios),
        scenarios_from=chosen.origin,
        samples=config.evaluation.samples,
        temperature=config.rollout.temperature,
        seed=config.seed,
        limits={name: getattr(limits, name) for name in _LIMITS},
        seconds=round(time.monotonic() - began, 2),
        models=reports,
        comparisons=compare(played, {report.model: report.result.greedy is not None for report in reports}),
        judged=judged,
        judge=judge_agreement(group for groups in played.values() for group in groups),
    )
    write_json(folder / "report.json", found.model_dump(mode="json"))
    write_atomically(folder / "report.md", markdown(found).encode())
    return found


@contextmanager
def _nothing_left_of(folder: Path) -> Iterator[None]:
    """Where the user has to mend something first, the new folder goes, unless it has a server's last words in it."""
    try:
        yield
    except ServerError:
        raise
    except UserError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _chosen(job: EvaluationJob, sessions: Sessions, session: Session, scoring: Scoring) -> Chosen:
    """The scenarios, once everything has been checked against what the server lists."""
    chosen = job.chosen
    _check_schemas(job, session)
    if chosen.scenarios:
        check_fit(chosen.scenarios, job.server.name, session.schemas)
    else:
        params = job.server.params(job.config.transport)
        chosen = await made(job.config, job.server, params, sessions, job.plugins, job.count)
        scoring.check(chosen.scenarios)
    for model in job.models:
        if model.kind == "chat":
            await check_chat_model(model, session)
    return chosen


def _check_schemas(job: EvaluationJob, session: Session) -> None:
    for model in job.models:
        if model.identity and model.identity.schema_hash != session.schemas.hash:
            raise ConfigError(
                f"The run {model.label} was trained on other tool schemas of {job.server.name} "
                f"({model.identity.schema_hash}; it lists {session.schemas.hash} now); to try it all the same, name "
                "its checkpoint's folder."
            )


async def _all_played(
    job: EvaluationJob, bench: Bench, chosen: Chosen, folder: Path, progress: Progress
) -> tuple[list[ModelReport], dict[str, list[TrajectoryGroup]]]:
    reports: list[ModelReport] = []
    played: dict[str, list[TrajectoryGroup]] = {}
    async with bench.open():
        for model in job.models:
            report, groups = await _evaluated(job, bench, model, chosen, folder, progress)
            reports.append(report)
            played[report.model] = groups
    return reports, played


async def _evaluated(
    job: EvaluationJob, bench: Bench, model: ModelSpec, chosen: Chosen, folder: Path, progress: Progress
) -> tuple[ModelReport, list[TrajectoryGroup]]:
    config, scenarios = job.config, chosen.scenarios
    greedy = model.kind != "chat" if job.greedy is None else job.greedy
    player = await bench.player(model)
    began = time.monotonic()
    with progress.rollouts(model.label, len(scenarios) * (greedy + config.evaluation.samples)) as bar:
        result, groups = await evaluate(
            player,
            scenarios,
            score_group=bar.around(bench.scoring.group),
            step=model.step,
            greedy=greedy,
            samples=config.evaluation.samples,
            seed=config.seed,
            max_exceptions=config.rollout.max_exceptions,
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


async def _side_by_side(scoring: Scoring, played: Mapping[str, Sequence[TrajectoryGroup]]) -> list[JudgedPair]:
    """Every two models, by the judge; nothing without one."""
    found: list[JudgedPair] = []
    for against, model in combinations(played, 2):
        scores = await scoring.compare(played[against], played[model])
        if scores.get("judge_compared"):
            found.append(
                JudgedPair(
                    model=model,
                    against=against,
                    scenarios=int(scores["judge_compared"]),
                    score=scores["judge_after"],
                    score_against=scores["judge_before"],
                    better=scores["judge_better"],
                    worse=scores["judge_worse"],
                )
            )
    return found


def _with_limits_of(
    models: Sequence[ModelSpec], file: Path | None, overrides: Sequence[str], options: dict[str, Any]
) -> RunConfig:
    """The configuration with limits that no model is held back by: of those that the runs were trained with and those
    that suit the others, the most generous; what the user says wins."""
    tiny = all(model.name == TINY for model in models if model.kind != "scripted")
    options = {**options, "base_model": TINY if tiny else next(m.name for m in models if m.name != TINY)}
    config = load_config(file=file, overrides=overrides, options=options)
    said = {parse_override(override)[0] for override in overrides}
    said |= {f"rollout.{key}" for key in (read_toml(file) if file else {}).get("rollout", {})}
    trained = [model.identity.settings for model in models if model.identity]
    more: dict[str, Any] = {}
    for key in (f"rollout.{name}" for name in _LIMITS):
        values = [settings[key] for settings in trained if key in settings]
        if values and key not in said:
            others = [] if len(values) == len(models) else [getattr(config.rollout, key.removeprefix("rollout."))]
            more[key] = max([*values, *others])
    temperatures = {settings.get("rollout.temperature") for settings in trained}
    if len(temperatures) == 1 and "rollout.temperature" not in said:
        more["rollout.temperature"] = temperatures.pop()
    return load_config(file=file, overrides=overrides, options={**options, **more})
