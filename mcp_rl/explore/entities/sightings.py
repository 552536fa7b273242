"""Records read from single results, each with a noun for the thing that it is about."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mcp_rl.explore.entities.forms.page_form import same_site
from mcp_rl.explore.entities.forms.reading import form_of, read_as, read_structured
from mcp_rl.explore.entities.forms.rows import read_rows
from mcp_rl.explore.entities.nouns import GENERIC, common, noun_in, noun_of_tool, plural, singular
from mcp_rl.explore.entities.parameters import parameters_of
from mcp_rl.explore.words import words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mcp_rl.explore.entities.caller import Answered
    from mcp_rl.explore.entities.forms.records import Record, RecordList
    from mcp_rl.toolserver.tools.listing import Tool

_TYPE = re.compile(r"(?:\w+ )?(?:type|kind)")
_NOUN = re.compile(r"[A-Za-z][a-z]{1,20}(?:[ _-][a-z]{2,20})?")
_FILES = ("file", "folder")
_NAMING = {"name", "title", "id", "path", "uri", "url", "type", "key", "size", "date", "author", "status", "message"}
_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_MOST_TEXTS = 12
"""Results of a tool by which its form is chosen."""


@dataclass(frozen=True)
class Sighting:
    """Records of one noun in one result."""

    call: int
    """Index of the answer."""
    tool: str
    noun: str
    """A singular noun; empty where neither the result nor the tool gives one."""
    records: tuple[Record, ...]
    several: bool
    """True for a listing, false for one record that is told by itself."""
    cut: bool = False
    typed: bool = False
    """True if each record said itself what it is."""
    rows: bool = False
    """True for the rows of a table on a page."""
    titled: bool = False
    """True if the result names what it is about, false if only the tool's name says it."""


@dataclass
class Reader:
    """Reads the results of a server's tools."""

    tools: Mapping[str, Tool]
    nouns: dict[str, str] = field(default_factory=dict)
    """Nouns of results by the keys of the calls, where the call itself says it: the table of a query."""
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the columns by the keys of the calls, where rows come without; none for a result to leave out."""
    forms: dict[str, str | None] = field(default_factory=dict)
    """The form of each tool's results."""

    def __post_init__(self) -> None:
        firsts = {words_of(name).split(" ")[0] for name in self.tools}
        self._prefix = firsts.pop() if len(firsts) == 1 and len(self.tools) > 1 else ""
        told = " ".join(tool.description.lower() for tool in self.tools.values())
        if self._prefix and re.search(rf"\b{re.escape(plural(singular(self._prefix)))}\b", told):
            self._prefix = ""  # the name of the things, as in `task_list`, and not of the server
        self._parameters = {name: parameters_of(tool) for name, tool in self.tools.items()}

    def learn_forms(self, answers: Sequence[Answered]) -> None:
        """Choose the form of each tool's results."""
        by_tool: dict[str, list[str]] = {}
        for answer in answers:
            if answer.tells:
                by_tool.setdefault(answer.tool, []).append(answer.text)
        self.forms = {}
        for tool, texts in by_tool.items():
            step = max(1, len(texts) // _MOST_TEXTS)
            of_addresses = any(one.is_address and one.required for one in self._parameters[tool])
            self.forms[tool] = form_of(
                texts if of_addresses else texts[::step],
                of_addresses=of_addresses,
                of_itself=not any(one.required for one in self._parameters[tool]),
            )

    def sightings(self, answers: Sequence[Answered]) -> list[Sighting]:
        """Return what each of these answers shows."""
        return [one for index, answer in enumerate(answers) if not answer.is_error for one in self._of(index, answer)]

    def lists(self, answer: Answered) -> list[RecordList]:
        """Return the records of one answer."""
        if (columns := self.columns.get(answer.key)) is not None:
            rows = read_rows(answer.text, columns)
            if rows or not columns:
                return rows
        form = self.forms.get(answer.tool)
        if form is not None:
            return read_as(form, answer.text)
        if answer.tool not in self.forms or not _has_data(answer.structured):
            return []
        return [_as_told(found, answer.text) for found in read_structured(answer.structured)]

    def _of(self, index: int, answer: Answered) -> Iterator[Sighting]:
        for found in self.lists(answer):
            override = self.nouns.get(answer.key, "")
            noun = override or self._noun(answer.tool, found)
            records = [record for record in self._led_to(answer, found.records) if record]
            typed = "" if override else _type_field(records, noun)
            by_noun: dict[str, list[Record]] = {}
            for record in records:
                own = noun
                if typed and isinstance(record.get(typed), str):
                    own = common(singular(words_of(record[typed])))
                    record = {name: value for name, value in record.items() if name != typed}
                if own in _FILES and (typed or own == noun):
                    record = self._placed(answer, record)
                by_noun.setdefault(own, []).append(record)
            for own, kept in (by_noun or {noun: []}).items():
                yield Sighting(
                    index, answer.tool, own, tuple(kept), found.several, found.cut, bool(typed or override), found.rows,
                    titled=bool(found.name) and noun_in(found.name) == own,
                )  # fmt: skip

    def _noun(self, tool: str, found: RecordList) -> str:
        noun = noun_in(found.name) if found.name else ""
        if noun and (noun not in GENERIC or self.forms.get(tool) == "page"):
            return noun
        first = next(iter(found.records[0]), "") if found.records and found.several else ""
        if self.forms.get(tool) == "pairs" and first and words_of(first) not in _NAMING | GENERIC:
            return common(singular(words_of(first)))
        of_tool = noun_of_tool(tool, self._prefix)
        return of_tool if of_tool and (of_tool not in GENERIC or not noun) else noun

    def _led_to(self, answer: Answered, records: Sequence[Record]) -> Iterator[Record]:
        """Yield the records of a page with the whole addresses of the pages that they lead to, without other sites'."""
        base = next(
            (
                value
                for one in self._parameters[answer.tool]
                if one.is_address and isinstance(value := answer.arguments.get(one.name), str)
            ),
            None,
        )
        for record in records:
            if base is None or not isinstance(record.get("url"), str):
                yield record
                continue
            if (address := same_site(base, record["url"])) is not None:
                yield {**record, "url": address}

    def _placed(self, answer: Answered, record: Record) -> Record:
        """Return the record of a file with its whole path, if the call names the folder that it is in."""
        place = next(
            (
                value
                for one in self._parameters[answer.tool]
                if one.is_folder and isinstance(value := answer.arguments.get(one.name), str)
            ),
            None,
        )
        path, name = record.get("path"), record.get("name")
        if place is None or not isinstance(path if path is not None else name, str):
            return record
        inside = str(path if path is not None else name)
        if inside.startswith("/") or re.match(r"[A-Za-z]:\\|\w+://", inside):
            return record
        return {"path": posixpath.join(place, inside), **{key: v for key, v in record.items() if key != "path"}}


def _type_field(records: Sequence[Record], noun: str) -> str:
    """Return the field that says what things these are, where the noun does not say it; empty if there is none."""
    fields = [name for name in (records[0] if records else {}) if _TYPE.fullmatch(words_of(name))]
    for name in fields:
        values = [record.get(name) for record in records]
        nouns = [value for value in values if isinstance(value, str) and _NOUN.fullmatch(value)]
        if len(nouns) == len(values) and (
            noun in GENERIC or not noun or {common(singular(words_of(one))) for one in nouns} <= set(_FILES)
        ):
            return name
    return ""


def _has_data(structured: Any) -> bool:
    """Return whether structured content is more than the text, or the blocks, of the result once again."""
    if not isinstance(structured, dict) or set(structured) - {"content", "result", "text"}:
        return structured is not None
    inner = [one for value in structured.values() for one in (value if isinstance(value, list) else [value])]
    return not all(isinstance(one, str) or (isinstance(one, dict) and one.get("type") in _BLOCKS) for one in inner)


def _as_told(found: RecordList, text: str) -> RecordList:
    """Return the records of structured content, with the values that the text shows too: models read the text."""
    kept = tuple({name: value for name, value in record.items() if _shown(value, text)} for record in found.records)
    return type(found)(tuple(record for record in kept if record), found.name, found.several, found.cut)


def _shown(value: Any, text: str) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_shown(entry, text) for entry in value)
    return (value if isinstance(value, str) else json.dumps(value)) in text
