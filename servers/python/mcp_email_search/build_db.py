"""Build the mail database: `python build_db.py [--maildir DIR | --mbox FILE | --csv FILE | --synthetic N]`.

The database is built in a file of its own beside its place and appears there when it is complete. A build that was
interrupted goes on where it stopped; one that fails leaves nothing. `--questions FILE` adds questions, JSON Lines.
"""

import argparse
import hashlib
import itertools
import json
import os
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from company import Letter, make_company, questions
from mail_database import SCHEMA, VERSION, DatabaseError, MailDatabase, SearchError, default_path, partial_path
from mail_files import ParsedMail, Unusable, count_files, csv_mails, maildir_mails, mbox_mails, parse_mail
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

BATCH = 1000
SMALL = 2000
"""Mails of the synthetic company that is built where nothing is named."""
FEWEST, MOST = 100, 1_000_000
MOST_QUESTIONS = 5000
FIELDS = ("id", "question", "answer", "message_ids", "how_realistic", "inbox_address", "query_date", "split")


Read = tuple[ParsedMail | None, str, int, int]
"""A mail, or None and the reason to leave it out; the place after it; and how much is done by then."""


@dataclass(frozen=True)
class MailSource:
    """The origin of mail."""

    name: str
    """Says whether a half-built database is of the same mail."""
    total: int
    """Mails, or bytes of a file."""
    read: Callable[[int], Iterator[Read]]
    """Reads from a place on."""
    questions: Callable[[], Iterable[Mapping[str, Any]]] = tuple


def file_source(kind: str, path: Path) -> MailSource:
    """Return the mail in a user's files. Raises DatabaseError if there are none."""
    path = path.expanduser().absolute()
    if kind == "maildir":
        total = count_files(path)
        name = f"maildir {path} {total}"
    elif path.is_file():
        found = path.stat()
        total, name = found.st_size, f"{kind} {path} {found.st_size} {found.st_mtime_ns}"
    else:
        raise DatabaseError(f"The file {path} does not exist; name one with mail in it (--{kind}).")
    raw_mails = {"maildir": maildir_mails, "mbox": mbox_mails, "csv": csv_mails}[kind]

    def read(place: int) -> Iterator[Read]:
        for raw in raw_mails(path, place):
            try:
                if raw.data is None:
                    raise Unusable("too large")
                yield parse_mail(raw.data), "", raw.place, raw.done
            except Unusable as reason:
                yield None, str(reason), raw.place, raw.done

    return MailSource(name, total, read)


def synthetic_source(mails: int, seed: int) -> MailSource:
    """Return the mail of a made-up company."""
    company = make_company(mails, seed)

    def read(place: int) -> Iterator[Read]:
        for number, letter in enumerate(company.letters[place:], place + 1):
            yield parsed(letter), "", number, number

    def asked() -> Iterable[Mapping[str, Any]]:
        return itertools.islice(questions(company, seed), MOST_QUESTIONS)

    return MailSource(f"synthetic {mails} {seed}", mails, read, asked)


def parsed(letter: Letter) -> ParsedMail:
    """Return a made-up mail as if it had been read from a file."""
    everybody = (letter.sender, *letter.to)
    names = [f"{person.name} <{person.address}>" for person in everybody]
    return ParsedMail(
        letter.message_id,
        letter.number.to_bytes(8),
        letter.sent.isoformat(),
        letter.sender.name,
        tuple(person.address for person in everybody),
        f"from {names[0]} to {'; '.join(names[1:])}",
        letter.subject,
        letter.body,
    )


class Builder:
    """A database while it is built. Close it; `finish` moves it to its place."""

    def __init__(self, database: Path, source: MailSource) -> None:
        self.database, self.path, self.source = database, partial_path(database), source
        database.parent.mkdir(parents=True, exist_ok=True)
        self.db = self._open()
        self.addresses: dict[str, int] = {
            address: number for number, address in self.db.execute("SELECT id, address FROM addresses")
        }
        self.counts = Counter(json.loads(self._meta("counts", "{}")))
        self.place = int(self._meta("place", "0"))

    def _open(self) -> sqlite3.Connection:
        for _ in range(2):
            db = sqlite3.connect(self.path, isolation_level=None, timeout=0.5)
            try:
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                db.execute("PRAGMA synchronous = OFF")  # a killed process loses nothing; a power cut begins again
                db.execute("BEGIN EXCLUSIVE")
                if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
                    for statement in SCHEMA.split(";"):
                        db.execute(statement)
                    db.executemany(
                        "INSERT INTO meta VALUES (?, ?)", [("version", VERSION), ("source", self.source.name)]
                    )
                found = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('version', 'source')"))
                db.execute("COMMIT")
                if found == {"version": VERSION, "source": self.source.name}:
                    return db
            except sqlite3.OperationalError as error:
                db.close()
                if "locked" in str(error):
                    raise DatabaseError(f"Another process is building {self.database}; wait for it.") from error
                raise
            except sqlite3.DatabaseError:  # a file that is none, as after a power cut
                pass
            db.close()
            self.path.unlink()
        raise DatabaseError(f"{self.path} changes while it is built; wait for the other process.")

    def _meta(self, key: str, otherwise: str) -> str:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", [key]).fetchone()
        return str(row[0]) if row else otherwise

    def add(self, batch: Sequence[Read]) -> None:
        """Add mails, all or none, with the place after the last one."""
        self.db.execute("BEGIN")
        for mail, reason, _, _ in batch:
            self.counts[reason if mail is None else self._add(mail)] += 1
        self.place = batch[-1][2]
        self.db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [("place", str(self.place)), ("counts", json.dumps(self.counts))],
        )
        self.db.execute("COMMIT")

    def _add(self, mail: ParsedMail) -> str:
        inboxes = " ".join(f"a{self._address(address)}" for address in mail.addresses)
        added = self.db.execute(
            "INSERT OR IGNORE INTO messages (sent, message_id, digest, sender, inboxes, people, subject, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (mail.sent, mail.message_id, mail.digest, mail.sender, inboxes, mail.people, mail.subject, mail.body),
        )
        if not added.rowcount:
            return "duplicate"
        self.db.execute(
            "INSERT INTO search (rowid, subject, body, people, inboxes) VALUES (?, ?, ?, ?, ?)",
            (added.lastrowid, mail.subject, mail.body, mail.people, inboxes),
        )
        return "mails"

    def _address(self, address: str) -> int:
        if address not in self.addresses:
            self.addresses[address] = len(self.addresses) + 1
            self.db.execute("INSERT INTO addresses VALUES (?, ?)", (self.addresses[address], address))
        return self.addresses[address]

    def finish(self) -> None:
        """Complete the database and move it to its place. Raises DatabaseError if it holds no mail."""
        if not self.counts["mails"]:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.counts.items()) or "nothing there"
            raise DatabaseError(f"No mail was found in {self.source.name.split(' ')[1]} ({reasons}).")
        self.db.execute("BEGIN")
        add_questions(self.db, self.source.questions())
        self.db.execute("INSERT INTO search (search) VALUES ('optimize')")
        self.db.execute("INSERT OR REPLACE INTO meta VALUES ('complete', ?)", [json.dumps(self.counts)])
        self.db.execute("COMMIT")
        self.db.close()
        put_in_place(self.path, self.database)


def put_in_place(path: Path, database: Path) -> None:
    """Make a finished file durable and give it the database's name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    path.replace(database)


def build(database: Path, source: MailSource) -> Counter[str]:
    """Build a database, or go on with a half-built one; return how many mails it holds and how many were left out.

    Raises DatabaseError, and then leaves no file.
    """
    builder = Builder(database, source)
    try:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        console = Console(stderr=True)
        with Progress(
            *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
        ) as progress:
            bar = progress.add_task("Building the mail database", total=source.total)
            read = source.read(builder.place)
            while batch := list(itertools.islice(read, BATCH)):
                builder.add(batch)
                progress.update(bar, completed=batch[-1][3])
            progress.update(bar, description="Completing the index")
            builder.finish()
    except (DatabaseError, sqlite3.Error, OSError) as error:
        builder.db.close()
        partial_path(database).unlink(missing_ok=True)
        if isinstance(error, DatabaseError):
            raise
        raise DatabaseError(f"The mail database {database} cannot be built: {error}.") from error
    finally:
        builder.db.close()
    return builder.counts


def add_questions(db: sqlite3.Connection, rows: Iterable[Mapping[str, Any]]) -> int:
    """Put questions in the place of those that are there; return their number."""
    db.execute("DELETE FROM questions")
    values = [
        [
            *(row[name] if name != "message_ids" else json.dumps(row[name]) for name in FIELDS),
            json.dumps(row.get("extra", {})),
        ]
        for row in rows
    ]
    db.executemany(f"INSERT INTO questions VALUES ({', '.join('?' * (len(FIELDS) + 1))})", values)
    return len(values)


def read_questions(path: Path, database: MailDatabase) -> Iterator[dict[str, Any]]:
    """Yield the questions of a JSON Lines file. Raises DatabaseError with the line of one that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DatabaseError(f"Cannot read the questions {path}: {getattr(error, 'strerror', error)}.") from error
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = checked_question(json.loads(line), database)
                if row["id"] in seen:
                    raise ValueError(f"the id {row['id']!r} is that of an earlier question")
            except (ValueError, RecursionError, SearchError) as error:
                raise DatabaseError(f"{path}, line {number}: {str(error).rstrip('.')}.") from error
            seen.add(row["id"])
            yield row
    if not seen:
        raise DatabaseError(f"{path} holds no question; write one JSON object on each line.")


def checked_question(row: object, database: MailDatabase) -> dict[str, Any]:
    """Return a question with all fields. Raises ValueError or SearchError for one that the database cannot answer."""
    if not isinstance(row, dict):
        raise ValueError("a question is a JSON object")
    missing = [name for name in ("question", "message_ids", "inbox_address", "query_date") if not row.get(name)]
    if missing and not (missing == ["message_ids"] and row.get("answer") is None):
        raise ValueError(f"the field {missing[0]!r} is missing")
    ids = row.get("message_ids") or []
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise ValueError("message_ids must be a list of texts")
    for name in ("question", "inbox_address", "query_date"):
        if not isinstance(row[name], str):
            raise ValueError(f"{name} must be a text")
    if row.get("split", "train") not in ("train", "val", "test"):
        raise ValueError(f"split must be train, val or test, not {row['split']!r:.60}")
    inbox = database.inbox(row["inbox_address"], row["query_date"])
    answer, realistic = row.get("answer"), row.get("how_realistic", 1.0)
    return {
        "id": str(row.get("id") or hashlib.sha256(row["question"].encode()).hexdigest()[:16]),
        "question": row["question"],
        "answer": None if answer is None else str(answer),
        "message_ids": [database.read(one, inbox).message_id for one in ids],
        "how_realistic": float(realistic),
        "inbox_address": row["inbox_address"],
        "query_date": row["query_date"],
        "split": row.get("split", "train"),
    }


def replace_questions(path: Path, file: Path) -> int:
    """Put a file's questions into a complete database, whole or not at all; return their number."""
    database = MailDatabase(path)
    with closing(database):
        rows = list(read_questions(file, database))
    partial = partial_path(path)
    shutil.copyfile(path, partial)
    try:
        with closing(sqlite3.connect(partial)) as db, db:
            count = add_questions(db, rows)
        put_in_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return count


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(prog="build-db", description="Build the mail database that is searched.")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--maildir", type=Path, metavar="DIR", help="a tree of mails: Maildir, or Enron's maildir")
    source.add_argument("--mbox", type=Path, metavar="FILE", help="an mbox file")
    source.add_argument("--csv", type=Path, metavar="FILE", help="a table with the columns file and message")
    source.add_argument("--synthetic", type=int, metavar="N", help=f"N mails of a made-up company (default: {SMALL})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the made-up company")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="questions about the mail, JSON Lines")
    parser.add_argument("--database", type=Path, default=default_path(), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--replace", action="store_true", help="replace a database that is there")
    options = parser.parse_args(words)
    try:
        return run(options)
    except (DatabaseError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; the same command goes on from there.", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    database: Path = options.database.expanduser().absolute()
    kind = next((kind for kind in ("maildir", "mbox", "csv") if getattr(options, kind) is not None), None)
    if database.exists() and not options.replace:
        if kind or options.synthetic is not None or options.questions is None:
            raise DatabaseError(f"There is a mail database {database} already; add --replace, or name another file.")
    else:
        if kind:
            chosen = file_source(kind, getattr(options, kind))
        else:
            mails = SMALL if options.synthetic is None else options.synthetic
            if not FEWEST <= mails <= MOST:
                raise DatabaseError(f"A company of {mails} mails cannot be made; ask for {FEWEST} to {MOST}.")
            chosen = synthetic_source(mails, options.seed)
        counts = build(database, chosen)
        left_out = ", ".join(f"{count} {reason}" for reason, count in counts.items() if reason != "mails")
        print(f"{database}: {counts['mails']} mails{f'; left out: {left_out}' if left_out else ''}.")
    if options.questions is not None:
        print(f"{replace_questions(database, options.questions.expanduser())} questions.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
