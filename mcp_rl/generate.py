"""`mcp-rl generate`: scenarios for a server, written to a file, or a file of scenarios checked against the server."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_rl.config import ToolsConfig
from mcp_rl.durable import write_atomically
from mcp_rl.errors import ConfigError, ScenarioError
from mcp_rl.language_model import LanguageModel, check_language_model
from mcp_rl.plugins.manager import Plugins, load_plugins
from mcp_rl.plugins.server import ToolServer, nearest
from mcp_rl.scenario import McpScenario, scenario_lines
from mcp_rl.scenarios.answer import scenario_tools
from mcp_rl.scenarios.author import author_scenarios
from mcp_rl.scenarios.author_report import AuthorReport
from mcp_rl.scenarios.builtin import EXPLORE
from mcp_rl.scenarios.check import Finding, check
from mcp_rl.scenarios.duplicates import distinct_tasks
from mcp_rl.scenarios.foreign import read_scenario_file
from mcp_rl.scenarios.recipe import Recipe
from mcp_rl.scenarios.sources import made_scenarios
from mcp_rl.scenarios.split import SplitBy, overlap, split
from mcp_rl.scenarios.stage import MOST_CALLS
from mcp_rl.toolserver.pool import open_sessions
from mcp_rl.toolserver.schema import ToolSchemas


@dataclass(frozen=True)
class AuthorOptions:
    """A language model that writes, and how far it may go. Raises ConfigError for values that make no sense."""

    model: str
    """A LiteLLM name; the key comes from the environment."""
    base_url: str | None = None
    share: float = 0.3
    """Of the scenarios, how many it proposes itself; the others it puts into other words."""
    max_cost: float | None = None
    """US dollars."""
    steps: tuple[int, int] = (2, 4)
    """Fewest and most calls of a task that it proposes."""
    keep_unverified: bool = False
    """Whether tasks that run and cannot be verified are kept, without a verifier, for a judge to score."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(f"The author's share is {self.share:g}; it is from 0 to 1.")
        if not 1 <= self.steps[0] <= self.steps[1] <= MOST_CALLS:
            low, high = self.steps
            raise ConfigError(
                f"Tasks of {low} to {high} calls cannot be proposed; 1 to {MOST_CALLS} calls are possible."
            )
        if self.max_cost is not None and not self.max_cost > 0:
            raise ConfigError(f"A cost limit of ${self.max_cost:g} allows no question; give more, or leave it out.")
        if self.base_url is not None and "@" in self.base_url.partition("://")[2].partition("/")[0]:
            raise ConfigError("The author's address holds a user name or password; keep them in the environment.")

    def language_model(self) -> LanguageModel:
        """The model, after a look at whether it can work at all. Raises ConfigError where it cannot."""
        check_language_model(self.model, self.base_url, role="author", max_cost=self.max_cost)
        return LanguageModel(self.model, self.base_url, role="author", max_cost=self.max_cost)


@dataclass(frozen=True)
class Order:
    """What is to be made. Raises ConfigError for values that make no sense."""

    recipe: Recipe
    val: float = 0.0
    """Share that is marked for validation."""
    test: float = 0.0
    """Share that is marked for tests."""
    held_out_tools: tuple[str, ...] = ()
    """Tools whose scenarios are all marked for tests, whatever the shares."""
    split_by: SplitBy = "calls"
    """What no two sides may have in common, beside requests."""
    author: AuthorOptions | None = None
    source: str = EXPLORE
    """What makes the scenarios: exploring the server, or what a plugin offers."""

    def __post_init__(self) -> None:
        if not (0 <= self.val < 1 and 0 <= self.test < 1 and self.val + self.test < 1):
            raise ConfigError(
                f"The shares for val ({self.val:g}) and test ({self.test:g}) must be 0 or more and leave something to "
                "train on."
            )


@dataclass(frozen=True)
class Generated:
    """What was made."""

    scenarios: list[McpScenario]
    author: AuthorReport | None
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Counts as JSON: by split, tool, steps and verifier."""
        scenarios = self.scenarios
        return {
            "scenarios": len(scenarios),
            "verified": sum(s.verifier is not None for s in scenarios),
            "solved": sum(s.verifier is not None and bool(s.reference) for s in scenarios),
            "unsolvable": sum("unsolvable" in s.tags for s in scenarios),
            "without_tools": sum("no-tool" in s.tags for s in scenarios),
            "splits": dict(Counter(s.split or "none" for s in scenarios)),
            "tools": dict(Counter(tool for s in scenarios for tool in sorted({call.tool for call in s.reference}))),
            "steps": dict(sorted(Counter(len(s.reference) for s in scenarios).items())),
            "verifiers": dict(Counter(s.verifier.kind if s.verifier else "none" for s in scenarios)),
            "seconds": round(self.seconds, 2),
            "author": self.author.summary() if self.author else None,
        }


async def generate(
    server: ToolServer,
    order: Order,
    *,
    transport: str | None = None,
    plugins: Plugins | None = None,
    tools: ToolsConfig | None = None,
) -> Generated:
    """Start the server, make scenarios, let the author work where there is one, and stop the server again.

    `plugins` offer the order's source; None: all that are installed. `tools` are the user's settings about the server.
    Raises ConfigError for an author that cannot work, PluginError for a source that nobody offers, ServerError where
    the server cannot be used, ScenarioError where nothing can be made of it, LanguageModelError where the author never
    gave a usable reply.
    """
    started = time.monotonic()
    plugins = plugins or load_plugins()
    plugins.scenario_sources.pick(order.source, plugins.problems)
    model = order.author.language_model() if order.author else None
    params = server.params(transport)
    async with open_sessions(server, tools or ToolsConfig()) as sessions:
        session = await sessions.get(params)
        _check_tools(order.held_out_tools, server, session.schemas)
        scenarios = await made_scenarios(
            order.source, plugins, sessions, server=server, params=params, recipe=order.recipe
        )
        report = None
        if order.author and model:
            scenarios, report = await author_scenarios(
                sessions,
                session,
                server=server,
                params=params,
                explored=scenarios,
                model=model,
                tasks=round(order.author.share * len(scenarios)),
                steps=order.author.steps,
                keep_unverified=order.author.keep_unverified,
                seed=order.recipe.seed,
            )
    return Generated(_marked(distinct_tasks(scenarios), order), report, time.monotonic() - started)


async def generate_file(
    server: ToolServer,
    out: Path,
    order: Order,
    *,
    transport: str | None = None,
    plugins: Plugins | None = None,
    tools: ToolsConfig | None = None,
) -> Generated:
    """Generate and write as JSON Lines, whole or not at all. Raises ScenarioError where the file cannot be written."""
    _check_place(out)
    generated = await generate(server, order, transport=transport, plugins=plugins, tools=tools)
    try:
        write_atomically(out, scenario_lines(generated.scenarios).encode())
    except OSError as error:
        raise ScenarioError(f"Cannot write {out}: {error.strerror}.") from error
    return generated


async def check_file(
    server: ToolServer, file: Path, *, transport: str | None = None, tools: ToolsConfig | None = None
) -> list[Finding]:
    """Execute the reference solutions of a scenarios file again; what no longer holds."""
    scenarios = read_scenario_file(file, server, transport)
    async with open_sessions(server, tools or ToolsConfig()) as sessions:
        return await check(sessions, server.params(transport), scenarios)


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


def _marked(scenarios: list[McpScenario], order: Order) -> list[McpScenario]:
    """With a split, where one was asked for; in the order given.

    What shares a call or a request with a scenario of a held-out tool, and uses none itself, is left out.
    """
    if not (order.val or order.test or order.held_out_tools):
        return scenarios
    unseen = set(order.held_out_tools)
    apart = [s for s in scenarios if unseen & scenario_tools(s)]
    marked = {s.id: s.model_copy(update={"split": "test"}) for s in apart}
    theirs = overlap(apart, apart, by=order.split_by)  # all of their calls and requests
    rest = [s for s in scenarios if s.id not in marked and not overlap([s], [s], by=order.split_by) & theirs]
    for name, share in (("test", order.test), ("val", order.val)):
        if share:
            of_rest = min(1.0, share * len(scenarios) / max(1, len(rest)))
            rest, chosen = split(rest, val_share=of_rest, seed=order.recipe.seed, by=order.split_by)
            marked.update({s.id: s.model_copy(update={"split": name}) for s in chosen})
    marked.update({s.id: s.model_copy(update={"split": "train"}) for s in rest})
    return [marked[s.id] for s in scenarios if s.id in marked]
