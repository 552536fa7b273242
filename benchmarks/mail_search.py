"""Measure the mail database: how long it takes to build, and how long a search takes beside a scan.

    python -m benchmarks.mail_search --mails 100000 --out benchmarks/results/mail_search.json
    python -m benchmarks.mail_search --maildir ~/maildir

The mail is the synthetic company's, written to a tree of files in Enron's layout and to a CSV file, and built from
both; or the user's own. Searched are the keywords of questions and, as small models do, whole questions, in the inbox
and before the day of each. The scan is SQLite's LIKE on the same table for the same words.
"""

import argparse
import csv
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "servers/python/mcp_email_search"
sys.path.append(str(FOLDER))

from company import Letter, make_company  # noqa: E402
from mail_database import Inbox, MailDatabase  # noqa: E402


def text(letter: Letter) -> str:
    people = ", ".join(f"{person.name} <{person.address}>" for person in letter.to)
    return (
        f"Message-ID: <{letter.message_id}>\nDate: {letter.sent:%a, %d %b %Y %H:%M:%S} +0000 (UTC)\n"
        f"From: {letter.sender.name} <{letter.sender.address}>\nTo: {people}\nSubject: {letter.subject}\n"
        f"Mime-Version: 1.0\nContent-Type: text/plain; charset=us-ascii\nX-Folder: \\inbox\n\n{letter.body}\n"
    )


def write(letters: Iterable[Letter], folder: Path) -> tuple[Path, Path]:
    tree, table = folder / "maildir", folder / "emails.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "message"])
        for letter in letters:
            place = tree / letter.sender.address.partition("@")[0] / "sent"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{letter.number}.").write_text(text(letter), encoding="utf-8")
            rows.writerow([f"{place.name}/{letter.number}.", text(letter)])
    return tree, table


def built(database: Path, *words: str) -> dict[str, float]:
    begun, before = time.perf_counter(), processor_seconds()
    command = [sys.executable, str(FOLDER / "build_db.py"), *words, "--database", str(database), "--replace"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return {
        "seconds": round(time.perf_counter() - begun, 1),
        "processor_seconds": round(processor_seconds() - before, 1),
    }


def processor_seconds() -> float:
    """Return what children that have ended took, which other programs hardly move."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def milliseconds(calls: Iterable[Callable[[], object]]) -> dict[str, float]:
    taken = []
    for call in calls:
        begun = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - begun))
    return {"median_ms": round(statistics.median(taken), 3), "p95_ms": round(statistics.quantiles(taken, n=20)[-1], 3)}


def searches(path: Path, count: int) -> dict[str, Any]:
    database = MailDatabase(path)
    rows = [{**row, **json.loads(str(row["extra"]))} for row in database.questions()][:count]
    asked = [(row, database.inbox(row["inbox_address"], row["query_date"])) for row in rows]
    if not asked:  # the user's own mail: its subjects are what is searched for
        subjects = database._db.execute("SELECT subject FROM messages WHERE subject != '' LIMIT ?", [count])
        asked = [({"keywords": [subject], "question": subject}, Inbox()) for (subject,) in subjects]

    def scanned() -> Iterator[Callable[[], object]]:
        for row, inbox in asked[:20]:
            words = row["keywords"][0].split()
            where = " AND ".join(["subject || body LIKE ?"] * len(words) + ["inboxes || ' ' LIKE ?"])
            values = [*(f"%{word}%" for word in words), f"%a{inbox.owner} %" if inbox.owner else "%"]
            query = f"SELECT message_id FROM messages WHERE {where} ORDER BY sent DESC LIMIT 5"
            yield lambda query=query, values=values: database._db.execute(query, values).fetchall()  # type: ignore

    found = {
        "keywords": milliseconds(
            lambda r=r, i=i: database.search(r["keywords"][0], i, max_results=5) for r, i in asked
        ),
        "questions": milliseconds(lambda r=r, i=i: database.search(r["question"], i, max_results=5) for r, i in asked),
        "scan": milliseconds(scanned()),
    }
    answered = [(row, inbox) for row, inbox in asked if row.get("answer") is not None and row["hops"] == 1]
    right = sum(
        bool({hit.message_id for hit in database.search(row["keywords"][0], inbox, max_results=5)[0]}
             & set(json.loads(row["message_ids"])))
        for row, inbox in answered
    )  # fmt: skip
    return {
        **found,
        "scan_over_keywords": round(found["scan"]["median_ms"] / found["keywords"]["median_ms"], 1),
        "searches": len(asked),
        "answer_among_five": round(right / len(answered), 4) if answered else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mails", type=int, default=100_000)
    parser.add_argument("--searches", type=int, default=1000)
    parser.add_argument("--maildir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        database = Path(temporary) / "mail.db"
        seconds = {}
        if options.maildir:
            seconds["maildir"] = built(database, "--maildir", str(options.maildir))
        else:
            tree, table = write(make_company(options.mails, 0).letters, Path(temporary))
            seconds["maildir"] = built(database, "--maildir", str(tree))
            seconds["csv"] = built(database, "--csv", str(table))
            seconds["synthetic"] = built(database, "--synthetic", str(options.mails))
        mails = json.loads(MailDatabase(database).meta["complete"])["mails"]
        result = {
            "mails": mails,
            "megabytes": round(database.stat().st_size / 1e6, 1),
            "build": seconds,
            **searches(database, options.searches),
        }
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
