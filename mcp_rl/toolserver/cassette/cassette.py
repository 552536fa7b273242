"""`Cassette`, a file of recorded calls, and the links that record and replay through it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anyio.lowlevel import checkpoint

from mcp_rl.errors import CassetteError, CassetteMiss, ServerFault, UserError
from mcp_rl.toolserver.cassette.check import not_recorded
from mcp_rl.toolserver.cassette.library import (
    BEGINNING,
    NO_JSON,
    Ask,
    Key,
    Library,
    Listing,
    RecordedOutcome,
    canonical,
    following,
)
from mcp_rl.toolserver.cassette.tape import Tape, read_tape
from mcp_rl.toolserver.known_secrets import redaction_for
from mcp_rl.toolserver.link import WrappedLink
from mcp_rl.toolserver.tools.results import ToolResult
from mcp_rl.toolserver.tools.schema import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from mcp_rl.scenario import ServerParams
    from mcp_rl.toolserver.link import Link
    from mcp_rl.toolserver.tools.listing import Tool

_LARGE = 600
"""Characters. A result of this length or more is written once, however many calls it answers."""
_SHOWN = 120
"""Characters of a call's arguments in an error."""


class Cassette:
    """A recording or a replay, used as `with Cassette.recording(path) as cassette` or `Cassette.replaying(path)`.

    docs/cassettes.md describes the file, the identity of calls and the limits. No secret is written (docs/secrets.md).
    """

    def __init__(self, path: Path, tape: Tape | None) -> None:
        self.path = path
        self._tape = tape
        self._library = Library()
        self._redaction = redaction_for(None)
        self._seen: dict[str, Listing] = {}
        self._large: set[str] = set()
        self._load(tape.lines if tape is not None else list(read_tape(path)))

    @classmethod
    def recording(cls, path: str | Path) -> Self:
        """Open a cassette for recording: a new file, or an existing one that is continued.

        If the process dies, the file is whole up to its last call. Raises UserError if the file cannot be written or
        is not a cassette.
        """
        return cls(Path(path), Tape(Path(path)))

    @classmethod
    def replaying(cls, path: str | Path) -> Self:
        """Open a cassette that answers every call. Raises UserError if the file cannot be read or is not a cassette."""
        return cls(Path(path), None)

    @property
    def replays(self) -> bool:
        """True if calls are answered from the file, with no server at all."""
        return self._tape is None

    def record(self, link: Link, server: str, *, stateful: bool, params: ServerParams | None = None) -> Link:
        """Wrap the link in one that keeps every call and its outcome.

        For a stateful server, make one for each episode, since a call is identified by the calls before it. Raises
        CassetteError if the server lists other tools than in the file.
        """
        self._redaction = redaction_for(params)
        return RecordingLink(self, link, server, BEGINNING if stateful else None)

    def player(self, server: str, *, stateful: bool, params: ServerParams | None = None) -> Link:
        """Return a link with no server. Raises UserError if the file has no server of this name.

        A call raises CassetteMiss if it was not recorded, ServerFault if it failed when it was recorded.
        """
        self._redaction = redaction_for(params)
        if server not in self._library.listings:
            raise UserError(not_recorded(self.path, server, set(self._library.listings)))
        return ReplayLink(self, self._library.listings[server], BEGINNING if stateful else None)

    def close(self) -> None:
        """Flush the recording to disk and end it."""
        if self._tape is not None:
            self._tape.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- used by the links

    def ask(self, server: str, schema: str, after: str | None, what: str, arguments: Mapping[str, Any]) -> Ask:
        """Begin a call: find its identity and count it."""
        text = canonical(arguments)
        if text != NO_JSON and (redacted := self._redaction.value(arguments)) is not arguments:
            text = canonical(redacted)
        return self._library.ask(Key(server, schema, after, what, text))

    def learn(self, server: str, tools: list[Tool], warnings: list[str], info: dict[str, str]) -> str:
        """Keep a server's listing, and return the hash of its schemas."""
        seen = self._seen.get(server)
        if seen is not None and seen.tools == tools:
            return seen.schema
        schema = ToolSchemas(tools).hash
        listing = Listing(server, schema, tools, warnings, info)
        first = self._library.listings.get(server)
        if first is None or (seen is not None and seen.schema != schema):
            fields: dict[str, Any] = self._redaction.value(listing.to_json())
            self._write(fields)
            if first is None:
                self._library.listings[server] = listing
        elif seen is None and first.schema != schema:
            raise CassetteError(
                f"The cassette {self.path} was recorded when the server {server} listed other tools than now; record "
                "into another file."
            )
        self._seen[server] = listing
        return schema

    def keep(self, ask: Ask, outcome: RecordedOutcome, *, is_call: bool = True) -> None:
        """Write the outcome of a call, unless the file holds it already."""
        fields = self._redaction.value(outcome.to_json())
        outcome = RecordedOutcome.from_json(fields | {"seconds": outcome.result.seconds if outcome.result else 0.0})
        scope = self._library.keep(ask, outcome)
        if scope is None:
            return
        key = ask.key
        line: dict[str, Any] = {"call" if is_call else "ask": key.name, "server": key.server}
        line["arguments"] = None if key.arguments == NO_JSON else json.loads(key.arguments)
        if key.after is not None:
            line["after"] = key.after
        if key.schema != self._library.listings[key.server].schema:
            line["schema"] = key.schema
        if scope != "everybody":
            line["by"], line["n"] = scope
        if outcome.result is not None:
            line["seconds"] = round(outcome.result.seconds, 4)
        self._write(line | self._once(fields))

    def find(self, ask: Ask) -> RecordedOutcome:
        """Return the outcome of a call. Raises CassetteMiss."""
        outcome = self._library.find(ask)
        if outcome is None:
            raise CassetteMiss(self._miss(ask))
        return outcome

    def _miss(self, ask: Ask) -> str:
        key = ask.key
        arguments = key.arguments if len(key.arguments) <= _SHOWN else f"{key.arguments[:_SHOWN]}…"
        elsewhere, fault = self._library.others(key)
        call = f"the call {key.name}({arguments}) of the server {key.server}"
        problem = f"does not hold {call}"
        if fault is not None:
            problem = f"holds no result of {call}, which failed when it was recorded ({fault.rstrip('.')})"
        elif elsewhere:
            problem = f"holds {call} only after other preceding calls"
        return (
            f"The cassette {self.path} {problem}: replay the job as it was recorded (same settings, seed and model), "
            f"or run it with its servers and --record {self.path}, which adds what is missing."
        )

    # -- the file

    def _once(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Replace a large result by its digest, after writing it on its own line once."""
        text = json.dumps(fields, sort_keys=True)
        if len(text) < _LARGE or "fault" in fields:
            return fields
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if digest not in self._large:
            self._large.add(digest)
            self._write({"kept": digest, **fields})
        return {"result": digest}

    def _write(self, line: dict[str, Any]) -> None:
        assert self._tape is not None
        self._tape.write(line)

    def _load(self, lines: list[tuple[int, dict[str, Any]]]) -> None:
        large: dict[str, dict[str, Any]] = {}
        for number, line in lines:
            try:
                self._take(line, large)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise UserError(
                    f"{self.path}, line {number}: not a line of a cassette; record the job again."
                ) from error
        self._large = set(large)

    def _take(self, line: dict[str, Any], large: dict[str, dict[str, Any]]) -> None:
        if "kept" in line:
            large[line["kept"]] = line
        elif "tools" in line:
            listing = Listing.from_json(line)
            self._library.listings.setdefault(listing.server, listing)
        else:
            server = line["server"]
            arguments = NO_JSON if line["arguments"] is None else canonical(line["arguments"])
            schema = line.get("schema", self._library.listings[server].schema)
            key = Key(server, schema, line.get("after"), line["call"] if "call" in line else line["ask"], arguments)
            outcome = RecordedOutcome.from_json(large[line["result"]] | line if "result" in line else line)
            self._library.learn(key, outcome, (line["by"], line["n"]) if "by" in line else "everybody")


_RESOURCES = "resources/list"


class RecordingLink(WrappedLink):
    """A live link whose calls are kept. `after` is None for a stateless server."""

    def __init__(self, cassette: Cassette, link: Link, server: str, after: str | None) -> None:
        super().__init__(link)
        self._cassette, self._server, self._after = cassette, server, after
        self._learn()

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        ask = self._cassette.ask(self._server, self._learn(), self._after, tool_name, arguments)
        self._after = following(self._after, tool_name, ask.key.arguments)
        try:
            result = await self._link.call(tool_name, arguments, deadline=deadline)
        except ServerFault as fault:
            ended = not self._link.alive
            if not (ended and fault.delivered is False and ask.key.after == BEGINNING):
                self._cassette.keep(ask, RecordedOutcome(None, str(fault), fault.delivered, ended))
            # else the link was dead before its first call, and the lease tries another one
            raise
        self._cassette.keep(ask, RecordedOutcome(result))
        return result

    async def resources(self) -> list[dict[str, Any]]:
        ask = self._cassette.ask(self._server, self._learn(), self._after, _RESOURCES, {})
        try:
            answer = await self._link.resources()
        except ServerFault as fault:
            self._cassette.keep(
                ask, RecordedOutcome(None, str(fault), fault.delivered, not self._link.alive), is_call=False
            )
            raise
        self._cassette.keep(ask, RecordedOutcome(ToolResult("", answer)), is_call=False)
        return answer

    def _learn(self) -> str:
        link = self._link
        return self._cassette.learn(self._server, link.tools, link.warnings, link.server_info)


class ReplayLink:
    """A link with no server: it replays recorded outcomes, without the time that the server took."""

    def __init__(self, cassette: Cassette, listing: Listing, after: str | None) -> None:
        self.tools = listing.tools
        self.warnings = listing.warnings
        self.server_info = listing.server_info
        self.alive = True
        self._cassette, self._listing, self._after = cassette, listing, after

    async def call(self, tool_name: str, arguments: dict[str, Any], *, deadline: float | None = None) -> ToolResult:
        ask = self._cassette.ask(self._listing.server, self._listing.schema, self._after, tool_name, arguments)
        self._after = following(self._after, tool_name, ask.key.arguments)
        await checkpoint()
        return self._play(self._cassette.find(ask))

    async def resources(self) -> list[dict[str, Any]]:
        ask = self._cassette.ask(self._listing.server, self._listing.schema, self._after, _RESOURCES, {})
        await checkpoint()
        found: list[dict[str, Any]] = self._play(self._cassette.find(ask)).structured
        return found

    async def ping(self, deadline: float) -> bool:
        return self.alive

    def _play(self, outcome: RecordedOutcome) -> ToolResult:
        self.alive = self.alive and not outcome.ended
        return outcome.play()
