"""Values seen in earlier results, and the success of each source of values for each parameter.

A filesystem server accepts only paths that exist, a database only ids that it has issued. Schemas do not say so;
therefore string parameters draw from several sources (quoted examples, words, observed paths, values under the same
key …), and a source is drawn more often the more often it has worked for the parameter.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.complaint import without_echo
from mcp_rl.explore.entities.forms.page_form import addresses_in, same_site
from mcp_rl.explore.entities.forms.reading import text_inside
from mcp_rl.explore.entities.forms.shown import is_id, shown_values
from mcp_rl.explore.hints import NUMBERS, Bounds, bounds, needed_names, offered, statement_kind, wants_number
from mcp_rl.explore.plausible import named_endings
from mcp_rl.explore.words import words_of
from mcp_rl.rewards.dates import is_dated

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

_PATH = re.compile(r"(?<![\w/.:])(?:/[\w.@+-]+)+/?")
_URI = re.compile(r"\b[a-z][a-z0-9+.-]{0,20}://[^\s\"'<>)\]}\\]+", re.IGNORECASE)
_LISTED = re.compile(r"^[ \t]*(?:\[\w+\]|[-*•]|\d+[.)])\s+([^\s].{0,80}?)(?:\s{2,}.*)?$", re.MULTILINE)
_FILE_NAME = re.compile(r"(?<![\w/.-])[\w-]+\.[A-Za-z]\w{0,4}(?![\w/.-])")
_HANDLE = re.compile(r"[A-Za-z][\w.:#-]{0,60}\d[\w.:#-]{0,60}")
_LONGEST_NAME = 80
_MOST = 300
"""Most values kept of each kind."""
_LEAST_WORD = 3
"""Characters of a word that tells what a value is; shorter ones stand in every sentence."""
_DESCRIBED = 300
"""Characters of a description whose words are looked for."""
_STOP_WORDS = frozenset(["all", "and", "any", "are", "for", "from", "its", "not", "that", "the", "this", "with"])
_ASKS_FOR_ID = re.compile(
    r"\b(?:id|ids|identifier|hash|sha|ref|reference|revision|commit|uuid|guid|handle|key|target|version)\b"
)
_ID_SCORE = 0.5
"""Score of an id, for a parameter that asks for one; a word that the parameter and the value share is worth up to 2."""
GIVEN, LEFT_OUT = "given", "left out"
"""The two choices for an optional parameter. They earn credit from calls that work, as sources of values do."""
_MOST_MENDED = 8
"""Most refused calls of a tool that wait to be tried with another value."""
_FIRST_VALUES = 2
"""Values of a parameter that are kept to find out if it takes only one."""
_CONSTANT_TOOLS, _CONSTANT_FAILURES = 3, 16
"""Tools that worked with one value of a parameter, and other values that failed, after which it may be the only one."""


def handle_nouns(tool: str, text: str) -> list[str]:
    """Return what a result of one word may be the handle of: "basket" for the "b-17" of `create_basket`."""
    return words_of(tool).split(" ")[1:] if tool and _HANDLE.fullmatch(text) else []


class ValuePool:
    """Observed strings by kind: `path:file`, `path:folder`, `uri`, `listed`, and `key:<name>` for JSON leaves."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, None]] = {}
        self._worked: dict[tuple[str, str], tuple[int, int]] = {}
        self._offered: dict[str, list[str]] = {}
        self._elsewhere: dict[str, list[str]] = {}
        self._bounds: dict[str, Bounds] = {}
        self._endings: dict[str, tuple[str, ...]] = {}
        """The endings of files that a parameter takes, as errors said, by the parameter's words."""
        self._statements: dict[str, str] = {}
        """The kind of SQL that a tool takes, as its errors said."""
        self._needed: dict[str, set[str]] = {}
        """Words that errors of a tool named as parameters that must be given."""
        self._mended: dict[str, list[dict[str, Any]]] = {}
        """Arguments of refused calls by tool, with a value that the error offers in place of the one that it blames."""
        self._good: dict[str, dict[str, set[str]]] = {}
        """The tools that worked with a value, by parameter and value."""
        self._bad: dict[str, set[str]] = {}
        """Values of parameters with which calls failed."""
        self._shown: dict[str, set[str]] = {}
        """Values in results in words, with the words about each."""
        self._asked: dict[tuple[str, str], dict[str, float]] = {}
        """The scores of shown values by parameter and description, until another value is shown."""
        self._turn = 0

    def __getitem__(self, kind: str) -> list[str]:
        return list(self._values.get(kind, ()))

    @property
    def kinds(self) -> list[str]:
        return list(self._values)

    def observe(self, arguments: dict[str, Any], text: str, *, tool: str = "") -> None:
        """Learn from the result of a successful call. A result of one word may be the handle of what `tool` made."""
        for value in arguments.values():
            if isinstance(value, str):
                self._scan(value)
                if _URI.fullmatch(value):
                    for address in addresses_in(text, value):
                        self._keep("uri", address)
        self._scan(text)
        for noun in handle_nouns(tool, text):
            self._keep(f"key:{noun}", text)
        try:
            self._leaves("", json.loads(text))
        except (ValueError, RecursionError):
            self._listing(arguments, text)
            self._observe_shown(tool, text)
        else:
            if text_inside(text) is not text:
                self._observe_shown(tool, text)

    def observe_resources(self, resources: Sequence[Mapping[str, Any]]) -> None:
        """Learn the addresses and names of the resources that a server lists."""
        for entry in resources:
            self._keep("uri", str(entry["uri"]))
            if isinstance(name := entry.get("name"), str) and 0 < len(name) <= _LONGEST_NAME:
                self._keep("key:name", name)

    def observe_path(self, path: str) -> None:
        """Learn a path that exists."""
        self._keep_path(path)

    def observe_start(self, place: str) -> None:
        """Learn an address or a path where exploring begins."""
        if _URI.fullmatch(place):
            self._keep("start", place)
            self._keep("uri", place)
        else:
            self._keep_path(place)

    @property
    def pages(self) -> list[str]:
        """The addresses seen on the sites where exploring begins: others are not the user's."""
        starts = self._values.get("start", {})
        return [uri for uri in self._values.get("uri", ()) if any(same_site(start, uri) for start in starts)] or [
            *starts
        ]

    def observe_known(self, name: str) -> None:
        """Learn a name that was given to the server."""
        self._keep("known", name)

    def observe_worked(self, parameter: str, value: str) -> None:
        """Learn the value of an argument of a call that worked."""
        if 0 < len(value) <= _LONGEST_NAME:
            self._keep(f"worked:{parameter}", value)

    def observe_attempt(self, tool: str, arguments: Mapping[str, Any], worked: bool) -> None:
        """Learn which values of the parameters calls worked with, and which not, to find those that take only one."""
        for name, value in arguments.items():
            if isinstance(value, str):
                good = self._good.setdefault(words_of(name), {})
                if worked and (value in good or len(good) < _FIRST_VALUES):
                    good.setdefault(value, set()).add(tool)
                elif not worked and len(bad := self._bad.setdefault(words_of(name), set())) < _MOST:
                    bad.add(value)

    def constant(self, parameter: str) -> str | None:
        """Return the only value that a parameter takes, as far as calls of several tools showed it, or None."""
        good = self._good.get(parameter, {})
        if len(good) != 1:
            return None
        value, tools = next(iter(good.items()))
        failed = self._bad.get(parameter, set()) - {value}
        return value if len(tools) >= _CONSTANT_TOOLS and len(failed) >= _CONSTANT_FAILURES else None

    def observe_table(self, table: str, columns: Sequence[str]) -> None:
        """Learn a table that the server has, and its columns."""
        self._keep("tables", f"{table}:{','.join(columns)}")

    @property
    def shown(self) -> list[str]:
        """The values in results in words."""
        return list(self._shown)

    def asked(self, parameter: str, description: str) -> dict[str, float]:
        """Return the shown values that a parameter seems to ask for, with their scores.

        The words of its name and description are compared with those about each value: rare words tell more.
        """
        key = parameter, description[:_DESCRIBED]
        if key not in self._asked:
            named, described = _words(parameter), _words(key[1])
            wants_id = _ASKS_FOR_ID.search(" ".join((parameter, words_of(key[1])))) is not None
            counts = Counter(word for about in self._shown.values() for word in about)
            self._asked[key] = {
                value: score
                for value, about in self._shown.items()
                if (
                    score := sum(
                        (2 if word in named else 1) / math.log2(1 + counts[word])
                        for word in sorted(about & (named | described))
                    )
                    + _ID_SCORE * (wants_id and is_id(value))
                )
            }
        return self._asked[key]

    def observe_error(self, tool: str, arguments: dict[str, Any], text: str) -> None:
        """Learn from the error of a call which values would be accepted."""
        self._scan(without_echo(text, arguments))
        self._needed.setdefault(tool, set()).update(name for name in needed_names(text) if name not in arguments)
        if kind := statement_kind(text):
            self._statements[tool] = kind
        blamed = [
            name
            for name, value in arguments.items()
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) or (str(value).strip() and str(value) in text)
        ]
        endings, numeric = named_endings(without_echo(text, arguments)), wants_number(text)
        for name in blamed or (list(arguments) if numeric or len(arguments) == 1 else []):
            slot, value = f"{tool}.{name}", arguments[name]
            if isinstance(value, str):
                if endings:
                    self._endings[words_of(name)] = endings
                values = [one for one in offered(text) if one not in (value, name)]
                known = self._offered.get(slot, [])
                if numeric and not re.search(r"\d", "".join(values)):
                    values = NUMBERS
                    self._offered[slot] = known or values  # a parameter of its name elsewhere may be any text
                elif len(values) > len(known) or (values and known is NUMBERS):
                    self._offered[slot] = self._elsewhere[words_of(name)] = values
                if values and len(blamed) == 1:
                    self._mend(tool, arguments, name, values)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found = bounds(text)
                if found and not found.low <= value <= found.high:  # else the range is about something else
                    self._bounds[slot] = found.within(self._bounds.get(slot, Bounds()))

    def _mend(self, tool: str, arguments: dict[str, Any], name: str, values: Sequence[str]) -> None:
        waiting = self._mended.setdefault(tool, [])
        if len(waiting) < _MOST_MENDED:
            self._turn += 1
            waiting.append({**arguments, name: values[self._turn % len(values)]})

    def mended(self, tool: str) -> dict[str, Any] | None:
        """Return the arguments of a refused call with a value that its error offered, each once; None if none wait.

        Two parameters may have to agree, such as the units of a conversion: then each error leads one step further.
        """
        waiting = self._mended.get(tool)
        return waiting.pop(0) if waiting else None

    def offered(self, slot: str) -> list[str]:
        """Return the values that errors offered for a parameter, or else for one of its name of another tool."""
        name = slot.rpartition(".")[2].removesuffix("[]")
        return self._offered.get(slot) or self._elsewhere.get(words_of(name), [])

    def endings(self, parameter: str) -> tuple[str, ...]:
        """Return the endings of files that a parameter (in words) takes, as far as errors named them."""
        return self._endings.get(parameter, ())

    def needs(self, tool: str, parameter: str) -> bool:
        """Return whether an error of a tool said that an optional parameter must be given."""
        return parameter in self._needed.get(tool, ())

    def statement_kind(self, tool: str) -> str | None:
        """Return the kind of SQL that a tool takes, as far as errors named it."""
        return self._statements.get(tool)

    def bounds(self, slot: str) -> Bounds:
        """Return the range of a numeric parameter, as far as errors named it."""
        return self._bounds.get(slot, Bounds())

    def _observe_shown(self, tool: str, text: str) -> None:
        if len(self._shown) >= _MOST:
            return
        for value, about in shown_values(text):
            if is_dated(value) or value.isdigit():
                continue
            words = self._shown.setdefault(value, set())
            before = len(words)
            words |= _words(f"{words_of(tool)} {about}")
            if len(words) > before:
                self._asked.clear()

    def _scan(self, text: str) -> None:
        for uri in _URI.findall(text):
            self._keep("uri", uri.rstrip(".,;:"))
        for path in _PATH.findall(_URI.sub(" ", text)):
            self._keep_path(path)

    def _listing(self, arguments: dict[str, Any], text: str) -> None:
        names = [*_LISTED.findall(text), *_FILE_NAME.findall(text)]
        folders = [value for value in arguments.values() if isinstance(value, str) and _PATH.fullmatch(value)]
        for name in names:
            self._keep("listed", name)
            if len(folders) == 1 and "/" not in name:
                self._keep_path(posixpath.join(folders[0], name))

    def _leaves(self, key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                self._leaves(name, inner)
        elif isinstance(value, list):
            for inner in value:
                self._leaves(key, inner)
        elif isinstance(value, str) and 0 < len(value) <= 80:
            self._keep(f"key:{key.lower()}", value)

    def _keep_path(self, path: str) -> None:
        if len(path) > 1:
            self._keep("path:file" if "." in posixpath.basename(path) else "path:folder", path.rstrip("/"))

    def _keep(self, kind: str, value: str) -> None:
        if len(self._values.get(kind, ())) < _MOST and not is_dated(value):
            self._values.setdefault(kind, {})[value] = None

    def choose(self, slot: str, sources: dict[str, float], random: random.Random) -> str:
        """Choose one of `sources` (name to prior weight) for a parameter, by how often each has worked there."""

        def weight(source: str) -> float:
            worked, tried = self._worked.get((slot, source), (0, 0))
            return sources[source] * ((worked + 1) / (tried + 2)) ** 2

        return random.choices(list(sources), [weight(source) for source in sources])[0]

    def credit(self, choices: list[tuple[str, str]], worked: bool) -> None:
        """Record whether a call with these (slot, source) choices succeeded."""
        for choice in choices:
            good, tried = self._worked.get(choice, (0, 0))
            self._worked[choice] = good + worked, tried + 1

    def odds(self, slot: str) -> float:
        """Return how much rarer calls with an optional parameter work than those without it, from 0 to 1."""
        given, without = (self._worked.get((slot, choice), (0, 0)) for choice in (GIVEN, LEFT_OUT))
        return min(1.0, (given[0] + 1) / (given[1] + 2) * (without[1] + 2) / (without[0] + 1))

    def was_tried(self, slot: str, source: str) -> bool:
        """Return whether a call with this source in this slot was made."""
        return (slot, source) in self._worked

    def success_rate(self, slot: str, source: str) -> float:
        """Return the share of successful calls with this source in this slot; 0 where it was never tried."""
        worked, tried = self._worked.get((slot, source), (0, 0))
        return worked / tried if tried else 0.0


def _words(text: str) -> set[str]:
    """Return the words of a text that may tell what a value is, in the singular."""
    found = {word.removesuffix("s") for word in words_of(text).split(" ") if len(word) >= _LEAST_WORD}
    return found - _STOP_WORDS
