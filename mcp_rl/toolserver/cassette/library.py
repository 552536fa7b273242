"""The outcomes of recorded calls, in memory.

A call is identified by its server and that server's schemas, the tool, the arguments and, for a stateful server, the
calls before it. If equal calls had different results, each caller gets its own results again, in the order of its
calls; a caller that was not recorded gets the result that was recorded first. So no result depends on which caller
asks first.
"""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

from mcp_rl.errors import ServerFault
from mcp_rl.toolserver.caller import Caller, caller
from mcp_rl.toolserver.tools.listing import Tool
from mcp_rl.toolserver.tools.results import ToolResult

NO_JSON = "no JSON"
"""Stands for arguments that cannot be sent; the outcome of such a call is the error."""
BEGINNING = ""
"""Stands for the calls before the first one of a lease: none."""


class Key(NamedTuple):
    """The identity of a call."""

    server: str
    schema: str
    """Hash of the tool schemas."""
    after: str | None
    """A digest of the calls before it in the same lease; None for a stateless server."""
    name: str
    """The tool, or the method of another request."""
    arguments: str
    """Their `canonical` text."""


@dataclass(frozen=True)
class RecordedOutcome:
    """A result or a fault."""

    result: ToolResult | None = None
    fault: str | None = None
    delivered: bool | None = None
    """For a fault: False if the call cannot have reached the server, None if that is unknown."""
    ended: bool = False
    """For a fault: True if it ended the link."""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Raise TypeError, KeyError or ValueError for malformed fields."""
        if "fault" in fields:
            return cls(None, str(fields["fault"]), fields.get("delivered"), fields.get("ended") is True)
        text = fields["text"]
        if not isinstance(text, str):
            raise TypeError("the text of a result must be a string")
        seconds = float(fields.get("seconds", 0.0))
        asked = tuple(dict(question) for question in fields.get("asked", ()))
        return cls(ToolResult(text, fields.get("structured"), fields.get("is_error") is True, seconds, asked))

    def to_json(self) -> dict[str, Any]:
        """Return the members of the line in the file; empty ones are left out."""
        if self.result is None:
            return {"fault": self.fault} | {
                key: value
                for key, value in (("delivered", self.delivered), ("ended", self.ended or None))
                if value is not None
            }
        fields: dict[str, Any] = {"text": self.result.text}
        if self.result.structured is not None:
            fields["structured"] = self.result.structured
        if self.result.is_error:
            fields["is_error"] = True
        if self.result.asked:
            fields["asked"] = list(self.result.asked)
        return fields

    def play(self) -> ToolResult:
        """Return the result, or raise the fault as a ServerFault."""
        if self.result is None:
            raise ServerFault(self.fault or "", delivered=self.delivered)
        return self.result


Scope = Literal["everybody"] | tuple[str, int]
"""The calls that an outcome answers: those of all callers without their own, or a caller's nth one, counted from 0."""


@dataclass
class _Entry:
    first: RecordedOutcome | None = None
    """The result for all calls that are not in `own`."""
    own: dict[tuple[str, int], RecordedOutcome] = field(default_factory=dict)
    """Caller and count to the outcome, where it differs from `first`."""


class Ask(NamedTuple):
    """A call in progress."""

    key: Key
    by: str
    """Name of the caller; empty outside of any rollout."""
    number: int
    """Number of equal calls that the caller made before."""


@dataclass(frozen=True)
class Listing:
    """A server's tools, name and version, as recorded."""

    server: str
    schema: str
    tools: list[Tool]
    warnings: list[str]
    server_info: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "schema": self.schema,
            "info": self.server_info,
            "warnings": self.warnings,
            "tools": [{k: v for k, v in asdict(tool).items() if v not in (None, {})} for tool in self.tools],
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Raise TypeError, KeyError or ValueError for malformed fields."""
        tools = [Tool(**{"description": "", "input_schema": {}, **tool}) for tool in fields["tools"]]
        return cls(str(fields["server"]), str(fields["schema"]), tools, list(fields["warnings"]), dict(fields["info"]))


class Library:
    """The recorded outcomes, and the number of equal calls of each caller."""

    def __init__(self) -> None:
        self.listings: dict[str, Listing] = {}
        """Server to its first listing."""
        self._entries: dict[Key, _Entry] = {}
        self._anonymous: Counter[Key] = Counter()
        self._counts: WeakKeyDictionary[Caller, tuple[str, Counter[Key]]] = WeakKeyDictionary()
        self._names: Counter[str] = Counter()

    def ask(self, key: Key) -> Ask:
        """Begin a call: note its caller and count it."""
        by, counts = self._caller()
        number = counts[key]
        counts[key] += 1
        return Ask(key, by, number)

    def _caller(self) -> tuple[str, Counter[Key]]:
        who = caller()
        if who is None:
            return "", self._anonymous
        if who not in self._counts:
            before = self._names[who.name]
            self._names[who.name] += 1
            self._counts[who] = (f"{who.name}#{before}" if before else who.name, Counter())
        return self._counts[who]

    def find(self, ask: Ask) -> RecordedOutcome | None:
        """Return the outcome of a call; None if it was not recorded."""
        entry = self._entries.get(ask.key)
        return None if entry is None else entry.own.get((ask.by, ask.number), entry.first)

    def keep(self, ask: Ask, outcome: RecordedOutcome) -> Scope | None:
        """Keep the outcome of a call, and return the calls that it answers; None if it was known already."""
        entry = self._entries.setdefault(ask.key, _Entry())
        slot = (ask.by, ask.number)
        if same(outcome, entry.own.get(slot, entry.first)):
            return None
        if entry.first is None and outcome.result is not None and slot not in entry.own:
            entry.first = outcome
            return "everybody"
        self.learn(ask.key, outcome, slot)
        return slot

    def learn(self, key: Key, outcome: RecordedOutcome, scope: Scope) -> None:
        """Add a recorded outcome."""
        entry = self._entries.setdefault(key, _Entry())
        if scope == "everybody":
            entry.first = entry.first or outcome
        else:
            entry.own[scope] = outcome
            if entry.first is None and outcome.result is not None:
                entry.first = outcome

    def others(self, key: Key) -> tuple[bool, str | None]:
        """Return whether a missing call was recorded after other calls, and how it failed for another caller."""
        elsewhere = any(other._replace(after=key.after, schema=key.schema) == key for other in self._entries)
        entry = self._entries.get(key)
        faults = [outcome.fault for outcome in entry.own.values() if outcome.fault] if entry else []
        return elsewhere and entry is None, faults[0] if faults else None


def same(one: RecordedOutcome, other: RecordedOutcome | None) -> bool:
    """Return whether two outcomes are equal except for their times. 1, 1.0 and true differ in JSON."""
    return one is other or (other is not None and _text(one) == _text(other))


def _text(outcome: RecordedOutcome) -> str:
    return json.dumps(outcome.to_json(), sort_keys=True)


def canonical(arguments: Any) -> str:
    """Return a text that is equal for equal arguments, whatever the order of their members."""
    try:
        text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return NO_JSON
    return text


def following(after: str | None, tool: str, arguments: str) -> str | None:
    """Return the digest of the calls before the next one; None for a stateless server."""
    if after is None:
        return None
    return hashlib.sha256(f"{after}\n{tool}\n{arguments}".encode()).hexdigest()[:16]
