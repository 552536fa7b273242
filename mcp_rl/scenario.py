"""Scenarios: a task for a model, the server to do it on, and a verifier that checks the result.

A scenario is self-contained: a JSON Lines file of scenarios can be moved to another machine and run there.
Commands use the placeholders `{python}` (this interpreter), `{bundled}` (the folder of the bundled servers), `{port}`
(a free port, chosen at launch) and `{env:NAME}` (an environment variable of this process); environment values and
headers may refer to `${VARIABLES}`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PrivateAttr,
    ValidationError,
    field_serializer,
    model_validator,
)

from mcp_rl.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

_SECRET_NAME = re.compile(r"token|key|secret|passw|auth|cookie|credential", re.IGNORECASE)
Split = Literal["train", "val", "test"]
Level = Literal["spelled", "told", "looked-up", "worked-out", "brought-about"]
"""The rungs of tasks: the request spells out tools and arguments; it states all values; a value must be looked up; the
answer must be worked out from several results; a state is to be brought about."""
SUBMIT_TOOL = "complete_task"


def _without_secrets(values: dict[str, str]) -> dict[str, str]:
    """Replace values under secret-looking names by `${NAME}`, which is read back from the environment."""

    def reference(name: str, value: str) -> str:
        if "${" in value or not _SECRET_NAME.search(name):
            return value
        return "${" + re.sub(r"\W", "_", name).upper() + "}"

    return {name: reference(name, value) for name, value in values.items()}


class Launch(BaseModel):
    """A process to start: the program and its arguments, never a shell line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables added to the minimal environment of a server."""
    cwd: str | None = None

    @field_serializer("env")
    def _env(self, env: dict[str, str]) -> dict[str, str]:
        return _without_secrets(env)


class StdioServer(Launch):
    """A server that speaks MCP on its standard input and output."""

    transport: Literal["stdio"] = "stdio"

    @property
    def ours_to_start(self) -> bool:
        """True if this process starts the server, so that it ends with this process and a new one has a fresh state."""
        return True


class _NetworkServer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    """Address of the server; may hold `{port}` if `launch` does."""
    headers: dict[str, str] = {}
    launch: Launch | None = None
    """Process started before connecting and stopped afterwards; None for a server that runs elsewhere."""

    @property
    def ours_to_start(self) -> bool:
        """True if this process starts the server, so that it ends with this process and a new one has a fresh state."""
        return self.launch is not None

    @field_serializer("headers")
    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        return _without_secrets(headers)


class SseServer(_NetworkServer):
    """A server that speaks MCP over server-sent events."""

    transport: Literal["sse"] = "sse"


class StreamableHttpServer(_NetworkServer):
    """A server that speaks MCP over streamable HTTP."""

    transport: Literal["streamable-http"] = "streamable-http"


OneServer = Annotated[StdioServer | SseServer | StreamableHttpServer, Field(discriminator="transport")]


class ServerGroup(BaseModel):
    """Several servers whose tools are offered together, each as `server__tool`; a group of none has no tools.

    A scenario's `initial_state` holds the state of each under the server's name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    transport: Literal["group"] = "group"
    servers: dict[str, OneServer]


ServerParams = Annotated[StdioServer | SseServer | StreamableHttpServer | ServerGroup, Field(discriminator="transport")]
"""How to reach a scenario's server: by one of the three transports, or several servers together."""


class ToolCall(BaseModel):
    """A tool call: the server's own tool name and the arguments as JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, JsonValue] = {}


class Verifier(BaseModel):
    """The check of an answer: the name of a registered verifier, the expected value and options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    expected: JsonValue = None
    options: dict[str, JsonValue] = {}
    """The options that `docs/rewards.md` lists for the kind, and for every kind `submit` and `reads`."""

    @property
    def submit_tool(self) -> str | None:
        """The tool that submits the answer (option `submit`: true, or its name); None if the final message does."""
        submit = self.options.get("submit")
        return SUBMIT_TOOL if submit is True else submit if isinstance(submit, str) and submit else None

    @property
    def reads(self) -> tuple[ToolCall, ...]:
        """The verifier's own calls after a rollout: those that the kind "state" expects, or the option `reads`.

        Raises ValidationError if they are not calls.
        """
        listed = self.expected if self.kind == "state" else self.options.get("reads")
        if not isinstance(listed, list):
            return ()
        fields = [
            {k: v for k, v in c.items() if k in ("tool", "arguments")} if isinstance(c, dict) else c for c in listed
        ]
        return tuple(map(ToolCall.model_validate, fields))


class SimulatedUser(BaseModel):
    """A user who answers when the model sends a message without a tool call, until there is nothing more to say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wants: str = ""
    """The user's goal, for the language model that plays it (`rollout.user_model`)."""
    knows: dict[str, str] = {}
    """Facts that the user tells when asked: a name, such as "date of travel", and its value."""
    max_turns: int = Field(default=8, ge=1)
    """Maximum answers, after which the user says nothing more."""


class ScenarioSeat(BaseModel):
    """A side of an episode that several players share, such as a game's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    """The seat's name, as the server knows it."""
    task: str = ""
    """The request to whoever speaks in it; by default the scenario's. The first seat's is the scenario's."""
    played_by: str | None = None
    """Who speaks in it: one of `rollout.opponents`; by default any of them. In the first seat the policy speaks."""
    tools: tuple[str, ...] = ()
    """The server's names of the tools that it gets; none: all that a model gets."""
    max_turns: int | None = Field(default=None, ge=1)
    """Maximum model turns in it, at most those of the episode; none: those of the episode."""


class GoalProof(BaseModel):
    """The record of how a goal task was proven on the live server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    program: str
    """The task as a program over the world that the server showed."""
    executed: int
    """Number of times the reference was executed, each with the same results."""
    results: str = ""
    """Hash of the reference calls' results, by which a later check knows whether they still hold."""
    longest_result: int = 0
    """Characters of the longest of these results, which a model must be shown whole to find what the task asks for."""
    ways: int = 0
    """Number of other solutions that were executed and accepted."""
    second: int = 0
    """Number of solutions by the second solver, which searches at random, that were executed and accepted."""
    refused: int = 0
    """Number of wrong endings that were refused: doing nothing, refusing, another answer, changing too much."""
    guess: float = 0.0
    """Probability that the best guess without tools is right: the commonest answer to other tasks of its kind."""
    apart: tuple[str, ...] = ()
    """Traces of program, things and values that no two splits may share."""


@dataclass(frozen=True)
class _Place:
    """File and line of a scenario. They say nothing about what the scenario is, so all places are equal."""

    text: str = field(default="", compare=False)


class McpScenario(BaseModel):
    """A task for a model on a tool server. Only the description and the server are required."""

    model_config = ConfigDict(extra="forbid")

    task_description: str = Field(min_length=1)
    server_params: ServerParams
    max_turns: int = Field(default=10, ge=1)
    """Model turns, the final answer included."""
    id: str = ""
    """Id; by default a hash of the task, the server and the reference, so that equal scenarios have equal ids."""
    server: str = ""
    """The server's name, for reports."""
    difficulty: float | None = None
    """Measured failure rate of a policy, 0 to 1; None until measured."""
    split: Split | None = None
    verifier: Verifier | None = None
    reference: tuple[ToolCall, ...] = ()
    """The calls of a solution that was executed on the server."""
    reference_answer: str | None = None
    seed: int = 0
    initial_state: dict[str, JsonValue] | None = None
    tags: tuple[str, ...] = ()
    schema_hash: str | None = None
    """Hash of the tool schemas that the scenario was made for."""
    level: Level = "spelled"
    least_calls: int | None = None
    """Number of calls in the shortest known solution; None where nobody looked for it."""
    proof: GoalProof | None = None
    """The record of a goal task's proof; None for other scenarios."""
    user_turns: tuple[str, ...] = ()
    """The user's further messages: one each time that the model sends a message without a tool call."""
    user: SimulatedUser | None = None
    """A simulated user, who answers after `user_turns`."""
    seats: tuple[ScenarioSeat, ...] = ()
    """The seats of an episode with several players; the first is the policy's. None: there is one player."""
    apart: tuple[str, ...] = ()
    """Traces that no two splits may share, such as a game's opening; none: the calls of `reference`."""
    _place: _Place = PrivateAttr(default=_Place())

    @property
    def label(self) -> str:
        """The scenario's file and line, or its id if it was not read from a file, to begin an error with."""
        return f"{self._place.text}: the scenario" if self._place.text else f"Scenario {self.id}"

    @property
    def has_user(self) -> bool:
        """True if somebody answers a message without a tool call, which else ends the episode."""
        return bool(self.user_turns) or self.user is not None

    @model_validator(mode="after")
    def _identify(self) -> McpScenario:
        if not self.id:
            talk = [self.user_turns, self.user and self.user.model_dump()] if self.has_user else []
            self.id = _digest(self.task_description, self.server, [c.model_dump() for c in self.reference], *talk)
        return self


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def read_scenarios(path: str | Path) -> list[McpScenario]:
    """Read a JSON Lines file. Raises ScenarioError with the file, the line number and the problem."""
    path = Path(path)
    lines = text_lines(read_text(path))
    places = ((number, line, f"{path}, line {number}") for number, line in lines)
    return distinct(path, ((number, parse_scenario(parse_json(line, place), place)) for number, line, place in places))


def text_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with numbers. JSON may hold Unicode's other line ends, so only LF counts."""
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def read_text(path: Path) -> str:
    """Read a scenarios file. Raises ScenarioError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(f"Cannot read the scenarios file {path}: {reason}.") from error


def parse_json(text: str, where: str) -> Any:
    """Parse JSON. Raises ScenarioError that begins with `where` and names the column, and the line of several."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text.strip() else ""
        raise ScenarioError(f"{where}, {line}column {error.colno}: invalid JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError(f"{where}: invalid JSON: it is nested too deeply, or a number is too long.") from error


def parse_scenario(fields: Any, where: str) -> McpScenario:
    """Make a scenario from its fields. Raises ScenarioError that begins with `where`."""
    if not isinstance(fields, dict):
        kind = _KINDS.get(type(fields), "a number")
        raise ScenarioError(f'{where}: a scenario is a JSON object such as {{"task": "…"}}, not {kind}.')
    try:
        scenario = McpScenario.model_validate(fields)
    except ValidationError as error:
        errors = error.errors()
        unknown = [problem for problem in errors if problem["type"] == "extra_forbidden"]
        mistake = _mistake((unknown or errors)[0])
        raise ScenarioError(f"{where}: {mistake}{'' if mistake.endswith('?') else '.'}") from error
    scenario._place = _Place(where)
    return scenario


_KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
_PARTS: dict[str, tuple[type[BaseModel], ...]] = {
    "verifier": (Verifier,),
    "user": (SimulatedUser,),
    "seats": (ScenarioSeat,),
    "reference": (ToolCall,),
    "server_params": (StdioServer, StreamableHttpServer, ServerGroup),
}
"""The models whose fields the value of a scenario's field has."""


def _mistake(problem: ErrorDetails) -> str:
    """Say in words what is wrong with a field, and what to do."""
    place, given = problem["loc"], problem["input"]
    name = ".".join(str(part) for part in place)
    shown = json.dumps(given, default=str, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    match problem["type"]:
        case "extra_forbidden":
            known = _known_fields(str(place[0]) if len(place) > 1 else "")
            near = difflib.get_close_matches(str(place[-1]), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"remove it, or use one of {', '.join(known)}"
            return f"there is no field {name!r}; {hint}".removesuffix(".")
        case "missing" if place == ("task_description",):
            return "it has no request: add a field 'task' with the request in words"
        case "missing" if place == ("server_params",):
            return (
                "it has no 'server_params', which say how to reach its server: add them, or name the server (--server)"
            )
        case "missing":
            return f"the field {name!r} is missing; add it"
        case "string_too_short":
            return f"{name} is empty; write the request in words"
        case "union_tag_not_found" | "union_tag_invalid":
            return f'{name} needs a "transport": "stdio", "sse", "streamable-http" or "group"'
    message = problem["msg"].removeprefix("Input ").rstrip(".")
    return f"{name} {message}, not {shown}" if name else message


def _known_fields(part: str) -> list[str]:
    """Return the fields of a scenario, or of the value of one of its fields."""
    if part not in _PARTS:
        return ["task", *McpScenario.model_fields]
    return list(dict.fromkeys(field for model in _PARTS[part] for field in model.model_fields))


def distinct(path: Path, numbered: Iterable[tuple[int, McpScenario]], *, unit: str = "line") -> list[McpScenario]:
    """Return the numbered scenarios of a file. Raises ScenarioError if there are none, and for duplicates.

    Two scenarios are duplicates if they have the same id, or the same request to the same server in the same state.
    """
    scenarios: dict[str, McpScenario] = {}
    numbers: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, scenario in numbered:
        where = f"{path}, {unit} {number}"
        if scenario.id in scenarios:
            raise ScenarioError(
                f"{where}: the id {scenario.id!r} is that of {unit} {numbers[scenario.id]} too; change or remove one."
            )
        talk = [scenario.user_turns, scenario.user and scenario.user.model_dump()] if scenario.has_user else []
        asked = _digest(normalised_request(scenario.task_description), scenario.server, scenario.initial_state, *talk)
        if asked in first:
            raise ScenarioError(f"{where}: the request is the same as in {unit} {first[asked]}; remove one of the two.")
        scenarios[scenario.id], first[asked], numbers[scenario.id] = scenario, number, number
    if not scenarios:
        raise ScenarioError(
            f'The scenarios file {path} holds no scenario; write one on each line, such as {{"task": "…"}}.'
        )
    return list(scenarios.values())


def normalised_request(text: str) -> str:
    """Normalise a request, so that differences in letter case and white space vanish."""
    return " ".join(text.casefold().split())


def scenario_lines(scenarios: Iterable[McpScenario]) -> str:
    """Return scenarios as JSON Lines, without default values but that of the level, with keys in a fixed order."""
    return "".join(_line(scenario) for scenario in scenarios)


def _line(scenario: McpScenario) -> str:
    fields = scenario.model_dump(mode="json", exclude_defaults=True) | {"level": scenario.level}
    params, written = scenario.server_params, fields["server_params"]
    written["transport"] = params.transport  # a default, but the reader needs it
    if isinstance(params, ServerGroup):
        for name, server in params.servers.items():
            written["servers"][name]["transport"] = server.transport
    return json.dumps(fields, ensure_ascii=False) + "\n"
