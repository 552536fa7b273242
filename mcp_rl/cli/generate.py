"""`mcp-rl generate`."""

import functools
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_rl.cli.groups import Sets, settings, with_groups
from mcp_rl.cli.options import Job, Json, ServerOptions, Source

if TYPE_CHECKING:
    from mcp_rl.toolserver.tool_server import ToolServer


class SplitBy(StrEnum):
    """Things that two splits of a scenarios file never share, beside requests."""

    CALLS = "calls"
    COMBINATIONS = "combinations"


@dataclass(frozen=True)
class RecipeOptions:
    """The tasks to make."""

    count: Annotated[int, typer.Option(help="Maximum number of scenarios to make.", min=1)] = 720
    seed: Annotated[int, typer.Option(help="Seed of all randomness.", min=0)] = 0
    max_steps: Annotated[int, typer.Option(help="Calls of the longest tasks, 1 to 5.")] = 5
    unsolvable: Annotated[float, typer.Option(help="Share of tasks that cannot be solved, 0 to 1.")] = 0.05
    without_tools: Annotated[float, typer.Option(help="Share of requests that need no tool, 0 to 1.")] = 0.05
    levels: Annotated[
        str,
        typer.Option(
            help="Shares of the levels of tasks (docs/scenarios.md), such as told=0.4,looked-up=0.6; "
            "or mixed, for chat models."
        ),
    ] = "spelled"
    knowledge: Annotated[
        bool,
        typer.Option(
            help="Also make tasks that need what neither request nor server says, such as the time zone of a city."
        ),
    ] = True


@dataclass(frozen=True)
class SplitOptions:
    """The file to write, the source of its scenarios, and its splits."""

    out: Annotated[Path, typer.Option(help="The JSON Lines file to write.")] = Path("scenarios.jsonl")
    source: Source = None
    val: Annotated[
        float, typer.Option(help="Share to mark for validation, 0 to 1; no call and no request is in two splits.")
    ] = 0.0
    test: Annotated[
        float, typer.Option(help="Share to mark for tests, 0 to 1; no call and no request is in two splits.")
    ] = 0.0
    held_out_tool: Annotated[
        list[str] | None, typer.Option(help="Mark all tasks of this tool for tests; repeat for several.")
    ] = None
    split_by: Annotated[
        SplitBy,
        typer.Option(help="What the splits may not share, beside requests: calls, or combinations of tools too."),
    ] = SplitBy.CALLS


def _range(text: str | None) -> tuple[int, int] | None:
    """Parse two numbers from "2-4", or the same one twice from "3"."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"\s*(\d{1,4})\s*(?:-\s*(\d{1,4})\s*)?", text)):
        raise typer.BadParameter(f"{text!r} is not a range of calls such as 2-4.")
    return int(found[1]), int(found[2] or found[1])


@dataclass(frozen=True)
class AuthoringOptions:
    """A language model that proposes tasks and words requests. The options set the fields of `AuthorOptions`."""

    author: Annotated[
        str | None,
        Sets("model"),
        typer.Option(
            help="A language model that proposes tasks and words requests (a LiteLLM name); its key "
            "comes from the environment."
        ),
    ] = None
    author_base_url: Annotated[
        str | None, Sets("base_url"), typer.Option(help="Address of your own OpenAI-compatible author.")
    ] = None
    author_share: Annotated[
        float | None,
        Sets("share"),
        typer.Option(help="Share of the tasks that the author proposes, 0 to 1. Default: 0.3."),
    ] = None
    author_steps: Annotated[
        str | None,
        Sets("steps", _range),
        typer.Option(
            metavar="FEWEST-MOST", help="Fewest and most calls of a task that the author proposes. Default: 2-4."
        ),
    ] = None
    max_author_cost: Annotated[
        float | None,
        Sets("max_cost"),
        typer.Option(help="Spending limit for the author, in US dollars; scenarios made by then are kept."),
    ] = None
    keep_unverified: Annotated[
        bool,
        Sets("keep_unverified"),
        typer.Option(
            "--keep-unverified",
            help="Keep proposed tasks that only a judge can score, without a verifier and with the tag ruler-only.",
        ),
    ] = False


@with_groups
def generate(
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Settings of tool servers, such as tools.exclude='[\"drop_*\"]'."
        ),
    ] = None,
    server: ServerOptions,
    splits: SplitOptions,
    recipe: RecipeOptions,
    author: AuthoringOptions,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Make nothing; execute the reference solutions in this file again and print those that no longer hold."
        ),
    ] = None,
    json: Json = False,
) -> Job:
    """Make scenarios for a tool server by exploring it, or check that those in a file still hold."""
    return functools.partial(
        _generate,
        tuple(overrides or ()),
        settings(server),
        splits=splits,
        recipe=recipe,
        writing={name: value for name, value in settings(author).items() if value is not None},
        check=check,
        as_json=json,
    )


def _generate(
    overrides: Sequence[str],
    about_server: dict[str, Any],
    *,
    splits: SplitOptions,
    recipe: RecipeOptions,
    writing: dict[str, Any],
    check: Path | None,
    as_json: bool,
) -> int:
    import anyio

    from mcp_rl.cli.printing.generate_tables import lines
    from mcp_rl.config.load import load_config, parse_override
    from mcp_rl.errors import ConfigError
    from mcp_rl.plugins.manager import load_plugins
    from mcp_rl.plugins.recipe import Recipe
    from mcp_rl.plugins.resolve import resolve_servers
    from mcp_rl.scenarios.generate import AuthorOptions, GenerateRequest, generate_file

    for key, _ in map(parse_override, overrides):
        if key.split(".")[0] not in ("server", "transport", "plugins", "tools"):
            raise ConfigError(f"{key} is not a setting of a tool server, and `generate` takes no others.")
    config = load_config(overrides=overrides, options=about_server)
    if writing and "model" not in writing:
        raise ConfigError("Options for an author are given, but no author: add --author openai/gpt-4.1-mini.")
    if writing and check is not None:
        raise ConfigError("--check makes no tasks, so it takes no author: leave one of the two out.")
    wanted = GenerateRequest(
        Recipe(**asdict(recipe)),
        val=splits.val,
        test=splits.test,
        held_out_tools=tuple(splits.held_out_tool or ()),
        split_by=splits.split_by.value,
        source=splits.source,
        author=AuthorOptions(**writing) if writing else None,
    )
    plugins = load_plugins(config.plugins)
    tool_server = resolve_servers(config.server, config.transport, plugins=plugins, tools=config.tools)
    reached: dict[str, Any] = {"transport": config.transport, "tools": config.tools}
    if check is not None:
        return _check(tool_server, check, reached, as_json)
    out = splits.out
    generated = anyio.run(functools.partial(generate_file, tool_server, out, wanted, plugins=plugins, **reached))
    for line in lines(generated, out):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if not as_json and generated.summary()["verified"] == len(generated.scenarios):
        print(f"Train on them: {_train_command(about_server, overrides, out)}")
    if as_json:
        print(json.dumps({"out": str(out), "server": tool_server.name, **generated.summary()}))
    return 0


_TRAIN_OPTIONS = {
    "server": "--server",
    "plugins": "--plugin",
    "transport": "--transport",
    "tools.server_config": "--server-config",
    "tools.offer": "--offer",
    "tools.start": "--start",
    "tools.sandbox": "--sandbox",
    "tools.isolation": "--isolation",
    "tools.reset_tool": "--reset-tool",
}


def _train_command(about_server: dict[str, Any], overrides: Sequence[str], out: Path) -> str:
    """Return the command that trains on the file, with the server that its scenarios were made on."""
    words = ["mcp-rl", "train"]
    for key, option in _TRAIN_OPTIONS.items():
        value = about_server.get(key)
        several = value if isinstance(value, tuple | list) else [] if value is None else [value]
        words += [word for one in several for word in (option, str(one))]
    return shlex.join([*words, "--scenarios", str(out), *overrides])


def _check(server: "ToolServer", file: Path, reached: dict[str, Any], as_json: bool) -> int:
    import anyio

    from mcp_rl.scenarios.generate import check_file

    checked = anyio.run(functools.partial(check_file, server, file, **reached))
    findings, opinion = checked.findings, checked.opinion
    if as_json:
        told = [{"id": one.id, "problem": one.problem, "unanswered": one.unanswered} for one in findings]
        found: dict[str, Any] = {"file": str(file), "findings": told}
        if opinion is not None:
            found["second_solver"] = opinion.summary()
        print(json.dumps(found))
        return 1 if findings else 0
    for finding in findings:
        print(f"{finding.id}: {finding.problem}")
    if opinion is not None:
        print(opinion.sentence)
    unanswered = sum(finding.unanswered for finding in findings)
    if broken := len(findings) - unanswered:
        print(f"{broken} of the scenarios in {file} do not hold.")
    if unanswered:
        print(f"{unanswered} of the scenarios in {file} could not be checked.")
    if not findings:
        print(f"{file} holds.")
    return 1 if findings else 0
