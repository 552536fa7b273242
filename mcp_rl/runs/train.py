"""`mcp-rl train`: from a tool server to a trained model and its evaluation, in one resumable run.

In order: the server, the run directory, the connection and its schemas, the scenarios, the model, the evaluation of the
base, the steps, the evaluation of the trained model, the report. Whatever ends the run, the server is stopped and the
last step is kept.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from rich.console import Console

from mcp_rl.config import LEVELS, TINY
from mcp_rl.errors import ClusterError, LearnersLost, McpRlError, PluginError, RunDirectoryError
from mcp_rl.evaluation.opponents import check_seats, opened_opponents
from mcp_rl.evaluation.progress import Progress
from mcp_rl.explore.entities.keeping import collected_worlds
from mcp_rl.explore.first_contact import contradictions, states_of
from mcp_rl.explore.known_server import known_server
from mcp_rl.explore.tally import tallied
from mcp_rl.model import EpisodeRecipe, TrainableModel, with_defaults
from mcp_rl.plugins.manager import Plugins, load_plugins, place
from mcp_rl.plugins.resolve import resolve_servers
from mcp_rl.rewards.ledger import Ledger
from mcp_rl.rewards.scoring import CALLS, Scoring
from mcp_rl.rollouts.agents.player import agent_options, opened_player
from mcp_rl.rollouts.player import PlayerOptions, limits_of
from mcp_rl.rollouts.seated import own_episode
from mcp_rl.rollouts.user_model import USER_CALLS, user_model
from mcp_rl.run_directory import RunDirectory, RunState, StepProgress, open_run, readable
from mcp_rl.runs.identity import carried, check_inputs, identify, prepare_scenarios
from mcp_rl.runs.learned import Learned
from mcp_rl.runs.live import Live
from mcp_rl.runs.mirror import mirrored
from mcp_rl.runs.packages import PACKAGES, kept_packages, package_changes
from mcp_rl.runs.report import Headline, RunReport, TrainTotals, ValReport
from mcp_rl.runs.steps.demonstrations import opened_demonstrator
from mcp_rl.runs.steps.ending import Ending
from mcp_rl.runs.trackers.trackers import Trackers
from mcp_rl.runs.trained_tools import TrainedTools
from mcp_rl.scenario import ServerGroup, ServerParams
from mcp_rl.scenarios.fit import notices
from mcp_rl.system.activity import Clock, timed_by
from mcp_rl.system.processes.leftovers import end_leftovers
from mcp_rl.system.processes.memory import peak_rss_mb
from mcp_rl.system.tasks import run_all
from mcp_rl.system.threads import prepare_torch_threads
from mcp_rl.toolserver.connection.deadlines import Deadlines
from mcp_rl.toolserver.isolation import undeclared_notice
from mcp_rl.toolserver.state import MeasuredState
from mcp_rl.toolserver.tool_server import BETWEEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from mcp_rl.config import RunConfig
    from mcp_rl.model import Backend
    from mcp_rl.runs.steps.trainer import Trainer
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer

T = TypeVar("T")


async def run_training(config: RunConfig, *, fresh: bool = False, console: Console | None = None) -> RunReport:
    """Train, or continue, the run that `config` describes; return its report, which is also in report.json.

    `fresh` removes an earlier run of that name. Raises UserError for errors that the user can mend, and ServerFault,
    EngineError or CanaryError for failures on the way. A cancelled run saves its last step first.
    """
    console, lost = console or Console(), _Losses()
    while True:
        try:
            return await _in_child_task(functools.partial(_run, config, fresh, console))
        except LearnersLost as error:
            lost.add(error, RunDirectory(config.run_dir).state().step)
            console.print(f"{error} That is done now.", highlight=False, markup=False, soft_wrap=True)
            fresh = False


@dataclass
class _Losses:
    """The times that a cluster's learners were lost, and the step that was whole then."""

    step: int = -1
    times: int = 0

    def add(self, error: LearnersLost, step: int) -> None:
        """Count a loss. Raises the error again at the third without a further whole step between."""
        self.times = self.times + 1 if step == self.step else 1
        self.step = step
        if self.times >= _MOST_LOSSES:
            raise error


_MOST_LOSSES = 3


async def _run(config: RunConfig, fresh: bool, console: Console) -> RunReport:
    began = time.monotonic()
    plugins = load_plugins(config.plugins)
    server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    check_inputs(config, server, plugins, fresh=fresh)
    needed = config.init, config.scenarios.file, config.tools.replay
    say = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    async with mirrored(config.mirror, config.project, config.run_dir, fresh=fresh, say=say) as on_state:
        with open_run(config.run_dir, fresh=fresh, needed=needed) as run:
            run.on_state = on_state
            return await _to_the_end(config, run, console, plugins, server, began)


async def _to_the_end(
    config: RunConfig, run: RunDirectory, console: Console, plugins: Plugins, server: ToolServer, began: float
) -> RunReport:
    notes = run.take_up()
    state = run.state()
    earlier = state.progress.seconds
    if stored := run.identity():
        run.check(identify(config, server, stored.schema_hash, stored))
    elif any(run.checkpoints.glob("*[0-9]*")):
        raise RunDirectoryError(
            f"The run in {run.path} has checkpoints, but its model.json is gone: put a copy there, start "
            "over with --fresh, or choose another name with --name."
        )
    ending = Ending(config, run.history())
    if report := _finished(run, state, ending):
        for sentence in notes:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        console.print(ending.sentence, highlight=False, markup=False, soft_wrap=True)
        return report
    small = config.base_model == TINY
    state.threads, state.update_threads = prepare_torch_threads(state.threads, state.update_threads, small=small)
    with (
        Progress(steps=config.steps, done=state.step, console=console) as progress,
        timed_by(Clock()) as clock,
        Live(run.path, progress, clock),
    ):
        async with Trackers.opened(run.path, config, plugins, progress.say) as trackers:
            for sentence in notes:
                progress.say(sentence)
            with progress.waiting("looking for what earlier runs left running"):
                await anyio.to_thread.run_sync(end_leftovers, progress.say)
            setting = _Setting(config, run, state, plugins, server, progress, clock, trackers)
            async with _prepared(setting) as trainer:
                await trackers.started()
                await trainer.measure_before()
                try:
                    await trainer.take_steps()
                except BaseException:
                    await trainer.rescue()
                    raise
                await trainer.measure_after()
                evidence = await trainer.evidence()
    report = _report(config, run, server, state, seconds=earlier + time.monotonic() - began)
    report.target_reached = trainer.ending.reached
    report.learned = Learned.of(
        run.history(), state.before or {}, state.after or {}, state.progress.trained_tokens, evidence
    )
    run.write_json(run.report.name, report.model_dump(mode="json"))
    return report


def _finished(run: RunDirectory, state: RunState, ending: Ending) -> RunReport | None:
    """Return the report of a run with nothing left to do; None if there is work left."""
    if state.after is None or not ending.over(state.step) or state.after_step != state.step or not run.report.exists():
        return None
    with readable(run.path):
        return RunReport.model_validate(run.read_json(run.report.name))


@dataclass(frozen=True)
class _Setting:
    config: RunConfig
    run: RunDirectory
    state: RunState
    plugins: Plugins
    server: ToolServer
    progress: Progress
    clock: Clock
    trackers: Trackers


@asynccontextmanager
async def _prepared(setting: _Setting) -> AsyncIterator[Trainer]:
    """Open everything that steps need, and close it at the end."""
    config, run, progress = setting.config, setting.run, setting.progress
    deadlines = Deadlines.of_episodes(config)
    opening = known_server(
        setting.server, config.transport, config.tools, states=_states(run), deadlines=deadlines, log_dir=run.logs
    )
    model = TrainableModel[None](config.name, config.project, config.base_model, base_path=config.output_dir)
    async with AsyncExitStack() as stack:
        with progress.waiting(f"getting to know {setting.server.name}"):
            known = await stack.enter_async_context(opening)
        backend = await stack.enter_async_context(_backend(config, setting.plugins))
        with progress.waiting(f"starting {setting.server.name}"):
            try:
                await backend.begin(model)
            except McpRlError as error:
                if isinstance(error, ClusterError):
                    raise  # `register` raises the others again
            session = await known.session()
        setting, sessions = replace(setting, server=known.server), known.sessions
        params = setting.server.params(config.transport)
        await _greet(setting, sessions, session, params)
        stored = run.identity()
        for sentence in package_changes(run.read_json("model.json") or {}, params, setting.server.name):
            progress.say(sentence)
        listed = stored.schema_hash if stored and config.tools.allow_schema_change else session.schemas.hash
        identity = identify(config, setting.server, listed, stored)
        run.check(identity)
        with (
            tallied() as tally,
            collected_worlds() as worlds,
            progress.waiting(f"exploring {setting.server.name}", tally.parts),
        ):
            divided = await prepare_scenarios(run, config, setting.server, params, sessions, setting.plugins)
        train, val = divided.train, divided.val
        progress.say(f"Scenarios: {len(train)} to train on, {len(val)} held out (train.jsonl, val.jsonl).")
        if len(levels := Counter[str](one.level for one in [*train, *val])) > 1:
            progress.say(f"Levels: {', '.join(f'{levels[level]} {level}' for level in LEVELS if levels[level])}.")
        if divided.notice:
            progress.say(divided.notice)
        for notice in notices([*train, *val], setting.server, config):
            progress.say(notice)
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
        check_seats([*train, *val], config, seats=session.seats is not None, judged=not scoring.at_once)
        if run.identity() is None:
            run.save_scenarios("val", val)
            run.save_scenarios("train", train)
            for world in worlds.values():
                run.write_json("world.json", world.model_dump(mode="json"))
            if states := states_of(setting.server):
                run.save_states({name: state.model_dump(mode="json") for name, state in states.items()})
            about = _about(config, setting.server)
            if fetched := kept_packages(params, setting.server.name):
                about[PACKAGES] = fetched
            run.begin(identity, about)
        TrainedTools.of_session(session, train, setting.server.system_prompt).keep(run)

        from mcp_rl.runs.steps.trainer import Trainer

        with progress.waiting(f"loading {config.base_model}"):
            for sentence in await backend.choose(model):
                progress.say(sentence)
            await _expect(setting)
            await model.register(backend)
        for sentence in backend.skipped:
            progress.say(sentence)
        if setting.state.step > backend.engine.version:
            progress.say(
                f"The run was at step {setting.state.step}, and goes on from the newest whole checkpoint, of step "
                f"{backend.engine.version}."
            )
        _follow(setting.state, run, backend.engine.version, backend.frontier)
        opening_opponents = opened_opponents(
            config, system_prompt=setting.server.system_prompt, checkpoints=run.checkpoints
        )
        opponents = await stack.enter_async_context(opening_opponents)
        agent = agent_options(config, run.logs, progress.say)
        prompt = setting.server.system_prompt
        users = user_model(config.rollout.user_model, config.rollout.max_user_cost, run.judge / USER_CALLS)
        playing: PlayerOptions = {
            "params": params,
            "temperature": config.rollout.temperature,
            "limits": limits_of(config.rollout),
            "concurrency": config.rollout.concurrency,
            "driver": functools.partial(own_episode, user_model=users, opponents=opponents),
            "finish": scoring.rollout,
        }
        opening_player = opened_player(agent, backend.engine, backend.chat, sessions, system_prompt=prompt, **playing)
        player = await stack.enter_async_context(opening_player)
        player.elsewhere = await backend.play_elsewhere(_recipe(config, setting.server, session))
        demonstrator = await stack.enter_async_context(
            opened_demonstrator(agent, backend.engine, backend.chat, sessions, system_prompt=prompt, **playing)
        )
        yield Trainer(
            config=config,
            run=run,
            state=setting.state,
            plugins=setting.plugins,
            model=model,
            backend=backend,
            player=player,
            demonstrator=demonstrator,
            opponents=opponents,
            scoring=scoring,
            train=train,
            val=val,
            progress=progress,
            clock=setting.clock,
            trackers=setting.trackers,
        )


def _recipe(config: RunConfig, server: ToolServer, session: Session) -> EpisodeRecipe:
    states = {name: state.model_dump(mode="json") for name, state in states_of(server).items()}
    return EpisodeRecipe(config, states, session.schemas.hash)


def _states(run: RunDirectory) -> dict[str, MeasuredState] | None:
    """Return the measured states of the servers that the run began with; None for a run that begins."""
    if run.identity() is None:
        return None
    return {name: MeasuredState.model_validate(one) for name, one in (run.states() or {}).items()}


def _about(config: RunConfig, server: ToolServer) -> dict[str, Any]:
    """Return the names of a run for model.json, and the parts of its command that its identity does not hold."""
    command: dict[str, Any] = {
        "server": _server_words(config, server),
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


def _server_words(config: RunConfig, server: ToolServer) -> list[str] | None:
    """Return the words of --server if they are more than names and hold no secret, with absolute paths of scripts."""
    if server.name == "+".join(config.server) or any(
        "{env:" in repr(one.transports) for one in server.members or (server,)
    ):
        return None
    paths = {word: Path(word).expanduser() for word in config.server}
    return [str(path.resolve()) if path.is_file() else word for word, path in paths.items()]


@asynccontextmanager
async def _backend(config: RunConfig, plugins: Plugins) -> AsyncIterator[Backend]:
    """Make the configured backend, and close it at the end. Raises PluginError if it cannot be made."""
    make = plugins.backends.pick(config.backend, plugins.problems)
    try:
        backend = with_defaults(make(config))
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


async def _greet(setting: _Setting, sessions: Sessions, session: Session, params: ServerParams) -> None:
    say = setting.progress.say
    how = "from a recording" if setting.config.tools.replay else f"over {params.transport}"
    said = f"{setting.server.name}: {len(session.schemas.openai)} tools {how}"
    if setting.server.toolless:
        said = "No server: the model answers in words, without tools"
    elif isinstance(params, ServerGroup):
        said = f"{setting.server.name}: {len(session.schemas.openai)} tools of {len(params.servers)} servers"
    say(f"{said}.")
    for warning in session.connection.warnings:
        say(warning)
    for sentence in contradictions(setting.server, setting.config.transport, setting.config.tools):
        say(sentence)
    for name, state in states_of(setting.server).items():
        say(f"{name}, isolation {state.isolation}: {state.reason}.")
        if hurried := hurried_tools(setting.config, name, state):
            say(hurried)
        if sessions.remembers(params):
            say(
                f"A call that {name} has answered the same way twice is then answered from memory "
                "(tools.remember=false makes every call)."
            )
    if not setting.server.stateful and await sessions.isolation(params) != "shared":
        say(undeclared_notice(session.offered))
    if setting.state.step:
        say(f"Continuing from step {setting.state.step} in {setting.run.path}.")
    else:
        say(f"The run is kept in {setting.run.path}.")


def hurried_tools(config: RunConfig, server: str, state: MeasuredState) -> str:
    """Return a sentence on a server's slow tools that get less time than others; "" if there are none."""
    own = {tool.removeprefix(f"{server}{BETWEEN}") for tool in config.tools.deadlines}
    deadlines = replace(Deadlines.of_episodes(config), slow=frozenset(state.slow) - own)
    if not deadlines.hurried:
        return ""
    tools = ", ".join(sorted(deadlines.hurried))
    return f"{server}: slow tools get only {deadlines.slow_call:g} s for a call: {tools} (tools.deadlines allows more)."


async def _expect(setting: _Setting) -> None:
    """Tell the pace that is expected of a new run, and keep it for the report."""
    from mcp_rl.runs.doctor.forecast import forecast_here

    state = setting.state
    if state.forecast is None and state.step == 0:
        expected = await anyio.to_thread.run_sync(forecast_here, setting.config)
        if expected is not None:
            state.forecast = expected.model_dump(mode="json")
            setting.progress.say(expected.line)


def _follow(state: RunState, run: RunDirectory, step: int, kept: Mapping[str, Any]) -> None:
    """Set the state to the step of the loaded checkpoint, and drop what the run kept of later steps."""
    if state.step != step:
        state.step, state.progress = step, StepProgress.model_validate(kept)
        if state.after_step is not None and state.after_step > step:
            state.after, state.after_step = None, None
    run.discard_after(step)


def _report(config: RunConfig, run: RunDirectory, server: ToolServer, state: RunState, *, seconds: float) -> RunReport:
    from mcp_rl.evaluation.evaluate import EvaluationResult
    from mcp_rl.runs.doctor.forecast import compared

    others = max((line.get("learner_peak_rss_mb", 0.0) for line in run.history()), default=0.0)
    before, after = EvaluationResult.model_validate(state.before), EvaluationResult.model_validate(state.after)
    return RunReport(
        run_dir=str(run.path),
        server=server.name,
        base_model=config.base_model,
        step=state.step,
        seconds=round(seconds, 1),
        peak_rss_mb=round(peak_rss_mb() + others, 1),
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
            **({} if state.forecast is None else {"forecast": compared(state.forecast, run.history())}),
        },
    )


def _judge_report(run: RunDirectory, step: int) -> dict[str, Any]:
    """Return the judges' part of the report: their cost in all, their comparison of the base and the trained model, and
    their agreement with the verifier on the held-out episodes before and after, if both have scored them."""
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
    """Run a job in a child task. Ctrl-C cancels this task, whatever it awaits; a child task is cancelled by scopes, so
    work that it shields (an update with its bookkeeping, a checkpoint) finishes first."""
    results: list[T] = []

    async def child() -> None:
        results.append(await job())

    await run_all([child])
    return results[0]
