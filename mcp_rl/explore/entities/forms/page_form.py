"""Records in a web page written as Markdown: its links, its tables, and what it says of its subject in pairs.

A link that fills an entry of a list, or stands in the first cell of a row, is a record of the thing that it leads to.
Such records stand under the heading above them, if that is a plural. Of all other links only the address counts.
"""

from __future__ import annotations

import html
import re
from itertools import groupby
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from mcp_rl.explore.entities.forms.pair_form import pair_in, put
from mcp_rl.explore.entities.forms.quantities import with_numbers
from mcp_rl.explore.entities.forms.records import LONGEST_NAME, Record, RecordList, limited, whole_lines
from mcp_rl.explore.entities.forms.table_form import read_table
from mcp_rl.explore.entities.nouns import is_plural, plural, singular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LINK = re.compile(r"\[([^\[\]\n]{1,200})\]\(<?([^()\s>]{1,500})>?(?: \"[^\"\n]{0,200}\")?\)")
_IMAGE = re.compile(r"!\[[^\]\n]{0,300}\]\([^)\n]{0,600}\)")
_HEADING = re.compile(r"#{2,6} +(.{1,200}?)[ #]*")
"""A heading in the page; that of the page itself says nothing of its lists."""
_UNDERLINE, _WORDS = re.compile(r"-{3,200} *"), re.compile(r"\w[^|]{1,200}")
"""The line below a heading that is written in two lines, and a line that may be one."""
_ITEM = re.compile(r"(?:[-*+]|\d{1,4}[.)]) +(\S.*)")
_DEFINITION = re.compile(r": +(\S.*)")
_NAMED_ROW = re.compile(r"\| *([^|]{1,60}?):? *\| *([^|]{1,300}?) *\|")
_HREF = re.compile(r"\bhref\s?=\s?[\"']([^\"'\s<>]{1,500})[\"']")
_ACTS = re.compile(r"(?i)(?:^|[/?&=])(?:log[-_]?out|sign[-_]?out|delete|remove|unsubscribe)(?=$|[/?&=.#])")
"""A link that is not only read."""
_ASIDE = re.compile(r"\b(?:of|in|on|at|by|for|from|near|with|to)\b.*")
_TRUNCATED = re.compile(r"(?i)\btruncated\b")
"""The remark below a page of which only the beginning is shown."""
_TAIL = 300
"""Characters at the end of a page in which that remark stands."""
_PAGES, _ENTRIES = "pages", "entries"
_NAMES = ("name", "title", "the", "and")
"""Words in the name of a column that say nothing of the rows."""
_READ = 50_000
"""Characters of a page in which links are looked for."""


def is_page(text: str) -> bool:
    """Return whether a text has a link, without which it may be any text."""
    return any(map(_links_in, whole_lines(_IMAGE.sub("", text))[0]))


def same_site(base: str, target: str) -> str | None:
    """Return the whole address to which a link on the page `base` leads; None if that is another site, or none, or if
    the link seems to do something."""
    if _ACTS.search(target):
        return None
    try:
        address = urljoin(base, target)
        site, leads_to = urlsplit(base), urlsplit(address)
    except ValueError:
        return None
    return address if leads_to.netloc == site.netloc and leads_to.scheme in ("http", "https") else None


def addresses_in(text: str, base: str) -> list[str]:
    """Return the addresses on the same site to which a page leads, in Markdown or HTML, without their fragments."""
    text = _IMAGE.sub("", text[:_READ])
    targets = [*(target for _, target in _LINK.findall(text)), *map(html.unescape, _HREF.findall(text))]
    found = (same_site(base, target.partition("#")[0]) for target in targets if not target.startswith("#"))
    return list(dict.fromkeys(address for address in found if address is not None))


def read_page(text: str) -> list[RecordList]:
    """Return the records of a page, which may have no links."""
    lines, cut = whole_lines(_IMAGE.sub("", text))
    cut = cut or _TRUNCATED.search(text[-_TAIL:]) is not None
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
                records = with_numbers(one.records)
                kept = [_leading_on(*pair) for pair in zip(records, map(_links_in, rows[2:]), strict=False)]
                tables.append(limited(kept, _noun_of_rows(noun, kept), cut=cut, rows=True))
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
        found = _HEADING.fullmatch(line.strip())
        underlined = _UNDERLINE.fullmatch(line) and block and _WORDS.fullmatch(block[-1])
        if found or underlined:
            heading = found[1] if found else block.pop()
            yield noun, block
            noun, block = _listed_under(_plain(heading)), []
        else:
            block.append(line)
    yield noun, block


def _tables(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of each table."""
    for in_table, rows in groupby((line.strip() for line in lines), key=lambda line: line.startswith("|")):
        if in_table:
            yield list(rows)


def _noun_of_rows(above: str, rows: Sequence[Record]) -> str:
    """Return the plural above a table, unless it names the whole page or a column; else that of the first column."""
    first, *others = (name.lower() for name in (rows[0] if rows else {"": ""}))
    if above != _PAGES and singular(above) not in others:
        return above
    words = [word for word in first.split() if re.fullmatch(r"[a-z]{3,20}", word) and word not in _NAMES]
    return plural(singular(words[-1])) if words else _ENTRIES


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
