"""A mail database: one SQLite file with a full-text index (FTS5), the people's inboxes, and questions about the mail.

It is opened read-only. Times are UTC texts such as 2001-05-14T16:39:00. Whatever a caller searches for is quoted, so
that no character of it has a meaning in FTS5's query language.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

VERSION = "1"
"""Version of the schema. A database of another version is refused."""
LOCATION = "MCP_RL_EMAIL_DB"
"""The environment variable that names the database."""
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, sent TEXT NOT NULL, message_id TEXT NOT NULL UNIQUE, digest BLOB NOT NULL UNIQUE,
    sender TEXT NOT NULL, inboxes TEXT NOT NULL, people TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE addresses (id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE);
CREATE TABLE questions (
    id TEXT PRIMARY KEY, question TEXT NOT NULL, answer TEXT, message_ids TEXT NOT NULL, how_realistic REAL NOT NULL,
    inbox_address TEXT NOT NULL, query_date TEXT NOT NULL, split TEXT NOT NULL, extra TEXT NOT NULL
);
CREATE VIRTUAL TABLE search USING fts5 (
    subject, body, people, inboxes, content='messages', content_rowid='id', tokenize='porter unicode61'
);
"""
MOST_RESULTS = 20
BUILD = f"`python {Path(__file__).with_name('build_db.py')}`"
"""The command that builds a database."""
_MOST_WORDS = 32
_RANK = "bm25(search, 1.0, 2.0, 0.2, 0.0)"
"""Weights of subject, body, people and inboxes: replies have the subject of the mail that holds the answer."""
_COMMON = frozenset(
    "a about all am an and any are as at be been but by can did do does for from had has have he her him his how i if "
    "in into is it its me my no not of on or our she should so tell than that the their them there they this to us "
    "was we were what when where which who whom whose why will with would you your".split()
)
"""Words that are not searched for where others are."""


class DatabaseError(Exception):
    """The database cannot be used; the message is a sentence for the person who runs it."""


class SearchError(Exception):
    """A search or a reading that cannot be done; the message is a sentence for the model."""


@dataclass(frozen=True)
class Hit:
    """A mail that was found, with the words that were searched for between ** and **."""

    message_id: str
    sent: str
    sender: str
    subject: str
    snippet: str


@dataclass(frozen=True)
class Mail:
    """A whole mail."""

    message_id: str
    sent: str
    sender: str
    people: str
    """Sender and recipients, each as a name with an address."""
    subject: str
    body: str


@dataclass(frozen=True)
class Inbox:
    """The mail that an episode can see: of one person, up to the end of one day. None: no limit."""

    owner: int | None = None
    """Id of the owner's address."""
    until: str | None = None
    """The first moment that lies too late."""


def default_path() -> Path:
    """Return the database that MCP_RL_EMAIL_DB names, else the one in the user's data folder."""
    if named := os.environ.get(LOCATION):
        return Path(named).expanduser().absolute()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(data) / "mcp_rl" / "email_search.db"


def partial_path(database: Path) -> Path:
    """Return the file in which a database is built."""
    return database.with_name(f"{database.name}.partial")


class MailDatabase:
    """A complete database, open for reading. Raises DatabaseError if it is missing, half-built or of another
    version."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            half = partial_path(path).exists()
            what = "is only half-built; go on with" if half else "does not exist; build it with"
            raise DatabaseError(f"The mail database {path} {what} {BUILD}.")
        try:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self.meta = dict(self._db.execute("SELECT key, value FROM meta"))
        except sqlite3.Error as error:
            raise DatabaseError(
                f"{path} is not a mail database ({error}); remove it, or name another file, and use {BUILD}."
            ) from error
        if self.meta.get("version") != VERSION:
            found = self.meta.get("version", "unknown")
            raise DatabaseError(
                f"The mail database {path} has version {found}, not {VERSION}; remove it and build it with {BUILD}."
            )
        if "complete" not in self.meta:
            raise DatabaseError(f"The mail database {path} is only half-built; remove it and use {BUILD}.")

    def close(self) -> None:
        self._db.close()

    def inbox(self, address: str | None, day: str | None) -> Inbox:
        """Return the inbox of an address as it was at the end of a day. Raises SearchError for unknown ones."""
        owner = None
        if address is not None:
            row = self._db.execute("SELECT id FROM addresses WHERE address = ?", [_clean(address).lower()]).fetchone()
            if row is None:
                raise SearchError(f"No mail was sent by or to {address!r:.100}.")
            (owner,) = row
        until = None if day is None else (_day("query_date", day) + timedelta(days=1)).isoformat()
        return Inbox(owner, until)

    def search(
        self,
        keywords: str,
        inbox: Inbox,
        *,
        sent_after: str | None = None,
        sent_before: str | None = None,
        max_results: int = MOST_RESULTS,
    ) -> tuple[list[Hit], bool]:
        """Return the best hits, and whether they hold all words; if no mail does, those that hold some.

        Mail of the day `sent_after` or later and before the day `sent_before` is found. Raises SearchError.
        """
        phrases = _phrases(keywords)
        limits = ["1"]
        values: list[str] = []
        for condition, value in (
            ("sent >= ?", sent_after and _day("sent_after", sent_after).isoformat()),
            ("sent < ?", sent_before and _day("sent_before", sent_before).isoformat()),
            ("sent < ?", inbox.until),
        ):
            if value is not None:
                limits.append(condition)
                values.append(value)
        hits = self._hits(" AND ".join(phrases), inbox, limits, values, max_results)
        if hits or len(phrases) == 1:
            return hits, True
        return self._hits(" OR ".join(phrases), inbox, limits, values, max_results), False

    def _hits(self, words: str, inbox: Inbox, limits: Sequence[str], values: Sequence[str], count: int) -> list[Hit]:
        match = f"{{subject body people}} : ({words})"
        if inbox.owner is not None:
            match = f'inboxes : "a{inbox.owner}" AND {match}'
        rows = self._db.execute(
            "SELECT message_id, sent, sender, highlight(search, 0, '**', '**'), "
            "snippet(search, 1, '**', '**', '…', 24) "
            "FROM search JOIN messages ON messages.id = search.rowid "
            f"WHERE search MATCH ? AND {' AND '.join(limits)} ORDER BY {_RANK}, sent DESC LIMIT ?",
            [match, *values, count],
        )
        return [Hit(*row) for row in rows]

    def read(self, message_id: str, inbox: Inbox) -> Mail:
        """Return a mail of the inbox. Raises SearchError if it has none of that id."""
        row = self._db.execute(
            "SELECT message_id, sent, sender, people, subject, body, inboxes FROM messages WHERE message_id = ?",
            [bare_id(_clean(message_id))],
        ).fetchone()
        if (
            row is None
            or (inbox.until is not None and row[1] >= inbox.until)
            or (inbox.owner is not None and f"a{inbox.owner}" not in row[6].split())
        ):
            raise SearchError(f"There is no mail {message_id!r:.200} here; take a message_id from a search result.")
        return Mail(*row[:6])

    def questions(self) -> Iterator[dict[str, object]]:
        """Yield the rows of the questions, in their order."""
        with closing(self._db.cursor()) as cursor:
            cursor.execute("SELECT * FROM questions ORDER BY rowid")
            names = [column[0] for column in cursor.description]
            for row in cursor:
                yield dict(zip(names, row, strict=True))


def bare_id(message_id: str) -> str:
    """Return a Message-ID without the brackets around it."""
    return message_id.strip().removeprefix("<").removesuffix(">").strip()


def _phrases(keywords: str) -> list[str]:
    """Return each word, and each text in double quotes, as a string of FTS5's query language. Raises SearchError."""
    found = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|([^\s"]+)', _clean(keywords))]
    words = list(dict.fromkeys(word for word in found if any(map(str.isalnum, word))))
    words = [word for word in words if word.lower().strip(".,;:?!'()") not in _COMMON] or words
    if not words:
        raise SearchError("The keywords hold no word; give one or more words.")
    if len(words) > _MOST_WORDS:
        raise SearchError(f"There are {len(words)} keywords; give at most {_MOST_WORDS}.")
    return ['"' + word + '"' for word in words]  # no word holds a quote


def _clean(text: str) -> str:
    """Return the text without NUL and lone surrogates, which SQLite does not take."""
    return text.replace("\0", " ").encode(errors="replace").decode()


def _day(name: str, text: str) -> date:
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise SearchError(f"{name} must be a date such as 2001-05-14, not {text!r:.60}.") from None
