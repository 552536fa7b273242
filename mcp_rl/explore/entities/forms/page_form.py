"""Records in a web page written as Markdown: its links, its tables, and what it says of its subject in pairs.

A link that fills an entry of a list, or stands in the first cell of a row, is a record of the thing that it leads to.
Such records stand under the heading above them, if that is a plural. Of all other links only the address counts.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from mcp_rl.explore.entities.forms.pair_form import pair_in, put
from mcp_rl.explore.entities.forms.records import LONGEST_NAME, Record, RecordList, limited, whole_lines
from mcp_rl.explore.entities.forms.table_form import read_table
from mcp_rl.explore.entities.nouns import is_plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LINK = re.compile(r"\[([^\[\]\n]{1,200})\]\(<?([^()\s>]{1,500})>?(?: \"[^\"\n]{0,200}\")?\)")
_IMAGE = re.compile(r"!\[[^\]\n]{0,300}\]\([^)\n]{0,600}\)")
_HEADING = re.compile(r"#{2,6} +(.{1,200}?)[ #]*")
"""A heading in the page; that of the page itself says nothing of its lists."""
_ITEM = re.compile(r"(?:[-*+]|\d{1,4}[.)]) +(\S.*)")
_DEFINITION = re.compile(r": +(\S.*)")
_NAMED_ROW = re.compile(r"\| *([^|]{1,60}?):? *\| *([^|]{1,300}?) *\|")
_ASIDE = re.compile(r"\b(?:of|in|on|at|by|for|from|near|with|to)\b.*")
_PAGES = "pages"


def read_page(text: str) -> list[RecordList]:
    """Return the records of a page; none where it has no link, as it may be any text then."""
    lines, cut = whole_lines(_IMAGE.sub("", text))
    if not any(map(_links_in, lines)):
        return []
    subject: Record = {}
    tables: list[RecordList] = []
    lists: dict[str, list[Record]] = {}
    for noun, block in _sections(lines):
        for rows in _tables(block):
            if not rows[0].strip("| "):  # no names of columns: rows of a name and a value
                for row in rows[2:]:
                    if found := _NAMED_ROW.fullmatch(row):
                        put(subject, found[1], _plain(found[2]))
                continue
            for one in read_table("\n".join(map(_plain, rows))):
                kept = [_leading_on(*pair) for pair in zip(one.records, map(_links_in, rows[2:]), strict=False)]
                tables.append(limited(kept, noun, cut=cut))
        above = ""
        for line in block:
            stripped = line.strip()
            item = _ITEM.fullmatch(stripped)
            if not stripped.startswith("|"):
                _put_pair(subject, _plain(item[1] if item else stripped), above)
            whole = item is not None and _LINK.fullmatch(item[1]) is not None
            for link in _links_in(line):
                lists.setdefault(noun if whole else _PAGES, []).append(link if whole else {"url": link["url"]})
            above = stripped or above
    found_lists = [limited(_distinct(records), name, cut=cut) for name, records in lists.items()]
    return [*([limited([subject], several=False)] if subject else []), *tables, *found_lists]


def _sections(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the lines below each heading, and before the first one, with the noun of the things listed there."""
    noun, block = _PAGES, list[str]()
    for line in lines:
        if found := _HEADING.fullmatch(line.strip()):
            yield noun, block
            noun, block = _listed_under(_plain(found[1])), []
        else:
            block.append(line)
    yield noun, block


def _tables(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of each table."""
    for in_table, rows in groupby((line.strip() for line in lines), key=lambda line: line.startswith("|")):
        if in_table:
            yield list(rows)


def _listed_under(heading: str) -> str:
    """Return the plural in a heading: "lakes" for "Lakes of the north"; "pages" where there is none."""
    said = _ASIDE.sub("", heading.lower()).strip(": ")
    return said if len(said.split()) in (1, 2, 3) and is_plural(said) else _PAGES


def _links_in(line: str) -> list[Record]:
    """Return the links of a line to other pages."""
    found = ((name.strip("*_` "), target.partition("#")[0]) for name, target in _LINK.findall(line))
    return [{"name": name, "url": url} for name, url in found if url and not re.match(r"(?!https?:)[a-zA-Z]+:", url)]


def _plain(text: str) -> str:
    """Return a text with the words of its links in their place."""
    return _LINK.sub(lambda found: found[1], text)


def _leading_on(record: Record, links: Sequence[Record]) -> Record:
    """Return the record of a row, with the address to which its first cell leads."""
    leads = bool(links) and links[0]["name"] == next(iter(record.values()), None)
    return {**record, "url": links[0]["url"]} if leads else record


def _put_pair(subject: Record, text: str, above: str) -> None:
    """Put what a line says of the page's subject into its record: "Depth: 12 m", or a definition of the term above."""
    if (found := _DEFINITION.fullmatch(text)) is not None and 0 < len(above) <= LONGEST_NAME:
        put(subject, above.strip("*"), found[1])
    elif (pair := pair_in(text)) is not None and pair[1] and pair[0] not in subject:
        put(subject, *pair)


def _distinct(records: Sequence[Record]) -> list[Record]:
    return list({record["url"]: record for record in reversed(records)}.values())[::-1]
