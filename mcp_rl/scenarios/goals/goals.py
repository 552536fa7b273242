"""Goal scenarios of a live server: its world is seen, tasks are drawn from it, and each is proven."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

from mcp_rl.errors import ScenarioError
from mcp_rl.explore.entities.builder import build_world
from mcp_rl.explore.pace import episodes_within
from mcp_rl.scenario import Level, McpScenario
from mcp_rl.scenarios.duplicates import most_alike
from mcp_rl.scenarios.goals.answered import AnsweredQuestions
from mcp_rl.scenarios.goals.begun import Beginnings
from mcp_rl.scenarios.goals.brought import BroughtAbout
from mcp_rl.scenarios.goals.computing import ComputingTools
from mcp_rl.scenarios.goals.second import SecondSolver, with_opinion
from mcp_rl.scenarios.goals.twice import Twice
from mcp_rl.scenarios.stage import Stage
from mcp_rl.system.notices import notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp_rl.explore.entities.builder import BuiltWorld
    from mcp_rl.explore.entities.world_model import WorldModel
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import ServerParams
    from mcp_rl.scenarios.goals.task import GoalTask
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer

_TURNS = 10
"""Least number of turns that a scenario allows."""
_TOLD_CHANGES = 0.3
"""Share of the told tasks that change something, where the server has such tools."""
_COMPUTED = 0.4
"""Share of the questions that computing tools answer, where the server has things to ask about as well."""
_START_SECONDS, _LEAST_CHANGES, _PLAYS = 100.0, 12, 6
"""Seconds for proving changes where each play starts a process that nobody asked for, the changes that are proven in
any case, and the plays that one takes."""


async def goal_scenarios(
    sessions: Sessions, *, server: ToolServer, params: ServerParams, recipe: Recipe
) -> list[McpScenario]:
    """Return up to as many proven goal scenarios of each level as the recipe wants.

    A notice says where there are fewer, and why. Raises ScenarioError where there are none and nothing else is wanted,
    ServerFault where the server is lost.
    """
    wanted = cast("dict[Level, int]", recipe.goals)
    built = await build_world(sessions, server=server, params=params)
    world, session = built.model, await sessions.get(params)
    names = [tool.name for tool in session.offered]
    twice = Twice(sessions, params, server)
    twice.known(built.same)
    tasks: list[GoalTask] = []
    stage = Stage(sessions, session, server, params)
    few = False
    most_changes = max(_LEAST_CHANGES, episodes_within(server, _START_SECONDS) / _PLAYS)
    if world.effects:
        changes: dict[Level, int] = {level: wanted.get(level, 0) for level in ("told", "brought-about")}
        changes["told"] = round(_TOLD_CHANGES * changes["told"])
        few = sum(changes.values()) > most_changes
        changes = _within(changes, most_changes)
        proven = BroughtAbout(world, names, stage, twice, recipe.seed)
        tasks += await proven.tasks(changes, _told_of_tools(wanted, world, tasks))
    made = Counter(task.level for task in tasks)
    asked: dict[Level, int] = {
        level: count - made[level] for level, count in wanted.items() if level != "brought-about"
    }
    if not world.effects and (unmade := wanted.get("brought-about", 0)):  # questions stand in for changes
        higher: list[Level] = [level for level in ("looked-up", "worked-out") if asked.get(level)]
        asked |= {level: asked[level] + round(unmade / len(higher)) for level in higher}
    computing = ComputingTools(sessions, server, params, world, twice, recipe)
    if world.kinds:
        computed = await computing.tasks({level: round(_COMPUTED * count) for level, count in asked.items()})
        made = Counter(task.level for task in computed)
        asked = {level: count - made[level] for level, count in asked.items()}
        tasks += [*computed, *await AnsweredQuestions(world, names, twice, recipe.seed).tasks(asked)]
    made = Counter(task.level for task in tasks)
    tasks += await computing.tasks({level: count - made[level] for level, count in wanted.items()})
    short = _shortfall(wanted, tasks, built, few_changes=few)
    most_changes -= len([task for task in tasks if "changes" in task.tags])
    if world.effects and (missing := _within(_stand_ins(wanted, tasks), most_changes)):
        proven = BroughtAbout(world, names, stage, twice, recipe.seed + 1)
        more = await proven.tasks(missing, _told_of_tools(wanted, world, tasks))
        said = {task.text for task in tasks}
        tasks += (others := [task for task in more if task.text not in said])
        short = (
            f"{short[:-1]}; {len(others)} tasks that describe an end state were made instead."
            if short and others
            else short
        )
    if short and not tasks and not recipe.spells_out:
        raise ScenarioError(f"No goal task can be made for the server {server.name!r}: {short}")
    if short:
        notice(f"Server {server.name!r}: {short}")
    beginnings = Beginnings(world, built.places, recipe.seed)
    made_of = [_scenario(beginnings.said(task), server, params, session, recipe) for task in tasks]
    opinion = await SecondSolver(world, names, stage, twice, recipe.seed).judge(made_of, ways=2, near=3)
    kept = with_opinion(made_of, opinion)
    if len(kept) < len(made_of):
        notice(
            f"Server {server.name!r}: {len(made_of) - len(kept)} tasks are left out, because their verifier misjudged "
            f"another way to solve them, for example: {opinion.misjudged[0][1]}"
        )
    return kept


def _told_of_tools(wanted: Mapping[Level, int], world: WorldModel, tasks: Sequence[GoalTask]) -> dict[str, int]:
    """Return how many more told tasks each tool that changes something may have."""
    most = most_alike(wanted.get("told", 0))
    made = Counter(task.calls[0].tool for task in tasks if task.level == "told" and "changes" in task.tags)
    return {effect.tool: max(0, most - made[effect.tool]) for effect in world.effects}


def _stand_ins(wanted: Mapping[Level, int], tasks: Sequence[GoalTask]) -> dict[Level, int]:
    """Return, for each level, the number of changes that replace questions which the data do not allow."""
    made = Counter(task.level for task in tasks)
    higher = sum(max(0, wanted.get(level, 0) - made[level]) for level in ("looked-up", "worked-out"))
    told = max(0, wanted.get("told", 0) - made["told"])
    found: dict[Level, int] = {"told": told, "brought-about": higher if wanted.get("brought-about") else 0}
    return found if any(found.values()) else {}


def _within(changes: Mapping[Level, int], most: float) -> dict[Level, int]:
    """Return numbers of changes in the same proportions, at most so many in all."""
    total = sum(changes.values())
    if total <= most:
        return dict(changes) if total else {}
    return {level: count for level, all_ in changes.items() if (count := int(all_ * max(0.0, most) / total))}


def _shortfall(wanted: Mapping[Level, int], tasks: Sequence[GoalTask], built: BuiltWorld, *, few_changes: bool) -> str:
    """Say in one sentence which levels have fewer tasks than wanted, why, and what would help; empty if none has."""
    made = Counter(task.level for task in tasks)
    missing = [level for level, count in wanted.items() if made[level] < count]
    if not missing:
        return ""
    counts = ", ".join(f"{made[level] or 'none'} of {wanted[level]} {level}" for level in missing)
    only = "only " if any(made[level] for level in missing) else ""
    helps, remark = "more data would allow more", ""
    if not built.model.entities:
        why = built.remarks[0] if built.remarks else "nothing is known of what it holds"
        helps = "a server that lists things with lasting properties would allow them; scenarios of your own always do"
    elif not built.model.effects and missing == ["brought-about"]:
        why, helps = (
            "no call was seen to change anything that its listings show",
            "a tool that shows changes would help",
        )
    else:
        why = "its data allow no others that differ and cannot be guessed"
        if not built.model.effects and made["brought-about"] < wanted.get("brought-about", 0):
            why += ", and no call was seen to change anything that its listings show"
        if few_changes:
            why += f", and few changes were tried, since each takes about {_PLAYS} new processes"
        remark = " ".join(["", *built.remarks[:1]])
        if remark.endswith("the server has more."):
            helps = "a tool that finds, filters or counts its things would allow more"
    why = why.rstrip(".")
    return f"{only}{counts} tasks were made, because {why[:1].lower()}{why[1:]}; {helps}.{remark}"


def _scenario(
    task: GoalTask, server: ToolServer, params: ServerParams, session: Session, recipe: Recipe
) -> McpScenario:
    return McpScenario(
        task_description=task.text,
        server_params=params,
        server=server.name,
        max_turns=max(_TURNS, len(task.calls) + 2),
        verifier=task.verifier,
        reference=task.calls,
        reference_answer=task.answer,
        seed=recipe.seed,
        tags=task.tags,
        schema_hash=session.schemas.hash,
        level=task.level,
        least_calls=len(task.calls),
        proof=task.proof,
    )
