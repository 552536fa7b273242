"""Playing proposed solutions on the live server: only execution proves a solution."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import anyio
from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue

from mcp_rl.errors import ServerFault
from mcp_rl.explore import tally
from mcp_rl.explore.answer import call_key, holds_secret, read_answer, says_nothing
from mcp_rl.explore.complaint import reports_failure
from mcp_rl.explore.explorable import explorable, reads
from mcp_rl.explore.fatal import suspected
from mcp_rl.explore.outcome import Outcome
from mcp_rl.explore.pace import slowest_call
from mcp_rl.rewards.dates import is_dated, undated, untimed
from mcp_rl.rewards.json_values import is_close, lists_objects
from mcp_rl.rewards.new_ids import new_ids, with_ids_numbered
from mcp_rl.rewards.outcome import state_text
from mcp_rl.scenario import McpScenario, ServerParams, ToolCall, Verifier
from mcp_rl.system.threads import cpu_limit
from mcp_rl.toolserver.state import calls_in_flight

if TYPE_CHECKING:
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.pool import Sessions
    from mcp_rl.toolserver.session import Session
    from mcp_rl.toolserver.tool_server import ToolServer
    from mcp_rl.toolserver.tools.results import ToolResult

_IN_FLIGHT = 16
_DEADLINE = 10.0
"""Seconds for one call. A slower tool is of no use to a learner that calls it thousands of times."""
MOST_CALLS = 8
"""Limit on the calls, and on the checks, of one task."""
_NOT_ANSWERED = "a call was not answered"
_PLACEHOLDER = re.compile(r"<result (\d{1,2})((?:\.[\w-]+)*)>")


def _as_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


class ProposedCall(BaseModel):
    """A call still to be made, under the tool's name that a model sees."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: Annotated[str, BeforeValidator(_as_text)]
    """A JSON object as text: strict structured output allows no object with arbitrary keys."""


Play = tuple[Sequence[ProposedCall], Sequence[ProposedCall], dict[str, Any] | None]
"""Calls, checks, and the initial state."""
Refutes = Callable[[int, "Look"], bool]
"""Returns whether the look of a check, by the check's index, shows that the state is not the expected one."""


class Unplayable(Exception):
    """Calls that cannot be played here. `kind` is the reason without what is special to these calls."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


@dataclass(frozen=True)
class Look:
    """A reading call made to see the state. A failure is an observation too."""

    tool: str
    arguments: dict[str, Any]
    text: str
    is_error: bool

    @property
    def lasting(self) -> Look:
        """The same without the times of day in its text."""
        return replace(self, text=undated(self.text, whenever=True))

    @cached_property
    def settled(self) -> Look:
        """The same without times of day and the order of objects in lists, which equal times may decide."""
        return replace(self, text=state_text(undated(self.text), {"unordered": True}))

    def new_ids(self, again: Look) -> tuple[str, ...] | None:
        """Return the places of ids that the server makes anew, by the same look in another episode; None where the two
        differ in anything but these, times of day and order."""
        if (self.tool, self.arguments, self.is_error) != (again.tool, again.arguments, again.is_error):
            return None
        return new_ids(self.settled.text, again.settled.text)

    def shows_another(self, other: Look, places: Collection[str]) -> bool:
        """Return whether two looks differ in more than ids at these places, times of day and order."""
        if self.is_error != other.is_error:
            return True
        if self.text == other.text:
            return False
        one, two = (with_ids_numbered(look.settled.text, places) for look in (self, other))
        return one != two

    def as_expected(self) -> dict[str, Any]:
        """Return the entry of a state verifier for the same call: its result, or that it fails."""
        seen: dict[str, Any] = {"is_error": True} if self.is_error else {"result": self.text}
        return {"tool": self.tool, "arguments": self.arguments, **seen}

    def shows(self, expected: Mapping[str, Any], options: Mapping[str, Any]) -> bool:
        """Return whether it matches an entry of a state verifier with these options, as text or as JSON."""
        if self.is_error or expected.get("is_error"):
            return self.is_error == bool(expected.get("is_error"))
        if "result" not in expected:
            return True
        result, text = expected["result"], state_text(self.text, options)
        return (state_text(result, options) if isinstance(result, str) else result) in (text, _json(text))


@dataclass(frozen=True)
class Played:
    """Calls that all succeeded, with their results."""

    steps: tuple[Outcome, ...]
    looks: tuple[Look, ...] = ()
    """Observations of the state after them."""
    refuted: bool = False
    """True if the last of these looks showed that it is not the expected state, so that no more were made."""

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(tool=step.tool, arguments=step.arguments) for step in self.steps)


class Stage:
    """Plays sequences of calls, each from the state that a rollout begins in."""

    def __init__(self, sessions: Sessions, session: Session, server: ToolServer, params: ServerParams) -> None:
        self._sessions, self._params, self.schemas = sessions, params, session.schemas
        self.tools = explorable(session.offered, server)
        """The tools that may be called freely."""
        self._free = {tool.name for tool in self.tools}
        self._reading = {tool.name for tool in self.tools if reads(tool, server)}
        # Each such play has a process for itself: one more than there are processors, since some of them wait.
        most = cpu_limit() + 1 if server.measured is not None and server.isolation == "layer" else _IN_FLIGHT
        self._limiter = anyio.CapacityLimiter(calls_in_flight(slowest_call(server), most, _DEADLINE))
        self.stateful = server.stateful
        """True if calls may change something that later calls of the same episode see."""
        self.calls = self.plays = 0
        """Numbers of calls and of plays made so far."""

    async def play(
        self,
        calls: Sequence[ProposedCall],
        checks: Sequence[ProposedCall] = (),
        initial_state: dict[str, Any] | None = None,
        refutes: Refutes | None = None,
    ) -> Played | Unplayable:
        """Make the calls in order, then the checks, up to one that `refutes`; return Unplayable where a call is not
        possible here."""
        if len(calls) > MOST_CALLS or len(checks) > MOST_CALLS:
            return Unplayable("too many calls", f"{max(len(calls), len(checks))}; {MOST_CALLS} are allowed")
        self.plays += 1
        async with self._limiter, self._sessions.lease(self._params, initial_state) as lease:
            connection = lease.session.connection
            steps: list[Outcome] = []
            try:
                for call in calls:
                    steps.append(await self._step(connection, call, steps))
                looks, refuted = list[Look](), False
                for index, check in enumerate(checks):
                    looks.append(await self._look(connection, check, steps))
                    if refuted := refutes is not None and refutes(index, looks[-1]):
                        break
            except Unplayable as problem:
                # A refused call does not spoil the lease: the next reset restores the state as after any episode.
                lease.spoilt = problem.kind == _NOT_ANSWERED
                return problem
            return Played(tuple(steps), tuple(looks), refuted)

    async def play_all(
        self, plays: Sequence[Play], refuting: Sequence[Refutes | None] = ()
    ) -> list[Played | Unplayable]:
        """Play several sequences at once and return their outcomes in order. `refuting` has an entry for each."""
        results: list[Played | Unplayable] = [Unplayable("not played")] * len(plays)

        left = iter(enumerate(plays))

        async def play_some() -> None:
            for index, play in left:
                results[index] = await self.play(*play, refuting[index] if refuting else None)

        async with anyio.create_task_group() as tasks:  # thousands of tasks at once would take seconds to start
            for _ in range(min(len(plays), int(self._limiter.total_tokens))):
                tasks.start_soon(play_some)
        return results

    def reads(self, scenario: McpScenario) -> list[ProposedCall]:
        """Return the calls by which the scenario's verifier looks at the final state."""
        reads = scenario.verifier.reads if scenario.verifier else ()
        names = self.schemas.to_openai
        return [ProposedCall(tool=names.get(c.tool, c.tool), arguments=json.dumps(dict(c.arguments))) for c in reads]

    async def _step(self, connection: Link, call: ProposedCall, steps: Sequence[Outcome]) -> Outcome:
        name, arguments = self._sendable(call, steps)
        result = await self._call(connection, name, arguments)
        if result.is_error:
            raise Unplayable("a call is an error", " ".join(result.text.split())[:200])
        if holds_secret(result.text):
            raise Unplayable("a result holds what looks like a password or key")
        if name in self._reading and says_nothing(result.text, arguments):
            raise Unplayable("a call found nothing", call.tool)
        if reports_failure(result.text, arguments):
            raise Unplayable("a call is an error", " ".join(result.text.split())[:200])
        return Outcome(name, arguments, result.text, read_answer(result.text, arguments))

    async def _look(self, connection: Link, call: ProposedCall, steps: Sequence[Outcome]) -> Look:
        name, arguments = self._sendable(call, steps)
        result = await self._call(connection, name, arguments)
        if holds_secret(result.text):
            raise Unplayable("a result holds what looks like a password or key")
        return Look(name, arguments, result.text, result.is_error)

    def _sendable(self, call: ProposedCall, steps: Sequence[Outcome]) -> tuple[str, dict[str, Any]]:
        """Return the server's own tool name and the arguments of a call. Raises Unplayable for a call not allowed."""
        name = self.schemas.to_server.get(call.tool)
        if name is None:
            raise Unplayable("it calls a tool that the server does not have", call.tool[:60])
        if name not in self._free:
            raise Unplayable("it calls a tool that may change what others use", name)
        arguments = _filled(_object(call.arguments), steps)
        if problem := self.schemas.validate(call.tool, arguments):
            raise Unplayable("its arguments do not fit the tool", problem[:200])
        return name, arguments

    async def _call(self, connection: Link, name: str, arguments: dict[str, Any]) -> ToolResult:
        try:
            tally.count(calls=1)
            self.calls += 1
            with suspected(name, arguments):
                result = await connection.call(name, arguments, deadline=_DEADLINE)
                return replace(result, text=untimed(result.text))
        except ServerFault as fault:
            if not connection.alive:
                raise
            raise Unplayable(_NOT_ANSWERED, str(fault)) from fault


def state_verifier(looks: Sequence[Look], new_ids: Iterable[str] = ()) -> Verifier:
    """Return the verifier that expects what these looks show, but for ids that are made anew."""
    dated = any(is_dated(look.text) for look in looks)
    options: dict[str, JsonValue] = {"undated": True} if dated else {}
    if any(lists_objects(_json(look.text)) for look in looks):
        options["unordered"] = True
    if places := sorted(set(new_ids)):
        options["new_ids"] = list(places)
    expected: list[JsonValue] = [(look.lasting if dated else look).as_expected() for look in looks]
    return Verifier(kind="state", expected=expected, options=options)


def agrees(played: Played, scenario: McpScenario) -> bool:
    """Return whether played calls lead to what the scenario's verifier expects."""
    verifier = scenario.verifier
    if not scenario.reference or not played.steps:
        return not scenario.reference and not played.steps
    if verifier is not None and verifier.kind == "state":
        expected = verifier.expected if isinstance(verifier.expected, list) else []
        pairs = list(zip(played.looks, expected, strict=False))
        return 0 < len(expected) == len(pairs) and all(
            isinstance(wanted, dict) and look.shows(wanted, verifier.options) for look, wanted in pairs
        )
    if verifier is not None and verifier.kind in ("number", "text"):
        last = played.steps[-1]
        return any(_same(value, verifier.expected) for value in (last.answer.value, *(p.value for p in last.parts)))
    defaults: Any = verifier.options.get("defaults", {}) if verifier else {}
    ordered = verifier is None or verifier.options.get("ordered", True) is not False
    order: Callable[[list[str]], list[str]] = list if ordered else sorted
    made, wanted = (order([_key(call, defaults) for call in calls]) for calls in (played.calls, scenario.reference))
    return made == wanted


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, int | float) and isinstance(expected, int | float):
        return is_close(value, expected, tolerance=1e-9)
    return isinstance(value, str) and isinstance(expected, str) and value.strip() == expected.strip()


def lasting(first: Played, second: Played) -> bool:
    """Return whether the same calls gave equal results, and no look holds a time of day."""
    same_steps = [step.text for step in first.steps] == [step.text for step in second.steps]
    return same_steps and first.looks == second.looks and not any(is_dated(look.text) for look in first.looks)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _key(call: ToolCall, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    return call_key(call.tool, {**defaults.get(call.tool, {}), **call.arguments})


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Unplayable("its arguments are not JSON", text[:60]) from error
    if not isinstance(value, dict):
        raise Unplayable("its arguments are not a JSON object", text[:60])
    return value


def _filled(value: Any, steps: Sequence[Outcome]) -> Any:
    """Return the value with its placeholders replaced by the results of earlier calls."""
    if isinstance(value, dict):
        return {key: _filled(inner, steps) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, steps) for inner in value]
    if not isinstance(value, str):
        return value
    if whole := _PLACEHOLDER.fullmatch(value):
        return _result(whole, steps)
    return _PLACEHOLDER.sub(lambda found: str(_result(found, steps)), value)


def _result(found: re.Match[str], steps: Sequence[Outcome]) -> Any:
    number, path = int(found[1]), found[2].split(".")[1:]
    if not 1 <= number <= len(steps):
        raise Unplayable("it refers to a result that is not there yet", found[0])
    step = steps[number - 1]
    if not path:
        return step.text if step.answer.value is None else step.answer.value
    try:
        value = json.loads(step.text)
        for part in path:
            value = value[int(part)] if isinstance(value, list) else value[part]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Unplayable("it refers to a part that a result does not have", found[0]) from error
    return value
