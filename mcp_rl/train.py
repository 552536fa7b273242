"""`mcp-rl train`: from a tool server to a trained model and the proof, in one resumable run.

In order: the server, the run directory, the connection and its schemas, the scenarios, the model, the evaluation of the
base, the steps, the evaluation of what was trained, the report. Whatever ends it, the server is stopped and the last
step that was taken is kept.
"""

import functools
import importlib
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from rich.console import Console

from mcp_rl.config import RunConfig
from mcp_rl.errors import McpRlError, PluginError, RunDirectoryError
from mcp_rl.player import Player, limits_of
from mcp_rl.plugins.manager import Plugins, load_plugins, place
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.plugins.server import ToolServer
from mcp_rl.processes.leftovers import end_leftovers
from mcp_rl.processes.memory import peak_rss_mb
from mcp_rl.rewards.ledger import Ledger
from mcp_rl.rewards.scoring import CALLS, Scoring
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run
from mcp_rl.scenario import ServerGroup, ServerParams
from mcp_rl.scenarios.fit import short_of_turns
from mcp_rl.tasks import run_all
from mcp_rl.threads import prepare_torch_threads
from mcp_rl.toolserver.connection import Deadlines
from mcp_rl.toolserver.isolation import on_undeclared_isolation
from mcp_rl.toolserver.pool import Session, Sessions, open_sessions
from mcp_rl.tracking.progress import Progress
from mcp_rl.tracking.report import Headline, RunReport, TrainTotals, ValReport
from mcp_rl.tracking.trackers import Trackers
from mcp_rl.training.preparation import carried, check_inputs, identify, prepare_scenarios

if TYPE_CHECKING:
    from mcp_rl.model import Backend, TrainableModel
    from mcp_rl.training.trainer import Trainer

T = TypeVar("T")


async def run_training(config: RunConfig, *, fresh: bool = False, console: Console | None = None) -> RunReport:
    """Train, or continue, the run that `config` describes; returns its report, which is also in report.json.

    `fresh` removes an earlier run of that name. Raises UserError for what the user can mend, ServerFault, EngineError
    or CanaryError for what went wrong on the way. When it is cancelled, the last step that was taken is saved first.
    """
    return await _in_child_task(functools.partial(_run, config, fresh, console or Console()))


async def _run(config: RunConfig, fresh: bool, console: Console) -> RunReport:
    began = time.monotonic()
    plugins = load_plugins(config.plugins)
    server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    check_inputs(config, server, plugins, fresh=fresh)
    needed = config.init, config.scenarios.file, config.tools.replay
    with open_run(config.run_dir, fresh=fresh, needed=needed) as run:
        state = run.state()
        earlier = state.progress.seconds
        if stored := run.identity():
            run.check(identify(config, server, stored.schema_hash))
        elif any(run.checkpoints.glob("*[0-9]*")):
            raise RunDirectoryError(
                f"The run in {run.path} has checkpoints, but what it was made for is gone with its model.json: put a "
                "copy there, start over with --fresh, or choose another name with --name."
            )
        if report := _finished(run, state, config):
            console.print(f"All {state.step} steps of this run are done.", highlight=False)
            return report
        state.threads = prepare_torch_threads(state.threads)  # before torch is imported
        with (
            Progress(steps=config.steps, done=state.step, console=console) as progress,
            Trackers.opened(run.path, config, plugins, progress.say) as trackers,
        ):
            await anyio.to_thread.run_sync(end_leftovers, progress.say)
            setting = _Setting(config, run, state, plugins, server, progress, trackers)
            async with _imports_begun(config, run), _prepared(setting) as trainer:
                await trainer.measure_before()
                try:
                    await trainer.take_steps()
                except BaseException:
                    await trainer.rescue()
                    raise
                await trainer.measure_after()
        report = _report(config, run, server, state, seconds=earlier + time.monotonic() - began)
        run.write_json(run.report.name, report.model_dump(mode="json"))
        return report


@asynccontextmanager
async def _imports_begun(config: RunConfig, run: RunDirectory) -> AsyncIterator[None]:
    """Import what takes seconds while the server starts and is explored, in the learner's own process where it gets
    one. A failure shows where it is needed."""
    here, sampling = True, False
    if config.backend == "local":
        here, sampling = await anyio.to_thread.run_sync(_placed, config, run)
    modules = ["mcp_rl.training.trainer", *(["mcp_rl.backends.here"] if here and config.backend == "local" else [])]
    threading.Thread(target=_import_early, args=(modules,), name="mcp-rl-import", daemon=True).start()
    if here:
        yield
        return
    from mcp_rl.backends.child import started_early
    from mcp_rl.backends.loading.options import begun_with, loaded_before

    unsloth = config.unsloth
    with suppress(McpRlError):
        unsloth = begun_with(unsloth, loaded_before(run.path), config.base_model, dtypes=())
    async with started_early(run.path, config.placement, unsloth, sampling=sampling):
        yield


def _placed(config: RunConfig, run: RunDirectory) -> tuple[bool, bool]:
    """Whether the learner of the local backend will be in this process, and whether our own engine samples it."""
    from mcp_rl.backends.choices import engine_for, engine_kind, in_process, ranks
    from mcp_rl.hardware.detect import detect

    machine = detect(run.path)
    engine = engine_for(config.base_model, config.engine)
    here, vllm = in_process(config.placement), engine_kind(engine) == "vllm"
    if machine.usable_gpus and ranks() == 1:
        here = here and config.placement.in_process is True
        vllm = vllm or (engine.kind == "auto" and machine.has("vllm"))
    return here, not vllm


def _import_early(modules: Sequence[str]) -> None:
    with suppress(Exception):
        for module in modules:
            importlib.import_module(module)


def _finished(run: RunDirectory, state: RunState, config: RunConfig) -> RunReport | None:
    """The report of a run that has nothing left to do."""
    if state.after is None or state.step < config.steps or state.after_step != state.step or not run.report.exists():
        return None
    return RunReport.model_validate(run.read_json(run.report.name))


@dataclass(frozen=True)
class _Setting:
    config: RunConfig
    run: RunDirectory
    state: RunState
    plugins: Plugins
    server: ToolServer
    progress: Progress
    trackers: Trackers


@asynccontextmanager
async def _prepared(setting: _Setting) -> AsyncIterator["Trainer"]:
    """Everything that steps need, open; all of it is closed again."""
    config, run, progress = setting.config, setting.run, setting.progress
    from mcp_rl.model import TrainableModel

    params = setting.server.params(config.transport)
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    model = TrainableModel[None](config.name, config.project, config.base_model, base_path=config.output_dir)
    async with (
        open_sessions(setting.server, config.tools, deadlines=deadlines, log_dir=run.logs) as sessions,
        _backend(config, setting.plugins) as backend,
    ):
        await _begin(backend, model)
        session = await sessions.get(params)
        await _greet(setting, sessions, session, params)
        stored = run.identity() if config.tools.allow_schema_change else None
        identity = identify(config, setting.server, stored.schema_hash if stored else session.schemas.hash)
        run.check(identity)
        train, val = await prepare_scenarios(run, config, setting.server, params, sessions, setting.plugins)
        progress.say(f"Scenarios: {len(train)} to train on, {len(val)} held out (train.jsonl, val.jsonl).")
        if warning := short_of_turns([*train, *val], config.rollout.max_turns):
            progress.say(warning)
        scoring = Scoring(
            config.judge,
            setting.plugins.verifiers,
            config.reward,
            setting.plugins.rewards,
            seed=config.seed,
            folder=run.judge,
            say=progress.say,
        )
        scoring.check([*train, *val])
        if run.identity() is None:
            run.save_scenarios("val", val)
            run.save_scenarios("train", train)
            run.begin(identity, _about(config))

        from mcp_rl.training.trainer import Trainer

        for sentence in await _choices(backend, model):
            progress.say(sentence)
        await model.register(backend)
        for sentence in getattr(backend, "skipped", ()):
            progress.say(sentence)
        _follow(setting.state, run, backend.engine.version, backend.frontier)
        player = Player(
            backend.engine,
            backend.chat,
            sessions,
            params=params,
            system_prompt=setting.server.system_prompt,
            temperature=config.rollout.temperature,
            limits=limits_of(config.rollout),
            concurrency=config.rollout.concurrency,
            finish=scoring.rollout,
        )
        yield Trainer(
            config,
            run,
            setting.state,
            setting.plugins,
            model,
            backend,
            player,
            scoring,
            train,
            val,
            progress,
            setting.trackers,
        )


def _about(config: RunConfig) -> dict[str, Any]:
    """What model.json says of a run for people and tools: its names, and what of the command is no part of what it was
    made for."""
    command: dict[str, Any] = {
        "transport": config.transport,
        "steps": config.steps,
        "plugins": [str(plugin) for plugin in config.plugins] or None,
        "scenarios.file": config.scenarios.file,
        "tools.server_config": config.tools.server_config,
        "tools.replay": config.tools.replay,
        "init": config.init and config.init.expanduser().resolve(),
    }
    given = {key: str(value) if isinstance(value, Path) else value for key, value in command.items() if value}
    given |= carried(config)
    about = {"name": config.name, "project": config.project, "base_model": config.base_model, "command": given}
    return about | ({"init": given["init"]} if config.init else {})


@asynccontextmanager
async def _backend(config: RunConfig, plugins: Plugins) -> AsyncIterator["Backend"]:
    """The backend that the configuration names, closed in the end. Raises PluginError where it cannot be made."""
    make = plugins.backends.pick(config.backend, plugins.problems)
    try:
        backend = make(config)
    except McpRlError:
        raise
    except Exception as error:
        where = place(error, plugins.backends.origins[config.backend])
        raise PluginError(
            f"The backend {config.backend!r} ({where}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    try:
        yield backend
    finally:
        await backend.close()


async def _begin(backend: "Backend", model: "TrainableModel[None]") -> None:
    """Begin what takes long and may overlap with exploring. A failure shows where it is needed."""
    begin = getattr(backend, "begin", None)
    if begin is not None:
        with suppress(McpRlError):
            await begin(model)


async def _choices(backend: "Backend", model: "TrainableModel[None]") -> Sequence[str]:
    """What the backend says of itself before it loads anything."""
    choose = getattr(backend, "choose", None)
    return await choose(model) if choose is not None else ()


async def _greet(setting: _Setting, sessions: Sessions, session: Session, params: ServerParams) -> None:
    say = setting.progress.say
    how = "from a recording" if setting.config.tools.replay else f"over {params.transport}"
    said = f"{setting.server.name}: {len(session.schemas.openai)} tools {how}"
    if isinstance(params, ServerGroup):
        said = f"{setting.server.name}: {len(session.schemas.openai)} tools of {len(params.servers)} servers"
    say(f"{said}.")
    for warning in session.connection.warnings:
        say(warning)
    if not setting.server.stateful and await sessions.isolation(params) != "shared":
        say(on_undeclared_isolation(session.offered))
    if setting.state.step:
        say(f"Continuing from step {setting.state.step} in {setting.run.path}.")
    else:
        say(f"The run is kept in {setting.run.path}.")


def _follow(state: RunState, run: RunDirectory, step: int, kept: Mapping[str, Any]) -> None:
    """Bring the state to the step of the checkpoint that was really loaded, and drop what lies behind it."""
    if state.step != step:
        state.step, state.progress = step, StepProgress.model_validate(kept)
        if state.after_step is not None and state.after_step > step:
            state.after, state.after_step = None, None
    run.discard_after(step)


def _report(config: RunConfig, run: RunDirectory, server: ToolServer, state: RunState, *, seconds: float) -> RunReport:
    from mcp_rl.evaluate import EvaluationResult

    learner = max((line.get("learner_peak_rss_mb", 0.0) for line in run.history()), default=0.0)
    before, after = EvaluationResult.model_validate(state.before), EvaluationResult.model_validate(state.after)
    return RunReport(
        run_dir=str(run.path),
        server=server.name,
        base_model=config.base_model,
        step=state.step,
        seconds=round(seconds, 1),
        peak_rss_mb=round(peak_rss_mb() + learner, 1),
        val=ValReport(
            scenarios=after.scenarios,
            before=Headline.model_validate(before.summary()),
            after=Headline.model_validate(after.summary()),
        ),
        train=TrainTotals.model_validate(state.progress.model_dump()),
        details={
            "before": before.model_dump(mode="json"),
            "after": after.model_dump(mode="json"),
            **({} if config.judge.model is None else {"judge": _judge_report(run, state.step)}),
        },
    )


def _judge_report(run: RunDirectory, step: int) -> dict[str, Any]:
    """What the judges took in all, how they see the base and the trained model side by side, and how far they agree
    with the verifier on the held-out episodes before and after, where both have scored them."""
    from mcp_rl.evaluation.agreement import judge_agreement

    compared: dict[str, Any] = next((line for line in reversed(run.history()) if "judge_after" in line), {})
    sides = ("judge_before", "judge_after", "judge_better", "judge_worse", "judge_compared")
    found = {when: judge_agreement(run.trajectories("val", at)) for when, at in (("before", 0), ("after", step))}
    return {
        "spent": asdict(Ledger(run.judge / CALLS).spent),
        **{key: compared[key] for key in sides if compared},
        "agreement": {when: agreed.model_dump(mode="json") for when, agreed in found.items() if agreed},
    }


async def _in_child_task(job: Callable[[], Awaitable[T]]) -> T:
    """Run a job in a task of its own. Ctrl-C cancels our own task, whatever it awaits; a child is cancelled by scopes,
    so that what it shields (an update with its books, a checkpoint) is finished first."""
    results: list[T] = []

    async def child() -> None:
        results.append(await job())

    await run_all([child])
    return results[0]


if __name__ == "__main__":
    from mcp_rl.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
