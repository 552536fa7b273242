"""Random pages: an index, and texts with a table each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp_rl.tiny.lexicon import FILLER, NAMES, NOUNS

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from mcp_rl.tiny.values import Vocabulary


@dataclass(frozen=True)
class Page:
    """A text with a table of R rows and C columns; the first column names the row."""

    title: str
    address: str
    head: str
    """What the server says before the text."""
    prose: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Sequence[Page] = ()

    def __str__(self) -> str:
        cells = [self.columns, ["---"] * len(self.columns), *self.rows] if self.rows else []
        table = "\n".join("| " + " | ".join(row) + " |" for row in cells)
        links = "\n".join(f"* [{page.title}]({page.address})" for page in self.links)
        return "\n\n".join(part for part in (self.head, *self.prose, table, links) if part)


def _number(rng: random.Random, most: int) -> str:
    return str(rng.randrange(most))


def random_pages(rng: random.Random, words: Vocabulary, root: str) -> list[Page]:
    """Return an index of pages, and then these pages."""
    base = root if rng.random() < 0.5 else f"http://{words.word()}.{rng.choice(('org', 'com', 'example'))}"
    if rng.random() < 0.3:
        base = f"http://127.0.0.1:{rng.randrange(1024, 65536)}"
    ending = rng.choice(("", ".html", ".md", ".txt"))
    columns = [rng.choice((*NOUNS, "item", "name", words.word()))]
    columns += [rng.choice((*FILLER, *NOUNS, words.word())) for _ in range(rng.choice((1, 1, 2, 3)))]
    columns = list(dict.fromkeys([*columns, "amount"])) if len(set(columns)) == 1 else list(dict.fromkeys(columns))
    makers = [
        words.word if rng.random() < 0.4 else functools.partial(_number, rng, 10 ** rng.choice((1, 2, 2, 3)))
        for _ in columns[1:]
    ]
    named = [rng.choice((*NAMES, *FILLER, words.word())) for _ in range(12)]
    style = rng.choice(("# {}", "{}\n===", "{}", "## {}"))
    before = rng.choice(("", "", "Contents of {}:\n", "{}\n", "Source: {}\n\n"))
    pages = []
    for word in dict.fromkeys(words.word() for _ in range(rng.choice((1, 3, 6, 9)))):
        title, address = rng.choice((word.capitalize(), word)), f"{base}/{word}{ending}"
        rows = [
            [name, *(make() for make in makers)]
            for name in dict.fromkeys(rng.choice(named) for _ in range(rng.choice((2, 3, 3, 4, 6, 9))))
        ]
        prose = [" ".join(words.sentence() for _ in range(rng.choice((1, 2, 3)))) for _ in range(rng.choice((0, 1, 2)))]
        pages.append(Page(title, address, before.format(address) + style.format(title), prose, columns, rows))
    start = f"{base}/" + rng.choice(("", "", f"index{ending}", f"{words.word()}{ending}"))
    return [Page("", start, before.format(start).strip(), (), (), (), pages), *pages]
