"""Records in an outline: a list below each heading, and pairs that stand under none.

An outline tells of the whole server: a line for each thing below "Categories:", and "Default budget: $100,000" beside
that. Only short values count: a sentence with a colon in it states nothing that could be asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mcp_rl.explore.entities.forms.amounts import amounts_in, put_amount
from mcp_rl.explore.entities.forms.list_form import described
from mcp_rl.explore.entities.forms.pair_form import pair_in
from mcp_rl.explore.entities.forms.records import LONGEST_NAME, Record, RecordList, limited, whole_lines, without_code
from mcp_rl.explore.entities.nouns import is_plural, singular

_MARKDOWN = re.compile(r"(#{1,6}) +(\S.{0,79}?)[ #]*")
_BOLD = re.compile(r"\*\*([^*:]{1,60}):?\*\*:?")
_ABOVE = re.compile(r"([^:]{1,60}):")
"""A heading that ends in a colon, with its list below it."""
_RULE = re.compile(r"[-=_*~\u2500\u2501\u2550]{3,200}")
_ITEM = re.compile(r"(?:[-*+\u2022\u00b7\u25aa\u25e6]|\d{1,4}[.)]) +(\S.*)")
_SIGN = re.compile(r"^[\u2190-\u2bff\ufe0f\u200d\U0001f000-\U0001faff]{1,8} *")
"""A picture before a heading or a name."""
_ASIDE = re.compile(r" *\([^()]{0,40}\)$")
_COUNT = re.compile(r"(\S.{0,100}?) \((\d{1,9})(?: ([a-z]{2,20}))?\)")
"""A name with a number in brackets behind it."""
_HEADING = re.compile(r"[A-Za-z][A-Za-z&' -]{1,50}")
_NAME = re.compile(r"[A-Za-z][\w /()&'-]{0,40}")
_LABELLED = re.compile(r"([^\W\d_][\w ]{0,40}?): (\S.{0,80})")
"""A name, in any script, with a value beside it."""
_REMARKS = frozenset(
    "note notes tip tips hint hints warning warnings error errors example examples usage important remember see next "  # noqa: SIM905
    "todo info message caution reason question answer summary description help where use try".split()
)
"""Words before a colon that begin a remark, and name no value."""
_OF_ITSELF = frozenset(
    "stat statistic setting option detail property total count metric limit default parameter preference figure".split()  # noqa: SIM905
)
"""Nouns of headings whose pairs describe one thing, and are no list of things."""
_MOST_WORDS, _LONGEST = 8, 80
"""Limits of a value that is no sentence."""
_MOST_NAMED = 6
"""Most words of the name of an entry."""
_FEWEST_ITEMS = 2
_LEAST_SHARE = 0.7
"""Least share of the lines that belong to the outline."""
_LONGEST_LINE, _MOST_LINES = 400, 200


@dataclass
class _Section:
    heading: str
    lasts: bool
    """True for one that only the next heading ends, false for one that ends with its list."""
    items: list[str] = field(default_factory=list)
    details: list[list[tuple[str, str]]] = field(default_factory=list)
    """The pairs below each item."""
    indent: int = -1
    bulleted: bool = False


@dataclass
class _Outline:
    title: str = ""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    sections: list[_Section] = field(default_factory=list)
    other: int = 0
    """Lines that are neither."""
    read: int = 0


def is_outline(text: str) -> bool:
    """Return whether a text is an outline: a list under a plural, beside other lists or pairs, and little else."""
    outline = _parsed(whole_lines(text)[0])
    lists = [section for section in outline.sections if _records(section)]
    several = len(outline.sections) > 1 or bool(outline.pairs)
    return bool(lists) and several and outline.read >= _LEAST_SHARE * (outline.read + outline.other)


def read_outline(text: str) -> list[RecordList]:
    """Return the record of what stands under no heading, and the records of each list that stands under a plural.

    Pairs under a singular are one record of that name.
    """
    lines, cut = whole_lines(text)
    outline = _parsed(lines)
    lists = [(section.heading, records) for section in outline.sections if (records := _records(section))]
    singles = [(outline.title, [*outline.pairs, *_own_pairs(outline)])]
    if not _is_sorted(outline):
        singles += [(one.heading, _pairs(one)) for one in outline.sections if _is_singular(one.heading)]
    told = [(name, record) for name, pairs in singles if (record := _record(pairs))]
    return [
        *(limited([record], name, several=False, cut=cut) for name, record in told),
        *(limited(records, heading, cut=cut) for heading, records in lists),
    ]


def labelled(text: str) -> list[tuple[str, str, str]]:
    """Return the heading, the name and the value of each pair in a text that is made of little else than pairs.

    They stand on lines of their own, in lists under headings, or beside each other: "words: 7 | lines: 1".
    """
    if beside := pairs_beside(text):
        return [("", name, value) for name, value in beside]
    if text.count("\n") > _MOST_LINES:
        return []
    outline = _parsed(whole_lines(text)[0])
    found = [("", name, value) for name, value in outline.pairs]
    for section in outline.sections:
        found += [(section.heading, *pair) for pair in _pairs(section)]
    share = outline.read >= _LEAST_SHARE * (outline.read + outline.other)
    return found if share and len(found) >= _FEWEST_ITEMS else []


def pairs_beside(text: str) -> list[tuple[str, str]]:
    """Return the pairs of a single line that holds several: "Cohorts: 12, retention: 60.7%"; none of any other text."""
    line = _SIGN.sub("", text.strip(), count=1)
    if "\n" in line or len(line) > _LONGEST_LINE:
        return []
    for parts in (re.split(r" ?[|\u00b7] ?", line), re.split(r"[,;] (?=[^\W\d_][\w ]{0,40}: )", line)):
        found = [_LABELLED.fullmatch(part.strip()) for part in parts]
        pairs = [(one[1], one[2].strip()) for one in found if one is not None]
        if len(parts) > 1 and len(pairs) == len(parts) and all(is_brief(value) for _, value in pairs):
            return pairs
    return []


def fact_in(line: str) -> tuple[str, str] | None:
    """Return the name and the value of a line that states one, in few words; None for a sentence or anything else."""
    pair = pair_in(_SIGN.sub("", line.strip(), count=1)) if len(line) <= _LONGEST_LINE else None
    if pair is None or _NAME.fullmatch(pair[0]) is None or pair[0].lower().split(" ")[0] in _REMARKS:
        return None
    value = pair[1].strip().strip("*`").strip()
    return (pair[0].rstrip("*"), value) if value and is_brief(value) else None


def is_brief(value: str) -> bool:
    """Return whether a text is a value, and no sentence."""
    listed = value.count(", ")
    ends = re.search(r"(?:[a-z)]{2}\.|[!?:;])$", value) is not None
    return len(value) <= _LONGEST * (1 + listed // 4) and len(value.split()) - listed <= _MOST_WORDS and not ends


def _parsed(lines: list[str]) -> _Outline:
    found = _Outline()
    filled = [line for line in without_code(lines) if line.strip()]
    current: _Section | None = None
    for position, line in enumerate(filled):
        stripped = _SIGN.sub("", line.strip(), count=1)
        following = filled[position + 1] if position + 1 < len(filled) else ""
        indent = len(line) - len(line.lstrip())
        if not stripped or _RULE.fullmatch(stripped):
            continue
        if len(stripped) > _LONGEST_LINE:
            found.other += 1
            continue
        heading = _heading(stripped, line, following)
        if heading is not None:
            title, lasts = heading
            if position == 0 and lasts and not stripped.startswith("##") and not _ITEM.fullmatch(following.strip()):
                found.title = title
            else:
                current = _Section(_ASIDE.sub("", title).strip(), lasts)
                found.sections.append(current)
        elif current is not None and _belongs(line, stripped, indent, current):
            _add(current, stripped, indent)
            found.read += 1
        else:
            current = current if current is not None and (current.lasts or indent) else None
            _add_outside(found, stripped, current, is_first=position == 0)
    return found


def _heading(stripped: str, line: str, following: str) -> tuple[str, bool] | None:
    """Return what a heading says, and whether it lasts to the next one; None for another line."""
    if named := _MARKDOWN.fullmatch(stripped):
        return named[2].strip("*: "), True
    if named := _BOLD.fullmatch(stripped):
        return named[1].strip(), True
    below = _RULE.fullmatch(following.strip()) is not None
    if below and _ITEM.fullmatch(stripped) is None and len(stripped) <= LONGEST_NAME and ": " not in stripped:
        return stripped.strip(": "), True
    if (named := _ABOVE.fullmatch(stripped)) and _ITEM.fullmatch(stripped) is None:
        deeper = len(following) - len(following.lstrip()) > len(line) - len(line.lstrip())
        if deeper or _ITEM.fullmatch(following.strip()):
            return named[1].strip(), False
    return None


def _belongs(line: str, stripped: str, indent: int, section: _Section) -> bool:
    """Return whether a line is a part of a section's list."""
    if _ITEM.fullmatch(_SIGN.sub("", line.strip(), count=1)):
        return True
    deeper = indent > max(0, section.indent)
    return fact_in(stripped) is not None and (deeper or (not section.bulleted and (section.lasts or indent > 0)))


def _add(section: _Section, stripped: str, indent: int) -> None:
    item = _ITEM.fullmatch(stripped)
    text = item[1] if item else stripped
    section.indent = indent if section.indent < 0 else section.indent
    if indent > section.indent and section.items:
        if (pair := fact_in(text)) is not None:
            section.details[-1].append(pair)
        return
    section.bulleted = section.bulleted or item is not None
    section.items.append(_SIGN.sub("", text, count=1))
    section.details.append([])


def _add_outside(found: _Outline, stripped: str, current: _Section | None, *, is_first: bool) -> None:
    """Add a line that no list holds: pairs, one or several beside each other, or the title, or prose."""
    facts = [fact_in(part) for part in re.split(r" [|\u00b7] ", stripped)]
    pairs = [fact for fact in facts if fact is not None]
    if current is None and pairs and len(pairs) == len(facts):
        found.pairs += pairs
        found.read += 1
    elif is_first and len(stripped) <= LONGEST_NAME and ":" not in stripped:
        found.title = stripped
    else:
        found.other += 1


def _own_pairs(outline: _Outline) -> list[tuple[str, str]]:
    """Return the pairs under headings that announce no list of things, such as "Statistics"."""
    return [pair for section in outline.sections if _describes(section.heading) for pair in _pairs(section)]


def _pairs(section: _Section) -> list[tuple[str, str]]:
    return [pair for item in section.items if (pair := fact_in(item)) is not None]


def _record(pairs: list[tuple[str, str]]) -> Record:
    """Return the record of these pairs, without names that stand for several values."""
    several = {name for name, _ in pairs if len({value for other, value in pairs if other == name}) > 1}
    record: Record = {}
    for name, value in pairs:
        if name not in several:
            put_amount(record, name, value)
    return record


def _is_singular(heading: str) -> bool:
    return _HEADING.fullmatch(heading) is not None and not is_plural(heading) and not _describes(heading)


def _is_sorted(outline: _Outline) -> bool:
    """Return whether the headings sort the things that a heading above them names, as "Immunity" does abilities."""
    above = [outline.title, *(one.heading for one in outline.sections if not one.items)]
    return any(_HEADING.fullmatch(title) is not None and is_plural(title) for title in above)


def _describes(heading: str) -> bool:
    return singular(heading.lower().split(" ")[-1]) in _OF_ITSELF


def _without_aside(record: Record) -> Record:
    """Return a record with the amount that stands in brackets behind its name beside it: "alpha (120 files)".

    Nothing says what a mere number there counts.
    """
    found = _COUNT.fullmatch(str(record.get("name", "")))
    if found is None:
        return record
    unit = {"description": f"{found[2]} {found[3]}"} if found[3] and "description" not in record else {}
    return {**record, "name": found[1], **unit}


def _records(section: _Section) -> list[Record]:
    """Return the records of a section under a plural; none where any entry is a sentence."""
    heading = section.heading
    if len(section.items) < _FEWEST_ITEMS or _HEADING.fullmatch(heading) is None or heading.count(" ") > 2:
        return []
    if not is_plural(heading) or _describes(heading):
        return []
    records = [_without_aside(described(item)) for item in section.items]
    for record, pairs in zip(records, section.details, strict=True):
        for name, value in pairs:
            put_amount(record, name, value)
    names = [record.get("name") for record in records]
    if any(not isinstance(name, str | int) or len(str(name).split()) > _MOST_NAMED for name in names):
        return []
    if not all(is_brief(str(value)) for record in records for value in record.values()):
        return []
    return amounts_in(records)
