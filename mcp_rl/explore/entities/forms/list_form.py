"""Records in lists of lines: bullets and numbers, "[FILE] a.txt", paths, branches, links to resources."""

from __future__ import annotations

import posixpath
import re

from mcp_rl.explore.entities.forms.pair_form import pair_in, put
from mcp_rl.explore.entities.forms.records import (
    LONGEST_VALUE,
    MOST_RECORDS,
    Record,
    RecordList,
    limited,
    value_of,
    whole_lines,
)

_BULLET = re.compile(r"(?:[-*•+]|\d{1,5}[.)]) +(\S.*)")
_LABELLED = re.compile(r"\[([A-Z]{2,12})\] +(\S.*)")
_BOX = re.compile(r"\[([ xX✓])\] +(.*)")
_LINK = re.compile(r"\[link: ([^\s,]{1,500})(?:, ([^\]]{1,500}))?\]")
_BRANCH = re.compile(r"([* ]) (\S{1,200})")
_BRACKETED = re.compile(r"(.{1,300}?) ?\(([^()]{1,300})\)")
_SIZED = re.compile(r"(\S.{0,250}?) {2,}(\d[\d.,]{0,14} ?[kKMGT]?i?B)")
_NUMBERED = re.compile(r"(?:\[|#|\bid ?[:=]? ?)(\d{1,12})\]?:? +(.+)", re.IGNORECASE)
_TAILED = re.compile(r"\*{0,2}((?:[^:*()\n]|\([^()\n]{0,80}\)){1,80}?)\*{0,2}(?:: | [-\u2013\u2014] )\*{0,2}(.+)")
_PATH = re.compile(r"(?:/|\./|[A-Za-z]:\\)?[\w.@+ -]{1,120}(?:[/\\][\w.@+ -]{1,120}){0,40}/?")
_MARKED = re.compile(r"([a-z]{2,12}(?: [a-z]{2,12})?): +(\S.*)")
"""A path with what became of it: "new file:   a.txt"."""
_CHAPTER = re.compile(r"#{1,6} ")
_WORDS_IN_SENTENCE = 5
_BOLD = re.compile(r"([^*]{1,120})\*\*(?: ?\([^()]{0,40}\))?[ :\u2013\u2014-]{0,4}(.{0,1000})")
"""The entry "**Protect** (+4): Normal, 0 power" without its first two stars."""
_LEAST_SHARE = 0.6
_LONGEST_LINE = 2_000


def read_list(text: str) -> list[RecordList]:
    """Return the records of a result that lists things on lines of their own."""
    lines, cut = whole_lines(text)
    return _branches(lines, cut) or _items(lines, cut) or _links(lines, cut) or _paths(lines, cut)


def _items(lines: list[str], cut: bool) -> list[RecordList]:
    records: list[Record] = []
    title, whole, own, others = "", "", 0, 0
    for line in lines:
        stripped = line.strip()
        if not stripped or len(stripped) > _LONGEST_LINE:
            continue
        found = _LABELLED.fullmatch(stripped) or _BULLET.fullmatch(stripped)
        indented = line[:1] in " \t"
        if found is not None and not (indented and records and pair_in(stripped) is not None):
            own += 1
            if len(records) <= MOST_RECORDS:
                records.append(_item(found))
        elif records and indented and (pair := pair_in(stripped)) is not None:
            put(records[-1], *pair)
        elif not records and len(stripped) <= 80:
            pair = pair_in(stripped)  # "Filter: speed" is no title
            title = stripped.strip("#*: ") if pair is None or not pair[1] else title
            whole = whole or title
        else:
            others += not indented
            title = whole if stripped.startswith("#") else title  # a heading within names no more than a part
    if not own or own < _LEAST_SHARE * (own + others) or not all(records) or _is_document(lines, records):
        return []
    labelled = any("type" in record for record in records)
    return [limited(records, title, cut=cut)] if own > 1 or labelled or title else []


def _is_document(lines: list[str], records: list[Record]) -> bool:
    """Return whether a text has chapters whose lists hold sentences, as instructions do."""
    chapters = sum(_CHAPTER.match(line) is not None for line in lines)
    said = [" ".join(map(str, one.values())) for one in records if one.keys() <= {"name", "description", "done"}]
    words = sum(len(text.split()) for text in said)
    return chapters > 1 and len(said) > len(records) / 2 and words >= _WORDS_IN_SENTENCE * len(said)


def _item(found: re.Match[str]) -> Record:
    if found.re is _LABELLED:
        return {"type": found[1].lower(), **described(found[2])}
    text = found[1]
    if box := _BOX.fullmatch(text):
        return {**described(box[2]), "done": box[1] != " "}
    return described(text)


def described(text: str) -> Record:
    """Return the record of an entry: its name, and what stands beside it."""
    record = _entry(text)
    if isinstance(name := record.get("name"), str) and (bold := _BOLD.fullmatch(name)):
        record["name"] = bold[1].strip()
        if bold[2]:
            record.setdefault("description", bold[2])
    return record


def _entry(text: str) -> Record:
    record: Record = {}
    if (found := _SIZED.fullmatch(text)) is not None:
        return {"name": found[1], "size": found[2]}
    if (found := _NUMBERED.fullmatch(text)) is not None:
        record["id"], text = int(found[1]), found[2]
    if (found := _BRACKETED.fullmatch(text)) is not None and _put_pairs(record, found[2].split(", ")):
        text = found[1]
    parts = re.split(r" \| |; |, (?=[A-Za-z][\w ]{0,20}: )", text)
    if len(parts) > 1 and _put_pairs(record, parts[1:]):
        first = pair_in(parts[0])
        if first is not None:
            put(record, *first)
        else:
            record.setdefault("name", parts[0].strip("*` "))
        return record
    if (found := _TAILED.fullmatch(text)) is not None and "://" not in found[1]:
        value = value_of(found[2])
        if value is not None:
            name = found[1].strip("*` ")
            if (aside := _BRACKETED.fullmatch(name)) is not None and _put_pairs(record, aside[2].split(", ")):
                name = aside[1].strip("*` ")
            return record | {"name": name, "description" if isinstance(value, str) else "value": value}
    return record | ({"name": text.strip("*` ")} if len(text) <= LONGEST_VALUE else {})


def _put_pairs(record: Record, parts: list[str]) -> bool:
    """Put the pairs into a record if all of these are pairs, and return whether they are."""
    pairs = [pair for part in parts if (pair := pair_in(part)) is not None]
    if len(pairs) < len(parts):
        return False
    for name, value in pairs:
        put(record, name, value)
    return True


def _links(lines: list[str], cut: bool) -> list[RecordList]:
    found = [match for line in lines if (match := _LINK.fullmatch(line.strip())) is not None]
    records: list[Record] = []
    for match in found:
        record: Record = {"uri": match[1]}
        name, _, description = (match[2] or "").partition(" - ")
        record |= ({"name": name} if name else {}) | ({"description": description} if description else {})
        records.append(record)
    return [limited(records, "resources", cut=cut)] if records else []


def _branches(lines: list[str], cut: bool) -> list[RecordList]:
    filled = [line for line in lines if line.strip()]
    found = [_BRANCH.fullmatch(line) for line in filled]
    if not found or not all(found) or sum(match is not None and match[1] == "*" for match in found) > 1:
        return []
    return [limited([{"name": m[2], "current": m[1] == "*"} for m in found if m is not None], cut=cut)]


def _paths(lines: list[str], cut: bool) -> list[RecordList]:
    filled = [line.strip() for line in lines if line.strip()]
    title = ""
    if len(filled) > 1 and filled[0].endswith(":"):
        title, filled = filled[0].rstrip(":"), filled[1:]
    if not filled or not all(_PATH.fullmatch(line) and is_path(line) for line in filled[:MOST_RECORDS]):
        return []
    if len(filled) == 1 and not title and not filled[0].startswith("/"):
        return []
    return [limited([{"path": line.rstrip("/"), "name": posixpath.basename(line.rstrip("/"))} for line in filled],
                    title, cut=cut)]  # fmt: skip


def read_sections(text: str) -> list[RecordList]:
    """Return the paths that stand indented under headings: "Untracked files:", each with its heading and its mark."""
    lines, cut = whole_lines(text)
    records: list[Record] = []
    heading = ""
    for line in lines:
        stripped = line.strip()
        indented = line[:1] in " \t"
        if not indented:
            heading = stripped.rstrip(":") if stripped.endswith(":") and len(stripped) <= 80 else ""
        elif heading and stripped and not (stripped[0] == "(" and stripped[-1] == ")"):
            found = _MARKED.fullmatch(stripped)
            path = found[2] if found else stripped
            if not _PATH.fullmatch(path) or not is_path(path):
                return []
            records.append({"path": path, "heading": heading, **({"mark": found[1]} if found else {})})
    told = any("mark" in record for record in records) or len({record["heading"] for record in records}) > 1
    return [limited(records, "files", cut=cut)] if told else []


def is_path(line: str) -> bool:
    return "/" in line or "\\" in line or re.fullmatch(r"[\w-]+(?:\.[A-Za-z]\w{0,4}){1,2}", line) is not None
