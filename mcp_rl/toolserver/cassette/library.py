"""What became of which call: the part of a cassette that is in memory.

A call is known by its server and that server's schemas, the tool, the arguments and, where the server has a state, the
calls before it. Where equal calls had different results, each caller gets its own ones again, the first call of its
kind the first one; whoever was not there gets the result that was recorded first. So no result depends on who asks
first.
"""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakKeyDictionary

from mcp_rl.errors import ServerFault
from mcp_rl.toolserver.caller import Caller, caller
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.results import ToolResult

NO_JSON = "no JSON"
"""Stands for arguments that cannot be sent; what is wrong about them is what the call gives."""
BEGINNING = ""
"""The calls before the first one of a lease."""


class Key(NamedTuple):
    """What a call is known by."""

    server: str
    schema: str
    """Hash of the tool schemas."""
    after: str | None
    """A digest of the calls before it in the same lease; None where the server has no state."""
    what: str
    """A tool, or the request that it was instead."""
    arguments: str
    """`canonical` text."""


@dataclass(frozen=True)
class Outcome:
    """A result, or the fault that was there instead."""

    result: ToolResult | None = None
    fault: str | None = None
    delivered: bool | None = None
    """Of a fault: False where the call surely never reached the server."""
    ended: bool = False
    """Of a fault: whether the link was of no use any more."""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Raises TypeError, KeyError or ValueError where it is none."""
        if "fault" in fields:
            return cls(None, str(fields["fault"]), fields.get("delivered"), fields.get("ended") is True)
        text = fields["text"]
        if not isinstance(text, str):
            raise TypeError("the text of a result is a text")
        seconds = float(fields.get("seconds", 0.0))
        return cls(ToolResult(text, fields.get("structured"), fields.get("is_error") is True, seconds))

    def to_json(self) -> dict[str, Any]:
        """What is not there is left out."""
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
        return fields

    def play(self) -> ToolResult:
        """The result again. Raises ServerFault where there was a fault."""
        if self.result is None:
            raise ServerFault(self.fault or "", delivered=self.delivered)
        return self.result


Owner = Literal["everybody"] | tuple[str, int]
"""Whose an outcome is: of all who have none of their own, or of a caller's call, counted from 0."""


@dataclass
class _Entry:
    first: Outcome | None = None
    """What everybody gets who has nothing in `own`; a result."""
    own: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    """Caller and count to what it got, where that is not the first."""


class Ask(NamedTuple):
    """A call that is being made."""

    key: Key
    by: str
    """The caller; empty where nobody said."""
    number: int
    """How many equal calls it has made before."""


@dataclass(frozen=True)
class Listing:
    """What a server said of itself."""

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
        """Raises TypeError, KeyError or ValueError where it is none."""
        tools = [Tool(**{"description": "", "input_schema": {}, **tool}) for tool in fields["tools"]]
        return cls(str(fields["server"]), str(fields["schema"]), tools, list(fields["warnings"]), dict(fields["info"]))


class Library:
    """All outcomes, and the counts of who asked for what."""

    def __init__(self) -> None:
        self.listings: dict[str, Listing] = {}
        """Server to the listing that it began with."""
        self._entries: dict[Key, _Entry] = {}
        self._nobodys: Counter[Key] = Counter()
        self._counts: WeakKeyDictionary[Caller, tuple[str, Counter[Key]]] = WeakKeyDictionary()
        self._names: Counter[str] = Counter()

    def ask(self, key: Key) -> Ask:
        """Begin a call: who makes it, and for which time."""
        by, counts = self._caller()
        number = counts[key]
        counts[key] += 1
        return Ask(key, by, number)

    def _caller(self) -> tuple[str, Counter[Key]]:
        who = caller()
        if who is None:
            return "", self._nobodys
        if who not in self._counts:
            before = self._names[who.name]
            self._names[who.name] += 1
            self._counts[who] = (f"{who.name}#{before}" if before else who.name, Counter())
        return self._counts[who]

    def find(self, ask: Ask) -> Outcome | None:
        """What became of it; None where nobody knows."""
        entry = self._entries.get(ask.key)
        return None if entry is None else entry.own.get((ask.by, ask.number), entry.first)

    def keep(self, ask: Ask, outcome: Outcome) -> Owner | None:
        """Learn what became of a call, and whose that is; None where it was known."""
        entry = self._entries.setdefault(ask.key, _Entry())
        slot = (ask.by, ask.number)
        if same(outcome, entry.own.get(slot, entry.first)):
            return None
        if entry.first is None and outcome.result is not None and slot not in entry.own:
            entry.first = outcome
            return "everybody"
        self.learn(ask.key, outcome, slot)
        return slot

    def learn(self, key: Key, outcome: Outcome, owner: Owner) -> None:
        """Take over what was recorded."""
        entry = self._entries.setdefault(key, _Entry())
        if owner == "everybody":
            entry.first = entry.first or outcome
        else:
            entry.own[owner] = outcome
            if entry.first is None and outcome.result is not None:
                entry.first = outcome

    def others(self, key: Key) -> tuple[bool, str | None]:
        """What is known about a call that is not here: whether it was made after other calls, and how it failed for
        somebody else."""
        elsewhere = any(other._replace(after=key.after, schema=key.schema) == key for other in self._entries)
        entry = self._entries.get(key)
        faults = [outcome.fault for outcome in entry.own.values() if outcome.fault] if entry else []
        return elsewhere and entry is None, faults[0] if faults else None


def same(one: Outcome, other: Outcome | None) -> bool:
    """Whether two outcomes are the same but for the time they took. 1, 1.0 and true differ in JSON."""
    return one is other or (other is not None and _text(one) == _text(other))


def _text(outcome: Outcome) -> str:
    return json.dumps(outcome.to_json(), sort_keys=True)


def canonical(arguments: Any) -> str:
    """One text for equal arguments, whatever the order of their members."""
    try:
        text = json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return NO_JSON
    return text


def following(after: str | None, tool: str, arguments: str) -> str | None:
    """The digest of the calls before the next one."""
    if after is None:
        return None
    return hashlib.sha256(f"{after}\n{tool}\n{arguments}".encode()).hexdigest()[:16]
