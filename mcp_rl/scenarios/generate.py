"""`mcp-rl generate`: scenarios of a server written to a file, or a scenario file checked against its server."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mcp_rl.config import ToolsConfig
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.explore.actions import actions_of
from mcp_rl.explore.entities.keeping import collected_worlds, read_world, save_world, world_file
from mcp_rl.explore.known_server import known_server
from mcp_rl.explore.pace import slowest_call
from mcp_rl.explore.tried import tried_tools
from mcp_rl.inference.apis.language_model import LanguageModel, check_language_model
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.scenario import McpScenario, scenario_lines
from mcp_rl.scenarios.author.author import author_scenarios
from mcp_rl.scenarios.author.propose import Assignment
from mcp_rl.scenarios.broken import BrokenScenario, broken_scenarios
from mcp_rl.scenarios.duplicates import distinct_tasks
from mcp_rl.scenarios.files import read_scenario_file
from mcp_rl.scenarios.goals.twice import Twice
from mcp_rl.scenarios.reference import scenario_tools
from mcp_rl.scenarios.sources import made_scenarios, source_name
from mcp_rl.scenarios.split import SplitBy, hold_out, overlap
from mcp_rl.scenarios.stage import MOST_CALLS, Stage
from mcp_rl.system.durable import write_atomically
from mcp_rl.toolserver.tool_server import ToolServer, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.scenario import GoalProof
    from mcp_rl.scenarios.author.report import AuthorReport
    from mcp_rl.scenarios.goals.second import SecondOpinion
    from mcp_rl.toolserver.tools.schema import ToolSchemas

_CHECK_SEED = 1_000_003
"""Seed of the second solver when a file is checked, different from any that made the file."""


@dataclass(frozen=True)
class AuthorOptions:
    """The language model that writes, and its limits. Raises ConfigError for values out of range."""

    model: str
    """A LiteLLM name; the key comes from the environment."""
    base_url: str | None = None
    share: float = 0.3
    """Share of the scenarios that it proposes, 0 to 1; it rewords the others."""
    max_cost: float | None = None
    """In US dollars."""
    steps: tuple[int, int] = (2, 4)
    """Fewest and most calls of a task that it proposes."""
    keep_unverified: bool = False
    """True to keep tasks that run and cannot be verified, without a verifier, for a judge to score."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"The author's share must be from 0 to 1, not {self.share:g}.")
        if not 1 <= self.steps[0] <= self.steps[1] <= MOST_CALLS:
            low, high = self.steps
            raise ConfigError(
                f"Tasks of {low} to {high} calls cannot be proposed; set a range within 1 to {MOST_CALLS} calls."
            )
        if self.max_cost is not None and not self.max_cost > 0:
            raise ConfigError(f"A cost limit of ${self.max_cost:g} allows no question; raise it, or leave it out.")
        if self.base_url is not None and "@" in self.base_url.partition("://")[2].partition("/")[0]:
            raise ConfigError("The author's address holds a user name or password; keep them in the environment.")

    def language_model(self) -> LanguageModel:
        """Check that the model can be asked, and return it. Raises ConfigError where it cannot."""
        check_language_model(self.model, self.base_url, role="author", max_cost=self.max_cost)
        return LanguageModel(self.model, self.base_url, role="author", max_cost=self.max_cost)


@dataclass(frozen=True)
class GenerateRequest:
    """The order for a set of scenarios. Raises ConfigError for values out of range."""

    recipe: Recipe
    val: float = 0.0
    """Share that is marked for validation."""
    test: float = 0.0
    """Share that is marked for tests."""
    held_out_tools: tuple[str, ...] = ()
    """Tools whose scenarios are all marked for tests, whatever the shares."""
    split_by: SplitBy = "calls"
    """Kind of overlap, beside equal requests, that splits must not have."""
    author: AuthorOptions | None = None
    source: str | None = None
    """Name of the source of scenarios: "explore", or one that a plugin registers; None: the server's, or exploring."""

    def __post_init__(self) -> None:
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            raise ConfigError(
                f"The shares for val ({self.val:g}) and test ({self.test:g}) must be at least 0 and leave something to "
                "train on."
            )


@dataclass(frozen=True)
class Generated:
    """The result of an order."""

    scenarios: list[McpScenario]
    author: AuthorReport | None
    seconds: float
    set_aside: int = 0
    """Scenarios left out because they would tie two splits."""
    asked: int = 0
    """Number of scenarios that the order wanted."""
    levels: str = "spelled"
    """Shares of the levels that it wanted."""
    unused_tools: tuple[str, ...] = ()
    """Tools that the server offers and no scenario needs."""
    reasons: tuple[str, ...] = ()
    """A sentence for each of these: why, with an example of what was tried, and what would help."""

    def summary(self) -> dict[str, Any]:
        """Return counts as JSON: by split, tool, level, steps and verifier."""
        scenarios = self.scenarios
        return {
            "scenarios": len(scenarios),
            "verified": sum(s.verifier is not None for s in scenarios),
            "solved": sum(s.verifier is not None and bool(s.reference) for s in scenarios),
            "unsolvable": sum("unsolvable" in s.tags for s in scenarios),
            "without_tools": sum("no-tool" in s.tags for s in scenarios),
            "splits": dict(Counter(s.split or "none" for s in scenarios)),
            "set_aside": self.set_aside,
            "unused_tools": list(self.unused_tools),
            "reasons": list(self.reasons),
            "tools": dict(Counter(tool for s in scenarios for tool in sorted({call.tool for call in s.reference}))),
            "levels": dict(Counter(s.level for s in scenarios)),
            "proofs": _proofs([s.proof for s in scenarios if s.proof is not None]),
            "steps": dict(sorted(Counter(len(s.reference) for s in scenarios).items())),
            "verifiers": dict(Counter(s.verifier.kind if s.verifier else "none" for s in scenarios)),
            "seconds": round(self.seconds, 2),
            "author": self.author.summary() if self.author else None,
        }


def _proofs(proofs: Sequence[GoalProof]) -> dict[str, float]:
    """Sum up the proofs of goal tasks."""
    return {
        "tasks": len(proofs),
        "other_solutions": sum(one.ways for one in proofs),
        "second_solver": sum(one.second for one in proofs),
        "refused": sum(one.refused for one in proofs),
        "guessed": round(sum(one.guess for one in proofs) / max(1, len(proofs)), 4),
    }


async def generate(
    server: ToolServer,
    order: GenerateRequest,
    *,
    transport: str | None = None,
    plugins: Plugins | None = None,
    tools: ToolsConfig | None = None,
) -> Generated:
    """Start the server, make scenarios, let the author work if there is one, and stop the server.

    `plugins` offer the order's source; None stands for all installed ones. `tools` are the user's settings for the
    server. Raises ConfigError for an author that cannot be asked, PluginError for an unknown source, ServerError where
    the server cannot be used, ScenarioError where no scenario can be made, LanguageModelError where the author never
    gave a usable reply.
    """
    started = time.monotonic()
    plugins = plugins or load_plugins()
    source = source_name(order.source, server)
    plugins.scenario_sources.pick(source, plugins.problems)
    model = order.author.language_model() if order.author else None
    async with known_server(server, transport, tools or ToolsConfig()) as known:
        session = await known.session()
        server, sessions = known.server, known.sessions
        params = server.params(transport)
        _check_tools(order.held_out_tools, server, session.schemas)
        with tried_tools() as tried:
            scenarios = await made_scenarios(
                source, plugins, sessions, server=server, params=params, recipe=order.recipe
            )
        report = None
        if order.author and model:
            work = Assignment(
                server,
                params,
                scenarios,
                tasks=round(order.author.share * len(scenarios)),
                steps=order.author.steps,
                keep_unverified=order.author.keep_unverified,
                seed=order.recipe.seed,
            )
            scenarios, report = await author_scenarios(sessions, session, model, work)
    distinct = distinct_tasks(scenarios)
    marked = _marked(distinct, order)
    used = {tool for scenario in marked for tool in scenario_tools(scenario)}
    unused = sorted(tool.name for tool in session.offered if tool.name not in used)
    return Generated(
        marked,
        report,
        time.monotonic() - started,
        set_aside=len(distinct) - len(marked),
        asked=order.recipe.count,
        unused_tools=tuple(unused),
        reasons=tuple(tried.reasons(unused)),
        levels=order.recipe.levels,
    )


async def generate_file(
    server: ToolServer,
    out: Path,
    order: GenerateRequest,
    *,
    transport: str | None = None,
    plugins: Plugins | None = None,
    tools: ToolsConfig | None = None,
) -> Generated:
    """Generate, and write JSON Lines atomically, with the model of the server's world beside them if one was built.

    Raises also ScenarioError where the file cannot be written."""
    _check_place(out)
    with collected_worlds() as worlds:
        generated = await generate(server, order, transport=transport, plugins=plugins, tools=tools)
    try:
        write_atomically(out, scenario_lines(generated.scenarios).encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}.") from error
    for world in worlds.values():
        save_world(world, world_file(out))
    return generated


@dataclass(frozen=True)
class CheckedFile:
    """Scenarios of a file that do not hold, and what a second solver found where their world is known."""

    findings: list[BrokenScenario]
    opinion: SecondOpinion | None = None


async def check_file(
    server: ToolServer, file: Path, *, transport: str | None = None, tools: ToolsConfig | None = None
) -> CheckedFile:
    """Execute the reference solutions of a scenario file again, and find the scenarios that no longer hold.

    Goal tasks that hold are solved in other ways too where the model of their world lies beside the file.
    """
    scenarios = read_scenario_file(file, server, transport)
    world_at = world_file(file)
    world = read_world(world_at) if world_at.exists() and any(one.proof for one in scenarios) else None
    async with known_server(server, transport, tools or ToolsConfig()) as known:
        await known.session()
        params = server.params(transport)
        findings = await broken_scenarios(known.sessions, params, scenarios, call_seconds=slowest_call(known.server))
        if world is None:
            return CheckedFile(findings)
        from mcp_rl.scenarios.goals.second import SecondSolver  # only where there are goal tasks

        broken = {one.id for one in findings}
        actions = await actions_of(known.sessions, known.server, params)
        sessions, known_apart = actions.sessions(known.sessions), actions.server(known.server)
        session = await sessions.get(params)
        solver = SecondSolver(
            world,
            [tool.name for tool in session.offered],
            Stage(sessions, session, known_apart, params),
            Twice(sessions, params, known_apart),
            _CHECK_SEED,
        )
        opinion = await solver.judge([actions.taken_apart(one) for one in scenarios if one.id not in broken])
    findings += [BrokenScenario(id, problem) for id, problem in opinion.misjudged]
    return CheckedFile(findings, opinion)


def _check_place(out: Path) -> None:
    if not out.parent.is_dir():
        raise ScenarioError(f"Cannot write {out}: there is no folder {out.parent}.")
    if out.is_dir():
        raise ScenarioError(f"Cannot write {out}: it is a folder.")


def _check_tools(names: Sequence[str], server: ToolServer, schemas: ToolSchemas) -> None:
    for name in names:
        if name not in schemas.to_openai:
            raise ConfigError(
                f"The server {server.name!r} has no tool {name!r} to hold out; {nearest(name, list(schemas.to_openai))}"
            )


def _marked(scenarios: list[McpScenario], order: GenerateRequest) -> list[McpScenario]:
    """Mark scenarios with their split where the order has one, in the order given.

    Leave out scenarios that would tie two splits: those that use no held-out tool but share a call or a request with
    one that does, and those that `hold_out` sets aside.
    """
    if not (order.val or order.test or order.held_out_tools):
        return scenarios
    unseen = set(order.held_out_tools)
    apart = [s for s in scenarios if unseen & scenario_tools(s)]
    marked = {s.id: s.model_copy(update={"split": "test"}) for s in apart}
    theirs = overlap(apart, apart, by=order.split_by)  # all calls and requests of these
    rest = [s for s in scenarios if s.id not in marked and not overlap([s], [s], by=order.split_by) & theirs]
    for name, share in (("test", order.test), ("val", order.val)):
        if share:
            wanted = max(1, min(len(rest) - 1, round(share * len(scenarios))))
            rest, chosen = hold_out(rest, wanted, seed=order.recipe.seed, by=order.split_by)
            if not chosen:
                raise ScenarioError(
                    f"No scenario can be marked for {name}, because almost all share calls or requests; make other "
                    "scenarios (--max-steps 1 ties fewest together), or leave the share out and mark some yourself."
                )
            marked.update({s.id: s.model_copy(update={"split": name}) for s in chosen})
    marked.update({s.id: s.model_copy(update={"split": "train"}) for s in rest})
    return [marked[s.id] for s in scenarios if s.id in marked]
