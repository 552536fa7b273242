"""`mcp-rl league`: every pair of models plays the held-out scenarios with seats, each in both seats.

A game gives a point to the side with the higher reward, and half a point to each if they are equal.
"""

from __future__ import annotations

import functools
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from statistics import fmean
from typing import TYPE_CHECKING, Any

import anyio
from pydantic import BaseModel, ConfigDict

from mcp_rl.errors import ConfigError
from mcp_rl.evaluation.bench import CHAT_CONCURRENCY, check_chat_model
from mcp_rl.evaluation.folder import claim, save_episodes, write_json
from mcp_rl.evaluation.measure import shown
from mcp_rl.evaluation.opponents import check_seats, opened_models
from mcp_rl.evaluation.progress import Progress
from mcp_rl.evaluation.run import EvaluationJob, prepare
from mcp_rl.evaluation.scenarios import Chosen, draw, make_held_out
from mcp_rl.evaluation.statistics import success_interval
from mcp_rl.evaluation.tables import Grid, print_grid
from mcp_rl.explore.known_server import known_server
from mcp_rl.rewards.scoring import Scoring
from mcp_rl.rollouts.episode import derive_seed
from mcp_rl.rollouts.gather import GroupPlan, gather_groups
from mcp_rl.rollouts.player import SettingPlayer, limits_of
from mcp_rl.rollouts.seated import Opponent, own_episode
from mcp_rl.rollouts.user_model import user_model
from mcp_rl.scenario import scenario_lines
from mcp_rl.scenarios.fit import check_fit
from mcp_rl.system.durable import write_atomically
from mcp_rl.system.processes.leftovers import end_leftovers
from mcp_rl.system.threads import prepare_torch_threads
from mcp_rl.toolserver.connection.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence
    from pathlib import Path

    from rich.console import Console

    from mcp_rl.rollouts.user import PlaysUsers
    from mcp_rl.scenario import McpScenario
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.trajectory import Trajectory, TrajectoryGroup


class Standing(BaseModel):
    """The points of one model, against all others or against one."""

    model_config = ConfigDict(extra="forbid")

    model: str
    against: str | None = None
    """The other model; None for all of them."""
    games: int
    won: int
    drawn: int
    lost: int
    points: float
    """Mean over scenarios of the points of a game, 0 to 1."""
    ci95: tuple[float, float]
    """95 % interval of `points` over scenarios of the same kind."""


class LeagueReport(BaseModel):
    """The result of a league, as in its report.json."""

    model_config = ConfigDict(extra="forbid")

    path: str
    server: str
    scenarios: int
    scenarios_from: str
    samples: int
    temperature: float
    seed: int
    seconds: float
    faults: int
    """Games that ended with a fault, which give no points."""
    table: list[Standing]
    """The models, the best first."""
    pairs: list[Standing]
    """For every pair, the better one's points against the other."""


@dataclass(frozen=True)
class _Game:
    """A game that was played to its end."""

    scenario: str
    sides: tuple[str, str]
    points: float
    """Points of the first side; the second has the rest."""

    def of(self, model: str) -> float:
        return self.points if self.sides[0] == model else 1 - self.points


def prepare_league(names: Sequence[str], **asked: Any) -> EvaluationJob:
    """Resolve and check the words of the command, which are those of `evaluate`. Raises UserError."""
    if len(names) < 2:
        raise ConfigError("A league needs two models or more: add another --model.")
    job = prepare(names, **asked)
    if job.config.judge.model is not None:
        raise ConfigError("A league has no judge: the verifier scores both sides of a game. Leave --judge-model out.")
    source = job.config.scenarios.source or (job.server.seats.source if job.server.seats else None)
    if job.config.scenarios.file is None and source is not None:
        scenarios = job.config.scenarios.model_copy(update={"source": source})
        config = job.config.model_copy(update={"scenarios": scenarios})
        job = replace(job, config=config, chosen=Chosen([], ""))
    return job


async def run_league(job: EvaluationJob, console: Console) -> LeagueReport:
    """Play every pair, and write the report. Raises UserError before the first game, ServerFault later."""
    began, config = time.monotonic(), job.config
    if any(model.base_model for model in job.models):
        prepare_torch_threads()  # before torch is imported
    folder = claim(job.evaluations, job.server.name, job.name)
    progress = Progress(steps=0, console=console)
    await anyio.to_thread.run_sync(end_leftovers, progress.say)
    scoring = Scoring(config.judge, job.plugins.verifiers, config.reward, job.plugins.rewards, seed=config.seed)
    deadlines = Deadlines(call=config.rollout.tool_deadline)
    opening = known_server(job.server, config.transport, config.tools, deadlines=deadlines, log_dir=folder / "logs")
    async with AsyncExitStack() as stack:
        stack.enter_context(progress)
        known = await stack.enter_async_context(opening)
        session = await known.session()
        chosen = await _games(job, known.sessions)
        check_fit(chosen.scenarios, job.server.name, session.schemas)
        check_seats(chosen.scenarios, config, seats=session.seats is not None, judged=False)
        scoring.check(chosen.scenarios)
        for model in job.models:
            if model.kind == "chat":
                await check_chat_model(model, session)
        progress.say(f"{job.server.name}: {len(chosen.scenarios)} scenarios with seats, {chosen.origin}.")
        write_atomically(folder / "scenarios.jsonl", scenario_lines(chosen.scenarios).encode())
        sides = await stack.enter_async_context(opened_models(job.models, job.server.system_prompt))
        games, faults = await _play_all(job, sides, chosen.scenarios, known.sessions, scoring, folder, progress)
    found = LeagueReport(
        path=str(folder),
        server=job.server.name,
        scenarios=len(chosen.scenarios),
        scenarios_from=chosen.origin,
        samples=config.evaluation.samples,
        temperature=config.rollout.temperature,
        seed=config.seed,
        seconds=round(time.monotonic() - began, 2),
        faults=faults,
        table=_table(list(sides), games),
        pairs=_pairs(list(sides), games),
    )
    write_json(folder / "report.json", found.model_dump(mode="json"))
    return found


async def _games(job: EvaluationJob, sessions: Sessions) -> Chosen:
    """Return the scenarios to play. Raises ConfigError if they have no seats."""
    chosen = job.chosen
    if not chosen.scenarios:
        params = job.server.params(job.config.transport)
        chosen = await make_held_out(job.config, job.server, params, sessions, job.plugins, None)
    seated = [scenario for scenario in chosen.scenarios if len(scenario.seats) == 2]
    if not seated:
        raise ConfigError(
            f"None of {len(chosen.scenarios)} scenarios of {job.server.name} has two seats: name a file or a source of "
            "games between two (--scenarios, --source)."
        )
    return draw(replace(chosen, scenarios=seated), job.count, job.config.seed)


async def _play_all(
    job: EvaluationJob,
    sides: dict[str, Opponent],
    scenarios: Sequence[McpScenario],
    sessions: Sessions,
    scoring: Scoring,
    folder: Path,
    progress: Progress,
) -> tuple[list[_Game], int]:
    """Play every pair in both seats; return the finished games, and the number of those that ended with a fault."""
    games: list[_Game] = []
    faults = 0
    users = user_model(job.config.rollout.user_model, job.config.rollout.max_user_cost)
    for first, second in permutations(sides, 2):
        player = _player(job, sides[first], sides[second], users, sessions, scoring)
        with progress.rollouts(f"{first} - {second}", len(scenarios), job.config.evaluation.samples) as bar:
            groups = await gather_groups(
                [_plan(player, scenario, job) for scenario in scenarios],
                max_exceptions=job.config.rollout.max_exceptions,
                on_rollout=bar.finished,
            )
        save_episodes(folder, f"{first} - {second}", groups)
        found = [game for group in groups for game in _finished(group, (first, second))]
        faults += sum(map(len, groups)) - len(found)
        games += found
        progress.say(f"{first} - {second}: {sum(game.points for game in found):g} of {len(found)} points.")
    return games, faults


def _player(
    job: EvaluationJob,
    first: Opponent,
    second: Opponent,
    users: PlaysUsers | None,
    sessions: Sessions,
    scoring: Scoring,
) -> SettingPlayer:
    config = job.config
    assert first.setting is not None
    remote = any(model.kind == "chat" for model in job.models)
    return SettingPlayer(
        first.setting,
        sessions,
        params=job.server.params(config.transport),
        temperature=config.rollout.temperature,
        limits=limits_of(config.rollout),
        concurrency=min(config.rollout.concurrency, CHAT_CONCURRENCY) if remote else config.rollout.concurrency,
        driver=functools.partial(own_episode, user_model=users, opponents=lambda named, seed: second),
        finish=scoring.rollout,
    )


def _plan(player: SettingPlayer, scenario: McpScenario, job: EvaluationJob) -> GroupPlan:
    def play(index: int, attempt: int) -> Awaitable[Trajectory]:
        return player.play(scenario, derive_seed("league", job.config.seed, scenario.id, index, attempt))

    return GroupPlan(scenario, [functools.partial(play, index) for index in range(job.config.evaluation.samples)])


def _finished(group: TrajectoryGroup, sides: tuple[str, str]) -> list[_Game]:
    """Return the games of a group in which both sides were scored."""
    found = []
    for trajectory in group:
        mine, theirs = trajectory.reward, trajectory.others[0].reward if trajectory.others else None
        if mine is not None and theirs is not None:
            points = 1.0 if mine > theirs else 0.0 if mine < theirs else 0.5
            found.append(_Game(group.scenario.id, sides, points))
    return found


def _standing(model: str, games: Sequence[_Game], against: str | None = None) -> Standing:
    own = [game for game in games if model in game.sides and (against is None or against in game.sides)]
    by_scenario: dict[str, list[float]] = {}
    for game in own:
        by_scenario.setdefault(game.scenario, []).append(game.of(model))
    points = [game.of(model) for game in own]
    return Standing(
        model=model,
        against=against,
        games=len(own),
        won=points.count(1.0),
        drawn=points.count(0.5),
        lost=points.count(0.0),
        points=fmean(map(fmean, by_scenario.values())) if own else 0.5,
        ci95=success_interval(list(by_scenario.values())) if own else (0.0, 1.0),
    )


def _table(models: Sequence[str], games: Sequence[_Game]) -> list[Standing]:
    return sorted((_standing(model, games) for model in models), key=lambda one: -one.points)


def _pairs(models: Sequence[str], games: Sequence[_Game]) -> list[Standing]:
    both = [(_standing(one, games, other), _standing(other, games, one)) for one, other in combinations(models, 2)]
    return [one if one.points >= other.points else other for one, other in both]


def print_league(report: LeagueReport, console: Console) -> None:
    """Print the table, and every pair."""
    header = ["", "points", "games", "won", "drawn", "lost"]
    for title, rows in (("League", report.table), ("Pairs", report.pairs)):
        cells = [
            [one.model if one.against is None else f"{one.model} - {one.against}", shown(one.points, one.ci95)]
            + [str(count) for count in (one.games, one.won, one.drawn, one.lost)]
            for one in rows
        ]
        print_grid(Grid(title, header, cells), console)
    console.print(
        f"{report.scenarios} scenarios on {report.server}, {report.scenarios_from}, {report.samples} games of each in "
        f"both seats, seed {report.seed}. In brackets: the 95 % interval over scenarios. {report.faults} games ended "
        f"with a fault. {report.path}",
        highlight=False,
        markup=False,
    )
