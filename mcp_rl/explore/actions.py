"""Tools that do several things, one for each value of a parameter such as `action`, taken apart.

`manage_notes` with the actions list, get and create becomes `list_notes`, `get_notes` and `create_notes`, which can be
explored like any tools: some read, some change something, and each needs other arguments. A call of one of them is a
call of `manage_notes`. Scenarios have the server's own calls again (`Actions.as_served`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mcp_rl.errors import ServerFault
from mcp_rl.explore.bearing import Bearing, bearing, bearing_of
from mcp_rl.explore.complaint import reports_failure
from mcp_rl.explore.fatal import suspected
from mcp_rl.explore.hints import alternatives, needed_names, offered
from mcp_rl.explore.pace import call_deadline
from mcp_rl.explore.words import words_of
from mcp_rl.scenario import McpScenario, ToolCall
from mcp_rl.toolserver.link import Link, WrappedLink
from mcp_rl.toolserver.pool import Sessions
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import ToolResult
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

    from mcp_rl.config import Isolation
    from mcp_rl.explore.measuring.processes import OpenPlace, Place
    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.session import Lease, Session
    from mcp_rl.toolserver.state import MeasuredState
    from mcp_rl.toolserver.tool_server import ToolServer

log = logging.getLogger(__name__)

_Answer = Callable[[str, dict[str, Any]], Awaitable[ToolResult]]
"""Calls a tool. Raises ServerFault."""
_PARAMETER = re.compile(r"(?:action|operation|command|op|method|verb|act)(?: (?:type|name))?")
_ACTION = re.compile(r"[a-z][a-z0-9_-]{1,40}")
_REQUESTS = {"get", "post", "put", "patch", "delete", "head", "options"}
"""Methods of HTTP, in small letters: a tool that takes one asks other servers."""
_GENERAL = re.compile(
    r"manage|manager|management|handle|handler|operate|operations?|actions?|commands?|run|execute|do|use|tool|crud|"
    r"unified|all"
)
"""Words of a tool's name that do not say what it is about."""
_FOR = re.compile(r"(?i)\b(?:for|when|if|by|only|actions?)\b[^.;\n]{0,100}")
"""The words of a parameter's description that say what it is for: "the new text, for create and update"."""
_READ = 4000
"""Number of characters of a description that are read."""
_MOST_ACTIONS = 30
_NO_ACTION = "help"
"""Tried where nothing says which actions there are: the answer may."""
_ROUNDS = 4
"""Most calls of one action to learn what it needs."""
_SECONDS = 15.0
"""Seconds after which no more is asked."""
_DEADLINE = 5.0
"""Seconds for a call of a server of which nothing is known."""
_TEXT = "Plan"
_PLAUSIBLE: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


@dataclass(frozen=True)
class _Action:
    """A call of the server's own tool, apart from its other arguments."""

    tool: str
    parameter: str
    value: str


@dataclass(frozen=True)
class Actions:
    """The tools of a server that were taken apart."""

    parts: dict[str, list[Tool]] = field(default_factory=dict)
    """The tools that stand for the actions of each tool, by the server's name for it."""
    actions: dict[str, _Action] = field(default_factory=dict)
    """The action that each of these stands for, by its name."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def remarks(self) -> list[str]:
        """A sentence for each tool that was taken apart."""
        return [
            f"The tool {tool} does several things, so it counts as {', '.join(part.name for part in parts)}."
            for tool, parts in self.parts.items()
        ]

    def sessions(self, sessions: Sessions) -> Sessions:
        """Return these sessions, each with an action's tool in place of the action."""
        return _TakenApart(sessions, self) if self else sessions

    def server(self, server: ToolServer) -> ToolServer:
        """Return the server with what was measured of its tools said of their actions."""
        if not self:
            return server
        avoided = {part.name for name in server.avoided for part in self.parts.get(name, ())}
        server = replace(server, avoided=server.avoided | avoided)
        if server.measured is None:
            return server
        measured = server.measured
        reading = [
            part.name
            for name, parts in self.parts.items()
            for part in parts
            if name in measured.reading or measured.kept == "nothing" or bearing(part) is Bearing.READS
        ]
        changing = [
            name for name in self.actions if name not in reading and self.actions[name].tool in measured.changing
        ]
        found = {
            "reading": (*self._others(measured.reading), *reading),
            "changing": (*self._others(measured.changing), *changing),
            "shown_by": (*self._others(measured.shown_by), *(reading if changing else ())),
            "unfit": self._others(measured.unfit),
            "slow": self._others(measured.slow),
        }
        return replace(server, measured=measured.model_copy(update=found))

    def measured(self, found: MeasuredState) -> MeasuredState:
        """Return what was measured of the actions, said of the server's own tools."""

        def own(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(dict.fromkeys(self.actions[name].tool if name in self.actions else name for name in names))

        changing = own(found.changing)
        return found.model_copy(
            update={
                "changing": changing,
                "reading": tuple(name for name in own(found.reading) if name not in changing),
                "shown_by": own(found.shown_by),
                "unfit": tuple(name for name in found.unfit if name not in self.actions),
                "slow": tuple(name for name in found.slow if name not in self.actions),
                "fatal": tuple(
                    call.model_copy(update=dict(self._call(ToolCall(tool=call.tool, arguments=call.arguments))))
                    for call in found.fatal
                ),
                "setup": tuple(self._call(call) for call in found.setup),
            }
        )

    def opened(self, open_place: OpenPlace) -> OpenPlace:
        """Return how to open a place whose tools are taken apart."""

        @asynccontextmanager
        async def open_apart() -> AsyncIterator[Place]:
            async with open_place() as place:
                yield _PlaceApart(place, self)

        return open_apart if self else open_place

    def link(self, link: Link) -> Link:
        """Return a link whose tools are taken apart."""
        return _ActionLink(link, self) if self else link

    def tools(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return these tools, with those of its actions in place of a tool that does several things."""
        return [part for tool in tools for part in self.parts.get(tool.name, [tool])]

    def _others(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in self.parts)

    def session(self, session: Session) -> Session:
        """Return a session with an action's tool in place of the action."""
        return replace(
            session, connection=self.link(session.connection), schemas=ToolSchemas(self.tools(session.offered))
        )

    def _call(self, call: ToolCall) -> ToolCall:
        tool, arguments = self.served(call.tool, call.arguments)
        return ToolCall(tool=tool, arguments=arguments)

    def served(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the server's own call."""
        action = self.actions.get(tool)
        return (
            (tool, dict(arguments)) if action is None else (action.tool, {action.parameter: action.value, **arguments})
        )

    def as_served(self, scenario: McpScenario, schema_hash: str) -> McpScenario:
        """Return a scenario with the server's own calls, for the tools of this hash."""
        if not self:
            return scenario
        tags = (self.actions[tag].tool if tag in self.actions else tag for tag in scenario.tags)
        found = self._with_calls(scenario, dict.fromkeys(self.actions, self.served))
        return found.model_copy(update={"schema_hash": schema_hash, "tags": tuple(dict.fromkeys(tags))})

    def taken_apart(self, scenario: McpScenario) -> McpScenario:
        """Return a scenario with calls of the actions' tools."""
        return self._with_calls(scenario, dict.fromkeys(self.parts, self._apart)) if self else scenario

    def _apart(self, tool: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        for name, action in self.actions.items():
            if action.tool == tool and arguments.get(action.parameter) == action.value:
                return name, {key: value for key, value in arguments.items() if key != action.parameter}
        return tool, dict(arguments)

    @staticmethod
    def _with_calls(scenario: McpScenario, renamed: Mapping[str, Any]) -> McpScenario:
        def call(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
            name, given = renamed[tool](tool, arguments) if tool in renamed else (tool, dict(arguments))
            return {"tool": name, "arguments": given}

        update: dict[str, Any] = {
            "reference": tuple(ToolCall(**call(one.tool, one.arguments)) for one in scenario.reference)
        }
        verifier = scenario.verifier
        if verifier is not None and verifier.kind == "state" and isinstance(verifier.expected, list):
            expected: list[Any] = list(verifier.expected)
            looks = [{**one, **call(one["tool"], one.get("arguments") or {})} for one in expected]
            update["verifier"] = verifier.model_copy(update={"expected": looks})
        return scenario.model_copy(update=update)


class _ActionLink(WrappedLink):
    """A link whose calls of an action's tool are calls of the tool that does it."""

    def __init__(self, link: Link, actions: Actions) -> None:
        super().__init__(link)
        self._actions = actions

    @property
    def tools(self) -> list[Tool]:
        return self._actions.tools(self._link.tools)

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        tool, given = self._actions.served(tool_name, arguments)
        with suspected(tool, given):
            return await self._link.call(tool, given, deadline=deadline)


class _PlaceApart:
    """A server's process whose tools are taken apart."""

    def __init__(self, place: Place, actions: Actions) -> None:
        self._place = place
        self.link = actions.link(place.link)

    async def mark(self) -> None:
        await self._place.mark()

    async def throw_away(self) -> None:
        await self._place.throw_away()

    async def packed(self) -> bytes | None:
        return await self._place.packed()

    async def unpack(self, packed: bytes) -> None:
        await self._place.unpack(packed)


class _TakenApart(Sessions):
    """Sessions of another pool, with an action's tool in place of each action."""

    def __init__(self, sessions: Sessions, actions: Actions) -> None:
        super().__init__()
        self._others, self._actions = sessions, actions

    @property
    def replays(self) -> bool:
        return self._others.replays

    def shown(self, session: Session) -> Session:
        return self._actions.session(session)

    async def isolation(self, params: ServerParams) -> Isolation:
        return await self._others.isolation(params)

    async def get(self, params: ServerParams) -> Session:
        return self.shown(await self._others.get(params))

    @asynccontextmanager
    async def lease(self, params: ServerParams, initial_state: dict[str, Any] | None = None) -> AsyncIterator[Lease]:
        async with self._others.lease(params, initial_state) as lease:
            lease.session = self.shown(lease.session)
            yield lease


async def actions_of(sessions: Sessions, server: ToolServer, params: ServerParams) -> Actions:
    """Take the tools of one server apart that do several things; those of a group stay as they are.

    What each action needs besides is learned from the answers to calls with too little, each at the beginning of an
    episode. Actions that change something are not called where episodes share the server.
    """
    if server.members:
        return Actions()
    session = await sessions.get(params)
    tools = [tool for tool in session.offered if tool.name not in server.avoided]

    async def answer(tool: str, arguments: dict[str, Any]) -> ToolResult:
        async with sessions.lease(params) as lease:
            return await lease.session.connection.call(tool, arguments, deadline=call_deadline(server))

    asked = set(Bearing) if server.stateful else {Bearing.READS}
    return await _taken_apart(tools, session.tool_names, answer, asked)


async def actions_behind(link: Link, tools: Sequence[Tool]) -> Actions:
    """Take those of these tools apart that do several things, on a server of which nothing is known yet.

    Actions that seem to destroy are not called.
    """

    async def answer(tool: str, arguments: dict[str, Any]) -> ToolResult:
        with suspected(tool, arguments):
            return await link.call(tool, arguments, deadline=_DEADLINE)

    names = {tool.name for tool in link.tools}
    return await _taken_apart(tools, names, answer, set(Bearing) - {Bearing.DESTROYS})


async def _taken_apart(
    tools: Sequence[Tool], names: Collection[str], answer: _Answer, asked: Collection[Bearing]
) -> Actions:
    """Take these tools apart. `names` are those that the parts may not have, `asked` the kinds of actions to call."""
    found = Actions()
    until = time.monotonic() + _SECONDS
    for tool in tools:
        if (parameter := _parameter(tool)) is None:
            continue
        asking = _Asking(tool, parameter, answer, until)
        values = _listed(tool, parameter)
        if not values and parameter in _required(tool):
            values = offered(await asking.complaint({parameter: _NO_ACTION}) or "")
        values = values[:_MOST_ACTIONS] if _are_actions(values) else []
        parts = [_part(tool, parameter, value, values) for value in values]
        taken = {*names, *found.actions}
        if not parts or len({part.name for part in parts} - taken) < len(parts):
            continue
        for at, value in enumerate(values):
            if bearing(parts[at]) in asked:
                parts[at] = await asking.with_needs(parts[at], value)
            found.actions[parts[at].name] = _Action(tool.name, parameter, value)
        found.parts[tool.name] = parts
    return found


def _required(tool: Tool) -> list[str]:
    return [name for name in tool.input_schema.get("required") or () if name in tool.input_schema["properties"]]


def _parameter(tool: Tool) -> str | None:
    """Return the parameter that says what a tool is to do; None where it has none."""
    properties = tool.input_schema.get("properties")
    names = properties if isinstance(properties, dict) else ()
    return next((str(name) for name in names if _PARAMETER.fullmatch(words_of(name))), None)


def _listed(tool: Tool, parameter: str) -> list[str]:
    """Return the actions that the parameter's schema or its description lists, here or in that of the tool."""
    resolved = ToolSchemas([tool]).openai[0]["function"]["parameters"]["properties"][parameter]
    schema = resolved if isinstance(resolved, dict) else {}
    choices = [one for key in ("anyOf", "oneOf") for one in schema.get(key) or () if isinstance(one, dict)]
    for one in (schema, *choices):
        if isinstance(listed := one.get("enum"), list):
            return [value for value in listed if isinstance(value, str)]
    if constants := [one["const"] for one in choices if isinstance(one.get("const"), str)]:
        return constants
    line = re.search(rf"(?m)^\W*{re.escape(parameter)}\b[^\n]{{1,400}}", tool.description[:_READ])
    said = (str(schema.get("description") or "")[:_READ], line[0] if line else "")
    return next((found for text in said if len(found := alternatives(text)) > 1), [])


def _are_actions(values: Sequence[str]) -> bool:
    """Return whether values are things to do: some read, or all change something in different ways. The operations of a
    calculator, say, do neither."""
    if len(values) < 2 or not all(map(_ACTION.fullmatch, values)) or {"get", "post"} <= set(values) <= _REQUESTS:
        return False
    bearings = [bearing_of(value) for value in values]
    unclear = bearings.count(Bearing.UNCLEAR)
    return 2 * unclear <= len(values) if Bearing.READS in bearings else not unclear and len(set(bearings)) > 1


def _part(tool: Tool, parameter: str, value: str, values: Sequence[str]) -> Tool:
    """Return the tool that stands for one action, without the parameters that are said to be for other actions."""
    about = [word for word in words_of(tool.name).split(" ") if not _GENERAL.fullmatch(word)]
    about = [word for word in about if bearing_of(word) is Bearing.UNCLEAR] or about
    does = words_of(value).split(" ")
    words = [*does, *(word for word in about if word not in does)]
    required = [name for name in _required(tool) if name != parameter]
    schema = {
        **tool.input_schema,
        "properties": {
            name: one
            for name, one in tool.input_schema["properties"].items()
            if name != parameter and (name in required or not (named := _named(one, values)) or value in named)
        },
        "required": required,
    }
    reads = tool.annotations.get("readOnlyHint") is True
    text = " ".join(words)
    return Tool(
        "_".join(words), f"{text[:1].upper()}{text[1:]}.", schema, annotations={"readOnlyHint": True} if reads else {}
    )


def _named(schema: Any, values: Sequence[str]) -> set[str]:
    """Return the actions that a parameter's description says it is for: "new text, for create and update"."""
    description = schema.get("description") if isinstance(schema, dict) else None
    said = " ".join(_FOR.findall(description[:_READ])) if isinstance(description, str) else ""
    return {value for value in values if re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", said)}


@dataclass(frozen=True)
class _Asking:
    """Calls of one tool that tell what its actions need."""

    tool: Tool
    parameter: str
    answer: _Answer
    until: float

    async def complaint(self, arguments: dict[str, Any]) -> str | None:
        """Return what a refused call was told; None where it was not refused, was lost, or is not made any more."""
        if time.monotonic() > self.until:
            return None
        given = {name: self._plausible(name) for name in _required(self.tool)} | arguments
        try:
            result = await self.answer(self.tool.name, given)
        except ServerFault as fault:
            log.info("While the actions of %s are learned: %s", self.tool.name, fault)
            return None
        return result.text if result.is_error or reports_failure(result.text, given) else None

    async def with_needs(self, part: Tool, value: str) -> Tool:
        """Return an action's tool with the parameters that the server says must be given."""
        properties, needed = part.input_schema["properties"], _required(part)
        for _ in range(_ROUNDS):
            given = {name: self._plausible(name) for name in needed}
            told = await self.complaint({**given, self.parameter: value})
            more = [name for name in needed_names(told or "") if name in properties and name not in needed]
            if not more:
                break
            needed += more
        return replace(part, input_schema={**part.input_schema, "required": needed})

    def _plausible(self, name: str) -> Any:
        schema = self.tool.input_schema["properties"].get(name)
        kind = schema.get("type") if isinstance(schema, dict) else None
        return _PLAUSIBLE.get(kind, _TEXT) if isinstance(kind, str) else _TEXT
