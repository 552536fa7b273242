"""A cassette that is being recorded, or played back."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mcp_rl.errors import CassetteError, CassetteMiss, UserError
from mcp_rl.scenario import ServerParams
from mcp_rl.toolserver.cassette.check import not_recorded
from mcp_rl.toolserver.cassette.library import BEGINNING, NO_JSON, Ask, Key, Library, Listing, Outcome, canonical
from mcp_rl.toolserver.cassette.links import Player, Recorder
from mcp_rl.toolserver.cassette.redaction import Redaction
from mcp_rl.toolserver.cassette.tape import Tape, read_tape
from mcp_rl.toolserver.link import Link
from mcp_rl.toolserver.listing import Tool
from mcp_rl.toolserver.schema import ToolSchemas

_LARGE = 600
"""Characters. Such a result is written once, however many calls it answers."""
_SHOWN = 120
"""Characters of a call's arguments that an error shows."""


class Cassette:
    """`with Cassette.recording(path) as cassette` or `with Cassette.replaying(path) as cassette`.

    What is kept, under what, and what is left out is in docs/cassettes.md. No secret is written: neither the values of
    environment variables with names like a secret's, nor of the headers and the environment that servers are given.
    """

    def __init__(self, path: Path, tape: Tape | None) -> None:
        self.path = path
        self._tape = tape
        self._library = Library()
        self._redaction = Redaction()
        self._seen: dict[str, Listing] = {}
        self._large: set[str] = set()
        self._load(tape.lines if tape is not None else list(read_tape(path)))

    @classmethod
    def recording(cls, path: str | Path) -> Self:
        """A cassette that goes on where the file ends; a new one where there is none. It is whole up to its last call
        whenever the process dies. Raises UserError for a file that cannot be written or that is no cassette."""
        return cls(Path(path), Tape(Path(path)))

    @classmethod
    def replaying(cls, path: str | Path) -> Self:
        """A cassette that answers every call. Raises UserError for a file that cannot be read or that is none."""
        return cls(Path(path), None)

    @property
    def replays(self) -> bool:
        """Whether calls are answered from the file, with no server at all."""
        return self._tape is None

    def record(self, link: Link, server: str, *, stateful: bool, params: ServerParams | None = None) -> Link:
        """The link, with every call and its outcome kept. Where the server has a state, make one for each episode: what
        calls mean depends on the calls before them.

        Raises CassetteError where the server lists other tools than in the file.
        """
        self._redaction.cover(params)
        return Recorder(self, link, server, BEGINNING if stateful else None)

    def player(self, server: str, *, stateful: bool, params: ServerParams | None = None) -> Link:
        """A link with no server. Raises UserError where the file has none of this name.

        Its calls raise CassetteMiss where they were not recorded, ServerFault where they failed.
        """
        self._redaction.cover(params)
        if server not in self._library.listings:
            raise UserError(not_recorded(self.path, server, set(self._library.listings)))
        return Player(self, self._library.listings[server], BEGINNING if stateful else None)

    def close(self) -> None:
        """Force what was recorded to the disk; nothing can be recorded after that."""
        if self._tape is not None:
            self._tape.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what links do

    def ask(self, server: str, schema: str, after: str | None, what: str, arguments: Mapping[str, Any]) -> Ask:
        """Begin a call."""
        text = canonical(arguments)
        if text != NO_JSON and (redacted := self._redaction.value(arguments)) is not arguments:
            text = canonical(redacted)
        return self._library.ask(Key(server, schema, after, what, text))

    def learn(self, server: str, tools: list[Tool], warnings: list[str], info: dict[str, str]) -> str:
        """Keep a server's listing; the hash of its schemas."""
        seen = self._seen.get(server)
        if seen is not None and seen.tools == tools:
            return seen.schema
        schema = ToolSchemas(tools).hash
        said = {"warnings": warnings, "info": info}
        listing = Listing(server, schema, tools, warnings, info)
        first = self._library.listings.get(server)
        if first is None or (seen is not None and seen.schema != schema):
            fields: dict[str, Any] = self._redaction.value(listing.to_json() | said)
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

    def keep(self, ask: Ask, outcome: Outcome, *, is_call: bool = True) -> None:
        """Write what became of a call, unless the file says so already."""
        fields = self._redaction.value(outcome.to_json())
        outcome = Outcome.from_json(fields | {"seconds": outcome.result.seconds if outcome.result else 0.0})
        owner = self._library.keep(ask, outcome)
        if owner is None:
            return
        key = ask.key
        line: dict[str, Any] = {"call" if is_call else "ask": key.what, "server": key.server}
        line["arguments"] = None if key.arguments == NO_JSON else json.loads(key.arguments)
        if key.after is not None:
            line["after"] = key.after
        if key.schema != self._library.listings[key.server].schema:
            line["schema"] = key.schema
        if owner != "everybody":
            line["by"], line["n"] = owner
        if outcome.result is not None:
            line["seconds"] = round(outcome.result.seconds, 4)
        self._write(line | self._once(fields))

    def find(self, ask: Ask) -> Outcome:
        """What became of a call. Raises CassetteMiss."""
        outcome = self._library.find(ask)
        if outcome is None:
            raise CassetteMiss(self._miss(ask))
        return outcome

    def _miss(self, ask: Ask) -> str:
        key = ask.key
        arguments = key.arguments if len(key.arguments) <= _SHOWN else f"{key.arguments[:_SHOWN]}…"
        elsewhere, fault = self._library.others(key)
        call = f"the call {key.what}({arguments}) of the server {key.server}"
        problem = f"does not hold {call}"
        if fault is not None:
            problem = f"holds no result of {call}, which failed when it was recorded ({fault.rstrip('.')})"
        elif elsewhere:
            problem = f"holds {call} only after other calls than those before it here"
        return (
            f"The cassette {self.path} {problem}: replay the job as it was recorded (same settings, seed and model), "
            f"or run it with its servers and --record {self.path}, which adds what is missing."
        )

    # -- the file

    def _once(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A large result by its digest, after a line that holds it."""
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
                    f"{self.path}, line {number}: it is no line of a cassette; record the job again."
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
            outcome = Outcome.from_json(large[line["result"]] | line if "result" in line else line)
            self._library.learn(key, outcome, (line["by"], line["n"]) if "by" in line else "everybody")
